"""Prepared corpora: what is in them, when they are made anew, and that the cache is safe.

Texts made here -> `prepare` -> arrays against the same text encoded in one go. Knows nothing of streams.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.config import Config, DataConfig, TokenizerConfig
from txl.data import Corpus, DataError, cutting, making, prepare, reading, spool, writing

DOCUMENTS = {f"d{i}.txt": f"document {i} é\r\nthe end of {i}\n\n" * (i + 1) for i in range(6)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "texts")


def fill(folder: Path) -> Path:
    folder.mkdir()
    for name, text in DOCUMENTS.items():
        (folder / name).write_bytes(text.encode())
    return folder


def config(tmp_path: Path, train: Path | str, *, kind: str = "byte", **data: Any) -> Config:
    tokenizer = data.pop("tokenizer", TokenizerConfig(kind=kind))  # type: ignore[arg-type]
    chosen = {"train": str(train), "cache_dir": str(tmp_path / "cache")} | data
    return Config(tokenizer=tokenizer, data=DataConfig(**chosen))


def texts(made: Corpus, name: str) -> list[str]:
    """The documents of a split, decoded."""
    split = getattr(made, name)
    bounds = [*split.document_starts.tolist(), split.tokens]
    return [made.tokenizer.decode(split.ids[a:b].tolist()) for a, b in pairwise(bounds)]


def test_a_folder_becomes_three_splits_of_whole_documents(tmp_path: Path, folder: Path) -> None:
    made = prepare(config(tmp_path, folder, valid_fraction=0.2, test_fraction=0.3))
    found = {name: texts(made, name) for name in ("train", "valid", "test")}
    assert {name: len(part) for name, part in found.items()} == {"train": 3, "valid": 1, "test": 2}
    assert Counter(chain(*found.values())) == Counter(DOCUMENTS.values())
    for name in found:
        split = getattr(made, name)
        assert (split.name, split.tokens, split.bytes) == (name, len(split.ids), len("".join(found[name]).encode()))
        assert (split.documents, split.unknowns, split.bytes_exact) == (len(found[name]), 0, True)
        assert split.document_starts.dtype == np.int64
        assert split.ids.dtype == np.uint8
        assert isinstance(split.ids, np.memmap)
        assert not split.ids.flags.writeable
    assert made.manifest["splits"]["test"]["tokens"] == made.test.tokens
    assert made.manifest["tokenizer"]["hash"] == made.tokenizer.hash
    made.verify()


def test_named_splits_are_read_from_their_own_sources(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "valid.txt"
    other.write_text("valid")
    made = prepare(config(tmp_path, folder, valid=str(other), test=str(folder / "d0.txt")))
    assert texts(made, "train") == list(DOCUMENTS.values())
    assert (texts(made, "valid"), texts(made, "test")) == (["valid"], [DOCUMENTS["d0.txt"]])
    assert made.manifest["notes"][0].startswith("data.test: 1 files are in data.train too")


def test_a_separator_stands_between_documents_and_has_no_bytes(tmp_path: Path, folder: Path) -> None:
    tokenizer = TokenizerConfig(kind="bpe", vocab_size=270)
    made = prepare(config(tmp_path, folder, tokenizer=tokenizer, separator="<eos>"))
    ids, starts = made.train.ids.tolist(), made.train.document_starts.tolist()
    assert ids.count(made.tokenizer.separator_id) == made.train.documents - 1
    assert [ids[start - 1] for start in starts[1:]] == [made.tokenizer.separator_id] * (made.train.documents - 1)
    assert made.train.bytes_exact
    assert made.train.scored_bytes(0, made.train.tokens) == made.train.bytes


@pytest.mark.parametrize(
    "tokenizer",
    [
        TokenizerConfig(),
        TokenizerConfig(kind="char"),
        TokenizerConfig(kind="char", lowercase=True, min_count=2),
        TokenizerConfig(kind="word"),
        TokenizerConfig(kind="word", split="punctuation", lowercase=True),
        TokenizerConfig(kind="bpe", vocab_size=265),
    ],
    ids=["byte", "char", "char lower", "word", "word marks", "bpe"],
)
def test_text_in_blocks_becomes_the_ids_of_the_whole_text(
    tmp_path: Path, folder: Path, tokenizer: TokenizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare(config(tmp_path, folder, tokenizer=tokenizer))
    monkeypatch.setattr(reading, "BLOCK_BYTES", 11)
    monkeypatch.setattr(spool, "BLOCK_BYTES", 7)
    monkeypatch.setattr(making, "BATCH", 50)
    monkeypatch.setattr(cutting, "BATCH", 40)
    monkeypatch.setattr(cutting, "UNIT", 24)
    blocks = prepare(config(tmp_path, folder, tokenizer=tokenizer, cache_dir=None))
    assert blocks.folder != whole.folder
    assert (blocks.fingerprint, blocks.tokenizer.hash) == (whole.fingerprint, whole.tokenizer.hash)
    bounds = [*whole.train.document_starts.tolist(), whole.train.tokens]
    encoded = [whole.train.ids[a:b].tolist() for a, b in pairwise(bounds)]
    whole_texts = [whole.tokenizer.encode(text) for text in DOCUMENTS.values()]
    assert [ids for ids in whole_texts if ids in encoded] == encoded
    assert len(encoded) == 4


def test_vocabularies_are_counted_on_the_train_split_only(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b a b\n")
    (tmp_path / "valid.txt").write_text("a b q\n")
    for kind in ("char", "word"):
        sources = {"valid": str(tmp_path / "valid.txt"), "test": str(tmp_path / "valid.txt")}
        made = prepare(config(tmp_path, tmp_path / "train.txt", kind=kind, **sources))
        assert made.tokenizer.token_id("q") is None
        assert (made.train.unknowns, made.valid.unknowns) == (0, 1)
        assert not made.valid.bytes_exact
        share = {"char": "16.7", "word": "25.0"}[kind]
        assert [
            note for note in made.manifest["notes"] if note.startswith(f"valid: {share} % of the tokens are unknown")
        ]


def test_scored_bytes_are_exact_where_ids_have_bytes_and_a_share_elsewhere(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txl.data.corpus.SUM_TOKENS", 5)
    char = prepare(config(tmp_path, folder, kind="char"))
    text = "".join(texts(char, "train"))
    for start, stop in ((0, len(text)), (3, 29), (7, 7), (10, 11)):
        assert char.train.scored_bytes(start, stop) == len(text[start:stop].encode())
    word = prepare(config(tmp_path, folder, kind="word"))
    assert word.train.scored_bytes(2, 7) == pytest.approx(word.train.bytes * 5 / word.train.tokens)
    assert word.train.scored_bytes(0, word.train.tokens) == word.train.bytes
    with pytest.raises(ValueError, match="tokens"):
        char.train.scored_bytes(5, len(text) + 1)


def test_the_fingerprint_depends_on_the_text_alone(tmp_path: Path, folder: Path) -> None:
    made = prepare(config(tmp_path, folder))
    elsewhere = fill(tmp_path / "moved")
    for path in elsewhere.iterdir():
        os.utime(path, (1, 1))
    again = prepare(config(tmp_path, elsewhere))
    assert again.folder != made.folder
    assert again.fingerprint == made.fingerprint
    (elsewhere / "d5.txt").write_bytes((elsewhere / "d5.txt").read_bytes().replace(b"5", b"6", 1))
    assert prepare(config(tmp_path, elsewhere)).fingerprint != made.fingerprint


@pytest.fixture
def made_anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of sources read since: empty after a cache hit."""
    reads: list[str] = []
    original = making.spooled

    def counted(source: Any, *rest: Any) -> Any:
        reads.append(source.key)
        return original(source, *rest)

    monkeypatch.setattr(making, "spooled", counted)
    return reads


def test_a_second_time_no_text_is_read(tmp_path: Path, folder: Path, made_anew: list[str]) -> None:
    first = prepare(config(tmp_path, folder))
    assert made_anew == ["data.train"]
    settings = {"batch_size": 3, "reset_memory": True, "shuffle_documents": True, "streaming": True}
    second = prepare(config(tmp_path, folder, **settings))
    assert made_anew == ["data.train"]
    assert second.fingerprint == first.fingerprint
    assert np.array_equal(second.train.ids, first.train.ids)


CHANGES: dict[str, dict[str, Any]] = {
    "lower-casing": {"tokenizer": TokenizerConfig(kind="char", lowercase=True)},
    "kind": {"tokenizer": TokenizerConfig(kind="word")},
    "split seed": {"split_seed": 1},
    "fraction": {"test_fraction": 0.4},
    "split by": {"split_by": "position"},
    "pattern": {"document_pattern": "document"},
    "separator": {"separator": "<eos>"},
    "utf-8": {"invalid_utf8": "replace"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_makes_it_anew(tmp_path: Path, folder: Path, made_anew: list[str], name: str) -> None:
    prepare(config(tmp_path, folder, kind="char"))
    prepare(config(tmp_path, folder, **({"tokenizer": TokenizerConfig(kind="char")} | CHANGES[name])))
    assert len(made_anew) == 2


@pytest.mark.parametrize("change", ["content", "same size and time", "added", "removed", "renamed", "tokenizer file"])
def test_changed_files_make_it_anew(tmp_path: Path, folder: Path, made_anew: list[str], change: str) -> None:
    vocabulary = tmp_path / "tokenizer.json"
    symbols = ["<unk>", *map(chr, range(128)), "é"]
    vocabulary.write_text(json.dumps({"txl_tokenizer": 1, "kind": "char", "symbols": symbols}))
    settings = config(tmp_path, folder, tokenizer=TokenizerConfig(kind="file", path=str(vocabulary)))
    before = prepare(settings)
    path = folder / "d3.txt"
    if change == "content":
        path.write_bytes(b"new")
    if change == "same size and time":
        times = path.stat()
        path.write_bytes(path.read_bytes().replace(b"end", b"END"))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if change == "added":
        (folder / "d31.txt").write_bytes(b"new")
    if change == "removed":
        path.unlink()
    if change == "renamed":
        path.rename(folder / "z.txt")
    if change == "tokenizer file":
        vocabulary.write_text(json.dumps({"txl_tokenizer": 1, "kind": "char", "symbols": symbols[:1] + symbols[:0:-1]}))
    after = prepare(settings)
    assert made_anew == ["data.train", "data.train"]
    assert after.fingerprint != before.fingerprint


FILES = ("manifest.json", "tokenizer.json", "train.ids", "test.starts")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "cut", "rubbish"])
def test_a_damaged_cache_is_made_anew_and_said(
    tmp_path: Path, folder: Path, made_anew: list[str], name: str, damage: str
) -> None:
    first = prepare(config(tmp_path, folder))
    path = first.folder / name
    raw = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(raw[:-1] if damage == "cut" else b"\x80\x04rubbish")
    told: list[str] = []
    second = prepare(config(tmp_path, folder), report=lambda what, done, total: told.append(what))
    assert made_anew == ["data.train", "data.train"]
    assert second.fingerprint == first.fingerprint
    assert told[0].startswith("preparing anew: ")
    second.verify()


def test_a_flipped_token_is_found_by_verify(tmp_path: Path, folder: Path) -> None:
    made = prepare(config(tmp_path, folder))
    path = made.folder / "valid.ids"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"valid.ids: not the tokens that were written; delete the folder"):
        prepare(config(tmp_path, folder)).verify()


def test_a_source_written_to_while_it_is_read_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = making.spooled

    def interfering(*arguments: Any) -> Any:
        text = original(*arguments)
        (folder / "d9.txt").write_text("late")
        return text

    monkeypatch.setattr(making, "spooled", interfering)
    with pytest.raises(DataError, match="a source changed while it was read; run again"):
        prepare(config(tmp_path, folder))
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_full_disk_leaves_nothing_and_says_where(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing.SplitWriter, "_write", full)
    with pytest.raises(DataError, match=r"data.cache_dir: .*cache: No space left on device; .*set data.cache_dir"):
        prepare(config(tmp_path, folder))
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"data.cache_dir: the prepared corpus cannot be written in .*cache"):
        prepare(config(tmp_path, folder))


def test_without_cache_dir_the_users_cache_folder_is_used(folder: Path, private_cache: Path) -> None:
    made = prepare(Config(data=DataConfig(train=str(folder))))
    assert made.folder.parent == private_cache / "txl"


PROGRAM = """
import sys
from pathlib import Path
from txl.config import Config, DataConfig
from txl.data.corpus import prepare
read = []
def report(what, done, total):
    if what.startswith("reading"):
        read.append(what)
    if what == sys.argv[3]:
        print("there", flush=True)
        sys.stdin.read()
made = prepare(Config(data=DataConfig(train=sys.argv[1], cache_dir=sys.argv[2])), report=report)
print(made.fingerprint, len(read))
"""


def start(folder: Path, tmp_path: Path, stop_at: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "cache"), stop_at]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once_make_it_once(tmp_path: Path, folder: Path) -> None:
    with start(folder, tmp_path) as one, start(folder, tmp_path) as two:
        outputs = [process.communicate(timeout=60)[0].split() for process in (one, two)]
    assert outputs[0][0] == outputs[1][0] == prepare(config(tmp_path, folder)).fingerprint
    assert sorted(int(output[1]) for output in outputs) == [0, 1]


def test_a_process_killed_while_preparing_does_not_block_the_next(tmp_path: Path, folder: Path) -> None:
    with start(folder, tmp_path, "encoding valid") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert list((tmp_path / "cache").glob("*.new/train.ids"))
        told: list[str] = []
        waiting = threading.Thread(
            target=lambda: prepare(config(tmp_path, folder), report=lambda what, *rest: told.append(what))
        )
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        process.kill()
        process.communicate(timeout=30)
        waiting.join(30)
    assert told[0].startswith("waiting for another process to prepare")
    assert f"(process {process.pid})" in told[0]
    assert Counter(path.suffix for path in (tmp_path / "cache").iterdir()) == Counter(["", ".lock"])


def test_progress_is_told_in_bytes(tmp_path: Path, folder: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    made = prepare(config(tmp_path, folder, kind="word"), report=lambda *said: told.append(said))
    size = sum(len(text.encode()) for text in DOCUMENTS.values())
    assert ("reading data.train", size, size) in told
    assert ("counting symbols of train", made.train.bytes, made.train.bytes) in told
    assert [said[0] for said in told if said[0].startswith("encoding")] == [
        "encoding train",
        "encoding valid",
        "encoding test",
    ]


def test_a_new_revision_on_the_hub_makes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_anew: list[str]
) -> None:
    from txl.data import sources

    rows = {"first": ["a", "b", "c"], "second": ["a", "b", "d"]}
    offered: str | None = "first"
    monkeypatch.setattr("txl.data.corpus.hub_revision", lambda hub: offered)
    monkeypatch.setattr(reading, "hub_rows", lambda source, field, streaming, revision: iter(rows[revision]))
    assert sources.find_source("data.train", "hf:some/name").hub is not None
    before = prepare(config(tmp_path, "hf:some/name"))
    offered = None  # no network: what was prepared is used
    assert prepare(config(tmp_path, "hf:some/name")).fingerprint == before.fingerprint
    offered = "second"
    assert prepare(config(tmp_path, "hf:some/name")).fingerprint != before.fingerprint
    assert len(made_anew) == 2


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_the_hubs_form_is_prepared_and_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_anew: list[str], streaming: bool
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub_cache")
    (tmp_path / "set").mkdir()
    for name, rows in {"train": "abc", "validation": "de", "test": "f"}.items():
        lines = [json.dumps({"body": f"{row} text\n", "id": row}) for row in rows]
        (tmp_path / "set" / f"{name}.jsonl").write_text("\n".join(lines))
    spec = f"hf:{tmp_path / 'set'}"
    settings = config(tmp_path, spec, valid=spec, test=spec + "@test", text_field="body", streaming=streaming)
    made = prepare(settings)
    assert texts(made, "train") == ["a text\n", "b text\n", "c text\n"]
    assert (texts(made, "valid"), texts(made, "test")) == (["d text\n", "e text\n"], ["f text\n"])
    assert made.manifest["notes"] == []
    path = tmp_path / "set" / "train.jsonl"
    times = path.stat()
    path.write_text(path.read_text().replace("c text", "C TEXT"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert texts(prepare(settings), "train")[2] == "C TEXT\n"
    prepare(settings)
    assert len(made_anew) == 6


def test_bpe_that_runs_out_of_pairs_is_noted(tmp_path: Path, folder: Path) -> None:
    made = prepare(config(tmp_path, folder, tokenizer=TokenizerConfig(kind="bpe", vocab_size=5000)))
    assert made.tokenizer.vocab_size < 400
    assert f"tokenizer.vocab_size: {made.tokenizer.vocab_size} of 5000" in made.manifest["notes"][-1]


def test_a_missing_tokenizer_file_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer.path: .*none.json cannot be read: No such file"):
        prepare(config(tmp_path, folder, tokenizer=TokenizerConfig(kind="file", path=str(tmp_path / "none.json"))))


def test_an_old_mapping_survives_a_new_preparation(tmp_path: Path, folder: Path) -> None:
    first = prepare(config(tmp_path, folder))
    expected = np.array(first.train.ids)
    (first.folder / "train.starts").write_bytes(b"")
    prepare(config(tmp_path, folder))
    assert np.array_equal(first.train.ids, expected)
    shutil.rmtree(first.folder)
    assert np.array_equal(first.train.ids, expected)
