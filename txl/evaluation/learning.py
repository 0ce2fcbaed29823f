"""How a run was trained: the records of its log -> curves short enough to draw, and the time of a step.

Knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from txl.data import Corpus

LEARNING_POINTS = 200
"""Points of a training curve; each is the mean over the steps since the one before."""


@dataclass(frozen=True)
class Learning:
    """How a loss fell in training, nats a token; bytes_per_token turns them into bits a byte.

    name: train (mean over the steps in between, dropout on) or valid.
    steps, tokens, seconds: of training when each loss was taken.
    """

    name: str
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    nll: tuple[float, ...]
    bytes_per_token: float


def learning_of(history: Sequence[Mapping[str, Any]], corpus: Corpus) -> tuple[Learning, ...]:
    """Training and validation losses by step, the training ones averaged to at most `LEARNING_POINTS`."""
    curves = []
    usable = [record for record in history if record.get("nll") is not None]
    edges = sorted({round(edge) for edge in np.linspace(0, len(usable), LEARNING_POINTS + 1)})
    groups = [usable[first:stop] for first, stop in pairwise(edges)]
    means = [sum(float(record["nll"]) for record in group) / len(group) for group in groups]
    ends = [group[-1] for group in groups]
    valid = [record for record in history if record.get("valid_nll") is not None]
    for name, records, losses, part in (
        ("train", ends, means, corpus.train),
        ("valid", valid, [float(record["valid_nll"]) for record in valid], corpus.valid),
    ):
        if records:
            steps, tokens = (tuple(int(record[key]) for record in records) for key in ("step", "tokens"))
            seconds = tuple(float(record["elapsed_seconds"]) for record in records)
            curves.append(Learning(name, steps, tokens, seconds, tuple(losses), part.bytes / part.tokens))
    return tuple(curves)


def step_seconds_of(history: Sequence[Mapping[str, Any]]) -> tuple[float, float, float] | None:
    """Median, 10 % and 90 % quantile of the seconds of a training step, the first left out; None for too few.

    A record's `tokens` count from the beginning and its `tokens_per_second` are those of its step alone.
    """
    taken = [
        (after["tokens"] - before["tokens"]) / after["tokens_per_second"]
        for before, after in pairwise(history)
        if after["tokens_per_second"] and after["step"] == before["step"] + 1
    ]
    if len(taken) < 2:
        return None
    tenths = quantiles(taken, n=10, method="inclusive")
    return tenths[4], tenths[0], tenths[8]
