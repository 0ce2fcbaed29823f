"""Losses given by a fresh model: every pass begins with nothing, so the context of a target is exactly what was fed.

A model, a text and targets -> their nats, each after exactly, at least or at most so many tokens. Unlike a window
through the cache, whose reach grows with depth, this is the context of the paper's RECL and of any fair comparison
with a fixed-context model. Knows nothing of files, units or pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from txl.evaluation import scoring
from txl.evaluation.scoring import Array
from txl.model import Model
from txl.model.modes import evaluating

Progress = Callable[[int, int], None]
"""progress(targets done, targets in all)."""
WINDOW_TOKENS = 16_384
"""Tokens of windows read in one pass: bounds memory."""


@dataclass(frozen=True)
class Text:
    """What is scored.

    ids: N.  bytes_per_id: V, the bytes of text each id stands for.
    resets: bool N, where contexts begin anew; None: nowhere.  starts: where documents begin, ascending from 0.
    """

    ids: Array
    bytes_per_id: Array
    resets: Array | None = None
    starts: Array | None = None

    def scored_bytes(self, targets: Array) -> float:
        """Bytes of the tokens after the given inputs."""
        return float(self.bytes_per_id[self.ids[targets + 1]].sum(dtype=np.float64))


def sample_of(targets: int, count: int, *, seed: int = 0) -> Array:
    """Inputs whose targets are sampled: one from each of `count` equal parts of 0 … targets-1, or all of them.

    A function of three numbers, so that every model that reads the same text is scored on the same tokens.
    """
    if targets <= count:
        return np.arange(targets)
    edges = np.arange(count + 1) * targets // count
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def rows_at_once(model: Model, length: int) -> int:
    """How many windows of so many tokens are read in one pass, bounded by their tokens and their logits."""
    return max(1, min(WINDOW_TOKENS, scoring.LOGITS // model.vocab_size) // length)


def slide(model: Model, text: Text, targets: Array, context: int, *, progress: Progress | None = None) -> Array:
    """Nats of the token after each of the inputs `targets`, each from a fresh pass over exactly the `context` tokens up
    to it.

    int64 K -> K. Near the beginning of the text the context is all there is. For absolute positions it equals
    `evaluate` with window context - 1; a model with a cache or a state is cut off just as hard.
    """
    scoring.check_positive(context=context)
    lengths = np.minimum(targets + 1, context)
    nll = np.empty(len(targets), dtype=scoring.result_dtype(model))
    done = 0
    with evaluating(model.modules()):
        for length in np.unique(lengths):
            at_once = rows_at_once(model, length)
            where = np.flatnonzero(lengths == length)
            for rows in np.split(where, range(at_once, len(where), at_once)):
                position = targets[rows, None] + np.arange(1 - length, 1)
                wanted = np.where(position == targets[rows, None], text.ids[position + 1].astype(np.int64), -100)
                begins = np.zeros_like(position, dtype=bool) if text.resets is None else text.resets[position]
                nll[rows] = scoring.fresh_nll(model, text.ids[position], wanted, begins)[:, -1]
                done += len(rows)
                if progress is not None:
                    progress(done, len(targets))
    return nll


def stride(model: Model, text: Text, least: int, step: int, *, progress: Progress | None = None) -> Array:
    """Nats of all N - 1 targets, `step` of them a fresh pass: each given `least` to least + step - 1 tokens.

    With least 3 and step 2, x scored and . read only; near the beginning the context is all there is:

        input     0 1 2 3 4 5
        pass 0    x x
        pass 1    . . x x
        pass 2        . . x x

    A pass reads least + step - 1 tokens, so a target costs (least - 1) / step + 1 tokens instead of `least`.
    """
    scoring.check_positive(least=least, step=step)
    count = len(text.ids) - 1
    nll = np.empty(count, dtype=scoring.result_dtype(model))
    with evaluating(model.modules()):
        for rows in _passes(count, least, step, at_once=rows_at_once(model, least + step - 1)):
            first, stop = rows[0], min(count, rows[0] + step)
            lead = min(first, least - 1)
            position = np.asarray(rows)[:, None] + np.arange(-lead, stop - first)
            wanted = text.ids[position + 1].astype(np.int64)
            wanted[:, :lead] = -100
            begins = np.zeros_like(position, dtype=bool) if text.resets is None else text.resets[position]
            scored = scoring.fresh_nll(model, text.ids[position], wanted, begins)[:, lead:]
            nll[position[:, lead:]] = scored
            if progress is not None:
                progress(int(position[-1, -1]) + 1, count)
    return nll


def _passes(count: int, least: int, step: int, *, at_once: int) -> list[Sequence[int]]:
    """The first scored input of each pass, passes of one shape together: short leads alone, the rest in groups."""
    begins = list(range(0, count, step))
    alone = [first for first in begins if first < least - 1 or first + step > count]
    alike = [first for first in begins if least - 1 <= first <= count - step]
    groups = [alike[i : i + at_once] for i in range(0, len(alike), at_once)]
    return sorted([*([first] for first in alone), *groups], key=lambda rows: rows[0])


def slid_contexts(contexts: Sequence[int], *, own: int, learned: bool) -> list[int]:
    """The contexts a model with absolute positions is scored at: those up to its own length, and the next one beyond.

    Beyond its own length it meets positions it was never trained on; learned ones are not even there.
    """
    beyond = sorted(context for context in contexts if context > own)
    return sorted({own, *(c for c in contexts if c < own), *(beyond[:1] if not learned else [])})
