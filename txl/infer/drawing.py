"""Which rows of a batch still draw, and what with: a generator a row, and the sequences of ids that end one.

Seeds and stop sequences -> numbers, and who goes on after what was drawn. Knows nothing of models or distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Drawn:
    """One step of drawing: ids int64 B on the CPU, each already read, -1 in a finished row; and what the model itself
    thought of every id before, log_probs B×V (uniform in a row that had read nothing)."""

    ids: Tensor
    log_probs: Tensor


class Rows:
    """The rows of one call of `draw`, each with its own numbers; a row whose newest ids are a stop sequence is done."""

    def __init__(self, seeds: Sequence[int], stops: Sequence[list[int]]) -> None:
        self.active = [True] * len(seeds)
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._tails: list[list[int]] = [[] for _ in seeds]

    def uniforms(self) -> Tensor:
        """The next number of every row in [0, 1) with 53 random bits, float64 B."""
        return torch.cat([torch.rand(1, dtype=torch.float64, generator=one) for one in self._generators])

    def lengths(self) -> Tensor | None:
        """int64 B: 1 for a row that goes on, 0 for one that is done; None where all go on."""
        return None if all(self.active) else torch.tensor(self.active, dtype=torch.int64)

    def see(self, ids: Tensor) -> None:
        """What every row has drawn, int64 B."""
        if not self._stops:
            return
        self._tails = [[*tail, new][-self._longest :] for tail, new in zip(self._tails, ids.tolist(), strict=True)]
        self.active = [
            on and not any(tail[-len(one) :] == one for one in self._stops)
            for on, tail in zip(self.active, self._tails, strict=True)
        ]
