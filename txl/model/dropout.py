"""Dropout on activations B×T×D, anew at each position or locked over the segment. Knows nothing of what it drops."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zero each feature with probability p and scale the rest, in training alone.

    locked: one mask B×1×D for all positions of a segment, variational dropout (Gal & Ghahramani 2016), for small data.
    """

    def __init__(self, p: float, *, locked: bool = False) -> None:
        super().__init__()
        self.p = p
        self.locked = locked

    def forward(self, x: Tensor) -> Tensor:
        """Same shape; positions are the last axis but one."""
        if not self.training or self.p == 0.0:
            return x
        if not self.locked:
            return F.dropout(x, self.p)
        return x * F.dropout(torch.ones_like(x[..., :1, :]), self.p)
