"""Small models for tests: every size different, so that a swapped axis cannot pass, and option sets covered pairwise
or in full."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl.config import ModelConfig, model_problems
from txl.model import Memory, Model, build_model, use_attention
from txl.model.kernels.attend import Backend

VOCAB = 13
BASE = ModelConfig(
    n_layer=2, d_model=10, n_head=3, d_head=4, d_inner=14, tgt_len=5, mem_len=7, position="relative", init_std=0.3
)
LSTM = ModelConfig(arch="lstm", n_layer=2, d_model=6, position="none", tgt_len=5, mem_len=0, init_std=0.3)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}

OPTIONS: dict[str, Sequence[Any]] = {
    "position": ("relative", "shaw", "rotary", "alibi", "none", "sinusoidal", "learned"),
    "pre_lnorm": (False, True),
    "untie_r": (True, False),
    "mem_len": (7, 3, 0),
    "same_length": (False, True),
    "clamp_len": (None, 4),
    "norm": ("layer", "rms"),
    "qk_norm": (False, True),
    "activation": ("relu", "gelu", "swiglu"),
    "tie_weight": (True, False),
    "cutoffs": ((), (4, 9)),
    "div_val": (1, 2),
    "d_embed": (None, 6),
    "tie_projs": ("all", "all_but_first", "none"),
}


ATTENTION_OPTIONS = ("position", "pre_lnorm", "untie_r", "mem_len", "same_length", "clamp_len")
"""The options whose full product is tested with `--all`; the others act on each position alone and are covered
pairwise."""


def combinations(*, full: bool) -> list[ModelConfig]:
    """Every valid combination of ATTENTION_OPTIONS, or few combinations of all OPTIONS that hold each valid pair of
    values (each pair that 20,000 seeded draws hold)."""
    if full:
        return valid_configs(ATTENTION_OPTIONS, itertools.product(*(OPTIONS[name] for name in ATTENTION_OPTIONS)))
    draw = random.Random(0)
    drawn = {tuple(draw.choice(values) for values in OPTIONS.values()): None for _ in range(20_000)}
    return pairwise(valid_configs(tuple(OPTIONS), drawn))


def valid_configs(names: Sequence[str], drawn: Iterable[Sequence[Any]]) -> list[ModelConfig]:
    """The configs of the given option values that the package accepts."""
    configs = [replace(BASE, **dict(zip(names, values, strict=True))) for values in drawn]
    return [config for config in configs if not model_problems(config, vocab_size=VOCAB)]


def pairwise(configs: list[ModelConfig]) -> list[ModelConfig]:
    """Greedily, configs that together hold every pair of option values that any config holds."""

    def pairs(config: ModelConfig) -> set[Any]:
        chosen = [(name, getattr(config, name)) for name in OPTIONS]
        return set(itertools.combinations(chosen, 2))

    held = [pairs(config) for config in configs]
    open_pairs = set().union(*held)
    picked = []
    while open_pairs:
        best = max(range(len(configs)), key=lambda index: len(held[index] & open_pairs))
        picked.append(configs[best])
        open_pairs -= held[best]
    return picked


def make_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    vocab: int = VOCAB,
    backend: Backend = "auto",
) -> Model:
    """A model with lively random weights in evaluation mode; biases too, which start at zero otherwise."""
    torch.manual_seed(seed)
    model = build_model(config, vocab)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    use_attention(model, backend)
    return model.to(dtype).eval()


def weights_of(model: torch.nn.Module) -> dict[str, Any]:
    """The parameters as float64 numpy arrays, for the reference."""
    return {name: value.detach().double().numpy() for name, value in model.state_dict().items()}


def window_of(config: ModelConfig) -> int | None:
    """The window of the training mask: mem_len earlier positions where every query sees the same number."""
    return config.mem_len if config.same_length else None


def random_ids(batch_size: int, n_tokens: int, *, seed: int = 1, vocab: int = VOCAB) -> Tensor:
    """int64 B×N."""
    return torch.randint(0, vocab, (batch_size, n_tokens), generator=torch.Generator().manual_seed(seed))


def read_in_segments(
    model: Model, ids: Tensor, lengths: Iterable[int], *, resets: Tensor | None = None
) -> tuple[Tensor, Memory | None]:
    """Logits of a text B×N read in segments of the given lengths with memory, and the last memory."""
    memory, logits, start = None, [], 0
    for length in lengths:
        part = slice(start, start + length)
        out = model(ids[:, part], memory, resets=None if resets is None else resets[:, part])
        memory, start = out.memory, start + length
        logits.append(out.logits)
    return torch.cat(logits, dim=1), memory


def assert_close(found: Tensor | Any, expected: Tensor | Any, *, tolerance: float) -> None:
    """Equal shape, and no entry further apart than `tolerance` (absolute, and relative to the largest)."""
    left, right = (
        np.asarray(x.detach().double() if isinstance(x, Tensor) else x, dtype=np.float64) for x in (found, expected)
    )
    assert left.shape == right.shape, f"shapes differ: {left.shape} and {right.shape}"
    scale = max(1.0, float(np.abs(right).max(initial=0.0)))
    gap = float(np.abs(left - right).max(initial=0.0))
    assert gap <= tolerance * scale, f"furthest entries are {gap:.3e} apart, allowed {tolerance * scale:.1e}"
