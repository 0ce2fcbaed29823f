"""Ids to text one at a time, never half a character: what a streamed sample is printed with.

An id -> `push` -> the text that is certain now; `flush` -> the rest. Knows nothing of where vocabularies come from.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from txl.data.errors import DataError

LINE_END = "<eos>"


class StreamDecoder(Protocol):
    """Turns ids into text one at a time; all that was pushed and flushed, joined, is `decode` of the ids."""

    def push(self, token: int) -> str:
        """The text that became certain with this id, perhaps none; never half a character."""

    def flush(self) -> str:
        """What was still held back; a character cut off by the end becomes U+FFFD. The decoder starts anew."""


class BytesDecoder:
    """Decodes ids that stand for bytes: holds back the bytes of an unfinished character."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._pieces[checked(token, len(self._pieces))])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WordDecoder:
    """Decodes words: a space between two of them, a line end for <eos>."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols, self._line_started = symbols, False

    def push(self, token: int) -> str:
        word = self._symbols[checked(token, len(self._symbols))]
        if word == LINE_END:
            self._line_started = False
            return "\n"
        space = " " if self._line_started else ""
        self._line_started = True
        return space + word

    def flush(self) -> str:
        self._line_started = False
        return ""


class WindowDecoder:
    """Decodes any vocabulary one id at a time, by decoding the ids since the last settled text anew."""

    LONGEST = 16
    """Ids held back at most while the text ends in what may be half a character."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode, self._settled = decode, 0
        self._ids: list[int] = []

    def push(self, token: int) -> str:
        self._ids.append(token)
        text = self._decode(self._ids)
        held = len(self._ids) - self._settled
        if text.endswith("\ufffd") and held < self.LONGEST:
            return ""
        before = len(self._decode(self._ids[: self._settled]))
        self._ids, self._settled = self._ids[self._settled :], held
        return text[before:]

    def flush(self) -> str:
        rest = self._decode(self._ids)[len(self._decode(self._ids[: self._settled])) :]
        self._ids, self._settled = [], 0
        return rest


def checked(token: int, vocab_size: int) -> int:
    """The id itself; DataError where the vocabulary has no such id (a negative one would count from its end)."""
    if not 0 <= token < vocab_size:
        raise DataError(f"id {token} is not in the vocabulary: ids go from 0 to {vocab_size - 1}")
    return token
