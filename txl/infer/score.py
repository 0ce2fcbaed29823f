"""Surprisal of text in running memory: spans of bytes in, the nats of each token, line, sentence or document out.

Sums accumulate in float64 and everything kept is of constant size, however long a line or a text is. Knows nothing of
files, formats or terminals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from txl.data.symbols import ByteTokenizer, Tokenizer
from txl.infer.session import Session
from txl.infer.spans import Span, Unit

TEXT_BYTES = 1_000
"""Bytes of a unit's text that a record keeps; a longer text is cut there."""
_REPLACEMENT = "\ufffd"


@dataclass
class Sums:
    """What was counted over some tokens: those scored, their nats, and the bytes of text they stand for.

    unknowns: tokens that the vocabulary lacks. replaced: sequences of bytes that are no UTF-8, scored as U+FFFD.
    """

    tokens: int = 0
    nats: float = 0.0
    bytes: float = 0.0
    unknowns: int = 0
    replaced: int = 0

    def add(self, other: Sums) -> None:
        """Count the tokens of another too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def bits(self) -> float | None:
        """Bits in all; None where nothing is scored."""
        return self.nats / math.log(2) if self.tokens else None

    @property
    def bits_per_token(self) -> float | None:
        """Mean bits a token."""
        return None if self.bits is None else self.bits / self.tokens

    @property
    def bits_per_byte(self) -> float | None:
        """Bits over the bytes of the scored tokens."""
        return None if self.bits is None or not self.bytes else self.bits / self.bytes

    @property
    def perplexity(self) -> float:
        """exp of the mean nats a token."""
        return math.exp(min(self.nats / self.tokens, 700.0)) if self.tokens else math.nan


@dataclass
class Scored:
    """One token, line, sentence or document: where it stands, its size in bytes, its sums and its text.

    line and offset: where it begins, from line 1 and byte 0 of its file. offset and size are None for a token whose
    place in its line is not known. token: its id, for a token alone. text: its beginning, as bytes, TEXT_BYTES at most.
    """

    line: int
    offset: int | None
    size: int | None = 0
    sums: Sums = field(default_factory=Sums)
    raw: bytes = b""
    token: int | None = None

    @property
    def text(self) -> str:
        """Its text without the line end, with `…` where it is cut."""
        if self.token is not None:
            return self.raw.decode("utf-8")
        if (self.size or 0) > len(self.raw):
            return self.raw.decode("utf-8", "ignore") + "…"
        return self.raw.decode("utf-8", "replace").rstrip("\r\n")


class Scorer:
    """Scores spans in a session of one row, in the order of the text.

    isolate: each line (sentence, for that unit) is scored alone, its first token not at all; else in the memory of what
    came before in its document. A span that starts a document in the middle of a file is scored by the old context and
    its first token is the first of the new one.
    """

    def __init__(self, session: Session, tokenizer: Tokenizer, *, unit: Unit, isolate: bool = False) -> None:
        if session.model.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"the model has {session.model.vocab_size} ids and the tokenizer {tokenizer.vocab_size}: "
                "they must come from the same run"
            )
        self.session, self.tokenizer, self.unit, self.isolate = session, tokenizer, unit, isolate
        self.totals = Sums()
        self._lengths = tokenizer.byte_lengths()
        self._open: Scored | None = None
        self._begins = False

    def score(self, spans: Sequence[Span]) -> list[Scored]:
        """Read a block; what is complete with it."""
        done = []
        for span, ids, nats in zip(spans, *self._nats(spans), strict=True):
            sums = self._sums(span.raw, ids, nats)
            self.totals.add(sums)
            if span.starts_document:
                done += self._closed()
            if self.unit == "token":
                done += self._tokens(span, ids, nats)
                continue
            self._extend(span, sums)
            if span.ends and self.unit != "document":
                done += self._closed()
        return done

    def end(self) -> list[Scored]:
        """The text has ended: what was still open, and the next text starts anew."""
        self.session.reset()
        self._begins = False
        return self._closed()

    def state(self) -> dict[str, Any]:
        """All but the session's own state, for JSON."""
        opened = None if self._open is None else {**asdict(self._open), "raw": self._open.raw.decode("latin-1")}
        return {"totals": asdict(self.totals), "open": opened, "begins": self._begins}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.totals, self._begins, opened = Sums(**state["totals"]), state["begins"], state["open"]
        if opened is not None:
            opened = {**opened, "raw": opened["raw"].encode("latin-1"), "sums": Sums(**opened["sums"])}
        self._open = None if opened is None else Scored(**opened)

    def _nats(self, spans: Sequence[Span]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Ids of each span and the nats of each id, float64, NaN where there is no score."""
        ids = self._encoded([span.raw for span in spans])
        nats: list[np.ndarray] = []
        for group in self._groups(spans):
            parts = [ids[index] for index in group]
            marks = [self._mark(spans[index], len(ids[index])) for index in group]
            if self.isolate and spans[group[0]].starts:
                self.session.reset()
            row, resets = (torch.from_numpy(np.concatenate(one))[None] for one in (parts, marks))
            found = self.session.feed(row, resets=resets if resets.any() else None)[0].double().cpu().numpy()
            nats += np.split(found, np.cumsum([len(part) for part in parts])[:-1])
        return ids, nats

    def _groups(self, spans: Sequence[Span]) -> Iterator[list[int]]:
        """The spans that are read in one go: all, or each line alone."""
        group: list[int] = []
        for index, span in enumerate(spans):
            if group and self.isolate and span.starts:
                yield group
                group = []
            group.append(index)
        if group:
            yield group

    def _mark(self, span: Span, n_tokens: int) -> np.ndarray:
        """bool n: where a document begins; a span without tokens leaves that to the next."""
        marks = np.zeros(n_tokens, bool)
        self._begins = self._begins or span.starts_document
        if n_tokens and self._begins:
            marks[0], self._begins = True, False
        return marks

    def _encoded(self, raws: Sequence[bytes]) -> list[np.ndarray]:
        """int64 ids of each span: its bytes as they are for a byte tokenizer, else its text."""
        if isinstance(self.tokenizer, ByteTokenizer):
            return [np.frombuffer(raw, np.uint8).astype(np.int64) for raw in raws]
        return [ids.astype(np.int64) for ids in self.tokenizer.encode_batch([_text(raw) for raw in raws])]

    def _sums(self, raw: bytes, ids: np.ndarray, nats: np.ndarray) -> Sums:
        """The sums of one span."""
        scored = ~np.isnan(nats)
        lengths = self._lengths[ids]
        exact = lengths.sum() == len(raw)
        share = float(scored.sum()) / max(1, len(ids))
        replaced = 0 if isinstance(self.tokenizer, ByteTokenizer) else _replaced(raw)
        return Sums(
            tokens=int(scored.sum()),
            nats=float(np.nansum(nats)),
            bytes=float(lengths[scored].sum()) if exact else len(raw) * share,
            unknowns=int((ids[scored] == self.tokenizer.unknown_id).sum()),
            replaced=replaced,
        )

    def _extend(self, span: Span, sums: Sums) -> None:
        """Add a span to the open unit, or open one."""
        if self._open is None:
            self._open = Scored(span.line, span.offset)
        unit = self._open
        if not unit.raw.strip():
            unit.line = span.line  # blank lines before a sentence are no place to look for it
        unit.size = (unit.size or 0) + len(span.raw)
        unit.raw = (unit.raw + span.raw[:TEXT_BYTES])[:TEXT_BYTES]
        unit.sums.add(sums)

    def _closed(self) -> list[Scored]:
        """The open unit, which is then open no more."""
        done, self._open = [] if self._open is None else [self._open], None
        return done

    def _tokens(self, span: Span, ids: np.ndarray, nats: np.ndarray) -> list[Scored]:
        """Each token of a span."""
        decoder = self.tokenizer.stream_decoder()
        texts = [decoder.push(token) for token in ids.tolist()]
        if texts:
            texts[-1] += decoder.flush()
        places = self._places(span, ids)
        found = []
        for token, text, nat, (start, size) in zip(ids.tolist(), texts, nats.tolist(), places, strict=True):
            sums = Sums() if math.isnan(nat) else Sums(1, nat, float(size or self._lengths[token]))
            offset = None if start is None else span.offset + start
            found.append(Scored(span.line, offset, size, sums, text.encode("utf-8"), token))
        return found

    def _places(self, span: Span, ids: np.ndarray) -> list[tuple[int | None, int | None]]:
        """First byte and number of bytes of each token in its span, None where they cannot be told."""
        lengths = self._lengths[ids]
        if lengths.sum() == len(span.raw):
            starts = np.cumsum(lengths) - lengths
            return list(zip(starts.tolist(), lengths.tolist(), strict=True))
        text = _text(span.raw)
        for pattern in ("(?s:.)", r"\n|\S+", r"<unk>|\n|\w+|[^\w\s]"):  # characters, words, words and marks
            pieces = list(re.finditer(pattern, text))
            if len(pieces) == len(ids) and not _replaced(span.raw):
                places: list[tuple[int | None, int | None]] = []
                at = end = 0
                for piece in pieces:
                    at += len(text[end : piece.start()].encode())
                    size = len(piece[0].encode())
                    places.append((at, size))
                    at, end = at + size, piece.end()
                return places
        return [(None, None)] * len(ids)


def _text(raw: bytes) -> str:
    """The text of bytes, U+FFFD for what is no UTF-8."""
    return raw.decode("utf-8", "replace")


def _replaced(raw: bytes) -> int:
    """Sequences of bytes that are no UTF-8."""
    return _text(raw).count(_REPLACEMENT) - raw.count(_REPLACEMENT.encode())
