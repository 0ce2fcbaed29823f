"""Curves as dots: where they stand, character by character, against drawings by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from txl.plot import COLOURS, Canvas, Curve, plot


def drawn(*curves: Curve, width: int = 24, height: int = 3) -> list[str]:
    return [line.plain for line in plot(curves, width=width, height=height, x_name="step", y_name="nll")]


def test_a_line_from_corner_to_corner_dot_by_dot() -> None:
    canvas = Canvas(2, 1)
    canvas.line((0, 0), (3, 3), 0)
    # columns 0 and 1 of the first character hold dots (0, 0) and (1, 1), the second (2, 2) and (3, 3)
    assert canvas.row(0).plain == chr(0x2800 + 0x01 + 0x10) + chr(0x2800 + 0x04 + 0x80)
    canvas.line((-5, 9), (-1, -1), 1)  # outside
    assert canvas.row(0).plain == "⠑⢄"


def test_axes_have_their_ends_and_a_falling_curve_falls() -> None:
    lines = drawn(Curve("a", [1, 1000], [3.5, 1.25]))
    assert lines[0] == "nll"
    assert lines[1].startswith(" 3.5 │")
    assert lines[3].startswith("1.25 │")
    assert lines[4] == "     └" + "─" * 18
    assert lines[5] == "      1       1,000 step"
    assert all(len(line) <= 24 for line in lines)
    rows = [line[6:] for line in lines[1:4]]
    columns = [[at for at, mark in enumerate(row) if mark != " "] for row in rows]
    assert columns[0][0] == 0
    assert columns[2][-1] == 17
    assert all(one[-1] <= other[0] + 1 for one, other in pairwise(columns))


def test_several_curves_stand_over_each_other_in_their_colours() -> None:
    lines = plot(
        [Curve("a", [0, 9], [1.0, 1.0]), Curve("b", [0, 9], [0.0, 0.0])], width=30, height=5, x_name="step", y_name="y"
    )
    styles = [{str(span.style) for span in line.spans} - {""} for line in lines[1:6]]
    assert styles == [{COLOURS[0]}, set(), set(), set(), {COLOURS[1]}]


def test_a_gap_is_a_gap_and_the_first_steps_do_not_press_the_others_flat() -> None:
    steps = list(range(1, 101))
    losses: list[float | None] = [50.0, 40.0, *(2.0 - step / 100 for step in range(98))]
    losses[50:70] = [None] * 20
    lines = drawn(Curve("a", steps, losses), width=60, height=6)
    assert float(lines[1].split("│")[0]) < 2.1
    row = "".join(max(marks) for marks in zip(*(line.split("│")[1].ljust(60) for line in lines[1:7]), strict=True))
    assert " " * 9 in row.strip()
    assert not row.startswith("    ")


@pytest.mark.parametrize(
    ("curve", "shown"),
    [
        (Curve("a", [], []), "no numbers of nll yet"),
        (Curve("a", [1, 2], [None, None]), "no numbers of nll yet"),
        (Curve("a", [7], [2.0]), "nll"),
        (Curve("a", [1, 2], [2.0, 2.0]), "nll"),
    ],
)
def test_nothing_one_point_and_a_flat_line_can_be_drawn(curve: Curve, shown: str) -> None:
    assert drawn(curve)[0] == shown
