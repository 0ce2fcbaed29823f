"""Parts of a picture that several share: axes of contexts, bars, marks, and names at the ends of lines.

Axes and numbers -> what is drawn on them. Knows nothing of measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

TICK_GAP = 0.07
"""Part of the axis that the number at a tick takes."""


def bar_line(
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


def context_axis(axes: Axes, contexts: Sequence[int]) -> None:
    """A logarithmic axis with a tick at each context measured, of those whose numbers would meet at the longest."""
    lengths = sorted(set(contexts))
    gap = TICK_GAP * math.log(1.15**2 * lengths[-1] / lengths[0])
    ticks = lengths[-1:]
    for length in reversed(lengths[:-1]):
        if math.log(ticks[0] / length) >= gap:
            ticks.insert(0, length)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    axes.set_xlabel("context, tokens")


def note_above(axes: Axes, x: float, text: str, colour: str) -> None:
    """Say the value of a point that lies above the frame, below what is said there already."""
    above = sum(isinstance(note, Annotation) and note.xy == (x, 1) for note in axes.texts)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (x, 1), xytext=(0, -4 - 11 * above), ha="center", va="top", fontsize=8.5, color=colour, **place)


def mark_trained(axes: Axes, lengths: set[int], colour: str) -> None:
    """A vertical line at each length of a training segment that lies on the axis."""
    left, right = axes.get_xlim()
    for length in sorted(length for length in lengths if left < length < right):
        axes.axvline(length, color=colour, lw=0.9, ls=(0, (2, 3)), zorder=0)
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


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
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
