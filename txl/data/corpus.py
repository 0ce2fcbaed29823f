"""A prepared corpus: sources to flat arrays of token ids with document starts, made once, then opened from the cache.

A `Config` -> `prepare` -> `Corpus` with its tokenizer and three `Split`s. Knows nothing of streams and models, nor of
how a corpus is made (`txl.data.making` does).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from txl.config import Config
from txl.data.errors import DataError
from txl.data.making import make, plan
from txl.data.mixing import Share
from txl.data.sources import Source, find_source, hub_revision
from txl.data.spool import Report
from txl.data.store import FORMAT, SPLITS, Damaged, lock, read_manifest, replacing, split_hash, verify_ids
from txl.data.tokenizer import Tokenizer, tokenizer_from_json

SUM_TOKENS = 1_048_576
"""Tokens whose bytes are summed at a time."""


@dataclass(frozen=True)
class Split:
    """One part of a corpus: ids (memory-mapped, N) and the index of each document's first token (int64, first 0)."""

    name: str
    ids: np.ndarray
    document_starts: np.ndarray
    tokens: int
    bytes: int
    """Bytes of the text in UTF-8; separators have none."""
    documents: int
    unknowns: int
    bytes_exact: bool
    """Whether the ids' own byte lengths add up to the text's: always for byte and bpe, for char without unknowns."""
    byte_lengths: np.ndarray
    """Bytes of text each id stands for, V."""
    mixture: tuple[Share, ...] = ()
    """The sources of a mixture, by the number of their first document; none where there is one source."""

    def scored_bytes(self, start: int, stop: int) -> float:
        """Bytes of text of tokens [start, stop): exact where `bytes_exact`, else their share of the split's bytes."""
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(f"{self.name}: tokens [{start}, {stop}) of {self.tokens}")
        if not self.bytes_exact:
            return self.bytes * (stop - start) / self.tokens
        blocks = range(start, stop, SUM_TOKENS)
        return float(sum(int(self.byte_lengths[self.ids[at : min(at + SUM_TOKENS, stop)]].sum()) for at in blocks))


@dataclass(frozen=True)
class Corpus:
    """A tokenizer and what it made of the text; `manifest` has all counts, hashes and notes on what was unusual."""

    tokenizer: Tokenizer
    train: Split
    valid: Split
    test: Split
    fingerprint: str
    """SHA-256 over the ids and document starts of all splits; the same wherever and whenever the text was read."""
    folder: Path
    manifest: dict[str, Any]

    def text_hash(self, split: str) -> str:
        """SHA-256 over the ids and document starts of one split: equal where two corpora share that text."""
        return split_hash(self.manifest["splits"][split])

    def verify(self) -> None:
        """Read every token against the hashes of the manifest; DataError names a file that differs."""
        verify_ids(self.folder, self.manifest)


def prepare(config: Config, *, report: Report | None = None) -> Corpus:
    """Open the corpus of a config, making it first where the cache has none that is whole and up to date.

    A corpus is made anew when a file's path, size or time of change, the tokenizer's settings or file, or those data
    settings differ that decide on its tokens. Two processes at once make it once, and what a killed one had done is
    gone on with, to the same bytes. `report(what, done, total)` hears of the progress in bytes. DataError for sources,
    text and vocabularies that cannot be used.
    """
    say = report or (lambda what, done, total: None)
    data = config.data
    shares = [item.split(None, 1) for item in data.mixture]
    named = {f"mixture.{number}": source for number, (_, source) in enumerate(shares)}
    named |= {name: getattr(data, name) for name in SPLITS if not (shares and name == "train")}
    weights = tuple(float(weight) for weight, _ in shares)
    sources = {name: find_source(f"data.{name}", spec) for name, spec in named.items() if spec is not None}
    key = _key(config, sources)
    root = _cache_folder(data.cache_dir)
    folder = root / key[:32]
    revisions = {name: hub_revision(source.hub) if source.hub else None for name, source in sources.items()}
    with contextlib.suppress(Damaged):
        return _opened(folder, key, revisions, weights)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with lock(root / f"{folder.name}.lock", f"waiting for another process to prepare {folder}", say):
            try:
                return _opened(folder, key, revisions, weights)  # made while this one waited
            except Damaged as why:
                if folder.exists():
                    say(f"preparing anew: {why}", 0, None)
            with replacing(folder, plan(key, revisions)) as made:
                make(config, sources, revisions, key, made, say)
                if _key(config, {name: find_source(f"data.{name}", named[name]) for name in sources}) != key:
                    raise DataError("data: a source changed while it was read; run again when nothing writes to it")
            return _opened(folder, key, revisions, weights)
    except Damaged as why:
        raise DataError(f"data.cache_dir: {folder} changed while it was opened: {why}; run again") from None
    except OSError as error:
        raise DataError(
            f"data.cache_dir: the prepared corpus cannot be written in {root}: {error.strerror}; it takes the size "
            "of the text and of its tokens: make room, or set data.cache_dir to another folder"
        ) from error


def _opened(folder: Path, key: str, revisions: dict[str, str | None], weights: tuple[float, ...]) -> Corpus:
    """The corpus of a prepared folder; Damaged where it cannot be used."""
    manifest = read_manifest(folder, key)
    for name, revision in revisions.items():
        if revision is not None and revision != manifest["revisions"].get(name):
            raise Damaged(f"data.{name} has a new revision on the hub")
    tokenizer = tokenizer_from_json((folder / "tokenizer.json").read_text("utf-8"))
    byte_lengths = tokenizer.byte_lengths()
    splits = {}
    for name in SPLITS:
        record = manifest["splits"][name]
        splits[name] = Split(
            name,
            np.memmap(folder / f"{name}.ids", manifest["dtype"], mode="r"),
            np.fromfile(folder / f"{name}.starts", "<i8").astype(np.int64, copy=False),
            tokens=record["tokens"],
            bytes=record["bytes"],
            documents=record["documents"],
            unknowns=record["unknowns"],
            bytes_exact=record["bytes_exact"],
            byte_lengths=byte_lengths,
            mixture=tuple(map(Share, record.get("first_documents", ()), weights)) if name == "train" else (),
        )
    return Corpus(tokenizer, **splits, fingerprint=manifest["corpus_hash"], folder=folder, manifest=manifest)


def _key(config: Config, sources: dict[str, Source]) -> str:
    """SHA-256 over all that decides on the files of a corpus; reads no text."""
    data, tokenizer = config.data, dataclasses.asdict(config.tokenizer)
    if config.tokenizer.kind == "file":
        path = Path(config.tokenizer.path or "").expanduser()
        try:
            with path.open("rb") as file:
                tokenizer["path"] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"tokenizer.path: {path} cannot be read: {error.strerror}; name a tokenizer.json") from None
    deciding = ["valid_fraction", "test_fraction", "split_by", "split_seed"] if len(sources) < len(SPLITS) else []
    deciding += ["text_field", "document_pattern", "separator", "invalid_utf8"]
    settings = {name: getattr(data, name) for name in deciding}
    stamps = [source.stamp for source in sources.values()]
    return hashlib.sha256(json.dumps([FORMAT, tokenizer, settings, stamps], sort_keys=True).encode()).hexdigest()


def _cache_folder(named: str | None) -> Path:
    if named is not None:
        return Path(named).expanduser()
    user = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or user) / "txl"
