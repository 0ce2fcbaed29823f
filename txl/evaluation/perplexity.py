"""Exact evaluation: a model and one long text of token ids -> the nats of every token but the first.

Every number comes with the settings that made it. Knows nothing of files, tokenizers, bytes of text or pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from txl.evaluation import scoring
from txl.evaluation.plan import Stream, plan_streams
from txl.evaluation.scoring import Array
from txl.model import Model
from txl.model.modes import evaluating

Progress = Callable[[int, int], None]
"""progress(targets done, targets in all)."""


@dataclass(frozen=True)
class Settings:
    """What a loss depends on, and what it was computed with."""

    kind: str
    """window: keys and values of `window` earlier positions are cached in each layer. slide: absolute positions, so a
    window of as many is computed anew for each token. state: a recurrent state. truncated: what slide is, of a model
    that has a cache or a state: a fresh pass over exactly window + 1 tokens for each target. block: disjoint blocks of
    window + 1 tokens, each read by a fresh model, so that the average token sees half as many. stride, at-least: fresh
    passes that score `stride` targets each, with window + 1 tokens at most and window + 2 - stride at least."""
    window: int | None
    """Earlier positions each layer may see, the query itself not counted; None for kind state."""
    reach: int | None
    """Tokens back that can still change a loss; None: all since the last reset."""
    resets: int
    """Tokens, beyond the first, at which the context begins anew."""
    dtype: str
    """What the parameters are kept in and, under autocast, what products are made in."""
    device: str
    """Where it was computed."""
    streams: int
    """Rows scored side by side, at most the batch size asked for; changes no number beyond rounding."""
    segment_tokens: int
    """Tokens of each row read at once; except for kind block it changes no number beyond rounding."""
    stride: int | None = None
    """Targets each fresh pass scores; None where that is one, or all."""


@dataclass(frozen=True)
class Evaluation:
    """Losses of one text.

    nll: nats of the token after each scored input, N - 1 for a whole text; float32 (float64 for such a model), CPU.
    nats: their sum, accumulated in float64.  tokens: how many.  settings: what they depend on.
    """

    nll: Tensor
    nats: float
    tokens: int
    settings: Settings

    @property
    def perplexity(self) -> float:
        """exp of the nats a token; infinity where that overflows."""
        return perplexity(self.nats, self.tokens)


def perplexity(nats: float, tokens: float) -> float:
    """exp(nats / tokens); infinity where that overflows."""
    try:
        return math.exp(nats / tokens)
    except OverflowError:
        return math.inf


def evaluate(
    model: Model,
    ids: Tensor | Array,
    window: int | None = None,
    batch_size: int = 1,
    resets: Tensor | Array | None = None,
    *,
    segment_tokens: int | None = None,
    span: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Nats of each token given all that a window lets the model see of the tokens before it.

    ids: N token ids, of any integer type, a memory map too.
    window: earlier positions a layer may see; None: the model's own.
    batch_size: rows to score side by side. Each begins `model.reach(window)` tokens early, or at its reset, and those
    targets are not scored, so neither this nor segment_tokens changes a result; with unbounded reach a row can begin at
    resets only.
    resets: bool N. A token at a reset is scored by the context before it and is the first of the new one.
    span: score only the targets of the inputs ids[span[0]:span[1]], with all the context before them: the parts of a
    text that several processes score add up to the whole.

    Runs in eval mode without gradient and leaves every module's mode as it was. With absolute positions each token
    costs a pass over its window: see `one_pass`. Raises ValueError for ids that are not a line of at least two integers
    in 0 … V-1, and for resets, span or sizes that do not fit.
    """
    text = scoring.checked_ids(ids, model.vocab_size)
    starts = scoring.context_starts(resets, len(text))
    first, stop = scoring.checked_span(span, len(text) - 1)
    scoring.check_positive(batch_size=batch_size, segment_tokens=segment_tokens)
    kind = scoring.kind_of(model)
    width = None if kind == "state" else model.default_window if window is None else window
    reach = None if width is None else model.reach(width)
    streams = plan_streams(first, stop, starts=starts, reach=reach, batch_size=batch_size)
    # 256 was the fastest on a CPU for windows of 32 to 512; less only where a segment's logits would pass 64 MiB.
    steps = segment_tokens or min(256, max(16, scoring.LOGITS // (model.vocab_size * len(streams))))
    nll = np.full(stop - first, np.nan, dtype=scoring.result_dtype(model))
    done = 0
    with evaluating(model.modules()):
        for where, values in _score(model, text, starts, streams, width, steps):
            nll[where - first] = values
            done += len(values)
            if progress is not None:
                progress(done, len(nll))
    n_resets = int(np.count_nonzero(starts[1:] < stop))
    return _evaluation(nll, Settings(kind, width, reach, n_resets, *_where(model), len(streams), steps))


def one_pass(
    model: Model,
    ids: Tensor | Array,
    window: int | None = None,
    batch_size: int = 1,
    resets: Tensor | Array | None = None,
    *,
    span: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """The loss of a text for the price of reading it once: `evaluate`, but blocks where windows would be computed anew.

    `settings.kind` of the result says which; arguments and errors are those of `evaluate`.
    """
    if scoring.kind_of(model) == "slide":
        block = (model.default_window if window is None else window) + 1
        return evaluate_blocks(model, ids, block, batch_size, resets, span=span, progress=progress)
    return evaluate(model, ids, window, batch_size, resets, span=span, progress=progress)


def evaluate_blocks(
    model: Model,
    ids: Tensor | Array,
    block_tokens: int,
    batch_size: int = 1,
    resets: Tensor | Array | None = None,
    *,
    span: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Nats of each token when every block of the text is read by a fresh model: its first target is given 1 token.

    The cheap evaluation of a fixed-context model; it too scores all N - 1 targets. Blocks are counted from the
    beginning of the text, whatever the span. Arguments and errors as in `evaluate`.
    """
    text = scoring.checked_ids(ids, model.vocab_size)
    starts = scoring.context_starts(resets, len(text))
    first, stop = scoring.checked_span(span, len(text) - 1)
    scoring.check_positive(block_tokens=block_tokens, batch_size=batch_size)
    rows = max(1, min(batch_size, scoring.LOGITS // (model.vocab_size * block_tokens)))
    begin, whole = first - first % block_tokens, stop - stop % block_tokens
    nll = np.full(stop - begin, np.nan, dtype=scoring.result_dtype(model))
    is_start = np.zeros(len(text), dtype=bool)
    is_start[starts[1:]] = True
    cuts = sorted({*range(begin, whole, rows * block_tokens), max(begin, whole), stop})
    with evaluating(model.modules()):
        for left, right in pairwise(cuts):
            parts = (text[left:right], text[left + 1 : right + 1], is_start[left:right])
            inputs, targets, begins = (part.reshape(-1, min(block_tokens, right - left)) for part in parts)
            nll[left - begin : right - begin] = scoring.fresh_nll(model, inputs, targets, begins).reshape(-1)
            if progress is not None:
                progress(right - first, stop - first)
    n_resets = int(np.count_nonzero(starts[1:] < stop))
    settings = Settings("block", block_tokens - 1, block_tokens - 1, n_resets, *_where(model), rows, block_tokens)
    return _evaluation(nll[first - begin :], settings)


def _score(
    model: Model, text: Array, starts: Array, streams: Sequence[Stream], window: int | None, steps: int
) -> Iterator[tuple[Array, Array]]:
    """Yield (positions of inputs, nats of their targets) segment by segment; every scored position comes once."""
    device = scoring.device_of(model)
    cache = model.new_cache(len(streams), window=window)
    is_start = np.zeros(len(text), dtype=bool)
    is_start[starts] = True
    offset = 0
    while streams:
        lengths = np.array([min(steps, row.stop - row.begin - offset) for row in streams])
        ahead = np.arange(lengths.max())
        valid = ahead < lengths[:, None]  # only a row that ends in this segment is padded; its cache is read no more
        position = np.where(valid, np.array([row.begin + offset for row in streams])[:, None] + ahead, 0)
        begins = is_start[position] & valid
        hidden = model.advance(
            torch.from_numpy(text[position].astype(np.int64)).to(device),
            cache,
            resets=torch.from_numpy(begins).to(device) if begins.any() else None,
        )
        scored = valid & (position >= np.array([row.first for row in streams])[:, None])
        if scored.any():
            where = position[scored]
            targets = torch.from_numpy(text[where + 1].astype(np.int64)).to(device)
            yield where, scoring.nll_of(model, hidden[torch.from_numpy(scored).to(device)], targets)
        offset += steps
        going = [i for i, row in enumerate(streams) if row.begin + offset < row.stop]
        if going and len(going) < len(streams):
            cache = cache.select(going)
        streams = [streams[i] for i in going]


def _where(model: Model) -> tuple[str, str]:
    """Dtype and device, as `Settings` wants them."""
    return scoring.dtype_name(model), str(scoring.device_of(model))


def _evaluation(nll: Array, settings: Settings) -> Evaluation:
    """The losses with their sum."""
    return Evaluation(torch.from_numpy(nll), float(nll.sum(dtype=np.float64)), len(nll), settings)
