"""Token vectors, in one table or in clusters whose rarer tokens get narrower ones: ids B×T -> B×T×D.

Adaptive input representations (Baevski & Auli 2019): the vocabulary, sorted by frequency, is cut at `cutoffs`;
cluster i keeps vectors of width d_embed / div_val^i and a projection to D. Knows nothing of positions or layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig


def cluster_bounds(config: ModelConfig, vocab_size: int) -> list[tuple[int, int]]:
    """First and last + 1 id of each cluster; one cluster without cutoffs."""
    ends = [*(config.cutoffs or ()), vocab_size]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def cluster_width(config: ModelConfig, index: int) -> int:
    """Features a token of cluster `index` has before its projection."""
    return max(1, (config.d_embed or config.d_model) // config.div_val**index)


def has_projections(config: ModelConfig) -> bool:
    """Whether vectors are projected to D: where widths differ, as the published code has it."""
    return config.div_val > 1 or (config.d_embed or config.d_model) != config.d_model


class Embedding(nn.Module):
    """One table a cluster, V_i×E_i, and one projection D×E_i a cluster (with div_val 1 the clusters share one)."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.bounds = cluster_bounds(config, vocab_size)
        widths = [cluster_width(config, index) for index in range(len(self.bounds))]
        self.tables = nn.ParameterList(
            nn.Parameter(torch.zeros(stop - start, width))
            for (start, stop), width in zip(self.bounds, widths, strict=True)
        )
        projected = (widths if config.div_val > 1 else widths[:1]) if has_projections(config) else []
        self.projections = nn.ParameterList(nn.Parameter(torch.zeros(config.d_model, width)) for width in projected)

    def projection(self, index: int) -> Tensor | None:
        """The projection of cluster `index`, D×E_i; None where its vectors have the width D already."""
        if len(self.projections) == 0:
            return None
        chosen: Tensor = self.projections[min(index, len(self.projections) - 1)]
        return chosen

    def forward(self, ids: Tensor) -> Tensor:
        """B×T×D. Every cluster looks up every id and keeps its own: no cluster ever lacks a gradient, no shape
        depends on data."""
        if len(self.bounds) > 1 and bool(((ids < 0) | (ids >= self.bounds[-1][1])).any()):
            found = f"found {int(ids.min())} to {int(ids.max())}"
            raise IndexError(f"ids: {found}; allowed: 0 to {self.bounds[-1][1] - 1}, the vocabulary of this model")
        out = None
        for index, ((start, stop), table) in enumerate(zip(self.bounds, self.tables, strict=True)):
            vectors = F.embedding((ids - start).clamp(0, stop - start - 1) if len(self.bounds) > 1 else ids, table)
            projection = self.projection(index)
            if projection is not None:
                vectors = F.linear(vectors, projection).to(
                    table.dtype
                )  # the residual stream is float32 in autocast too
            if out is None:
                out = vectors
                continue
            inside = ((ids >= start) & (ids < stop))[..., None]
            out = torch.where(inside, vectors, out)
        assert out is not None
        return out
