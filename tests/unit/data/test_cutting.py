"""Where text is cut, on lines and words small enough to count."""

from __future__ import annotations

import pytest

from txl.data import cutting
from txl.data.cutting import after_line_end, after_white_space, batches, before_line_end, line_units


@pytest.fixture(autouse=True)
def short_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "UNIT", 5)


def test_after_white_space_takes_space_tab_and_line_end() -> None:
    assert [after_white_space(text) for text in ("ab c", "ab\tc d\n", "abc", "")] == [3, 7, 0, 0]


def test_units_end_with_lines_and_cut_a_long_line() -> None:
    assert list(line_units("ab\ncd\nefghijklmnop\nq")) == ["ab\n", "cd\n", "efghi", "jklmn", "op\nq"]
    assert list(line_units("abcde\nf")) == ["abcde", "\nf"]
    assert list(line_units("")) == []


@pytest.mark.parametrize(
    "text", ["ab\ncd\nefghijklmnop\nq", "abcdefghijklmnopqrst", "\n\n\n\n\n\n\nab", "abcde\nabcde\n"]
)
def test_text_cut_after_a_line_or_unit_has_the_same_cuts(text: str) -> None:
    # What matters are the cuts inside lines: two units of whole lines encode like one.
    def inner(units: list[str]) -> set[int]:
        at, ends = 0, set()
        for unit in units:
            at += len(unit)
            ends.add(at)
        return {end for end in ends if 0 < end < len(text) and text[end - 1] != "\n"}

    whole = inner(list(line_units(text)))
    for end in range(1, len(text)):
        at = after_line_end(text[:end])
        first, rest = list(line_units(text[:at])), list(line_units(text[at:]))
        assert inner(first + rest) == whole, (end, at)


def test_before_line_end_wants_a_letter_or_digit_before_it() -> None:
    text = "ab\ncd.\ne5\n\n"
    assert before_line_end(text, 0, len(text)) == 9
    assert before_line_end(text, 0, 9) == 2
    assert before_line_end(text, 2, 9) == 0
    assert before_line_end("\nab", 0, 3) == 0


def test_batches_hold_at_most_so_many_characters_but_at_least_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BATCH", 5)
    units = list(enumerate(["abc", "de", "f", "ghijklm", "n"]))
    assert [[unit for _, unit in batch] for batch in batches(units)] == [["abc", "de"], ["f"], ["ghijklm"], ["n"]]
    assert list(batches([])) == []
