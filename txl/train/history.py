"""The log of a run read back, also while it is written: metrics.jsonl -> records, and one number of them as a curve.

Knows nothing of models, and loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AXES = {"step": "step", "tokens": "tokens", "seconds": "elapsed_seconds"}
"""What curves can be drawn over -> its name in the log."""


class Log:
    """The records of one metrics.jsonl, a step each; `refresh` reads what was written since it was last called."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / "metrics.jsonl"
        self.records: list[dict[str, Any]] = []
        self._read_bytes = 0

    def refresh(self) -> None:
        """Read on; nothing where there is no file yet. A line that is still being written is left for the next time.

        A run that goes on cuts its log back to its checkpoint: what was read of the steps after that is dropped.
        """
        if not self.path.exists() or self.path.stat().st_size < self._read_bytes:
            self.records, self._read_bytes = [], 0
        if not self.path.exists():
            return
        fresh = self._read_bytes == 0
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                record = _record(line)
                if not line.endswith(b"\n"):
                    return
                if record is None and not fresh:  # other text stands where we were: cut back, and written beyond it
                    self.records, self._read_bytes = [], 0
                    self.refresh()
                    return
                self._read_bytes += len(line)
                if record is None:
                    continue
                while self.records and self.records[-1]["step"] >= record["step"]:
                    self.records.pop()
                self.records.append(record)


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None where it is none."""
    try:
        record = json.loads(line)
        return record if isinstance(record["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def history(run_dir: str | Path) -> list[dict[str, Any]]:
    """All records of a run's log; none where there is no log."""
    log = Log(run_dir)
    log.refresh()
    return log.records


def series(
    records: Sequence[Mapping[str, Any]], metric: str, *, over: str = "step", points: int | None = None
) -> tuple[list[float], list[float | None]]:
    """x and y of one number of the log, for at most `points` stretches of the run each the mean of its numbers.

    Records without that number are left out, those in which it is null (not finite) are gaps. over: one of `AXES`.
    """
    there = [record for record in records if metric in record and AXES[over] in record]
    every = 1 if points is None else max(1, -(-len(there) // points))
    x: list[float] = []
    y: list[float | None] = []
    for start in range(0, len(there), every):
        block = there[start : start + every]
        numbers = [record[metric] for record in block if record[metric] is not None]
        x.append(float(block[-1][AXES[over]]))
        y.append(sum(numbers) / len(numbers) if numbers else None)
    return x, y


def metrics_of(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what can be drawn."""
    return sorted({name for record in records for name, value in record.items() if isinstance(value, int | float)})
