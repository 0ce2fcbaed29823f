"""How a corpus is made: every source read once, a tokenizer, every split encoded; a killed process is gone on from.

Sources -> `make` -> the files of a folder. Knows nothing of caches. Text passes in blocks, so that a corpus of any size
is made in constant memory; on disk it takes its text once more meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from txl.config import Config
from txl.data.cutting import BATCH, UNIT
from txl.data.errors import DataError
from txl.data.reading import BLOCK_BYTES, Piece
from txl.data.sources import Source, overlaps
from txl.data.spool import Report, Text, share_out, spooled
from txl.data.store import (
    FORMAT,
    SPLITS,
    Damaged,
    corpus_hash,
    forget_later,
    id_dtype,
    read_manifest,
    read_record,
    sha256,
    write_file,
    write_record,
)
from txl.data.tokenizer import Tokenizer, counting_cut, tokenizer_from_json, train_tokenizer
from txl.data.workers import encoded_in_order
from txl.data.writing import SplitWriter

NOTED_UNKNOWN_SHARE = 0.01


def plan(key: str, revisions: dict[str, str | None]) -> dict[str, Any]:
    """All that what is half made depends on, in JSON: where it differs, nothing of it can be gone on with."""
    cuts = [BATCH, UNIT, BLOCK_BYTES]
    return {"key": key, "revisions": revisions, "cuts": cuts, "python": platform.python_version()}


def make(
    config: Config, sources: dict[str, Source], revisions: dict[str, str | None], key: str, folder: Path, say: Report
) -> None:
    """Write the files of a corpus, the manifest last; what a killed process had done of it is taken as it stands."""
    with contextlib.suppress(Damaged):
        read_manifest(folder, key)
        return
    notes = overlaps(sources)
    texts = {}
    for name, source in sources.items():
        texts[name], found = spooled(source, config.data, folder, name, revisions[name], say)
        notes += found
    parts = {name: [text] for name, text in share_out(texts, config.data).items()}
    if config.data.mixture:
        parts["train"] = [text for name, text in texts.items() if name.startswith("mixture.")]
    tokenizer = _tokenizer(config, parts["train"], folder, say)
    if config.tokenizer.kind == "bpe" and tokenizer.vocab_size < config.tokenizer.vocab_size:
        notes.append(
            f"tokenizer.vocab_size: {tokenizer.vocab_size} of {config.tokenizer.vocab_size}: no more pairs occur twice"
        )
    splits = {}
    for name in SPLITS:
        splits[name] = _encode(name, parts[name], tokenizer, folder, notes, say, config.data.workers)
    manifest = {
        "format": FORMAT,
        "key": key,
        "corpus_hash": corpus_hash(splits),
        "dtype": id_dtype(tokenizer.vocab_size).str,
        "tokenizer": {
            "kind": config.tokenizer.kind,
            "hash": tokenizer.hash,
            "vocab_size": tokenizer.vocab_size,
            "lossless": tokenizer.lossless,
        },
        "splits": splits,
        "sources": {name: {"spec": source.spec, "files": len(source.files)} for name, source in sources.items()},
        "revisions": revisions,
        "python": platform.python_version(),
        "notes": notes,
    }
    write_file(folder / "manifest.json", json.dumps(manifest, ensure_ascii=False, indent=1).encode("utf-8"))


def _tokenizer(config: Config, texts: list[Text], folder: Path, say: Report) -> Tokenizer:
    """The tokenizer of the training texts, written beside them; or the one a killed process made."""
    path, kept = folder / "tokenizer.json", folder / "tokenizer.kept"
    if path.exists() and read_record(kept).get("sha256") == sha256(path):
        return tokenizer_from_json(path.read_text("utf-8"))
    forget_later(folder)
    counted = _counted(texts, counting_cut(config.tokenizer), say)
    tokenizer = train_tokenizer(config.tokenizer, counted, separator=config.data.separator)
    write_file(path, tokenizer.to_json().encode("utf-8"))
    write_record(kept, {"sha256": tokenizer.hash})
    return tokenizer


def _encode(
    name: str, texts: list[Text], tokenizer: Tokenizer, folder: Path, notes: list[str], say: Report, workers: int
) -> dict[str, Any]:
    """Write the ids of a split, the texts of its sources one after the other; its record."""
    ids = {"unknown_id": tokenizer.unknown_id, "separator_id": tokenizer.separator_id}
    with SplitWriter(folder, name, tokenizer.byte_lengths(), **ids) as writer:
        groups = _groups(texts, tokenizer.cut, f"encoding {name}", say, after=writer.written.groups)
        for (begins, starts), parts in encoded_in_order(tokenizer, groups, workers=workers):
            writer.add(list(zip(starts, parts, strict=True)), begins_text=begins)
        record = writer.close(text_bytes=sum(text.bytes for text in texts))
    firsts = writer.written.firsts
    empty = [first for first, stop in pairwise([*firsts, record["documents"]]) if first == stop]
    if empty:
        raise DataError("data.mixture: a source becomes no token at all; give text that is not only white space")
    if len(firsts) > 1:
        record["first_documents"] = firsts
    if writer.written.dropped:
        notes.append(f"{name}: {writer.written.dropped} documents become no token at all and are left out")
    share = record["unknowns"] / record["tokens"]
    if share > NOTED_UNKNOWN_SHARE:
        notes.append(
            f"{name}: {100 * share:.1f} % of the tokens are unknown to the vocabulary: its bits per byte do not "
            "compare with those of other tokenizers"
        )
    return record


def _counted(texts: list[Text], cut: Callable[[str], int], say: Report) -> Iterator[str]:
    for _, parts in _groups(texts, cut, "counting symbols of train", say):
        yield from parts


def _groups(
    texts: list[Text], cut: Callable[[str], int], what: str, say: Report, *, after: int = 0
) -> Iterator[tuple[tuple[bool, list[bool]], list[str]]]:
    """The pieces of texts in groups of about BATCH characters, the first `after` left out: whether a group begins a
    text, and each piece a document; the pieces. They are told to `say` once they are used."""
    number = 0
    for text in texts:
        begins, done = True, 0
        for batch in _batches(text.pieces(cut)):
            if done and number > after:
                say(what, min(done, text.bytes), text.bytes)
            number += 1
            done += sum(len(piece.text) for piece in batch)
            if number > after:
                yield (begins, [piece.starts for piece in batch]), [piece.text for piece in batch]
            begins = False
        say(what, text.bytes, text.bytes)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
