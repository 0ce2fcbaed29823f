"""What the command line shows: a progress bar or plain lines while work is long, and tables.

report(what, done, total) -> a moving line with the time left on a terminal, a line now and then in a pipe, both on
standard error; header and rows -> a table. Knows nothing of what the work is.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class Report(Protocol):
    """report(what, done, total, note): how far a piece of long work is, and a word on how it goes; total None where
    nobody knows."""

    def __call__(self, what: str, done: int, total: int | None, note: str = "") -> None: ...


PIPE_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""


@contextmanager
def progress() -> Iterator[Report]:
    """A report for long work, shown until the block ends."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int | None, note: str = "") -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.update(bar.task_ids[task], visible=False)
                bar.add_task(what, total=total, count="")
                tasks[what] = len(bar.task_ids) - 1
            count = _count(done, total, note)
            bar.update(bar.task_ids[tasks[what]], completed=done, total=total, count=count, visible=True)

        yield report


def _lines() -> Report:
    """Progress as lines, few enough for a log file; with the time left, at the mean pace so far, where it is known."""
    told = time.monotonic()
    began: dict[str, tuple[float, int]] = {}

    def report(what: str, done: int, total: int | None, note: str = "") -> None:
        nonlocal told
        now = time.monotonic()
        start, first = began.setdefault(what, (now, done))
        if now - told > PIPE_SECONDS:
            told = now
            text = f"{what}: {_count(done, total, note)}"
            if total and done > first:
                text += f", {(total - done) * (now - start) / (done - first):,.0f} s left"
            print(text, file=sys.stderr, flush=True)

    return report


def _count(done: int, total: int | None, note: str) -> str:
    """How far it is, in words."""
    return f"{done:,}" + (f" of {total:,}" if total else "") + (f", {note}" if note else "")


def printable(text: str) -> str:
    """The text with U+FFFD for control characters, which could move the cursor or recolour a terminal."""
    return "".join(mark if mark in "\n\t" or unicodedata.category(mark) != "Cc" else "\ufffd" for mark in text)


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on standard output, as wide as it needs where the output is no terminal."""
    table = Table(show_header=any(header))
    for number, title in enumerate(header):
        table.add_column(title, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 1000  # a table takes no more than it needs, and a file has no edge
    console.print(table)
