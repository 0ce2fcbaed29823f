"""The text of a corpus on its way: every source read once into a plain file, then shared out to the splits.

`Source` -> `spooled` -> `Text` (byte ranges of documents in the file) -> `share_out` -> a `Text` a split -> pieces that
can be encoded one by one. Knows nothing of vocabularies. Memory holds one block of text and 8 bytes a document.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from txl.config import DataConfig
from txl.data.errors import DataError
from txl.data.reading import BLOCK_BYTES, Findings, Piece, read
from txl.data.sources import Source
from txl.data.store import STARTS, forget_later, read_record, sha256, write_file, write_record

Report = Callable[[str, int, int | None], None]
"""What is being done, how many bytes of it are done, and of how many (None: not known)."""
SAY_BYTES = 4_194_304
"""Bytes read between two reports."""
LINE_END_REACH = 65_536
"""Bytes searched for a line end where a text is cut by position."""


@dataclass(frozen=True)
class Text:
    """Documents of a UTF-8 file: document i is bytes [starts[i], stops[i])."""

    path: Path
    starts: np.ndarray
    stops: np.ndarray

    @property
    def documents(self) -> int:
        return len(self.starts)

    @property
    def bytes(self) -> int:
        return int((self.stops - self.starts).sum())

    def pieces(self, cut: Callable[[str], int]) -> Iterator[Piece]:
        """All documents in order, in pieces cut where `cut` allows (an index of text that goes on, 0 for nowhere)."""
        with self.path.open("rb") as file:
            for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
                file.seek(start)
                left, held, raw, first = stop - start, "", b"", True
                while left:
                    # What could not be cut is read on in ever larger blocks, so that long lines are not copied too
                    # often.
                    block = file.read(min(left, max(BLOCK_BYTES, len(held))))
                    left -= len(block)
                    raw += block
                    end = _character_start(raw) if left else len(raw)
                    held, raw = held + raw[:end].decode("utf-8"), raw[end:]
                    at = cut(held) if left else len(held)
                    if at:
                        yield Piece(held[:at], first)
                        held, first = held[at:], False


def spooled(
    source: Source, data: DataConfig, folder: Path, name: str, revision: str | None, report: Report
) -> tuple[Text, list[str]]:
    """All text of a source in the file NAME.txt, and the notes on it; read before, by a process that was killed later,
    it is taken as it stands if no byte of it changed. DataError where there is no text.
    """
    path, starts, read = (folder / f"{name}.{kind}" for kind in ("txt", "documents", "read"))
    record = read_record(read)
    if record and path.exists() and starts.exists() and record["sha256"] == [sha256(path), sha256(starts)]:
        begins = np.fromfile(starts, STARTS).astype(np.int64, copy=False)
        return Text(path, begins, np.append(begins[1:], path.stat().st_size)), record["notes"]
    forget_later(folder)
    findings = Findings(source.key)
    text = spool(source, data, path, findings, revision, report)
    write_file(starts, text.starts.astype(STARTS).tobytes())
    notes = findings.notes()
    write_record(read, {"sha256": [sha256(path), sha256(starts)], "notes": notes})
    return text, notes


def spool(
    source: Source, data: DataConfig, path: Path, findings: Findings, revision: str | None, report: Report
) -> Text:
    """Write all text of a source to `path`; DataError where there is none."""
    starts, size, said = array("q"), 0, 0
    with path.open("wb") as file:
        for piece in read(source, data, findings, revision=revision):
            raw = piece.text.encode("utf-8")
            if piece.starts:
                starts.append(size)
            file.write(raw)
            size += len(raw)
            if size >= said + SAY_BYTES:
                report(f"reading {source.key}", size, source.text_bytes)
                said = size
        file.flush()
        os.fsync(file.fileno())
    report(f"reading {source.key}", size, size)
    if not size:
        raise DataError(f"{source.key}: {source.spec} holds no text: all its files or rows are empty")
    begins = np.frombuffer(starts, np.int64)
    return Text(path, begins, np.append(begins[1:], size))


def share_out(texts: dict[str, Text], data: DataConfig) -> dict[str, Text]:
    """The text of train, valid and test: where one has no source of its own, a share of train's becomes it.

    By documents: a share of them, at least one, drawn with data.split_seed, in their order. By position: train, valid
    and test follow each other in the text, cut at line ends where there is one near, else between characters.
    DataError where there is too little to share out.
    """
    shares = {"valid": data.valid_fraction, "test": data.test_fraction}
    missing = {name: share for name, share in shares.items() if name not in texts}
    if not missing:
        return texts
    made = (
        _by_position(texts["train"], missing)
        if data.split_by == "position"
        else _by_documents(texts["train"], missing, data)
    )
    return texts | made


def _by_documents(text: Text, shares: dict[str, float], data: DataConfig) -> dict[str, Text]:
    least = 1 + len(shares)
    named = " and ".join(f"data.{name}" for name in shares)
    if text.documents < least:
        raise DataError(
            f"data.train: {text.documents} document{'s' * (text.documents > 1)}, but {least} are needed to draw "
            f"{named} from them; set data.split_by=position to cut the text instead, data.document_pattern to the "
            f"line that heads a document, or name {named}"
        )
    order = np.argsort(np.random.PCG64(data.split_seed).random_raw(text.documents), kind="stable")
    made, taken = {}, 0
    for left, (name, share) in zip(range(len(shares), 0, -1), shares.items(), strict=True):
        count = min(max(1, round(share * text.documents)), text.documents - taken - left)
        chosen = np.sort(order[taken : taken + count])
        made[name] = Text(text.path, text.starts[chosen], text.stops[chosen])
        taken += count
    chosen = np.sort(order[taken:])
    return made | {"train": Text(text.path, text.starts[chosen], text.stops[chosen])}


def _by_position(text: Text, shares: dict[str, float]) -> dict[str, Text]:
    sizes = {name: int(share * text.bytes) for name, share in shares.items()}
    bounds, at = [0], text.bytes - sum(sizes.values())
    for size in sizes.values():
        bounds.append(_line_start(text.path, at, min(LINE_END_REACH, size // 2)))
        at += size
    bounds.append(text.bytes)
    made = {}
    for name, start, stop in zip(["train", *sizes], bounds[:-1], bounds[1:], strict=True):
        if start >= stop:
            named = " and ".join(f"data.{missing}" for missing in shares)
            raise DataError(
                f"data.train: {text.bytes} bytes are too few to cut {named} from them; give more text, larger shares "
                "(data.valid_fraction, data.test_fraction) or name them"
            )
        inside = text.starts[(text.starts > start) & (text.starts < stop)]
        starts = np.concatenate([[start], inside])
        made[name] = Text(text.path, starts, np.append(starts[1:], stop))
    return made


def _line_start(path: Path, at: int, reach: int) -> int:
    """The first line start from byte `at` on, or, if none is within reach, the first start of a character."""
    with path.open("rb") as file:
        file.seek(max(at - 1, 0))
        raw = file.read(reach + 4)
    skipped = at - max(at - 1, 0)
    line = raw.find(b"\n", 0, reach + skipped)
    if line >= 0:
        return max(at - 1, 0) + line + 1
    inside = 0
    while inside < 3 and skipped + inside < len(raw) and 0x80 <= raw[skipped + inside] < 0xC0:
        inside += 1
    return at + inside


def _character_start(raw: bytes) -> int:
    """The last index at which valid UTF-8 may be cut."""
    back = 1
    while back < min(4, len(raw)) and 0x80 <= raw[-back] < 0xC0:
        back += 1
    value = raw[-back]
    length = 1 if value < 0xC0 else 2 if value < 0xE0 else 3 if value < 0xF0 else 4
    return len(raw) if length <= back else len(raw) - back
