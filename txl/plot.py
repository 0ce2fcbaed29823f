"""Curves as text: series of points -> lines of braille dots with axes, several curves over each other in colours.

A character holds two by four dots, so a plot of 60 by 15 characters has 120 by 60 points. Knows nothing of what the
numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")
"""Of the curves, in their order; the seventh is again the first."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, U+2800 + bits, by row from the top and column."""
BRAILLE = 0x2800


@dataclass(frozen=True)
class Curve:
    """A name and its points, x ascending; a y of None is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]


def plot(curves: Sequence[Curve], *, width: int, height: int, x_name: str, y_name: str) -> list[Text]:
    """The lines of a plot at most `width` characters wide with `height` lines of curves, or a line that says why not.

    Between neighbouring points there is a straight line; where two curves share a character the later one's colour
    stands. The y axis spans what is there, without the highest twentieth where that is more than the rest is wide: the
    first steps of training would leave no room for the others.
    """
    points = [(x, y) for curve in curves for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    if not points:
        return [Text(f"no numbers of {y_name} yet")]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    bottom, top = _span([y for _, y in points])
    labelled = {row for row in range(height) if row in (0, height - 1) or (row % 4 == 0 and row < height - 2)}
    labels = [
        f"{top - (top - bottom) * row / max(1, height - 1):.4g}" if row in labelled else "" for row in range(height)
    ]
    margin = max(map(len, labels)) + 1
    columns = max(8, width - margin - 1)
    canvas = Canvas(columns, height)
    for number, curve in enumerate(curves):
        before: tuple[float, float] | None = None
        for x, y in zip(curve.x, curve.y, strict=True):
            if y is None:
                before = None
                continue
            across = (x - left) / (right - left or 1) * (2 * columns - 1)
            down = (top - y) / (top - bottom or 1) * (4 * height - 1)
            canvas.line(before or (across, down), (across, down), number)
            before = across, down
    lines = [Text(y_name, style="bold")]
    for row, label in enumerate(labels):
        lines.append(Text(f"{label:>{margin - 1}} │") + canvas.row(row))
    lines.append(Text(f"{'':>{margin - 1}} └{'─' * columns}"))
    ends = f"{left:,.6g}", f"{right:,.6g} {x_name}"
    lines.append(Text(" " * (margin + 1) + ends[0] + ends[1].rjust(columns - len(ends[0]))))
    return lines


class Canvas:
    """Dots by character, each character in the colour of the curve that came last."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._bits = [[0] * columns for _ in range(rows)]
        self._curve = [[0] * columns for _ in range(rows)]

    def line(self, start: tuple[float, float], end: tuple[float, float], curve: int) -> None:
        """Dots from one point to another, both (across, down) in dots; what is outside is left out."""
        steps = max(1, math.ceil(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
        for step in range(steps + 1):
            across, down = (round(a + (b - a) * step / steps) for a, b in zip(start, end, strict=True))
            if 0 <= across < 2 * self._columns and 0 <= down < 4 * self._rows:
                self._bits[down // 4][across // 2] |= DOTS[down % 4][across % 2]
                self._curve[down // 4][across // 2] = curve

    def row(self, number: int) -> Text:
        """One line of characters."""
        text = Text()
        for bits, curve in zip(self._bits[number], self._curve[number], strict=True):
            text.append(chr(BRAILLE + bits) if bits else " ", style=COLOURS[curve % len(COLOURS)] if bits else "")
        return text


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Bottom and top of the y axis."""
    ordered = sorted(values)
    bottom, top = ordered[0], ordered[-1]
    most = ordered[math.ceil(0.95 * (len(ordered) - 1))]
    return (bottom, most) if top - most > most - bottom > 0 else (bottom, top)
