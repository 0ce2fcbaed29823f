"""How fast a model reads text, by context length: tokens a second, their spread, what each token costs, and the bytes.

A model -> one `Speed` a kind and context: segments of known text, and one token at a time, as generation does. Knows
nothing of losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from txl.allocator import give_back_freed_memory
from txl.config.schema import Position
from txl.evaluation import scoring
from txl.evaluation.fresh import slid_contexts
from txl.evaluation.perplexity import Progress
from txl.model import Model, build_model
from txl.model.cache import Cache
from txl.model.modes import evaluating

RUNS = 5
"""Timed runs of each point, after one that is not counted."""
WORK_TOKENS = 2048
"""Tokens fed in one timed run, about."""
TOKEN_STEPS = 32
"""Tokens fed one at a time in one timed run."""
FILLING_TOKENS = 256
"""Tokens fed at once to fill a cache."""
PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""How many times faster the paper's model evaluates than one whose window is slid, by attention length (Table 9)."""


@dataclass(frozen=True)
class Speed:
    """Scored tokens a second at one context.

    kind: window (segments through the cache), token (one token at a time through it, one row), slide (the window
    computed anew for each token), block (disjoint blocks) or state. kv, kv-token: what window and token are, of a
    decoder of the same sizes with rotary positions, because absolute ones cannot keep keys when their window moves.
    median, low, high: tokens a second over `runs` timed runs.  fed_per_scored: tokens fed through the model for each
    one scored.  rows, segment_tokens: shape B×T of what was fed at once.  state_bytes: of the cache, all rows.
    peak_bytes: more than before while it ran; None where it cannot be told.
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
    state_bytes: int = 0
    peak_bytes: int | None = None


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
        points += [(name, context) for context in sorted({*contexts}) for name in ("kv", "kv-token")]
    elif kind == "window":
        points = [(name, context) for context in sorted({*contexts}) for name in ("window", "token")]
    else:
        points = [("state", None), ("token", None)]
    cached = cached_twin(model) if kind == "slide" else model
    timed = []
    for done, (name, context) in enumerate(points, start=1):
        read = cached if name.startswith("kv") else model
        timed.append(speed_of(read, name, context, batch_size=batch_size, runs=runs))
        if progress is not None:
            progress(done, len(points))
    return tuple(timed)


def speed_of(model: Model, kind: str, context: int | None, *, batch_size: int, runs: int = RUNS) -> Speed:
    """Time one kind at one context; the cache is full before the clock starts, the device is idle when it is read."""
    if kind in ("slide", "block"):
        assert context is not None
        length, rows = context, max(1, WORK_TOKENS // context)
        scored = rows if kind == "slide" else rows * context
    elif kind in ("token", "kv-token"):
        rows, length, scored = 1, 1, TOKEN_STEPS
    else:
        rows, length = batch_size, max(1, min(256, WORK_TOKENS // batch_size))
        scored = rows * length
    device = scoring.device_of(model)
    ids = torch.randint(model.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0)).to(device)
    with evaluating(model.modules()):
        cache, run = None, _fresh(model, ids, kind)
        if kind not in ("slide", "block"):
            cache, run = _cached(model, ids, context, steps=scored // ids.numel())
        peak = _peak_bytes(run, device)
        seconds = [_timed(run, device) for _ in range(runs)]
    rates = sorted(scored / taken for taken in seconds)
    return Speed(
        kind=kind,
        context=context,
        median=median(rates),
        low=rates[0],
        high=rates[-1],
        runs=runs,
        fed_per_scored=ids.numel() / scored if kind == "slide" else 1.0,
        rows=rows,
        segment_tokens=length,
        threads=torch.get_num_threads(),
        dtype=scoring.dtype_name(model),
        device=str(device),
        state_bytes=0 if cache is None else cache.nbytes,
        peak_bytes=peak,
    )


def cached_twin(model: Model) -> Model:
    """A decoder of the model's sizes, weights drawn anew, whose positions let it keep keys and values."""
    position: Position = "alibi" if model.config.d_head % 2 else "rotary"
    with torch.random.fork_rng(devices=[]):
        twin = build_model(replace(model.config, position=position), model.vocab_size)
    return twin.to(scoring.device_of(model), scoring.parameter_dtype(model))


def _cached(model: Model, ids: torch.Tensor, window: int | None, *, steps: int) -> tuple[Cache, Callable[[], object]]:
    """A full cache, and what advances every row behind it by so many segments."""
    cache = model.new_cache(ids.shape[0], window=window)
    filling = ids[:, :1].expand(-1, FILLING_TOKENS)
    for _ in range(-(-(window or 1) // FILLING_TOKENS)):
        model.advance(filling, cache)

    def run() -> None:
        for _ in range(steps):
            model.nll(model.advance(ids, cache), ids)

    return cache, run


def _fresh(model: Model, ids: torch.Tensor, kind: str) -> Callable[[], object]:
    """Read every row from a fresh state; a slid window scores its last token only."""
    targets = ids.clone()
    if kind == "slide":
        targets[:, :-1] = -100
    return lambda: model(ids, targets=targets)


def _peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Run once, not timed; the most bytes in use above those before. On a CPU Linux alone tells them."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    # What was freed goes back to the system first: a run that is given it again would seem to need nothing.
    if not give_back_freed_memory():
        run()
        return None
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        before = _status_bytes("VmRSS")
    except (OSError, KeyError):
        run()
        return None
    run()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    """A size of this process as the kernel tells it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(dict(line.split(":", 1) for line in lines)[name].split()[0])


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
