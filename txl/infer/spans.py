"""Text as it comes, cut into spans to be scored: bytes in any portions in, blocks of whole lines or sentences out.

How the bytes arrive changes no span. Knows nothing of tokens, models or files. At most BLOCK_BYTES of a line are held
back, so that a line may be as long as it likes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

Unit = Literal["token", "line", "sentence", "document"]
BLOCK_BYTES = 16_384
"""Most bytes scored at once, and where a longer line is cut (before a blank if it has one, else between characters)."""
_MARK = b"\xef\xbb\xbf"
# No match begins inside a run of marks and none gives marks back, so that a line of nothing else takes linear time.
_CLOSERS = rb"(?:[\"')\]}]|\xe2\x80\x9d|\xe2\x80\x99|\xc2\xbb|\xe3\x80\x8d|\xe3\x80\x8f)*+"  # ” ’ » 」 』
_STOPS = rb"(?<![.!?])(?:[.!?]|\xe2\x80\xa6)++" + _CLOSERS  # …
_WIDE = rb"(?:\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f)+" + _CLOSERS  # 。 ！ ？, which no blank follows
_INSIDE = re.compile(_STOPS + rb"(?=[ \t]+[^\sa-z])|" + _WIDE + rb"(?=\S)")
_AT_END = re.compile(rb"(?:" + _STOPS + rb"|" + _WIDE + rb")\s*\Z")


@dataclass(frozen=True)
class Span:
    """Some bytes of one line: the line's number (from 1), their place in the file, and what begins and ends with them.

    starts, ends: whether a line or a sentence does, whichever the cutter was made for.
    """

    raw: bytes
    line: int
    offset: int
    starts: bool
    ends: bool
    starts_document: bool


@dataclass
class Place:
    """Where in a file the next span begins: its byte, its line, and whether that line, a line or sentence with the
    blanks before it (`in_unit`) and more of a sentence than blanks began before."""

    offset: int = 0
    line: int = 1
    in_line: bool = False
    in_unit: bool = False
    in_sentence: bool = False


class Cutter:
    """Takes bytes by `push` and gives them back in blocks of spans.

    A sentence ends after . ! ? … (and closing quotes or brackets) before a blank that no letter a to z follows, after
    。！？, and at an empty line; blanks before a sentence belong to it. document_pattern: a line that it matches, from
    its start and without its end, begins a document.
    """

    def __init__(self, unit: Unit, document_pattern: str | None = None, place: Place | None = None) -> None:
        self.unit = unit
        self.place = Place() if place is None else place
        self._pattern = None if document_pattern is None else re.compile(document_pattern)
        self._held = b""

    def push(self, raw: bytes) -> None:
        """Take the next bytes."""
        self._held += raw

    def blocks(self, *, eager: bool) -> Iterator[list[Span]]:
        """The blocks that are complete: with `eager` every whole line at once, else only full blocks, so that the same
        text from the same place always makes the same blocks."""
        while len(self._held) >= BLOCK_BYTES or (eager and b"\n" in self._held):
            yield self._spans(self._taken(final=False))

    def finish(self) -> Iterator[list[Span]]:
        """All that is held, once no more comes; the last line may have no end."""
        while self._held:
            yield self._spans(self._taken(final=True))

    def state(self) -> dict[str, Any]:
        """Where the next span begins, for JSON; bytes held are not part of it."""
        return asdict(self.place)

    def _taken(self, *, final: bool) -> bytes:
        """Take whole lines off, or else a part of a line."""
        head = self._held[:BLOCK_BYTES]
        end = head.rfind(b"\n") + 1
        if not end:
            end = len(head) if final and len(head) < BLOCK_BYTES else inside_line(head)
        self._held = self._held[end:]
        return head[:end]

    def _spans(self, block: bytes) -> list[Span]:
        """The lines of a block as spans, or their sentences; a byte order mark at the start of a file is left out."""
        if self.place.offset == 0 and block.startswith(_MARK):
            self.place.offset, block = len(_MARK), block[len(_MARK) :]
        spans = []
        for line in re.findall(rb"[^\n]*\n|[^\n]+", block):
            starts_document = self._heads(line)
            for part in self._parts(line):
                spans.append(self._span(part, starts_document))
                starts_document = False
        return spans

    def _parts(self, line: bytes) -> list[bytes]:
        """A line, cut after each sentence inside it."""
        if self.unit != "sentence":
            return [line]
        cuts = [0, *(match.end() for match in _INSIDE.finditer(line)), len(line)]
        return [line[start:stop] for start, stop in itertools.pairwise(cuts)]

    def _span(self, raw: bytes, starts_document: bool) -> Span:
        """The next span, and the place after it."""
        place = self.place
        whole = raw.endswith(b"\n")
        starts = starts_document or not place.in_unit
        ends = whole
        if self.unit == "sentence":
            blank, begun = not raw.strip(), place.in_sentence and not starts
            ends = bool(_AT_END.search(raw)) if not blank else begun and whole and not place.in_line
            place.in_sentence = not ends and (begun or not blank)
        span = Span(raw, place.line, place.offset, starts, ends, starts_document)
        place.offset += len(raw)
        place.line += whole
        place.in_line, place.in_unit = not whole, not ends
        return span

    def _heads(self, line: bytes) -> bool:
        """Whether a line begins a document."""
        if self._pattern is None or self.place.in_line:
            return False
        return self._pattern.match(line.decode("utf-8", "replace").rstrip("\r\n")) is not None


def inside_line(head: bytes) -> int:
    """Where part of a line is cut: before its last blank, else after its last whole character."""
    blank = max(head.rfind(b" "), head.rfind(b"\t"))
    if blank > 0:
        return blank
    for back in range(1, min(4, len(head))):
        if 0xC0 <= head[-back] < 0xF8:  # the first byte of a character of two to four
            length = 2 if head[-back] < 0xE0 else 3 if head[-back] < 0xF0 else 4
            return len(head) - back if length > back else len(head)
        if head[-back] < 0x80:
            break
    return len(head)
