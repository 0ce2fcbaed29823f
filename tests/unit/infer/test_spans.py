"""Spans of text: whole, in order, the same however the bytes arrive, and cut where a line or a sentence ends."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest

from txl.infer import spans
from txl.infer.spans import BLOCK_BYTES, Cutter, Place, Span, Unit, inside_line

STORY = (
    'He came. "Did he?" she asked! Dr.X went to v1.2 of it... and\nso on.  (Yes.) No\n\nHeading\n\n'
    "はい。そうです！\r\n\n  last words"
)


def cut(raw: bytes, unit: Unit = "line", sizes: Any = (10**9,), *, eager: bool = False, **options: Any) -> list[Span]:
    """The spans of a text that arrives in portions of the given sizes, over and over."""
    cutter, found, at, turn = Cutter(unit, **options), [], 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        cutter.push(raw[at : at + size])
        at, turn = at + size, turn + 1
        found += [span for block in cutter.blocks(eager=eager) for span in block]
    return found + [span for block in cutter.finish() for span in block]


def units(found: list[Span]) -> list[bytes]:
    """What the spans between two ends join to."""
    joined, open_ = [], b""
    for span in found:
        open_ += span.raw
        if span.ends:
            joined.append(open_)
            open_ = b""
    return [*joined, open_] if open_ else joined


def test_lines_have_their_numbers_and_places() -> None:
    found = cut(b"one\ntwo\r\n\nthree\rstill\nend")
    assert [(span.raw, span.line, span.offset) for span in found] == [
        (b"one\n", 1, 0),
        (b"two\r\n", 2, 4),
        (b"\n", 3, 9),
        (b"three\rstill\n", 4, 10),
        (b"end", 5, 22),
    ]
    assert [span.ends for span in found] == [True] * 4 + [False]
    assert all(span.starts for span in found)


def test_a_byte_order_mark_is_left_out_at_the_start_of_a_file_alone() -> None:
    mark = b"\xef\xbb\xbf"
    assert [(span.raw, span.offset) for span in cut(mark + b"a\n" + mark, sizes=[1])] == [(b"a\n", 3), (mark, 5)]
    assert cut(mark) == []


def test_sentences_end_at_marks_before_blanks_and_at_empty_lines() -> None:
    assert [unit.decode() for unit in units(cut(STORY.encode(), "sentence"))] == [
        "He came.",
        ' "Did he?" she asked!',
        " Dr.X went to v1.2 of it... and\nso on.",
        "  (Yes.)",
        " No\n\n",
        "Heading\n\n",
        "はい。",
        "そうです！\r\n",
        "\n  last words",
    ]


@pytest.mark.parametrize("unit", ["line", "sentence"])
@pytest.mark.parametrize("eager", [True, False])
def test_how_the_bytes_arrive_changes_no_span(unit: Unit, eager: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "BLOCK_BYTES", 23)
    raw = (STORY * 3 + "x" * 70 + "é" * 40 + "\n" + STORY).encode()
    whole = cut(raw, unit)
    assert b"".join(span.raw for span in whole) == raw
    assert max(len(span.raw) for span in whole) <= 23
    for sizes in ([1], [2, 3], [50, 1, 7]):
        assert cut(raw, unit, sizes, eager=eager) == whole


def test_a_cutter_goes_on_from_a_place() -> None:
    raw = (STORY * 400).encode()
    cutter = Cutter("sentence", place=None)
    cutter.push(raw)
    first = next(cutter.blocks(eager=False))
    place = Place(**cutter.state())
    assert place.offset == sum(len(span.raw) for span in first)
    assert first + cut(raw[place.offset :], "sentence", place=place) == cut(raw, "sentence")


def test_a_long_line_is_cut_before_a_blank_or_between_characters() -> None:
    words = b"word " * 8000 + b"\n"
    found = cut(words)
    assert b"".join(span.raw for span in found) == words
    assert all(span.raw.startswith(b" word") for span in found[1:])
    assert [span.ends for span in found] == [False, False, True]
    assert {span.line for span in found} == {1}
    letters = "é世🙂".encode() * 4000
    parts = cut(letters)
    assert all(part.raw.decode() for part in parts)
    assert all(BLOCK_BYTES - 4 < len(part.raw) <= BLOCK_BYTES for part in parts[:-1])


@pytest.mark.parametrize("tail", [b"\x80" * 9, b"\xff" * 9, b"\xe4", b"\xe4\xb8", b"\xf0\x9f\x99", b"a", b"\xc3"])
def test_part_of_a_line_always_gets_shorter(tail: bytes) -> None:
    end = inside_line(b"x" * 20 + tail)
    assert end == 20 + (len(tail) if tail[0] in (0x80, 0xFF, 0x61) else 0)
    assert inside_line(tail) >= 1


def test_a_pattern_heads_documents_at_line_starts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "BLOCK_BYTES", 16)
    raw = b"= A =\r\ntext = A =\n= no\n= B =\n" + b"x" * 16 + b"= C ="
    for unit in ("line", "sentence"):
        found = cut(raw, unit, document_pattern=r"= \w =$")  # type: ignore[arg-type]
        assert [span.raw for span in found if span.starts_document] == [b"= A =\r\n", b"= B =\n"]
        assert all(span.starts for span in found if span.starts_document)


def test_lines_of_nothing_but_marks_take_linear_time() -> None:
    started = time.process_time()
    for mark in (".", "?!", "…", "。", "')", ". "):
        cut((mark * 16_000).encode()[: BLOCK_BYTES - 1] + b"\n", "sentence")
    assert time.process_time() - started < 3.0


def test_any_bytes_come_back_whole() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        raw = b"".join(draw.choice([draw.randbytes(3), b"\n", b" ", b". ", b"word"]) for _ in range(300))
        for unit in ("token", "line", "sentence", "document"):
            found = cut(raw, unit, [draw.randint(1, 90)], eager=draw.random() < 0.5)  # type: ignore[arg-type]
            assert b"".join(span.raw for span in found) == raw
            assert [span.line for span in found] == [1 + len(re.findall(b"\n", raw[: s.offset])) for s in found]
