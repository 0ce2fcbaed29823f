"""Weights of the layers in 8 bits for evaluation and streaming: a quarter of their bytes, activations as they are.

A trained model -> the same model with each row w of a layer's weight kept as round(w / s), s = max|w| / 127. Products
are those of fp32 with the rounded weights, so that neither batches nor chunks change a result; embedding, softmax,
norms and biases keep their precision. Nothing can be trained afterwards.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.model.kernels.linear import Linear

LEVELS = 127
FEW_ROWS = 2
"""Rows of activations below which the 8-bit weight is read as it is; for more it is widened first, once for all."""


class Int8Linear(nn.Module):
    """A linear layer whose weight O×I is int8, with a scale for each row."""

    weight: Tensor
    scale: Tensor

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        weight = source.weight.detach()
        scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(weight.dtype).tiny) / LEVELS
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = source.bias

    def forward(self, x: Tensor) -> Tensor:
        """…×I -> …×O."""
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) >= FEW_ROWS or x.dtype == torch.float64:
            return F.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype)[:, None], self.bias)
        out = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale.to(x.dtype)).view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


@torch.no_grad()
def to_int8(model: nn.Module) -> None:
    """Replace every linear layer of `model`, in place, by its 8-bit form."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                setattr(module, name, Int8Linear(child))
