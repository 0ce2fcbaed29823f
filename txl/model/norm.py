"""The normalisation a configuration names, over the last axis. Knows nothing of what it normalises."""

from __future__ import annotations

from torch import nn

from txl.config import ModelConfig


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """LayerNorm or RMSNorm of vectors of that width."""
    return nn.LayerNorm(width) if config.norm == "layer" else nn.RMSNorm(width, eps=1e-5)
