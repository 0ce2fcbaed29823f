"""A prepared corpus on disk: token arrays, document starts, tokenizer and manifest, written once, checked when opened.

A folder -> `read_manifest` -> its record, or why it cannot be used. `lock` keeps two processes apart, `replacing` gives
a folder in the making. Knows nothing of texts and configs. Numbers are little-endian without a header.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from txl.data.errors import DataError

FORMAT = 1
"""Number of the layout; a folder with another one is prepared anew."""
SPLITS = ("train", "valid", "test")
STARTS = np.dtype("<i8")
PLAN = "plan.json"
"""What a folder in the making is to become; it is gone on with only where this has not changed."""
FILES = {"manifest.json", "tokenizer.json", *(f"{name}.{kind}" for name in SPLITS for kind in ("ids", "starts"))}
LARGEST_MANIFEST_BYTES = 16_000_000


class Damaged(Exception):  # noqa: N818  (a state of the cache, never shown as an error)
    """A prepared folder that is not as its manifest says; it is prepared anew."""


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint8, uint16 and uint32 that holds all ids: 256, 65,536 and 4,294,967,296 of them."""
    for name, size in (("<u1", 2**8), ("<u2", 2**16), ("<u4", 2**32)):
        if vocab_size <= size:
            return np.dtype(name)
    raise DataError(f"vocabulary: {vocab_size} ids, but at most {2**32} can be stored")


def split_hash(split: dict[str, Any]) -> str:
    """SHA-256 over ids and document starts of one split."""
    return hashlib.sha256(f"{split['ids_sha256']} {split['starts_sha256']}\n".encode()).hexdigest()


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
        if sha256(folder / "tokenizer.json") != manifest["tokenizer"]["hash"]:
            raise Damaged("tokenizer.json is not the one written")
        for name in SPLITS:
            split = manifest["splits"][name]
            if (folder / f"{name}.ids").stat().st_size != split["tokens"] * dtype.itemsize:
                raise Damaged(f"{name}.ids has not the {split['tokens']} tokens written")
            if sha256(folder / f"{name}.starts") != split["starts_sha256"]:
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
        if sha256(path) != manifest["splits"][name]["ids_sha256"]:
            raise DataError(f"{path}: not the tokens that were written; delete the folder {folder} to prepare it anew")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file and wait until it is on disk; killed meanwhile, what had the name before still has it."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Note how far the making of a corpus is."""
    write_file(path, json.dumps(record).encode())


def read_record(path: Path) -> dict[str, Any]:
    """What `write_record` noted; empty where it did not, or where that is no JSON."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def forget_later(folder: Path) -> None:
    """In a folder in the making, forget what was made of a text or a tokenizer that is made anew."""
    for path in folder.glob("*.kept"):
        path.unlink()


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
def replacing(folder: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """A folder that takes the place of `folder` when the block ends well, and is removed when an error ends it.

    Killed, or stopped by Ctrl-C, it stays, and the next call with the same `plan` (JSON) gives it again, to go on; one
    of another plan goes first. What is mapped from the old one stays readable. Call it under the lock.
    """
    made, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if read_record(made / PLAN) != plan:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        write_record(made / PLAN, plan)
    try:
        yield made
    except Exception:
        shutil.rmtree(made, ignore_errors=True)
        raise
    for path in made.iterdir():
        if path.name not in {*FILES, PLAN}:
            path.unlink()
    if folder.exists():
        folder.rename(old)
    made.rename(folder)
    (folder / PLAN).unlink()  # last: as long as it is there, nothing is done again
    shutil.rmtree(old, ignore_errors=True)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
