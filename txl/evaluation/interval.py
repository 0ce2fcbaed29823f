"""How sure a mean is: losses in text order -> sums over stretches of text -> bootstrap intervals, also between models.

Neighbouring tokens are not independent, so whole stretches are drawn, never single tokens. Knows nothing of models or
units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

STRETCHES = 64
"""Into how many stretches of equal length a text is cut."""
FEWEST_DOCUMENTS = 20
"""Stretches of whole documents below which documents are cut: too few to draw from."""
DRAWS = 4000
"""Bootstrap samples behind an interval: its ends then move by about 0.1 of a standard error from seed to seed."""
LEVEL = 0.95
"""Share of the samples that an interval holds."""


def stretches_of(targets: int, starts: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Where the stretches of a text of so many targets begin, ascending from 0: at documents where there are enough.

    A document is what other text of the kind would bring anew, so where at least `FEWEST_DOCUMENTS` stretches can be
    made of whole documents they are; else stretches are of equal length. starts: first input of each document.
    """
    even = np.arange(min(STRETCHES, targets)) * targets // min(STRETCHES, targets)
    inside = np.zeros(0, dtype=np.int64) if starts is None else np.asarray(starts)[np.asarray(starts) < targets]
    if len(inside) < FEWEST_DOCUMENTS:
        return even.astype(np.int64)
    nearest = np.unique(inside[np.searchsorted(inside, even, side="right") - 1])
    return nearest.astype(np.int64) if len(nearest) >= FEWEST_DOCUMENTS else even.astype(np.int64)


def sums_by_stretch(
    values: npt.NDArray[Any], positions: npt.NDArray[Any], begins: npt.NDArray[np.int64]
) -> tuple[float, ...]:
    """The sum of the values at the given inputs over each stretch of `stretches_of`."""
    stretch = np.searchsorted(begins, positions, side="right") - 1
    sums = np.bincount(stretch, weights=np.asarray(values, dtype=np.float64), minlength=len(begins))
    return tuple(float(value) for value in sums)


def ratio_interval(top: Sequence[float], bottom: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of sum(top) / sum(bottom), stretches drawn in pairs (Efron, Tibshirani 1993).

    With bottom the tokens of each stretch it is the interval of a mean; with bottom another model's sums over the same
    tokens it is the interval of the paired ratio. Raises ValueError where the two are not of one length or fewer than
    two.
    """
    if len(top) != len(bottom) or len(top) < 2:
        raise ValueError(f"an interval needs the same stretches twice, two or more; found {len(top)} and {len(bottom)}")
    held = (np.asarray(top) != 0) | (np.asarray(bottom) != 0)  # a stretch that holds none of the tokens says nothing
    tops, bottoms = np.asarray(top)[held], np.asarray(bottom)[held]
    count = len(tops)
    if count < 2:
        return math.nan, math.nan
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (weights @ tops) / (weights @ bottoms)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def comparison_intervals(sums: Sequence[Sequence[float]], counts: Sequence[float]) -> list[tuple[float, float]]:
    """95 % intervals of several means over the same stretches, without the part that all of them share.

    How hard a stretch of text is moves all means alike and says nothing about their differences, so what a stretch's
    sums differ from those of its row's mean, averaged over the rows, is taken out before drawing (Cousineau 2005) and
    the spread corrected for it by n / (n - 1) (Morey 2008). One row keeps its plain interval.
    """
    held = np.asarray(counts) != 0
    rows, tokens = np.asarray(sums, dtype=np.float64)[:, held], np.asarray(counts, dtype=np.float64)[held]
    if len(tokens) < 2:
        return [(math.nan, math.nan)] * len(rows)
    if len(rows) > 1:
        expected = rows.sum(axis=1, keepdims=True) / tokens.sum() * tokens  # were every stretch as hard as the text
        own = rows - expected
        rows = expected + (own - own.mean(axis=0)) * np.sqrt(len(rows) / (len(rows) - 1))
    return [ratio_interval(list(row), list(tokens)) for row in rows]
