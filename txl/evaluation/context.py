"""Loss against context length: a model and a text -> a point for each context, over all tokens and over a fixed sample.

Kinds of context are never mixed under one name (see `Settings.kind`). With a cache, a context c is the window of c
earlier positions that each layer may see, and n_layer * c tokens back can still matter. With absolute positions it is
exactly the c tokens before the target, window c - 1, the window slid by one token from target to target. Knows nothing
of files, tokenizers or pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, log

import numpy as np

from txl.evaluation import scoring
from txl.evaluation.interval import comparison_intervals, ratio_interval, stretch_sums
from txl.evaluation.perplexity import Evaluation, Progress, Settings, one_pass, perplexity
from txl.evaluation.scoring import Array
from txl.model import Model
from txl.model.modes import evaluating

WINDOW_TOKENS = 16_384
"""Tokens of slid windows read in one pass: bounds memory."""


@dataclass(frozen=True)
class Text:
    """What is scored.

    ids: N.  bytes_per_id: V, the bytes of text each id stands for.
    resets: bool N, where contexts begin anew; None: nowhere.
    """

    ids: Array
    bytes_per_id: Array
    resets: Array | None = None

    def scored_bytes(self, targets: Array) -> float:
        """Bytes of the tokens after the given inputs."""
        return float(self.bytes_per_id[self.ids[targets + 1]].sum(dtype=np.float64))


@dataclass(frozen=True)
class Point:
    """The loss of one model at one context, with all it depends on.

    context: tokens; None: unbounded.  targets: "all" N - 1 of the text, or the "sample".
    tokens, nats, text_bytes: how many were scored, their loss, the bytes of text they are.
    stretch_nats, stretch_tokens: sums over consecutive stretches of them, for intervals here and between models.
    """

    context: int | None
    targets: str
    tokens: int
    nats: float
    text_bytes: float
    stretch_nats: tuple[float, ...]
    stretch_tokens: tuple[float, ...]
    settings: Settings

    @property
    def nll(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of the nats a token."""
        return perplexity(self.nats, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits a byte of the scored text; NaN where the scored tokens stand for no text."""
        return self.nats / log(2) / self.text_bytes if self.text_bytes else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the nats a token, stretches of text drawn."""
        if len(self.stretch_nats) < 2:
            return (float("nan"), float("nan"))
        return ratio_interval(self.stretch_nats, self.stretch_tokens)


def compared(points: Sequence[Point]) -> list[tuple[float, float]]:
    """95 % interval of each point's nats a token: of the comparison where all share their tokens, else its own."""
    alike = len({(p.tokens, p.text_bytes, p.stretch_tokens) for p in points}) == 1
    if alike and len(points[0].stretch_nats) > 1 and all(isfinite(p.nats) for p in points):
        return comparison_intervals([p.stretch_nats for p in points], points[0].stretch_tokens)
    return [p.interval for p in points]


def sample_of(targets: int, count: int, *, seed: int = 0) -> Array:
    """Inputs whose targets are sampled: one from each of `count` equal parts of 0 … targets-1, or all of them.

    A function of three numbers, so that every model that reads the same text is scored on the same tokens.
    """
    if targets <= count:
        return np.arange(targets)
    edges = np.arange(count + 1) * targets // count
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def slide(model: Model, text: Text, targets: Array, context: int, *, progress: Progress | None = None) -> Array:
    """Nats of the token after each of the inputs `targets`, each from a fresh pass over the `context` tokens up to it.

    int64 K -> K. Near the beginning of the text the context is all there is. This equals `evaluate` with window context
    - 1 of a model with absolute positions, at the chosen targets only.
    """
    scoring.check_positive(context=context)
    lengths = np.minimum(targets + 1, context)
    nll = np.empty(len(targets), dtype=scoring.result_dtype(model))
    done = 0
    with evaluating(model.modules()):
        for length in np.unique(lengths):
            at_once = max(1, min(WINDOW_TOKENS, scoring.LOGITS // model.vocab_size) // length)
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


def curve(
    model: Model,
    text: Text,
    contexts: Sequence[int],
    *,
    window: int | None = None,
    sample_targets: int,
    batch_size: int,
    progress: Progress | None = None,
) -> tuple[Point, ...]:
    """Points, the headline first: over all tokens at `window` (None: the model's own).

    With a cache: every context, over all tokens and over the sample.
    With absolute positions: blocks over all tokens and over the sample, then the slid window over the sample at the
    contexts of `slid_contexts`. A recurrent state: one context, unbounded. progress(done, total) counts tokens fed.
    """
    own = window if window is not None else model.default_window
    targets = sample_of(len(text.ids) - 1, sample_targets)
    jobs: list[tuple[int, Callable[[Progress], list[Point]]]] = []
    kind = scoring.kind_of(model)
    if kind == "slide":
        jobs.append((len(text.ids), partial(_whole, model, text, own, own + 1, batch_size, targets)))
        for context in slid_contexts(contexts, own=own + 1, learned=model.config.position == "learned"):
            jobs.append((len(targets) * context, partial(_slid, model, text, context, targets)))
    elif kind == "state":
        jobs.append((len(text.ids), partial(_whole, model, text, None, None, batch_size, targets)))
    else:
        for width in (own, *sorted({*contexts} - {own})):
            jobs.append((len(text.ids), partial(_whole, model, text, width, width, batch_size, targets)))
    total = sum(cost for cost, _ in jobs)
    points: list[Point] = []
    begun = 0
    for cost, job in jobs:
        points += job(partial(_advance, progress, begun, cost, total))
        begun += cost
    return tuple(points)


def slid_contexts(contexts: Sequence[int], *, own: int, learned: bool) -> list[int]:
    """The contexts a model with absolute positions is scored at: those up to its own length, and the next one beyond.

    Beyond its own length it meets positions it was never trained on; learned ones are not even there.
    """
    beyond = sorted(context for context in contexts if context > own)
    return sorted({own, *(c for c in contexts if c < own), *(beyond[:1] if not learned else [])})


def _whole(
    model: Model,
    text: Text,
    window: int | None,
    context: int | None,
    batch_size: int,
    targets: Array,
    progress: Progress,
) -> list[Point]:
    """All targets in one pass, and the sample's among them."""
    result = one_pass(model, text.ids, window, batch_size, text.resets, progress=progress)
    return [_point(result, text, context, None), _point(result, text, context, targets)]


def _slid(model: Model, text: Text, context: int, targets: Array, progress: Progress) -> list[Point]:
    """The sample's targets, a pass each."""
    nll = slide(model, text, targets, context, progress=progress)
    n_resets = 0 if text.resets is None else int(np.count_nonzero(text.resets[1:-1]))
    where = (scoring.dtype_name(model), str(scoring.device_of(model)))
    rows = max(1, WINDOW_TOKENS // context)
    return [
        _record(
            nll,
            text,
            context,
            targets,
            "sample",
            Settings("slide", context - 1, context - 1, n_resets, *where, rows, context),
        )
    ]


def _point(result: Evaluation, text: Text, context: int | None, sample: Array | None) -> Point:
    """The point of all scored targets, or of the sampled ones among them."""
    nll: Array = result.nll.numpy()
    if sample is None:
        return _record(nll, text, context, np.arange(len(nll)), "all", result.settings)
    return _record(nll[sample], text, context, sample, "sample", result.settings)


def _record(nll: Array, text: Text, context: int | None, targets: Array, name: str, settings: Settings) -> Point:
    """Sums of the losses and of the bytes they cover."""
    return Point(
        context=context,
        targets=name,
        tokens=len(nll),
        nats=float(nll.sum(dtype=np.float64)),
        text_bytes=text.scored_bytes(targets),
        stretch_nats=stretch_sums(nll),
        stretch_tokens=stretch_sums(np.ones(len(nll))),
        settings=settings,
    )


def _advance(progress: Progress | None, begun: int, cost: int, total: int, done: int, of: int) -> None:
    """Report one job's share as the whole's."""
    if progress is not None:
        progress(begun + cost * done // of, total)
