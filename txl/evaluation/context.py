"""Loss against context length: a model and a text -> a point for each context, over all tokens and over a fixed sample.

Kinds of context are never mixed under one name (see `Settings.kind`). With a cache, a context c is the window of c
earlier positions that each layer may see, and n_layer * c tokens back can still matter. Truncated, for every
architecture, it is exactly the c tokens before the target, a fresh pass for each target of a sample; with absolute
positions that is the window slid by one token. Knows nothing of tokenizers or pictures; of files only that a `Kept`
has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, log

import numpy as np

from txl.evaluation import fresh, scoring
from txl.evaluation.fresh import Text, sample_of, slid_contexts, slide
from txl.evaluation.interval import comparison_intervals, ratio_interval, stretches_of, sums_by_stretch
from txl.evaluation.kept import Kept
from txl.evaluation.perplexity import Evaluation, Progress, Settings, one_pass, perplexity
from txl.evaluation.scoring import Array
from txl.model import Model

KINDS = ("window", "truncated", "at-least", "stride", "block")
"""Ways to give a context that can be asked for by name.

    window     through the cache: each layer sees c earlier positions; all targets
    truncated  exactly c tokens, a fresh pass for each target; a sample
    at-least   c to c + stride - 1 tokens, a fresh pass for `stride` targets; all targets
    stride     c - stride + 1 to c tokens, likewise: the window moved by `stride`
    block      1 to c tokens: disjoint blocks of c
"""


@dataclass(frozen=True)
class Point:
    """The loss of one model at one context, with all it depends on.

    context: tokens; None: unbounded.  targets: "all" N - 1 of the text, or the "sample".
    tokens, nats, text_bytes: how many were scored, their loss, the bytes of text they are.
    stretch_nats, stretch_tokens: sums over consecutive stretches of the text, for intervals here and between models.
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


def compared(points: Sequence[Point], *, one_text: bool) -> list[tuple[float, float]]:
    """95 % interval of each point's nats a token: of the comparison where all share their tokens, else its own.

    one_text: whether the points are about one text.
    """
    alike = one_text and len({(p.tokens, p.text_bytes, p.stretch_tokens) for p in points}) == 1
    if alike and len(points[0].stretch_nats) > 1 and all(isfinite(p.nats) for p in points):
        return comparison_intervals([p.stretch_nats for p in points], points[0].stretch_tokens)
    return [p.interval for p in points]


@dataclass(frozen=True)
class Reading:
    """The losses of single tokens under one way of reading: nats of the token after each of the inputs `positions`."""

    context: int | None
    targets: str
    positions: Array
    nll: Array
    settings: Settings

    def point(self, text: Text, among: Array | None = None) -> Point:
        """Their sums and the bytes they cover; of the inputs where `among`, bool K, is True."""
        positions = self.positions if among is None else self.positions[among]
        nll = np.asarray(self.nll if among is None else self.nll[among])
        begins = stretches_of(len(text.ids) - 1, text.starts)
        return Point(
            context=self.context,
            targets=self.targets,
            tokens=len(nll),
            nats=float(nll.sum(dtype=np.float64)),
            text_bytes=text.scored_bytes(positions),
            stretch_nats=sums_by_stretch(nll, positions, begins),
            stretch_tokens=sums_by_stretch(np.ones(len(nll)), positions, begins),
            settings=self.settings,
        )


@dataclass(frozen=True)
class Job:
    """One pass over a text: its name, what makes it what it is, its cost in tokens fed, and the work."""

    kind: str
    context: int | None
    cost: int
    score: Callable[[Progress], tuple[Array, Settings]]
    sampled: bool = False
    stride: int | None = None


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
    """The points of `readings`."""
    read = readings(
        model, text, contexts, window=window, sample_targets=sample_targets, batch_size=batch_size, progress=progress
    )
    return tuple(reading.point(text) for reading in read)


def readings(
    model: Model,
    text: Text,
    contexts: Sequence[int],
    *,
    kind: str | None = None,
    stride: int | None = None,
    window: int | None = None,
    ladder: Sequence[int] = (),
    sample_targets: int,
    batch_size: int,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> Iterator[Reading]:
    """Losses under each way of reading, the headline first: all tokens at `window` (None: the model's own).

    kind None: what belongs to the architecture. With a cache: every context through it, over all tokens and over the
    sample, and truncated over the sample. Absolute positions: blocks over all tokens and over the sample, then the slid
    window over the sample at the contexts of `slid_contexts`. A recurrent state: unbounded, and truncated. A kind of
    `KINDS`: that one at each context, after the headline. stride: targets a fresh pass of kinds at-least and stride
    scores.
    ladder: contexts that are scored truncated besides, for `recl`.
    kept: losses found there are not scored again, and new ones are left there. progress(done, total) counts tokens fed.
    Raises ValueError for a kind that the model or the stride does not go with.
    """
    targets = sample_of(len(text.ids) - 1, sample_targets)
    jobs = _jobs(model, text, contexts, ladder, targets, kind, stride, window, batch_size)
    total, begun = sum(job.cost for job in jobs), 0
    for job in jobs:
        nll, settings = _scored(
            job, len(text.ids) - 1, targets, kept, partial(_advance, progress, begun, job.cost, total)
        )
        begun += job.cost
        if job.sampled:
            yield Reading(job.context, "sample", targets, nll, settings)
        else:
            yield Reading(job.context, "all", np.arange(len(nll)), nll, settings)
            yield Reading(job.context, "sample", targets, nll[targets], settings)


def _jobs(
    model: Model,
    text: Text,
    contexts: Sequence[int],
    ladder: Sequence[int],
    targets: Array,
    kind: str | None,
    stride: int | None,
    window: int | None,
    batch_size: int,
) -> list[Job]:
    """What `readings` has to do, the headline first."""
    whole = partial(_whole, model, text, batch_size)
    exact = partial(_exact, model, text, targets)
    count = len(text.ids) - 1
    own = window if window is not None else model.default_window
    natural = scoring.kind_of(model)
    contexts = sorted({*contexts})
    if natural == "slide":
        jobs = [Job("block", own + 1, count, partial(whole, own))]
    elif natural == "state":
        jobs = [Job("state", None, count, partial(whole, None))]
    else:
        jobs = [Job("window", own, count, partial(whole, own))]
    exactly = sorted({*contexts, *ladder})
    if natural == "slide" and kind is None:
        exactly = slid_contexts(exactly, own=own + 1, learned=model.config.position == "learned")
    if kind == "window" or (kind is None and natural == "window"):
        if natural != "window":
            reason = "it reads every window anew" if natural == "slide" else "its state has no window"
            raise ValueError(f"kind: found window for {model.config.arch}, but {reason}; allowed: truncated")
        jobs += [Job("window", c, count, partial(whole, c)) for c in contexts if c != own]
    longest = max([own + 1, *(c - 1 + (stride or 1) if kind == "at-least" else c for c in contexts)])
    if model.config.position == "learned" and kind is not None and longest > model.config.tgt_len:
        allowed = f"at most {model.config.tgt_len}, for learned positions end there"
        read = f" (a context with the {stride - 1} targets after it)" if stride and kind == "at-least" else ""
        raise ValueError(f"contexts: found {longest}{read}; allowed: {allowed}")
    if kind in (None, "truncated"):
        name = "slide" if natural == "slide" else "truncated"
        jobs += [Job(name, c, len(targets) * c, partial(exact, name, c), sampled=True) for c in exactly]
    elif kind == "block":
        jobs += [_moved(model, text, "block", c, 1, c) for c in contexts if (natural, c) != ("slide", own + 1)]
    elif kind in ("at-least", "stride"):
        if stride is None or (kind == "stride" and contexts and stride > contexts[0]):
            allowed = "a whole number of at least 1" + (
                f", at most the least context {contexts[0]}" if contexts else ""
            )
            raise ValueError(f"stride: found {stride} with kind {kind}; allowed: {allowed}")
        least = {c: c if kind == "at-least" else c - stride + 1 for c in contexts}
        jobs += [_moved(model, text, kind, c, least[c], stride) for c in contexts]
    elif kind != "window":
        raise ValueError(f"kind: found {kind}; allowed: {', '.join(KINDS)}")
    return jobs


def _scored(job: Job, count: int, targets: Array, kept: Kept | None, progress: Progress) -> tuple[Array, Settings]:
    """A job's losses: those kept, or computed now and then kept."""
    n_scored = len(targets) if job.sampled else count
    positions = {"sample": len(targets), "of": count, "seed": 0} if job.sampled else {"all": count}
    wanted = {"kind": job.kind, "context": job.context, "stride": job.stride, "positions": positions}
    moved = "" if job.stride is None else f"-by-{job.stride}"
    name = f"{job.kind}-{'unbounded' if job.context is None else job.context}{moved}"
    found = None if kept is None else kept.get(name, wanted, n_scored)
    if found is None:
        found = job.score(progress)
        if kept is not None:
            kept.put(name, wanted, *found)
            found = kept.get(name, wanted, n_scored) or found  # the same float32, whether read now or later
    progress(job.cost, job.cost)
    return found


def _whole(model: Model, text: Text, batch_size: int, window: int | None, progress: Progress) -> tuple[Array, Settings]:
    """All targets in one pass."""
    result: Evaluation = one_pass(model, text.ids, window, batch_size, text.resets, progress=progress)
    return result.nll.numpy(), result.settings


def _exact(
    model: Model, text: Text, targets: Array, name: str, context: int, progress: Progress
) -> tuple[Array, Settings]:
    """The sample's targets, a fresh pass each."""
    nll = slide(model, text, targets, context, progress=progress)
    return nll, _settings(model, text, name, context, fresh.rows_at_once(model, context), context, None)


def _moved(model: Model, text: Text, kind: str, context: int, least: int, step: int) -> Job:
    """All targets, `step` of them a fresh pass after `least` tokens or more."""
    read = least + step - 1

    def score(progress: Progress) -> tuple[Array, Settings]:
        nll = fresh.stride(model, text, least, step, progress=progress)
        moved = None if kind == "block" else step
        return nll, _settings(model, text, kind, read, fresh.rows_at_once(model, read), read, moved)

    cost = -(-(len(text.ids) - 1) // step) * read
    return Job(kind, context, cost, score, stride=None if kind == "block" else step)


def _settings(model: Model, text: Text, kind: str, context: int, rows: int, read: int, stride: int | None) -> Settings:
    """What a loss given by fresh passes depends on; context: the most tokens a target is given."""
    n_resets = 0 if text.resets is None else int(np.count_nonzero(text.resets[1:-1]))
    where = (scoring.dtype_name(model), str(scoring.device_of(model)))
    return Settings(kind, context - 1, context - 1, n_resets, *where, rows, read, stride)


def _advance(progress: Progress | None, begun: int, cost: int, total: int, done: int, of: int) -> None:
    """Report one job's share as the whole's."""
    if progress is not None:
        progress(begun + cost * done // of, total)
