"""The report of a comparison: measurements -> report.html, report.md, report.json and pictures in one folder.

Matplotlib without pyplot's global state. Sentences and tables come from `summary`, pages from `page`, lines and points
from `report_pictures`.
Knows nothing of models or corpora.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from txl.evaluation import page
from txl.evaluation.measure import Measurement
from txl.evaluation.recl import Recl
from txl.evaluation.report_pictures import (
    DARK,
    LIGHT,
    Theme,
    draw_context,
    draw_copy,
    draw_learning,
    draw_position,
    draw_speed,
)

DOTS_PER_INCH = 160
PICTURES: dict[str, Callable[[Figure, Sequence[Measurement], Theme], bool]] = {}
"""File name -> what draws it; filled below, in the order of the report."""


def write_report(
    folder: str | Path, measurements: Sequence[Measurement], *, command: str, lengths: Sequence[Recl] = ()
) -> Path:
    """Write the report of one or more measurements and return the path of report.html.

    lengths: their relative effective context lengths, as one group.  command: what made it, printed so that it can be
    made again. Each file appears whole or not at all; pictures of an older report that this one lacks are removed.
    report.html holds its pictures and asks nothing of the network. Raises ValueError for no measurements.
    """
    if not measurements:
        raise ValueError("write_report: found no measurements; expected at least one")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    light, dark = ({name: draw(name, measurements, theme) for name in PICTURES} for theme in (LIGHT, DARK))
    for name, picture in light.items():
        if picture is None:
            (folder / name).unlink(missing_ok=True)
        else:
            _write(folder / name, picture)
    drawn = {name: (picture, dark[name] or picture) for name, picture in light.items() if picture is not None}
    _write(folder / "report.json", page.data(measurements, command=command, lengths=lengths).encode())
    _write(folder / "report.md", page.markdown(measurements, list(drawn), command=command, lengths=lengths).encode())
    _write(folder / "report.html", page.html(measurements, drawn, command=command, lengths=lengths).encode())
    return folder / "report.html"


def draw(name: str, measurements: Sequence[Measurement], theme: Theme) -> bytes | None:
    """One picture as PNG; None where the measurements hold nothing to show in it."""
    settings: dict[Any, Any] = {
        "axes.edgecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.facecolor": theme.page,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "figure.facecolor": theme.page,
        "font.size": 10,
        "grid.color": theme.faint,
        "grid.linewidth": 0.6,
        "text.color": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "svg.hashsalt": "txl",
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.2, 4.3), layout="constrained")
        if not PICTURES[name](figure, measurements, theme):
            return None
        held = io.BytesIO()
        figure.savefig(held, format="png", dpi=DOTS_PER_INCH, metadata={"Software": "txl"})
    return held.getvalue()


PICTURES.update(
    {
        "context.png": draw_context,
        "copy.png": draw_copy,
        "position.png": draw_position,
        "speed.png": draw_speed,
        "learning.png": draw_learning,
    }
)


def _write(path: Path, content: bytes) -> None:
    """Put a file in place whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
