"""One split of a corpus, written as it is encoded, and gone on with where a killed process left it.

Ids of pieces -> `SplitWriter` -> NAME.ids and NAME.starts, with counts and hashes. Knows nothing of texts and
tokenizers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from txl.data.errors import DataError
from txl.data.store import STARTS, id_dtype, read_record, write_record

BLOCK_BYTES = 1 << 20
"""Bytes hashed at a time."""


@dataclass
class Written:
    """How much of a split stands in its two files."""

    groups: int = 0
    tokens: int = 0
    unknowns: int = 0
    token_bytes: int = 0
    documents: int = 0
    """Those with a token."""
    dropped: int = 0
    """Those without any."""
    opened: bool = False
    """Whether a document has begun that has no token yet."""
    firsts: list[int] = field(default_factory=list)
    """The number of the first document of each text that the split is made of."""

    def sizes(self, id_bytes: int) -> tuple[int, int]:
        """Bytes of the files of ids and of starts."""
        return self.tokens * id_bytes, self.documents * STARTS.itemsize


class SplitWriter:
    """Writes one split in a `with` block: `add` groups of pieces in order, then `close` for its counts and hashes.

    After every group the files are flushed and what stands in them is noted in NAME.kept, so that a writer in the
    folder of a killed process goes on after the last group of that one: `written.groups` says how many to leave out.
    """

    def __init__(
        self, folder: Path, name: str, byte_lengths: np.ndarray, *, unknown_id: int | None, separator_id: int | None
    ) -> None:
        self._name, self._byte_lengths = name, byte_lengths
        self._unknown_id, self._separator_id = unknown_id, separator_id
        self._dtype = id_dtype(len(byte_lengths))
        paths = folder / f"{name}.ids", folder / f"{name}.starts"
        self._kept = folder / f"{name}.kept"
        self.written, self._hashes = _left(self._kept, paths, self._dtype.itemsize)
        for path, size in zip(paths, self.written.sizes(self._dtype.itemsize), strict=True):
            path.touch()
            os.truncate(path, size)
        self._ids, self._starts = (path.open("ab") for path in paths)

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self._ids.close()
        self._starts.close()

    def add(self, pieces: Sequence[tuple[bool, np.ndarray]], *, begins_text: bool = False) -> None:
        """Append a group of pieces' ids; the flag says whether a piece begins a document; a separator goes between two.

        A document without any token (white space to a word vocabulary) is dropped and counted.
        """
        written, parts, begun = self.written, list[np.ndarray](), list[int]()
        at = written.tokens
        if begins_text:
            written.firsts.append(written.documents)
        for starts, ids in pieces:
            if starts:
                written.dropped += written.opened
                written.opened = True
            if not len(ids):
                continue
            if written.opened:
                if self._separator_id is not None and written.documents:
                    parts.append(np.array([self._separator_id]))
                    at += 1
                begun.append(at)
                written.documents += 1
                written.opened = False
            parts.append(ids)
            at += len(ids)
        if parts:
            self._write(np.concatenate(parts), np.array(begun, STARTS).tobytes())
        written.groups += 1
        self._flush()
        ids_hash, starts_hash = (found.hexdigest() for found in self._hashes)
        write_record(self._kept, {"written": asdict(written), "ids_sha256": ids_hash, "starts_sha256": starts_hash})

    def close(self, *, text_bytes: int) -> dict[str, Any]:
        """Flush to disk; the record of this split, `text_bytes` of UTF-8 long. DataError if it got no token."""
        written = self.written
        written.dropped += written.opened
        self._flush()
        if not written.tokens:
            raise DataError(
                f"data.{self._name}: its text becomes no token at all; give text that is not only white space"
            )
        ids_hash, starts_hash = (found.hexdigest() for found in self._hashes)
        return {
            "tokens": written.tokens,
            "bytes": text_bytes,
            "documents": written.documents,
            "unknowns": written.unknowns,
            "bytes_exact": written.unknowns == 0 and written.token_bytes == text_bytes,
            "ids_sha256": ids_hash,
            "starts_sha256": starts_hash,
        }

    def _write(self, ids: np.ndarray, starts: bytes) -> None:
        largest = int(ids.max())
        if int(ids.min()) < 0 or largest >= len(self._byte_lengths):
            raise AssertionError(f"{self._name}: id {largest} outside the vocabulary of {len(self._byte_lengths)}")
        for file, found, stored in zip(
            (self._ids, self._starts), self._hashes, (ids.astype(self._dtype).tobytes(), starts), strict=True
        ):
            file.write(stored)
            found.update(stored)
        counts = np.bincount(ids, minlength=len(self._byte_lengths))
        self.written.tokens += len(ids)
        self.written.token_bytes += int(counts @ self._byte_lengths)
        self.written.unknowns += int(counts[self._unknown_id]) if self._unknown_id is not None else 0

    def _flush(self) -> None:
        for file in (self._ids, self._starts):
            file.flush()
            os.fsync(file.fileno())


def _left(kept: Path, paths: tuple[Path, Path], id_bytes: int) -> tuple[Written, list[Any]]:
    """What a killed process left of a split, with the hashes so far; nothing where a byte of it is not as noted."""
    record = read_record(kept)
    try:
        written = Written(**record["written"])
        hashes = [_hash_of(path, size) for path, size in zip(paths, written.sizes(id_bytes), strict=True)]
        if [found.hexdigest() for found in hashes] == [record["ids_sha256"], record["starts_sha256"]]:
            return written, hashes
    except (OSError, KeyError, TypeError):
        pass
    return Written(), [hashlib.sha256(), hashlib.sha256()]


def _hash_of(path: Path, size: int) -> Any:
    """SHA-256 of the first `size` bytes of a file, to go on with; of all it has where it is shorter."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(min(size, BLOCK_BYTES)):
            found.update(block)
            size -= len(block)
    return found
