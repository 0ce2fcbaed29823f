"""How fast a model scores text, by context length: tokens a second, their spread, and what each scored token costs.

A model -> one `Speed` a kind and context. What is timed is exact evaluation, not generation: many tokens of known text.
Knows nothing of losses or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from txl.evaluation import scoring
from txl.evaluation.fresh import slid_contexts
from txl.evaluation.perplexity import Progress
from txl.model import Model
from txl.model.modes import evaluating

RUNS = 5
"""Timed runs of each point, after one that is not counted."""
WORK_TOKENS = 2048
"""Tokens fed in one timed run, about."""


@dataclass(frozen=True)
class Speed:
    """Scored tokens a second at one context.

    kind: window (keys and values cached), slide (the window computed anew for each token), block (disjoint blocks) or
    state. median, low, high: tokens a second over `runs` timed runs.  fed_per_scored: tokens fed through the model for
    each one scored. rows, segment_tokens: shape B×T of what was fed at once.
    """

    kind: str
    context: int | None
    median: float
    low: float
    high: float
    runs: int
    fed_per_scored: float
    rows: int
    segment_tokens: int
    threads: int
    dtype: str
    device: str


def speeds(
    model: Model, contexts: Sequence[int], *, batch_size: int, runs: int = RUNS, progress: Progress | None = None
) -> tuple[Speed, ...]:
    """Time the model at each context: through its cache or, with absolute positions, slid token by token and in blocks.

    Random ids: the work does not depend on them. progress(done, total) counts points.
    """
    kind = scoring.kind_of(model)
    if kind == "slide":
        lengths = slid_contexts(contexts, own=model.default_window + 1, learned=model.config.position == "learned")
        points: list[tuple[str, int | None]] = [(name, length) for length in lengths for name in ("slide", "block")]
    else:
        points = [(kind, context) for context in (sorted({*contexts}) if kind == "window" else [None])]
    timed = []
    for done, (name, context) in enumerate(points, start=1):
        timed.append(speed_of(model, name, context, batch_size=batch_size, runs=runs))
        if progress is not None:
            progress(done, len(points))
    return tuple(timed)


def speed_of(model: Model, kind: str, context: int | None, *, batch_size: int, runs: int = RUNS) -> Speed:
    """Time one kind at one context; the cache is full before the clock starts, the device is idle when it is read."""
    if kind in ("slide", "block"):
        assert context is not None
        length, rows = context, max(1, WORK_TOKENS // context)
        scored = rows if kind == "slide" else rows * context
    else:
        rows, length = batch_size, max(1, min(256, WORK_TOKENS // batch_size))
        scored = rows * length
    device = scoring.device_of(model)
    ids = torch.randint(model.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0)).to(device)
    with evaluating(model.modules()):
        run = _fresh(model, ids, kind) if kind in ("slide", "block") else _cached(model, ids, context)
        run()
        seconds = [_timed(run, device) for _ in range(runs)]
    rates = sorted(scored / taken for taken in seconds)
    return Speed(
        kind=kind,
        context=context,
        median=median(rates),
        low=rates[0],
        high=rates[-1],
        runs=runs,
        fed_per_scored=ids.numel() / scored,
        rows=rows,
        segment_tokens=length,
        threads=torch.get_num_threads(),
        dtype=scoring.dtype_name(model),
        device=str(device),
    )


def _cached(model: Model, ids: torch.Tensor, window: int | None) -> Callable[[], object]:
    """Advance every row by one segment after a cache that is already full."""
    cache = model.new_cache(ids.shape[0], window=window)
    for _ in range(-(-(window or 1) // ids.shape[1])):
        model.advance(ids, cache)
    return lambda: model.nll(model.advance(ids, cache), ids)


def _fresh(model: Model, ids: torch.Tensor, kind: str) -> Callable[[], object]:
    """Read every row from a fresh state; a slid window scores its last token only."""
    targets = ids.clone()
    if kind == "slide":
        targets[:, :-1] = -100
    return lambda: model(ids, targets=targets)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run, the device's queue emptied before and after."""
    _wait(device)
    begin = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
