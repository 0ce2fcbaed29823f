"""Products of activations with weights: torch's own, or in fp32 on a CPU oneDNN's where they are exact and faster.

x …×I, weight O×I, bias O -> …×O. On some processors torch's fp32 products (MKL) run at half of what oneDNN reaches
with the same numbers; which is so is probed once a process. Its product is a private operator of torch, used here
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Products = Literal["auto", "torch", "onednn"]

LEAST_ROWS = 16
"""Rows from which on oneDNN is used: fewer are a matter of reading the weight, and equally fast."""
LEAST_GAIN = 1.4
"""How much faster oneDNN must be in the probe to be chosen: far from 1, so that noise does not choose another today."""

_asked: list[Products] = ["auto"]


class Linear(nn.Linear):
    """torch's linear layer through `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """…×I -> …×O."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias by the chosen products."""
    if torch.compiler.is_compiling() or x.numel() < LEAST_ROWS * x.shape[-1]:
        return F.linear(x, weight, bias)
    on_cpu_in_fp32 = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    if not on_cpu_in_fp32 or torch.is_autocast_enabled("cpu") or chosen() == "torch":
        return F.linear(x, weight, bias)
    product: Tensor = _Product.apply(x, weight, bias)
    return product


def use_products(products: Products) -> None:
    """Say which products this process uses from now on; auto asks the probe."""
    _asked[0] = products


def asked_products() -> Products:
    """What `use_products` was told last."""
    return _asked[0]


def chosen() -> Literal["torch", "onednn"]:
    """What fp32 products on a CPU run through."""
    if _asked[0] == "auto":
        return "onednn" if probe() >= LEAST_GAIN else "torch"
    return _asked[0]


@cache
def probe() -> float:
    """How many times faster oneDNN's product is than torch's, 0 where it is missing or not equal; some 30 ms, once."""
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(256, 512, generator=draw), torch.randn(1024, 512, generator=draw)
    try:
        exact = torch.allclose(onednn(x, weight, None), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    except (AttributeError, RuntimeError):
        return 0.0
    if not exact:
        return 0.0
    theirs, own = [], []
    for _ in range(15):
        theirs.append(seconds_of(lambda: F.linear(x, weight)))
        own.append(seconds_of(lambda: onednn(x, weight, None)))
    return min(theirs) / max(min(own), 1e-9)  # the least of each: what else runs on the machine only ever adds


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weightᵀ + bias, rows×I and O×I -> rows×O; a first operand with gaps would fall to a slow reference kernel."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")
    return product


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds this process computed in one call: on a busy machine the clock on the wall would choose by chance."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


class _Product(torch.autograd.Function):
    """The product and its three gradients, all by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows, flat = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        d_x = onednn(rows, weight.t(), None).view_as(x) if needs_x else None
        d_weight = onednn(rows.t(), flat.t(), None) if needs_weight else None
        return d_x, d_weight, rows.sum(0) if needs_bias else None
