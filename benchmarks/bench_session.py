"""How fast text streams through the public API: a run or sizes in, tokens a second at 1, 8 and 32 rows out.

    python -m benchmarks.bench_session [RUN] [--rows 1,8,32] [--tokens 2048] [--repeats 7] [--device cpu]

feed: scoring in portions of 512 tokens a row. step: scoring one token a row at a time. generate: greedy, one token a
row at a time. kernel: the bare model.advance and model.nll over the same ids and the same cache, which is the least a
session can cost; overhead is the session's time over it, feed against portions and step against single tokens.
Each repeat measures all of them one after the other in turn, so that a slower spell of the machine meets each alike;
what is printed is the median of the repeats. The first repeat warms up and does not count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import txl
from txl.model import Model

PORTION = 512
VOCAB = 256


def chosen_model(run: Path | None, device: str) -> Model:
    """The model of a run, or an untrained one of the quickstart's size."""
    if run is not None:
        model = txl.load(run).model
    else:
        torch.manual_seed(0)
        model = txl.build_model(txl.ModelConfig(tgt_len=128, mem_len=128), VOCAB)
    return model.to(device).eval()


def synchronise(device: str) -> None:
    """Wait for the accelerator, lest its queue pass for speed."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str) -> float:
    """Wall time of one call."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def bare(model: Model, ids: Tensor, portion: int) -> None:
    """What a session cannot do without: advance, and the nats of every token but the first."""
    cache = model.new_cache(ids.shape[0])
    last = None
    with torch.inference_mode():
        for part in ids.split(portion, dim=1):
            hidden = model.advance(part, cache)
            before = hidden[:, :-1] if last is None else torch.cat([last, hidden[:, :-1]], dim=1)
            targets = part[:, 1:] if last is None else part
            if targets.shape[1]:
                model.nll(before, targets)
            last = hidden[:, -1:]


def works(model: Model, ids: Tensor, few: Tensor) -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured, by name, with the tokens each reads: whole texts in portions, a few tokens one by one."""
    rows = ids.shape[0]

    def fed(text: Tensor, portion: int) -> None:
        session = txl.Session(model, rows)
        for part in text.split(portion, dim=1):
            session.feed(part)

    def generated() -> None:
        session = txl.Session(model, rows)
        session.feed(few[:, :1])
        for _ in session.generate(few.shape[1], temperature=0):
            pass

    return {
        "feed": (lambda: fed(ids, PORTION), ids.numel()),
        "kernel_feed": (lambda: bare(model, ids, PORTION), ids.numel()),
        "step": (lambda: fed(few, 1), few.numel()),
        "kernel_step": (lambda: bare(model, few, 1), few.numel()),
        "generate": (generated, few.numel()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="a run folder (an untrained quickstart model)")
    parser.add_argument("--rows", default="1,8,32", metavar="N,N", help="batch sizes (1,8,32)")
    parser.add_argument("--tokens", type=int, default=2048, metavar="N", help="tokens a row that are fed (2048)")
    parser.add_argument("--steps", type=int, default=128, metavar="N", help="tokens a row one at a time (128)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="repeats that count (7)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    given = parser.parse_args()
    model = chosen_model(given.run, given.device)
    results = []
    for rows in map(int, given.rows.split(",")):
        draw = torch.Generator().manual_seed(rows)
        ids = torch.randint(0, model.vocab_size, (rows, given.tokens), generator=draw).to(given.device)
        measured = works(model, ids, ids[:, : given.steps])
        times: dict[str, list[float]] = {name: [] for name in measured}
        for repeat in range(given.repeats + 1):
            for name, (work, _) in measured.items():
                took = seconds(work, given.device)
                if repeat:
                    times[name].append(took)
        middle = {name: statistics.median(values) for name, values in times.items()}
        record: dict[str, float] = {"rows": rows}
        record |= {f"{name}_tokens_per_second": measured[name][1] / middle[name] for name in measured}
        for name in ("feed", "step"):
            ratios = [one / other for one, other in zip(times[name], times[f"kernel_{name}"], strict=True)]
            record[f"{name}_overhead"] = statistics.median(ratios)
        results.append(record)
        print(
            "  ".join(
                f"{key} {value:,.3f}" if "overhead" in key else f"{key} {value:,.0f}" for key, value in record.items()
            )
        )
    print(
        json.dumps(
            {
                "benchmark": "session",
                "run": None if given.run is None else str(given.run),
                "window": model.default_window,
                "threads": torch.get_num_threads(),
                "device": given.device,
                "repeats": given.repeats,
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
