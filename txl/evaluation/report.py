"""The report of a comparison: measurements -> report.html, report.md, report.json and pictures in one folder.

The only user of matplotlib, without pyplot's global state. Sentences and tables come from `summary`, pages from `page`.
Knows nothing of models or corpora.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from txl.evaluation import page, summary
from txl.evaluation.context import Point, compared
from txl.evaluation.measure import Measurement


@dataclass(frozen=True)
class Theme:
    """Colours of a picture: page, text, faint lines, and one a run, told apart by all eyes (Okabe and Ito 2008)."""

    page: str
    ink: str
    faint: str
    runs: tuple[str, ...]


LIGHT = Theme("#ffffff", "#1f2328", "#d0d7de", ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#8C6D00", "#444444"))
DARK = Theme("#14171c", "#e6e6e6", "#3a414b", ("#56B4E9", "#F0883E", "#3FCFA0", "#E49BC8", "#E3C64A", "#BBBBBB"))
WORDS = {"window": "cached window", "slide": "slid window", "block": "blocks"}
"""What a line is called, by its kind of reading."""
STYLES = {"window": ("-", "o"), "slide": ("-", "s"), "block": (":", "^")}
"""Line and marker of each kind of reading."""
DOTS_PER_INCH = 160
PICTURES: dict[str, Callable[[Figure, Sequence[Measurement], Theme], bool]] = {}
"""File name -> what draws it; filled below, in the order of the report."""


def write_report(folder: str | Path, measurements: Sequence[Measurement], *, command: str) -> Path:
    """Write the report of one or more measurements and return the path of report.html.

    command: what made it, printed so that it can be made again. Each file appears whole or not at all; pictures of an
    older report that this one lacks are removed. report.html holds its pictures and asks nothing of the network. Raises
    ValueError for no measurements.
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
    _write(folder / "report.json", page.data(measurements, command=command).encode())
    _write(folder / "report.md", page.markdown(measurements, list(drawn), command=command).encode())
    _write(folder / "report.html", page.html(measurements, drawn, command=command).encode())
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


def draw_context(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Loss of the sampled tokens against context; bars are intervals of the comparison."""
    metric = summary.metric_of(measurements)
    series: list[tuple[str, str, Measurement, list[Point]]] = []
    for label, colour, m in _runs(measurements, theme):
        for kind in WORDS:
            points = [p for p in m.points if p.targets == "sample" and p.settings.kind == kind and p.context]
            if points:
                series.append((f"{label}, {WORDS[kind]}", colour, m, sorted(points, key=_length)))
    if not series:
        return False
    axes = figure.add_subplot()
    contexts = [_length(p) for *_, points in series for p in points]
    ends = _draw_states(axes, measurements, theme, metric, at=max(contexts))
    inside = [height for _, height, *_ in ends]
    within = [p for *_, m, points in series for p in points if _is_own(p, m)]
    bars = {id(p): interval for p, interval in zip(within, compared(within), strict=True)} if within else {}
    for text, colour, m, points in series:
        line, marker = STYLES[points[0].settings.kind]
        x, y = [_length(p) for p in points], [metric.of(p) for p in points]
        n_own = sum(_is_own(p, m) for p in points)
        if n_own:
            own = points[:n_own]
            low, high = ([metric.of(p, bars[id(p)][side]) for p in own] for side in (0, 1))
            _bar_line(axes, x[:n_own], y[:n_own], low, high, color=colour, ls=line, marker=marker)
            ends.append((x[n_own - 1], y[n_own - 1], text, colour))
            inside += [*low, *high]
        # Beyond the length an absolute position was trained at the line is dashed, has no bars and may leave the frame.
        beyond = slice(max(0, n_own - 1), None)
        axes.plot(x[beyond], y[beyond], color=colour, ls=(0, (3, 2)), marker=marker, ms=5, lw=1.8)
    held = [value for value in inside if math.isfinite(value)]
    if held:
        room = max(0.08 * (max(held) - min(held)), 1e-3 * abs(max(held))) or 1.0
        axes.set_ylim(min(held) - room, max(held) + 2 * room)
    top = axes.get_ylim()[1]
    for _, colour, _, points in series:
        for point in (p for p in points if metric.of(p) > top):
            _note_above(axes, _length(point), f"↑ {metric.show(metric.of(point))}", colour)
    _context_axis(axes, contexts)
    _mark_trained(axes, measurements, theme)
    axes.set_ylabel(f"{metric.name}, {measurements[0].split} text")
    if metric.name == "perplexity":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    _label_ends(axes, ends)
    return True


def _draw_states(
    axes: Axes, measurements: Sequence[Measurement], theme: Theme, metric: summary.Metric, *, at: int
) -> list[tuple[float, float, str, str]]:
    """A level line for each recurrent state, whose context has no length; what `_label_ends` needs of it."""
    ends = []
    for label, colour, m in _runs(measurements, theme):
        for value in (metric.of(p) for p in m.points if p.targets == "sample" and p.context is None):
            axes.axhline(value, color=colour, lw=1.8)
            ends.append((float(at), value, f"{label}, recurrent", colour))
    return ends


def _is_own(point: Point, m: Measurement) -> bool:
    """Whether a model was made for a point's context: any for a cache, else up to the trained length."""
    return point.settings.kind == "window" or _length(point) <= _length(m.headline)


def _length(point: Point) -> int:
    """A point's context; 0 where it is unbounded."""
    return point.context or 0


def _bar_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], low: Sequence[float], high: Sequence[float], **style: Any
) -> None:
    """A line with markers and bars from low to high."""
    errors = [
        [max(0.0, v - a) for v, a in zip(y, low, strict=True)],
        [max(0.0, b - v) for v, b in zip(y, high, strict=True)],
    ]
    bars = axes.errorbar(x, y, errors, ms=5, lw=1.8, capsize=3, elinewidth=1, **style)
    for part in (bars.lines[0], *bars.lines[1], *bars.lines[2]):
        part.set_clip_on(True)


def draw_speed(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Scored tokens a second against context, both axes logarithmic; bars reach from the slowest run to the fastest."""
    axes = figure.add_subplot()
    ends, contexts = [], []
    for label, colour, m in _runs(measurements, theme):
        for kind, words in WORDS.items():
            timed = sorted((s.context, s) for s in m.speeds if s.kind == kind and s.context)
            if not timed:
                continue
            x, y = [context for context, _ in timed], [s.median for _, s in timed]
            line, marker = STYLES[kind]
            _bar_line(
                axes, x, y, [s.low for _, s in timed], [s.high for _, s in timed], color=colour, ls=line, marker=marker
            )
            ends.append((x[-1], y[-1], f"{label}, {words}", colour))
            contexts += x
    if not ends:
        return False
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _context_axis(axes, contexts)
    axes.set_ylabel("scored tokens a second")
    axes.margins(y=0.12)
    _label_ends(axes, ends)
    return True


def draw_learning(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Validation loss against tokens of training (bold), the training loss behind it (faint)."""
    metric = summary.metric_of(measurements)
    axes = figure.add_subplot()
    ends = []
    seen: list[float] = []
    for label, colour, m in _runs(measurements, theme):
        for curve in m.learning:
            x = [tokens / 1e6 for tokens in curve.tokens]
            scale = 1 / math.log(2) / curve.bytes_per_token
            y = [nll * scale if metric.name == "bits per byte" else math.exp(min(nll, 50.0)) for nll in curve.nll]
            valid = curve.name == "valid"
            axes.plot(
                x,
                y,
                color=colour,
                lw=2 if valid else 0.8,
                alpha=1 if valid else 0.35,
                marker="o" if valid else None,
                ms=3.5,
            )
            if valid:
                ends.append((x[-1], y[-1], f"{label}, validation", colour))
            seen += y[len(y) // 20 :]
    if not seen:
        return False
    # The first steps fall from the uniform model's loss and would flatten all that follows.
    axes.set_ylim(min(seen) - 0.05 * (max(seen) - min(seen)), max(seen) + 0.05 * (max(seen) - min(seen)))
    axes.set_xlabel("millions of training tokens read")
    axes.set_ylabel(f"{metric.name} (faint: training text)")
    _label_ends(axes, ends)
    return True


PICTURES.update({"context.png": draw_context, "speed.png": draw_speed, "learning.png": draw_learning})


def _runs(measurements: Sequence[Measurement], theme: Theme) -> list[tuple[str, str, Measurement]]:
    """Name (a long one cut in the middle), colour and measurement of each run; colours repeat after the last."""
    names = [name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}" for name in summary.labels(measurements)]
    return [
        (name, theme.runs[i % len(theme.runs)], m) for i, (name, m) in enumerate(zip(names, measurements, strict=True))
    ]


def _context_axis(axes: Axes, contexts: Sequence[int]) -> None:
    """A logarithmic axis with a tick at each context that was measured."""
    ticks = sorted(set(contexts))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
    axes.set_xlabel("context, tokens")


def _note_above(axes: Axes, x: float, text: str, colour: str) -> None:
    """Say the value of a point that lies above the frame."""
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "xytext": (0, -4), "textcoords": "offset points"}
    axes.annotate(text, (x, 1), ha="center", va="top", fontsize=8.5, color=colour, **place)


def _mark_trained(axes: Axes, measurements: Sequence[Measurement], theme: Theme) -> None:
    """A vertical line at the length of the training segment, where that lies on the axis."""
    left, right = axes.get_xlim()
    lengths = {int(m.config["model"]["tgt_len"]) for m in measurements}
    for length in sorted(length for length in lengths if left < length < right):
        axes.axvline(length, color=theme.ink, lw=0.9, ls=(0, (2, 3)), zorder=0)
        axes.annotate(
            f"trained on segments of {length:,}",
            (length, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
        )


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each line's name to the right of the axes, near the height of its last point, never one on another."""
    axes.autoscale_view()
    places = [tuple(axes.transAxes.inverted().transform(axes.transData.transform((x, y)))) for x, y, *_ in ends]
    if not all(math.isfinite(number) for place in places for number in place):
        places = [(1.0, (i + 1) / (len(ends) + 1)) for i in range(len(ends))]
    heights = spread([height for _, height in places], 0.065)
    offset: dict[str, Any] = {
        "xycoords": "axes fraction",
        "xytext": (6, 0),
        "textcoords": "offset points",
        "va": "center",
    }
    for (_, _, text, colour), (left, own), height in zip(ends, places, heights, strict=True):
        axes.annotate(text, (1, height), color=colour, **offset)
        if left < 0.9:  # a line that ends early is led to its name
            axes.plot([left, 1], [own, height], color=colour, lw=0.8, ls=(0, (1, 4)), transform=axes.transAxes)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, changed as little as lowest-first needs for neighbours to be `gap` apart, in the order given.

    0.5 0.5 0.9 with gap 0.1  ->  0.45 0.55 0.9
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[list[float]] = []  # of each cluster: the wanted middle, and how many share it
    for i in order:
        groups.append([heights[i], 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (a, n), (b, k) = groups[-2], groups[-1]
            groups[-2:] = [[(a * n + b * k) / (n + k), n + k]]
    placed = [middle + gap * (j - (count - 1) / 2) for middle, count in groups for j in range(int(count))]
    result = [0.0] * len(heights)
    for i, height in zip(order, placed, strict=True):
        result[i] = height
    return result


def _write(path: Path, content: bytes) -> None:
    """Put a file in place whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
