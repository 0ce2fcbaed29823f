"""How sure a mean is: losses in text order -> sums over stretches of text -> bootstrap intervals, also between models.

Neighbouring tokens are not independent, so whole stretches are drawn, never single tokens. Knows nothing of models or
units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

STRETCHES = 64
"""Into how many stretches of equal length a text is cut."""
DRAWS = 4000
"""Bootstrap samples behind an interval: its ends then move by about 0.1 of a standard error from seed to seed."""
LEVEL = 0.95
"""Share of the samples that an interval holds."""


def stretch_sums(values: npt.NDArray[Any], stretches: int = STRETCHES) -> tuple[float, ...]:
    """Sums over that many consecutive parts whose lengths differ by at most one; fewer where values are fewer."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(stretches, len(values)))
    return tuple(float(part.sum()) for part in parts)


def ratio_interval(top: Sequence[float], bottom: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of sum(top) / sum(bottom), stretches drawn in pairs (Efron, Tibshirani 1993).

    With bottom the tokens of each stretch it is the interval of a mean; with bottom another model's sums over the same
    tokens it is the interval of the paired ratio. Raises ValueError where the two are not of one length or fewer than
    two.
    """
    if len(top) != len(bottom) or len(top) < 2:
        raise ValueError(f"an interval needs the same stretches twice, two or more; found {len(top)} and {len(bottom)}")
    count = len(top)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    ratios = (weights @ np.asarray(top)) / (weights @ np.asarray(bottom))
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def comparison_intervals(sums: Sequence[Sequence[float]], counts: Sequence[float]) -> list[tuple[float, float]]:
    """95 % intervals of several means over the same stretches, without the part that all of them share.

    How hard a stretch of text is moves all means alike and says nothing about their differences, so each stretch's mean
    over the rows is taken out before drawing (Cousineau 2005) and the spread corrected for it by n / (n - 1) (Morey
    2008). One row keeps its plain interval.
    """
    rows = np.asarray(sums, dtype=np.float64)
    if len(rows) > 1:
        own = rows - rows.mean(axis=0)
        spread = (own - own.mean(axis=1, keepdims=True)) * np.sqrt(len(rows) / (len(rows) - 1))
        rows = rows.mean(axis=1, keepdims=True) + spread
    return [ratio_interval(list(row), counts) for row in rows]
