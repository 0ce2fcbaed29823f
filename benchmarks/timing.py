"""Fair timing: contenders take turns in one process, and what counts is the ratio within each round.

Functions by name -> seconds of each round -> a table, ratios with their spread, one JSON line. Knows nothing of what is
timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from txl.allocator import keep_freed_memory

ALLOCATOR = "kept" if keep_freed_memory() else "plain"
"""Whether this process keeps freed memory: whatever is timed here does, for all contenders gain by it."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a workload at one setting, all contenders, and the ratios that were aimed at.

    seconds: of one unit of work, a round each. aims: contender -> how many times its time ours should be.
    """

    workload: str
    unit: str
    seconds: dict[str, list[float]]
    ours: str
    aims: dict[str, float] = field(default_factory=dict)
    notes: str = ""

    def median(self, name: str) -> float:
        """Median seconds of a contender."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str) -> tuple[float, float, float]:
        """How many times faster ours is than `name`: median, least and most over the rounds."""
        ratios = [theirs / own for theirs, own in zip(self.seconds[name], self.seconds[self.ours], strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)


def take_turns(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 5, warm_up: int = 1, at_least_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Seconds a call of each contender in each round, calls repeated until `at_least_seconds` have passed.

    The order is turned by one each round, so that no contender always follows the same other.
    """
    names = list(contenders)
    for name in names:
        for _ in range(warm_up):
            contenders[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            begin, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - begin < at_least_seconds:
                contenders[name]()
                calls += 1
            seconds[name].append((time.perf_counter() - begin) / calls)
    return seconds


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    versions = {}
    for name in ("torch", "transformers", "x-transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "allocator": ALLOCATOR,
        **versions,
    }


def options(description: str | None, *, rounds: int = 5) -> argparse.ArgumentParser:
    """The options that every benchmark has; it may add its own before `set_up`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def set_up(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for, in a process with as many threads."""
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    return asked


def finish(benchmark: str, rows: Sequence[Row], **more: Any) -> None:
    """Print the table for people and, last, one JSON line for programs."""
    here = machine()
    print(
        f"\n{benchmark}: {here['cpu']}, {here['threads']} threads, torch {here['torch']}, allocator {here['allocator']}"
    )
    for row in rows:
        print(f"\n  {row.workload}{'  (' + row.notes + ')' if row.notes else ''}")
        for name in sorted(row.seconds, key=row.median):
            line = f"    {name:<34}{1000 * row.median(name):>11.3f} ms a {row.unit}"
            if name != row.ours:
                middle, least, most = row.ratio(name)
                aim = f"   aim {row.aims[name]:g}×" if name in row.aims else ""
                line += f"   ours {middle:.2f}× faster ({least:.2f} – {most:.2f}){aim}"
            print(line)
    found = [asdict(row) | {"ratios": {n: row.ratio(n) for n in row.seconds if n != row.ours}} for row in rows]
    print(json.dumps({"benchmark": benchmark, "machine": here, "rows": found, **more}))


def _cpu_name() -> str:
    """The processor as the system names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
