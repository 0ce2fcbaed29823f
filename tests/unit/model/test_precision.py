"""Under autocast only products are rounded: what is summed over many numbers or exponentiated stays float32."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models import BASE, VOCAB
from txl.config import ModelConfig
from txl.model import build_model, use_attention

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
SENSITIVE = (
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "rsqrt",
    "sin",
    "cos",
    "exp",
    "nll_loss_forward",
    "cumsum",
)
LSTM = ModelConfig(arch="lstm", position="none", mem_len=0, n_layer=2, d_model=8, tgt_len=5)


class Seen(TorchDispatchMode):
    """Notes the types of floating-point tensors that go into each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, set[torch.dtype]] = defaultdict(set)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = {arg.dtype for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point()}
        self.types[func.overloadpacket.__name__] |= found
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "config",
    [
        BASE,
        replace(BASE, pre_lnorm=True, norm="rms", activation="swiglu", same_length=True),
        replace(BASE, qk_norm=True),
        replace(BASE, qk_norm=True, norm="rms"),
        replace(BASE, cutoffs=(4, 7), div_val=2, dropout=0.1, dropatt=0.1),
        replace(BASE, position="alibi"),
        replace(BASE, position="rotary"),
        replace(BASE, arch="transformer", position="sinusoidal", mem_len=0),
        LSTM,
    ],
    ids=["relative", "pre-norm", "qk-norm", "qk-norm-rms", "adaptive", "alibi", "rotary", "sinusoidal", "lstm"],
)
def test_loss_softmax_positions_and_norms_are_float32_and_products_bf16(config: ModelConfig) -> None:
    model = build_model(config, VOCAB)
    use_attention(model, "reference")
    ids = torch.randint(VOCAB, (3, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16), Seen() as seen:
        first = model(ids, targets=ids)
        out = model(ids, memory=first.memory, targets=ids)
        out.nll.sum().backward()
    assert out.nll.dtype == torch.float32
    assert torch.bfloat16 in set().union(*(seen.types[name] for name in PRODUCTS))
    sensitive = {name: seen.types[name] for name in SENSITIVE if name in seen.types}
    assert "_log_softmax" in sensitive
    assert all(types <= {torch.float32, torch.float64} for types in sensitive.values()), sensitive
    if config.arch != "lstm":
        assert "_softmax" in sensitive
        norm = "rsqrt" if config.norm == "rms" else "native_layer_norm"
        assert norm in sensitive or any("rms_norm" in name for name in seen.types)
        rms = set().union(*(types for name, types in seen.types.items() if "rms_norm" in name))
        assert rms <= {torch.float32}
    if config.position in ("relative", "sinusoidal", "rotary"):
        assert {"sin", "cos"} <= set(sensitive)
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
