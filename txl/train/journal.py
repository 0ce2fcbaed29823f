"""What a run writes and shows: numbers of each step -> metrics.jsonl, samples.txt, and a progress bar or plain lines.

On a terminal one line moves and what is worth keeping stands above it; in a pipe there is a plain line every
`log_every` steps. Knows nothing of models or data; it takes numbers and texts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from txl.config import TrainConfig
from txl.train.folder import written

QUIET_SECONDS = 10.0
"""How long preparing may take before a pipe gets a line about it, and between two such lines."""


class Journal:
    """The log of one run; `active` is False in all processes but the main one, where every method does nothing."""

    def __init__(self, run_dir: Path, config: TrainConfig, *, active: bool) -> None:
        self.active = active
        self.max_steps = config.max_steps
        self.log_every = config.log_every
        self._run_dir = run_dir
        self._files: dict[str, IO[bytes]] = {}
        self._console = Console(highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Progress(*columns, console=self._console, disable=not (active and self._console.is_terminal))
        self._task: Any = None
        self._first_step = 0
        self._began = self._told = time.monotonic()

    def __enter__(self) -> Journal:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        for file in self._files.values():
            file.close()

    def say(self, text: str) -> None:
        """A line that stays on the screen."""
        if not self.active:
            return
        self._told = time.monotonic()
        if self._console.is_terminal:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            try:
                print(text, flush=True)
            except OSError:  # nobody reads on, or the disk of a log is full: the run goes on, metrics.jsonl has it all
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def working(self, what: str, done: int, total: int | None) -> None:
        """Progress of work that is not a step: preparing text, the last evaluation."""
        if not self.active:
            return
        if self._console.is_terminal:
            self._show(what, done, total, "")
        elif time.monotonic() - self._told > QUIET_SECONDS:
            self.say(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def validating(self, done: int, total: int) -> None:
        """Progress of a validation."""
        self.working("validating", done, total)

    def begin(self, step: int, position: Mapping[str, int]) -> None:
        """Open the files and cut off what was written after `position`: a run that goes on logs every step once."""
        if not self.active:
            return
        for name in ("metrics.jsonl", "samples.txt"):
            path = self._run_dir / name
            with written(path):
                path.touch()
                os.truncate(path, min(position.get(name, 0), path.stat().st_size))
                self._files[name] = path.open("ab", buffering=0)  # nothing is left to be written when it is closed
        self._first_step = step
        self._began = time.monotonic()
        self._hide()

    def position(self) -> dict[str, int]:
        """How many bytes of each file belong to the run so far; all of them stand on the disk."""
        for name, file in self._files.items():
            with written(self._run_dir / name):
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def step(self, record: Mapping[str, Any]) -> None:
        """Write one step's numbers, exactly as given, and show them when due."""
        if not self.active:
            return
        self._write("metrics.jsonl", json.dumps(record, allow_nan=False) + "\n")
        step = int(record["step"])
        text, eta = describe(record), f"eta {clock(self._seconds_left(step))}"
        if self._console.is_terminal:
            self._show("training", step, self.max_steps, f"{eta}  {text}")
        due = step % self.log_every == 0 or step in (self._first_step + 1, self.max_steps)
        if "valid_nll" in record or (due and not self._console.is_terminal):
            self.say(f"step {step}/{self.max_steps}  {text}  {eta}")

    def sample(self, step: int, prompt: str, text: str) -> None:
        """Add a text sample; the first lines of what the model wrote are shown."""
        if self.active:
            self._write(
                "samples.txt", f"=== step {step}: prompt ===\n{prompt}\n=== step {step}: the model ===\n{text}\n\n"
            )

    def _write(self, name: str, text: str) -> None:
        raw = text.encode()
        with written(self._run_dir / name):
            while raw:
                raw = raw[self._files[name].write(raw) :]

    def _show(self, what: str, done: int, total: int | None, text: str) -> None:
        """Move the one line of the terminal."""
        if self._task is None:
            self._task = self._bar.add_task(what, total=total, text=text)
        self._bar.update(self._task, description=what, completed=done, total=total, text=text)

    def _hide(self) -> None:
        """Take the line away until the next one."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def _seconds_left(self, step: int) -> float:
        """At the mean pace of this process, validations and saves included."""
        taken = (time.monotonic() - self._began) / max(1, step - self._first_step)
        return taken * (self.max_steps - step)


def describe(record: Mapping[str, Any]) -> str:
    """A step's numbers in one line."""
    if record["nll"] is None or record["grad_norm"] is None:
        loss = f"not finite: skipped ({record['skipped']} so far)"
    else:
        bits = record["bits_per_byte"]
        of_text = "" if bits is None else f"  {bits:.4f} bits/byte"
        loss = f"nll {record['nll']:.4f}{of_text}  norm {record['grad_norm']:.3g}"
    speed = f"{record['tokens_per_second']:,.0f} tokens/s  mfu {record['mfu']:.1%}"
    kept = f"memory {size(record['memory_bytes'])}  peak {size(record['peak_bytes'])}"
    text = f"{loss}  lr {record['lr']:.2e}  {speed}  {kept}"
    return f"{text}  {describe_valid(record)}" if "valid_nll" in record else text


def describe_valid(record: Mapping[str, Any]) -> str:
    """The numbers of a validation in a few words."""
    if record["valid_nll"] is None:
        return "valid not finite"
    if record["valid_bits_per_byte"] is None:
        return f"valid nll {record['valid_nll']:.4f}"
    return f"valid nll {record['valid_nll']:.4f}, {record['valid_bits_per_byte']:.4f} bits per byte"


def size(n_bytes: float) -> str:
    """Bytes in three digits or so: 980 B, 24.6 kB, 1.05 MB, 612 MB, 1.61 GB."""
    units = ["TB", "GB", "MB", "kB", "B"]
    while n_bytes >= 999.5 and len(units) > 1:
        n_bytes /= 1000
        units.pop()
    return f"{n_bytes:.0f} {units[-1]}" if len(units) == 5 or n_bytes >= 99.95 else f"{n_bytes:.3g} {units[-1]}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
