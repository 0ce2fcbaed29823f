"""No option is dead: each field of ModelConfig, changed alone, changes an output, a shape or a named effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import BASE, VOCAB, random_ids
from txl.config import ModelConfig
from txl.data.streams import Streams
from txl.model import Model, build_model

DROP = replace(BASE, dropout=0.3)
CLUSTERS = replace(BASE, cutoffs=(4, 9), div_val=2, d_embed=16)


def shapes(config: ModelConfig) -> Any:
    """Names and shapes of the parameters."""
    return {name: tuple(value.shape) for name, value in build(config).named_parameters()}


def kind(config: ModelConfig) -> Any:
    """The class that was built."""
    return type(build(config)).__name__


def spread(config: ModelConfig) -> Any:
    """Standard deviations of the initial weights."""
    return [value.std().item() for value in build(config).parameters() if value.numel() > 30]


def output(config: ModelConfig) -> Any:
    """Logits of three segments in training mode, same weights and same random numbers wherever the shapes allow."""
    model = lively(build(config)).train()
    torch.manual_seed(9)
    memory, logits = None, []
    for part in random_ids(2, 15).split(5, dim=1):
        out = model(part, memory)
        memory = out.memory
        logits.append(out.logits.detach())
    return torch.cat(logits, dim=1)


def segments(config: ModelConfig) -> Any:
    """Shape of the first segment a stream of that length gives."""
    ids = np.arange(60) % VOCAB
    streams = Streams(ids.astype(np.uint8), np.array([0]), batch_size=2, tgt_len=config.tgt_len)
    return tuple(next(streams).inputs.shape)


def bytes_kept(config: ModelConfig) -> Any:
    """Bytes autograd keeps for the backward pass of a segment."""
    model = build(config).train()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.nbytes) or x, lambda x: x):
        model(random_ids(2, 5), targets=random_ids(2, 5))
    return sum(kept)


def build(config: ModelConfig) -> Model:
    torch.manual_seed(0)
    return build_model(config, VOCAB)


def lively(model: Model) -> Model:
    """The same lively weights for every model with the same parameters."""
    draw = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.4)
    return model


Effect = Callable[[ModelConfig], Any]
CASES: dict[str, tuple[ModelConfig, Any, Effect]] = {
    "arch": (replace(BASE, mem_len=0), "transformer", kind),
    "n_layer": (BASE, 3, shapes),
    "d_model": (BASE, 12, shapes),
    "n_head": (BASE, 2, shapes),
    "d_head": (BASE, 6, shapes),
    "d_inner": (BASE, 9, shapes),
    "dropout": (BASE, 0.3, output),
    "dropatt": (BASE, 0.3, output),
    "position": (BASE, "alibi", output),
    "tgt_len": (BASE, 6, segments),
    "mem_len": (BASE, 3, output),
    "clamp_len": (BASE, 4, output),
    "same_length": (BASE, True, output),
    "untie_r": (BASE, False, shapes),
    "pre_lnorm": (BASE, True, output),
    "norm": (BASE, "rms", shapes),
    "qk_norm": (BASE, True, shapes),
    "activation": (BASE, "gelu", output),
    "cutoffs": (BASE, (4, 9), shapes),
    "div_val": (replace(BASE, cutoffs=(4, 9), d_embed=16), 2, shapes),
    "d_embed": (BASE, 6, shapes),
    "tie_weight": (BASE, False, shapes),
    "tie_projs": (CLUSTERS, "none", shapes),
    "init_std": (BASE, 0.1, spread),
    "proj_init_std": (CLUSTERS, 0.3, spread),
    "locked_dropout": (DROP, True, output),
    "activation_checkpointing": (BASE, True, bytes_kept),
    "initial_memory": (BASE, "zeros", output),
    "window_includes_self": (replace(BASE, same_length=True), True, output),
}


def test_every_field_has_its_case() -> None:
    assert list(CASES) == [field.name for field in fields(ModelConfig)]


@pytest.mark.parametrize("name", CASES)
def test_a_changed_field_changes_something(name: str) -> None:
    base, value, effect = CASES[name]
    assert getattr(base, name) != value
    before, again, after = effect(base), effect(base), effect(replace(base, **{name: value}))
    if isinstance(before, torch.Tensor):
        assert torch.equal(before, again)
        assert not torch.equal(before, after)
    else:
        assert before == again
        assert before != after
