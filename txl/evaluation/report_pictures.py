"""The pictures of a report: measurements -> lines, bands and points on the axes of a figure.

Knows nothing of files or pages; `report` saves what is drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from txl.evaluation import summary
from txl.evaluation.context import Point, compared
from txl.evaluation.measure import Measurement
from txl.evaluation.report_axes import bar_line, context_axis, label_ends, mark_trained, note_above


@dataclass(frozen=True)
class Theme:
    """Colours of a picture: page, text, faint lines, and one a run, told apart by all eyes (Okabe and Ito 2008)."""

    page: str
    ink: str
    faint: str
    runs: tuple[str, ...]


LIGHT = Theme(
    "#ffffff",
    "#1f2328",
    "#d0d7de",
    ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#8C6D00", "#444444", "#332288", "#882255", "#7F4F24"),
)
DARK = Theme(
    "#14171c",
    "#e6e6e6",
    "#3a414b",
    ("#56B4E9", "#F0883E", "#3FCFA0", "#E49BC8", "#E3C64A", "#BBBBBB", "#A79BFF", "#FF9AA8", "#C9A27E"),
)
WORDS = {
    "window": "cached window",
    "truncated": "fresh pass",
    "slide": "slid window",
    "block": "blocks",
    "token": "a token at a time",
    "kv": "decoder with cache",
    "kv-token": "decoder, a token at a time",
}
"""What a line is called, by its kind of reading."""
FEW = 5
"""Runs that are drawn by every way of reading; of more, each is drawn by the one it is judged by."""
PLACES = {
    "copied": "tokens back to the last place of the same run of tokens",
    "position in segment": "place in a segment, tokens",
}
"""What the axis of a question's classes says."""
STYLES = {
    "window": ("-", "o"),
    "truncated": ("-.", "D"),
    "slide": ("-", "s"),
    "block": (":", "^"),
    "token": ("-.", "D"),
    "kv": ("--", "v"),
    "kv-token": (":", "v"),
}
"""Line and marker of each kind of reading."""


def draw_context(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Loss of the sampled tokens against context; bands are intervals of the comparison."""
    metric = summary.metric_of(measurements)
    series: list[tuple[str, str, Measurement, list[Point]]] = []
    for label, colour, m in _runs(measurements, theme):
        for kind in _kinds(m, len(measurements)):
            points = [p for p in m.points if p.targets == "sample" and p.settings.kind == kind and p.context]
            if points:
                text = f"{label}, {WORDS[kind]}" if len(measurements) <= FEW else label
                series.append((text, colour, m, sorted(points, key=_length)))
    if not series:
        return False
    axes = figure.add_subplot()
    contexts = [_length(p) for *_, points in series for p in points]
    ends = _draw_states(axes, measurements, theme, metric, at=max(contexts))
    inside = [height for _, height, *_ in ends]
    within = [p for *_, m, points in series for p in points if _is_own(p, m)]
    bars = _bars(within, measurements)
    for text, colour, m, points in series:
        line, marker = STYLES[points[0].settings.kind]
        x, y = [_length(p) for p in points], [metric.of(p) for p in points]
        n_own = sum(_is_own(p, m) for p in points)
        if n_own:
            own = points[:n_own]
            low, high = ([metric.of(p, bars[id(p)][side]) for p in own] for side in (0, 1))
            axes.fill_between(x[:n_own], low, high, color=colour, alpha=0.18, lw=0)
            axes.plot(x[:n_own], y[:n_own], color=colour, ls=line, marker=marker, ms=5, lw=1.8)
            ends.append((x[n_own - 1], y[n_own - 1], text, colour))
            inside += [*low, *high]
        # Beyond the length an absolute position was trained at the line is dashed, has no band and may leave the frame.
        beyond = slice(max(0, n_own - 1), None)
        axes.plot(x[beyond], y[beyond], color=colour, ls=(0, (3, 2)), marker=marker, ms=5, lw=1.8)
    held = [value for value in inside if math.isfinite(value)]
    if held:
        room = max(0.08 * (max(held) - min(held)), 1e-3 * abs(max(held))) or 1.0
        axes.set_ylim(min(held) - room, max(held) + 2 * room)
    top = axes.get_ylim()[1]
    for _, colour, _, points in series:
        for point in (p for p in points if metric.of(p) > top):
            note_above(axes, _length(point), f"↑ {metric.show(metric.of(point))}", colour)
    context_axis(axes, contexts)
    mark_trained(axes, {int(m.config["model"]["tgt_len"]) for m in measurements}, theme.ink)
    axes.set_ylabel(f"{metric.name}, {measurements[0].split} text")
    if metric.name == "perplexity":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    label_ends(axes, ends)
    return True


def _draw_states(
    axes: Axes, measurements: Sequence[Measurement], theme: Theme, metric: summary.Metric, *, at: int
) -> list[tuple[float, float, str, str]]:
    """A level line for each recurrent state, whose context has no length; what `label_ends` needs of it."""
    ends = []
    for label, colour, m in _runs(measurements, theme):
        for value in (metric.of(p) for p in m.points if p.targets == "sample" and p.context is None):
            axes.axhline(value, color=colour, lw=1.8)
            ends.append((float(at), value, f"{label}, recurrent", colour))
    return ends


def _bars(points: Sequence[Point], measurements: Sequence[Measurement]) -> dict[int, tuple[float, float]]:
    """The interval of each of the measurements' points, of the comparison where they can be compared, by its id()."""
    intervals = compared(points, one_text=summary.same_text(measurements)) if points else []
    return {id(p): interval for p, interval in zip(points, intervals, strict=True)}


def _is_own(point: Point, m: Measurement) -> bool:
    """Whether a model was made for a point's context: any for a cache, else up to the trained length."""
    return point.settings.kind in ("window", "truncated") or _length(point) <= _length(m.headline)


def _kinds(m: Measurement, runs: int) -> tuple[str, ...]:
    """The ways of reading by which one of so many runs is drawn."""
    return tuple(WORDS) if runs <= FEW else (summary.at_best_use(m).settings.kind,)


def _length(point: Point) -> int:
    """A point's context; 0 where it is unbounded."""
    return point.context or 0


def draw_speed(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Scored tokens a second against context, both axes logarithmic; bars reach from the slowest run to the fastest."""
    axes = figure.add_subplot()
    ends, contexts = [], []
    for label, colour, m in _runs(measurements, theme):
        for kind in _kinds(m, len(measurements)):
            timed = sorted((s.context, s) for s in m.speeds if s.kind == kind and s.context)
            if not timed:
                continue
            x, y = [context for context, _ in timed], [s.median for _, s in timed]
            line, marker = STYLES[kind]
            bar_line(
                axes, x, y, [s.low for _, s in timed], [s.high for _, s in timed], color=colour, ls=line, marker=marker
            )
            ends.append((x[-1], y[-1], f"{label}, {WORDS[kind]}", colour))
            contexts += x
    if not ends:
        return False
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    context_axis(axes, contexts)
    axes.set_ylabel("scored tokens a second")
    axes.margins(y=0.12)
    label_ends(axes, ends)
    return True


def draw_copy(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Loss of sampled tokens by how far back they could be copied from, a column of points a class."""
    return _draw_groups(figure, measurements, theme, by="copied", targets="sample", joined=False)


def draw_position(figure: Figure, measurements: Sequence[Measurement], theme: Theme) -> bool:
    """Loss of all tokens by their place in a segment of the training's length."""
    return _draw_groups(figure, measurements, theme, by="position in segment", targets="all", joined=True)


def _draw_groups(
    figure: Figure, measurements: Sequence[Measurement], theme: Theme, *, by: str, targets: str, joined: bool
) -> bool:
    """The classes of one question from left to right, a colour a run; bars are intervals of the comparison."""
    metric = summary.metric_of(measurements)
    series = [(name, colour, summary.groups_of(m, by, targets)) for name, colour, m in _runs(measurements, theme)]
    series = [(name, colour, groups) for name, colour, groups in series if groups]
    if not series:
        return False
    axes = figure.add_subplot()
    labels = list(dict.fromkeys(label for _, _, groups in series for label in groups))
    bars: dict[int, tuple[float, float]] = {}
    for label in labels:
        points = [groups[label] for _, _, groups in series if label in groups]
        bars |= _bars(points, measurements)
    ends = []
    for number, (name, colour, groups) in enumerate(series):
        aside = 0.0 if joined else min(0.12, 0.8 / len(series)) * (number - (len(series) - 1) / 2)
        x = [labels.index(label) + aside for label in groups]
        y = [metric.of(p) for p in groups.values()]
        low, high = ([metric.of(p, bars[id(p)][side]) for p in groups.values()] for side in (0, 1))
        bar_line(axes, x, y, low, high, color=colour, ls="-" if joined else "none", marker="o")
        ends.append((x[-1], y[-1], name, colour))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel(PLACES[by])
    axes.set_ylabel(f"{metric.name}, {measurements[0].split} text")
    label_ends(axes, ends)
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
    label_ends(axes, ends)
    return True


def _runs(measurements: Sequence[Measurement], theme: Theme) -> list[tuple[str, str, Measurement]]:
    """Name (a long one cut in the middle), colour and measurement of each run; colours repeat after the last."""
    names = [name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}" for name in summary.labels(measurements)]
    return [
        (name, theme.runs[i % len(theme.runs)], m) for i, (name, m) in enumerate(zip(names, measurements, strict=True))
    ]
