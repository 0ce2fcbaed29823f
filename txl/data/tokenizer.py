"""Training, loading and saving of tokenizers, and trained sub-words: the only door to the `tokenizers` library.

A `TokenizerConfig` and texts -> `train_tokenizer` -> `Tokenizer`; its JSON -> `tokenizer_from_json`. Knows nothing of
where texts come from. A vocabulary is JSON, never a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from txl.config import TokenizerConfig
from txl.data.counting import count_vocabulary
from txl.data.cutting import UNIT, after_line_end, after_white_space, batches, before_line_end, line_units
from txl.data.decoding import BytesDecoder, StreamDecoder, WindowDecoder, checked
from txl.data.errors import DataError
from txl.data.symbols import (
    FORMAT,
    UNKNOWN,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    encoded,
)
from txl.data.unseen import marking_unseen

__all__ = ["LibraryTokenizer", "Tokenizer", "counting_cut", "tokenizer_from_json", "train_tokenizer"]

LARGEST_JSON_BYTES = 100_000_000
"""Of a tokenizer's JSON; published vocabularies of 260,000 sub-words take about 35 million."""


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str], *, separator: str | None) -> Tokenizer:
    """Make the tokenizer of a config; char, word and bpe count symbols in `texts`, which are read once.

    Documents may come in pieces if they are cut where `counting_cut` allows. `separator` is the special token put
    between documents. DataError for a vocabulary that cannot be made or a given file that cannot be used.
    """
    if separator == UNKNOWN:
        raise DataError(f"data.separator: {UNKNOWN} stands for unknown symbols; choose another name, e.g. <eos>")
    if config.kind == "byte":
        if separator is not None:
            raise DataError(
                f"data.separator: {separator!r} with tokenizer.kind byte, all of whose 256 ids are text; use null"
            )
        return ByteTokenizer()
    if config.kind == "file":
        return _given(Path(config.path or "").expanduser(), separator)
    if config.kind == "bpe":
        return _train_bpe(config.vocab_size, texts, separator)
    return count_vocabulary(config, texts, separator)


def counting_cut(config: TokenizerConfig) -> Callable[[str], int]:
    """The last index at which text that goes on may be cut without changing the counts; 0 for nowhere."""
    if config.kind == "bpe":
        return after_line_end
    return after_white_space if config.kind == "word" or config.lowercase else len


def tokenizer_from_json(text: str) -> Tokenizer:
    """The tokenizer of `to_json`, or of a `tokenizer.json` of the tokenizers library; equal in every result.

    Nothing in the text is executed. DataError for text that is too long, too deep, damaged or from a newer version.
    """
    document = _parsed(text)
    if "txl_tokenizer" not in document:
        return LibraryTokenizer(_library(document), kind="file", separator=None)
    if document["txl_tokenizer"] != FORMAT:
        raise DataError(
            f"tokenizer JSON: format {document['txl_tokenizer']!r}, but this version reads format {FORMAT}; "
            "use the version of txl that wrote it"
        )
    kind, separator, symbols = document.get("kind"), document.get("separator"), document.get("symbols")
    if separator is not None and not isinstance(separator, str):
        raise DataError(f"tokenizer JSON: separator must be text or null, not {separator!r}")
    if kind == "byte":
        return ByteTokenizer()
    if kind in ("bpe", "file"):
        return LibraryTokenizer(_library(document.get("library")), kind=kind, separator=separator)
    if kind not in ("char", "word"):
        raise DataError(f"tokenizer JSON: kind {kind!r}, but must be byte, char, word, bpe or file")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise DataError(f"tokenizer JSON: kind {kind} needs a list of texts under symbols")
    if len(set(symbols)) != len(symbols):
        raise DataError("tokenizer JSON: a symbol stands twice in the vocabulary")
    lowercase = document.get("lowercase") is True
    if kind == "char":
        return CharTokenizer(symbols, lowercase=lowercase, separator=separator)
    return WordTokenizer(symbols, split=str(document.get("split")), lowercase=lowercase, separator=separator)


class LibraryTokenizer(Tokenizer):
    """A vocabulary of the tokenizers library: bpe trained here, or a given tokenizer.json.

    bpe is byte-level, never merges across a line end and cuts a line after every 65,536 characters; the name of a
    special token in a document is plain text to it. A given file keeps its own rules, but never truncates, pads or adds
    tokens; where it treats the start of a text in its own way, each document is encoded as one, however long.
    """

    def __init__(self, library: tokenizers.Tokenizer, *, kind: str, separator: str | None) -> None:
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = kind == "bpe"
        self._library, self._kind, self._separator = library, kind, separator
        self._document = json.loads(library.to_str())
        self._vocabulary = library.get_vocab(with_added_tokens=True)
        self._special = {i for i, token in library.get_added_tokens_decoder().items() if token.special}
        self.vocab_size = max(self._vocabulary.values(), default=-1) + 1
        if self.vocab_size == 0:
            raise DataError("tokenizer JSON: the vocabulary is empty")
        byte_level = (self._document["decoder"] or {}).get("type") == "ByteLevel"
        self._pieces = _byte_pieces(library, self.vocab_size) if byte_level else None
        marked = None if kind == "bpe" else marking_unseen(self._document, self.vocab_size)
        self._encoder = library if marked is None else _library(marked)
        self._cuttable = kind == "bpe" or self._encodes_in_parts()
        self.lossless = kind == "bpe" or self._gives_text_back()
        self.unknown_id = None if self.lossless else self._unknown()
        self.separator_id = None if separator is None else self._vocabulary.get(separator)
        if separator is not None and self.separator_id is None:
            special = ", ".join(sorted(str(library.id_to_token(i)) for i in self._special)) or "none"
            raise DataError(
                f"data.separator: {separator!r} is not in the vocabulary, whose special tokens are: {special}"
            )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As for every tokenizer; DataError also where a text holds what has no symbol, not even an unknown one."""
        parts: list[list[np.ndarray]] = [[] for _ in texts]
        for batch in batches((number, unit) for number, text in enumerate(texts) for unit in self._units(text)):
            encodings = self._encoder.encode_batch_fast([unit for _, unit in batch], add_special_tokens=False)
            for (number, unit), encoding in zip(batch, encodings, strict=True):
                ids = np.array(encoding.ids, np.uint32)
                if (ids == self.vocab_size).any():
                    raise self._unencodable(unit)
                parts[number].append(ids)
        return [np.concatenate(part) if part else np.zeros(0, np.uint32) for part in parts]

    def decode(self, ids: Sequence[int]) -> str:
        if self._pieces is not None:
            return super().decode(ids)
        return str(self._library.decode([checked(i, self.vocab_size) for i in ids], skip_special_tokens=False))

    def stream_decoder(self) -> StreamDecoder:
        return WindowDecoder(self.decode) if self._pieces is None else BytesDecoder(self._pieces)

    def token_id(self, token: str) -> int | None:
        if self._vocabulary.get(token) in self._special:
            return self._vocabulary[token]
        ids = self._ids(token)
        return ids[0] if len(ids) == 1 and ids[0] < self.vocab_size and self.decode(ids) == token else None

    def byte_lengths(self) -> np.ndarray:
        pieces = self._pieces or [self.decode([i]).encode("utf-8") for i in range(self.vocab_size)]
        return np.array([0 if i in self._special else len(piece) for i, piece in enumerate(pieces)], np.int64)

    def cut(self, text: str) -> int:
        if not self._cuttable:
            return 0
        return after_line_end(text) if self._kind == "bpe" else before_line_end(text, 0, len(text))

    def fields(self) -> dict[str, Any]:
        return {"kind": self._kind, "separator": self._separator, "library": self._document}

    def _units(self, text: str) -> Iterator[str]:
        """The text in parts of about UNIT characters that encode as in the whole."""
        encoded(text)  # the library panics at half of a surrogate pair
        if self._kind == "bpe":
            yield from line_units(text)
            return
        start, reach = 0, UNIT
        while self._cuttable and len(text) - start > reach:
            stop = before_line_end(text, start, start + reach)
            if stop:
                yield text[start:stop]
                start, reach = stop, UNIT
            else:
                reach *= 2
        if start < len(text):
            yield text[start:]

    def _encodes_in_parts(self) -> bool:
        """Whether text cut before a line end that follows a letter or digit encodes as in the whole."""
        left, right = "One two. A b3", "\n\n  Four, five\nsix"
        return self._ids(left) + self._ids(right) == self._ids(left + right)

    def _gives_text_back(self) -> bool:
        """Whether every byte has its id and a text with all that usually gets lost comes back."""
        if self._pieces is None or {bytes([value]) for value in range(256)} - set(self._pieces):
            return False
        text = "  Two  spaces\t\r\n\n A\u0301 \u00c1 \ufb01 \u4e16 \U0001f600\0\x7f End \n "
        return self.decode(self._ids(text)) == text

    def _ids(self, text: str) -> list[int]:
        return list(self._encoder.encode(text, add_special_tokens=False).ids)

    def _unencodable(self, text: str) -> DataError:
        """What to say of the first part of a text that has no symbol."""
        encoding = self._encoder.encode(text, add_special_tokens=False)
        start, stop = encoding.offsets[encoding.ids.index(self.vocab_size)]
        return DataError(
            f"text to encode: {text[start:stop]!r} in {text[max(0, start - 20) : stop + 20]!r} has no symbol in this "
            "vocabulary, nor has what is unknown; take it out of the text, or use a vocabulary with an unknown symbol"
        )

    def _unknown(self) -> int | None:
        model = self._document["model"]
        if isinstance(model.get("unk_token"), str):
            return self._vocabulary.get(model["unk_token"])
        return model["unk_id"] if isinstance(model.get("unk_id"), int) else None


def _train_bpe(vocab_size: int, texts: Iterable[str], separator: str | None) -> LibraryTokenizer:
    special = [] if separator is None else [separator]
    least = 256 + len(special)
    if vocab_size < least:
        raise DataError(f"tokenizer.vocab_size: {vocab_size}, but the bytes and special tokens alone are {least}")
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    library.train_from_iterator((unit for text in texts for unit in line_units(text)), trainer)
    return LibraryTokenizer(library, kind="bpe", separator=separator)


def _given(path: Path, separator: str | None) -> Tokenizer:
    """The tokenizer of a file, the library's or one written here, with the config's separator."""
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON_BYTES:
            raise DataError(f"has {size:,} bytes, but at most {LARGEST_JSON_BYTES:,} are read")
        document = _parsed(path.read_text("utf-8"))
        if "txl_tokenizer" not in document:
            return LibraryTokenizer(_library(document), kind="file", separator=separator)
        if document.get("kind") in ("bpe", "file"):
            document["separator"] = separator
        elif document.get("separator") != separator:
            made = document.get("separator")
            raise DataError(f"was made with data.separator {made!r}, not {separator!r}; set the same one")
        return tokenizer_from_json(json.dumps(document))
    except OSError as error:
        raise DataError(f"tokenizer.path: {path} cannot be read: {error.strerror}; name a tokenizer.json") from None
    except UnicodeDecodeError as error:
        raise DataError(f"tokenizer.path: {path} is not UTF-8 at byte {error.start}; name a tokenizer.json") from None
    except DataError as error:
        raise DataError(f"tokenizer.path: {path}: {error}") from None


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > LARGEST_JSON_BYTES:
        raise DataError(f"tokenizer JSON: {len(text):,} characters, but at most {LARGEST_JSON_BYTES:,} are read")
    try:
        document = json.loads(text)
    except RecursionError:
        raise DataError("tokenizer JSON: nested too deep to be a tokenizer") from None
    except ValueError as error:
        raise DataError(f"tokenizer JSON: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"tokenizer JSON: must be an object, not {type(document).__name__}")
    return document


def _library(document: object) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"tokenizer JSON: the tokenizers library cannot read it: {error}") from None


def _byte_pieces(library: tokenizers.Tokenizer, vocab_size: int) -> list[bytes]:
    """The bytes each id of a byte-level vocabulary stands for; added tokens stand for their own text."""
    # The library writes a byte as a visible character: itself where it is one, else the next free one from U+0100.
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    byte_of = {chr(value): bytes([value]) for value in visible}
    byte_of |= {chr(0x100 + i): bytes([value]) for i, value in enumerate(hidden)}
    added = {i: token.content for i, token in library.get_added_tokens_decoder().items()}
    pieces = []
    for i in range(vocab_size):
        token = library.id_to_token(i) or ""
        inner = token.encode("utf-8") if i in added else b"".join(byte_of.get(c, c.encode("utf-8")) for c in token)
        pieces.append(inner)
    return pieces
