"""What a tokenizer is, and the ones whose vocabulary is a plain list: bytes, characters, words.

Text -> ids -> text. Knows nothing of files or of trained sub-words (`txl.data.tokenizer` has those).
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from txl.data.cutting import after_white_space
from txl.data.decoding import LINE_END, BytesDecoder, StreamDecoder, WordDecoder
from txl.data.errors import DataError

UNKNOWN = "<unk>"
FORMAT = 1


class Tokenizer(ABC):
    """A vocabulary with its rules: text to ids and back.

    vocab_size is the number of ids; lossless says whether decode(encode(x)) == x for every text; unknown_id is the id
    of what the vocabulary lacks, separator_id the id put between documents (None where there is none).
    """

    vocab_size: int
    lossless: bool
    unknown_id: int | None
    separator_id: int | None

    def encode(self, text: str) -> list[int]:
        """The ids of a text; DataError where it is no Unicode text (a lone surrogate) and the kind needs one."""
        return self.encode_batch([text])[0].tolist()

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text as an integer array."""

    @abstractmethod
    def stream_decoder(self) -> StreamDecoder:
        """A fresh decoder for ids that come one at a time."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that form no character become U+FFFD. DataError for an id outside the vocabulary."""
        decoder = self.stream_decoder()
        return "".join(decoder.push(token) for token in ids) + decoder.flush()

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """The id that stands for exactly this text or is the special token of this name; None where there is none."""

    @abstractmethod
    def byte_lengths(self) -> np.ndarray:
        """Bytes of text each id stands for (int64 V); 0 for special tokens."""

    @abstractmethod
    def cut(self, text: str) -> int:
        """The last index at which text that goes on may be cut: both parts encode as in the whole; 0 for nowhere."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """What `to_json` writes besides the format's number."""

    def to_json(self) -> str:
        """The whole tokenizer as JSON, always the same text for equal tokenizers; `tokenizer_from_json` reads it."""
        document = {"txl_tokenizer": FORMAT} | self.fields()
        return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the JSON."""
        return hashlib.sha256(self.to_json().encode("utf-8", "surrogatepass")).hexdigest()


class ByteTokenizer(Tokenizer):
    """256 ids, the bytes of UTF-8; every id is text, so there is no separator."""

    vocab_size = 256
    lossless = True
    unknown_id = None
    separator_id = None
    _pieces = tuple(bytes([value]) for value in range(256))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(encoded(text), np.uint8) for text in texts]

    def stream_decoder(self) -> StreamDecoder:
        return BytesDecoder(self._pieces)

    def token_id(self, token: str) -> int | None:
        raw = encoded(token)
        return raw[0] if len(raw) == 1 else None

    def byte_lengths(self) -> np.ndarray:
        return np.ones(256, np.int64)

    def cut(self, text: str) -> int:
        return len(text)

    def fields(self) -> dict[str, Any]:
        return {"kind": "byte"}


class CharTokenizer(Tokenizer):
    """One id a code point of `symbols`, after the special tokens <unk> and the separator."""

    lossless = False  # a character the vocabulary lacks is lost

    def __init__(self, symbols: Sequence[str], *, lowercase: bool = False, separator: str | None = None) -> None:
        special = [UNKNOWN] + ([separator] if separator is not None else [])
        if list(symbols[: len(special)]) != special or any(len(symbol) != 1 for symbol in symbols[len(special) :]):
            raise DataError(f"char vocabulary: must be {', '.join(special)} and then single characters")
        self.symbols, self.lowercase, self.separator = list(symbols), lowercase, separator
        self.vocab_size, self.unknown_id = len(symbols), 0
        self.separator_id = None if separator is None else 1
        self._special = len(special)
        self._ids = {symbol: i for i, symbol in enumerate(symbols)}
        points = np.array([ord(symbol) for symbol in symbols[self._special :]], np.int64)
        self._table = np.zeros(
            int(points.max(initial=0)) + 2, np.uint32
        )  # code point -> id; the last entry stays unknown
        self._table[points] = np.arange(self._special, len(symbols))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        arrays = []
        for text in texts:
            lowered = text.lower() if self.lowercase else text
            points = np.frombuffer(lowered.encode("utf-32-le", "surrogatepass"), "<u4")
            arrays.append(self._table[np.minimum(points, len(self._table) - 1)])
        return arrays

    def stream_decoder(self) -> StreamDecoder:
        return BytesDecoder([symbol.encode("utf-8", "replace") for symbol in self.symbols])

    def token_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def byte_lengths(self) -> np.ndarray:
        text = [len(symbol.encode("utf-8", "replace")) for symbol in self.symbols[self._special :]]
        return np.array([0] * self._special + text, np.int64)

    def cut(self, text: str) -> int:
        # Lower-casing looks at the rest of the word (a final sigma), so it is cut between words.
        return after_white_space(text) if self.lowercase else len(text)

    def fields(self) -> dict[str, Any]:
        return {
            "kind": "char",
            "symbols": self.symbols,
            "lowercase": self.lowercase,
            "separator": self.separator,
        }


class WordTokenizer(Tokenizer):
    """One id a word of `symbols`, after <unk>, <eos> (each line end) and another separator if there is one.

    Words end at white space; with split "punctuation" also around each mark that is neither letter, digit, underscore
    nor white space. White space other than line ends is lost.
    """

    lossless = False

    def __init__(
        self, symbols: Sequence[str], *, split: str, lowercase: bool = False, separator: str | None = None
    ) -> None:
        special = word_specials(separator)
        if list(symbols[: len(special)]) != special:
            raise DataError(f"word vocabulary: must begin with {', '.join(special)}, but has {list(symbols[:3])}")
        if split not in ("whitespace", "punctuation"):
            raise DataError(f"word vocabulary: split must be whitespace or punctuation, not {split!r}")
        self.symbols, self.split, self.lowercase, self.separator = list(symbols), split, lowercase, separator
        self.vocab_size, self.unknown_id = len(symbols), 0
        self._ids = {symbol: i for i, symbol in enumerate(symbols)}
        self.separator_id = None if separator is None else self._ids[separator]
        self._special = len(special)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        get = self._ids.get
        return [
            np.array([get(word, 0) for word in words(text, split=self.split, lowercase=self.lowercase)], np.uint32)
            for text in texts
        ]

    def stream_decoder(self) -> StreamDecoder:
        return WordDecoder(self.symbols)

    def token_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def byte_lengths(self) -> np.ndarray:
        text = [len(symbol.encode("utf-8", "replace")) for symbol in self.symbols[self._special :]]
        return np.array([0] * self._special + text, np.int64)

    def cut(self, text: str) -> int:
        return after_white_space(text)

    def fields(self) -> dict[str, Any]:
        return {
            "kind": "word",
            "symbols": self.symbols,
            "split": self.split,
            "lowercase": self.lowercase,
            "separator": self.separator,
        }


_MARKED = re.compile(r"<unk>|\n|\w+|[^\w\s]")


def words(text: str, *, split: str, lowercase: bool) -> list[str]:
    """The words of a text in order, `<eos>` for each line end; a literal <unk> of a prepared corpus stays one word."""
    lowered = text.lower() if lowercase else text
    if split == "whitespace":
        return lowered.replace("\n", f" {LINE_END} ").split()
    return [LINE_END if word == "\n" else word for word in _MARKED.findall(lowered)]


def word_specials(separator: str | None) -> list[str]:
    """The special tokens that head a word vocabulary."""
    return [UNKNOWN, LINE_END] + ([separator] if separator not in (None, LINE_END) else [])


def encoded(text: str) -> bytes:
    """The UTF-8 of a text; DataError where it holds half of a surrogate pair, which is no character."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        point = ord(text[error.start])
        raise DataError(
            f"text to encode: character {error.start} is U+{point:04X}, half of a surrogate pair and no Unicode text; "
            "the text was probably read with another encoding than its own: read it as UTF-8"
        ) from None
