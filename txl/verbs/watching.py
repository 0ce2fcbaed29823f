"""The verb that looks at runs, finished or not: loss curves in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from txl.config import ConfigError
from txl.plot import COLOURS, Curve, plot
from txl.train.history import Log, metrics_of, series

REFRESH_SECONDS = 2.0
"""Between two looks with --follow."""
WIDTH, HEIGHT = 100, 30
"""Characters and lines of a picture where there is no terminal."""


def watch(runs: Sequence[Path], metric: Sequence[str] | None, over: str, follow: bool) -> None:
    """Draw numbers of the runs' logs over each other, once or until Ctrl-C."""
    console, logs = Console(highlight=False), [Log(run) for run in runs]
    if not console.is_terminal:
        console.width = WIDTH
    if not follow:
        for line in picture(runs, logs, metric, over, width=console.width, height=HEIGHT):
            console.print(line, soft_wrap=True)
        return
    with suppress(KeyboardInterrupt):
        looks = every_look(console, runs, logs, metric, over)
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, screen=True) as live:
                for lines in looks:
                    live.update(Group(*lines), refresh=True)
        seen: list[Text] = []
        for lines in looks:  # a file or a pipe keeps what was written: a line whenever a run moved on
            for line in lines[-len(runs) :]:
                if line not in seen:
                    console.print(line, soft_wrap=True)
            seen = lines[-len(runs) :]


def every_look(
    console: Console, runs: Sequence[Path], logs: Sequence[Log], metric: Sequence[str] | None, over: str
) -> Iterator[list[Text]]:
    """The picture as it is now, for ever, with REFRESH_SECONDS between two."""
    while True:
        yield picture(runs, logs, metric, over, width=console.width, height=console.height)
        time.sleep(REFRESH_SECONDS)


def picture(
    runs: Sequence[Path], logs: Sequence[Log], metric: Sequence[str] | None, over: str, *, width: int, height: int
) -> list[Text]:
    """A plot for each metric, at most `width` wide and together `height` lines high, and a line for each run below.

    Without a metric: training's and validation's bits per byte. Raises ConfigError where a run has no log, or a
    metric is in none.
    """
    for log in logs:
        log.refresh()
    if missing := [run for run, log in zip(runs, logs, strict=True) if not log.path.exists()]:
        allowed = "allowed: folders of runs (run.dir), which have it from the first step on"
        raise ConfigError([f"{run}: found no metrics.jsonl; {allowed}" for run in missing])
    known = metrics_of([record for log in logs for record in log.records])
    wanted = list(metric or [name for name in ("bits_per_byte", "valid_bits_per_byte") if name in known] or ["nll"])
    if known and (unknown := [name for name in wanted if name not in known]):
        raise ConfigError(
            [f"--metric: found {name}, which is in no log; allowed: {', '.join(known)}" for name in unknown]
        )
    rows = max(4, (height - len(runs)) // len(wanted) - 3)
    lines: list[Text] = []
    for name in wanted:
        curves = [
            Curve(str(run), *series(log.records, name, over=over, points=2 * width))
            for run, log in zip(runs, logs, strict=True)
        ]
        lines += plot(curves, width=width, height=rows, x_name=over, y_name=name)
    for number, (run, log) in enumerate(zip(runs, logs, strict=True)):
        lines.append(Text(legend(run, log, wanted), style=COLOURS[number % len(COLOURS)]))
    return lines


def legend(run: Path, log: Log, metrics: Sequence[str]) -> str:
    """A run's step and the last of each number."""
    text = f"━ {run}  step {log.records[-1]['step']:,}" if log.records else f"━ {run}  no step yet"
    for name in metrics:
        value = next((record[name] for record in reversed(log.records) if record.get(name) is not None), None)
        text += "" if value is None else f"  {name} {value:,.5g}"
    return text
