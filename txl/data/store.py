"""A prepared corpus on disk: token arrays, document starts, tokenizer and manifest, written once, checked when opened.

Ids and documents -> `SplitWriter` -> files; a folder -> `read_manifest` -> its record, or why it cannot be used.
`lock` keeps two processes apart. Knows nothing of texts and configs. Numbers are little-endian without a header.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from txl.data.errors import DataError

FORMAT = 1
"""Number of the layout; a folder with another one is prepared anew."""
SPLITS = ("train", "valid", "test")
LARGEST_MANIFEST_BYTES = 16_000_000


class Damaged(Exception):  # noqa: N818  (a state of the cache, never shown as an error)
    """A prepared folder that is not as its manifest says; it is prepared anew."""


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint8, uint16 and uint32 that holds all ids: 256, 65,536 and 4,294,967,296 of them."""
    for name, size in (("<u1", 2**8), ("<u2", 2**16), ("<u4", 2**32)):
        if vocab_size <= size:
            return np.dtype(name)
    raise DataError(f"vocabulary: {vocab_size} ids, but at most {2**32} can be stored")


class SplitWriter:
    """Writes one split in a `with` block: `add` the ids of pieces in order, then `close` for its counts and hashes."""

    def __init__(
        self, folder: Path, name: str, byte_lengths: np.ndarray, *, unknown_id: int | None, separator_id: int | None
    ) -> None:
        self._name, self._byte_lengths = name, byte_lengths
        self._unknown_id, self._separator_id = unknown_id, separator_id
        self._dtype = id_dtype(len(byte_lengths))
        self._file = (folder / f"{name}.ids").open("wb")
        self._starts_path = folder / f"{name}.starts"
        self._hash, self._starts = hashlib.sha256(), array("q")
        self._tokens = self._unknowns = self._token_bytes = self.dropped = 0
        self._opened = False

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    @property
    def documents(self) -> int:
        """Documents with a token so far."""
        return len(self._starts)

    def add(self, pieces: Sequence[tuple[bool, np.ndarray]]) -> None:
        """Append pieces' ids; the flag says whether a piece begins a document; a separator goes between two documents.

        A document without any token (white space to a word vocabulary) is dropped and counted.
        """
        parts: list[np.ndarray] = []
        at = self._tokens
        for starts, ids in pieces:
            if starts:
                self.dropped += self._opened
                self._opened = True
            if not len(ids):
                continue
            if self._opened:
                if self._separator_id is not None and self._starts:
                    parts.append(np.array([self._separator_id]))
                    at += 1
                self._starts.append(at)
                self._opened = False
            parts.append(ids)
            at += len(ids)
        if parts:
            self._write(np.concatenate(parts))

    def close(self, *, text_bytes: int) -> dict[str, Any]:
        """Flush to disk; the record of this split, `text_bytes` of UTF-8 long. DataError if it got no token."""
        self.dropped += self._opened
        self._file.flush()
        os.fsync(self._file.fileno())
        if not self._tokens:
            raise DataError(
                f"data.{self._name}: its text becomes no token at all; give text that is not only white space"
            )
        starts = np.frombuffer(self._starts, np.int64).astype("<i8").tobytes()
        write_file(self._starts_path, starts)
        return {
            "tokens": self._tokens,
            "bytes": text_bytes,
            "documents": len(self._starts),
            "unknowns": self._unknowns,
            "bytes_exact": self._unknowns == 0 and self._token_bytes == text_bytes,
            "ids_sha256": self._hash.hexdigest(),
            "starts_sha256": hashlib.sha256(starts).hexdigest(),
        }

    def _write(self, ids: np.ndarray) -> None:
        largest = int(ids.max())
        if int(ids.min()) < 0 or largest >= len(self._byte_lengths):
            raise AssertionError(f"{self._name}: id {largest} outside the vocabulary of {len(self._byte_lengths)}")
        stored = ids.astype(self._dtype).tobytes()
        self._file.write(stored)
        self._hash.update(stored)
        counts = np.bincount(ids, minlength=len(self._byte_lengths))
        self._tokens += len(ids)
        self._token_bytes += int(counts @ self._byte_lengths)
        self._unknowns += int(counts[self._unknown_id]) if self._unknown_id is not None else 0


def corpus_hash(splits: dict[str, dict[str, Any]]) -> str:
    """SHA-256 over ids and document starts of all splits: equal for equal token arrays, wherever the text came from."""
    lines = [f"{name} {splits[name]['ids_sha256']} {splits[name]['starts_sha256']}\n" for name in SPLITS]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_manifest(folder: Path, key: str) -> dict[str, Any]:
    """The manifest of a prepared folder, after checking it and every file's size, and the small files' hashes.

    Raises Damaged, saying what is wrong. The token arrays' own hashes take reading them: `verify_ids` does.
    """
    try:
        path = folder / "manifest.json"
        if path.stat().st_size > LARGEST_MANIFEST_BYTES:
            raise Damaged(f"{path.name} is too large")
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if manifest["format"] != FORMAT or manifest["key"] != key:
            raise Damaged(f"{path.name} has another format or key")
        dtype = id_dtype(manifest["tokenizer"]["vocab_size"])
        if manifest["dtype"] != dtype.str:
            raise Damaged(f"{path.name} says {manifest['dtype']} where the vocabulary needs {dtype.str}")
        if _sha256(folder / "tokenizer.json") != manifest["tokenizer"]["hash"]:
            raise Damaged("tokenizer.json is not the one written")
        for name in SPLITS:
            split = manifest["splits"][name]
            if (folder / f"{name}.ids").stat().st_size != split["tokens"] * dtype.itemsize:
                raise Damaged(f"{name}.ids has not the {split['tokens']} tokens written")
            if _sha256(folder / f"{name}.starts") != split["starts_sha256"]:
                raise Damaged(f"{name}.starts is not the one written")
        if corpus_hash(manifest["splits"]) != manifest["corpus_hash"]:
            raise Damaged(f"{path.name} has another corpus hash than its splits")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None
    return manifest


def verify_ids(folder: Path, manifest: dict[str, Any]) -> None:
    """Read all token arrays against their hashes; DataError names the file that differs."""
    for name in SPLITS:
        path = folder / f"{name}.ids"
        if _sha256(path) != manifest["splits"][name]["ids_sha256"]:
            raise DataError(f"{path}: not the tokens that were written; delete the folder {folder} to prepare it anew")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def lock(path: Path, waiting: str, say: Any) -> Iterator[None]:
    """Hold a lock file; the system frees it when its process ends, however it ends, so none is ever stale."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say(f"{waiting} (process {file.read().strip() or 'unknown'})", 0, None)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when the block ends well, and is removed when it does not.

    What is mapped from the old one stays readable. Call it under the lock: what an earlier, killed process left goes
    first.
    """
    made, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    for left in (made, old):
        shutil.rmtree(left, ignore_errors=True)
    made.mkdir()
    try:
        yield made
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    finally:
        for left in (made, old):
            shutil.rmtree(left, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
