"""How far back a model can fetch what it was told: made-up texts with known answers -> accuracy by distance.

Knows nothing of training or files. A right answer is the most probable token of the whole vocabulary, so guessing
among the values gives a tenth, among the letters a twenty-sixth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from txl.data.recall import Answer
from txl.evaluation import fresh, scoring
from txl.evaluation.perplexity import Progress
from txl.evaluation.scoring import Array
from txl.model import Model
from txl.model.modes import evaluating

SEGMENT_TOKENS = 256
"""Tokens of each text read at once through a cache."""


@dataclass(frozen=True)
class Probed:
    """Answers of one task at distances from `distance` to below its double: how many there were and were right."""

    task: str
    distance: int
    right: int
    answers: int

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.right / self.answers


def probe(
    model: Model,
    texts: Sequence[tuple[Array, Sequence[Answer]]],
    *,
    window: int | None = None,
    progress: Progress | None = None,
) -> list[Probed]:
    """Accuracy by task and distance over several texts of ids, all of one length.

    window: earlier positions a layer may see; None: the model's own. A model with absolute positions gives each answer
    in a fresh pass over the window + 1 tokens before it; others read the texts side by side through their cache.
    progress(done, total) counts tokens fed.
    """
    counts: dict[tuple[str, int], list[int]] = {}
    ids = np.stack([text for text, _ in texts])
    rows, columns = (np.concatenate(parts) for parts in zip(*map(_places, enumerate(texts)), strict=True))
    guessed = _guesses(model, ids, rows, columns - 1, window, progress)
    answers = [answer for _, given in texts for answer in given]
    for answer, right in zip(answers, (guessed == ids[rows, columns]).tolist(), strict=True):
        count = counts.setdefault((answer.task, 1 << (answer.distance.bit_length() - 1)), [0, 0])
        count[0] += right
        count[1] += 1
    return [Probed(task, distance, *counts[task, distance]) for task, distance in sorted(counts)]


def _places(numbered: tuple[int, tuple[Array, Sequence[Answer]]]) -> tuple[Array, Array]:
    """Row and column of each answer of one text."""
    row, (_, answers) = numbered
    return np.full(len(answers), row), np.array([answer.position for answer in answers], dtype=np.int64)


def _guesses(
    model: Model, ids: Array, rows: Array, inputs: Array, window: int | None, progress: Progress | None
) -> Array:
    """The most probable token after each of the inputs ids[row, input], int64."""
    device = scoring.device_of(model)
    guessed = np.empty(len(rows), dtype=np.int64)
    with evaluating(model.modules()):
        if scoring.kind_of(model) == "slide":
            context = (model.default_window if window is None else window) + 1
            lengths = np.minimum(inputs + 1, context)
            for length in np.unique(lengths):
                alike = np.flatnonzero(lengths == length)
                at_once = max(1, fresh.WINDOW_TOKENS // int(length))
                for some in np.split(alike, range(at_once, len(alike), at_once)):
                    place = inputs[some, None] + np.arange(1 - length, 1)
                    read = torch.from_numpy(ids[rows[some, None], place].astype(np.int64)).to(device)
                    hidden = model(read, targets=torch.full_like(read, -100)).hidden[:, -1]
                    guessed[some] = model.logits(hidden).argmax(-1).cpu().numpy()
                    if progress is not None:
                        progress(int(some[-1]) + 1, len(rows))
            return guessed
        cache = model.new_cache(len(ids), window=window)
        for begin in range(0, ids.shape[1], SEGMENT_TOKENS):
            read = torch.from_numpy(ids[:, begin : begin + SEGMENT_TOKENS].astype(np.int64)).to(device)
            hidden = model.advance(read, cache)
            some = np.flatnonzero((inputs >= begin) & (inputs < begin + SEGMENT_TOKENS))
            if len(some):
                asked = hidden[
                    torch.from_numpy(rows[some]).to(device), torch.from_numpy(inputs[some] - begin).to(device)
                ]
                guessed[some] = model.logits(asked).argmax(-1).cpu().numpy()
            if progress is not None:
                progress(min(begin + SEGMENT_TOKENS, ids.shape[1]), ids.shape[1])
    return guessed
