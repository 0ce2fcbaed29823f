"""The normalisation a configuration names, over the last axis. Knows nothing of what it normalises."""

from __future__ import annotations

from torch import nn

from txl.config import ModelConfig


def make_norm(config: ModelConfig, width: int, *, bias: bool = True) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm or RMSNorm of vectors of that width; bias: whether LayerNorm learns a shift."""
    return nn.LayerNorm(width, bias=bias) if config.norm == "layer" else nn.RMSNorm(width, eps=1e-5)
