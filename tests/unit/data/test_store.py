"""The files of a prepared corpus: widths, counts, separators, damage and the lock.

Ids given by hand -> files read back with plain numpy. Knows nothing of texts.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.data import DataError
from txl.data.store import (
    Damaged,
    SplitWriter,
    corpus_hash,
    id_dtype,
    lock,
    read_manifest,
    replacing,
    verify_ids,
    write_file,
)

Pieces = list[tuple[bool, list[int]]]


def written(
    folder: Path, pieces: Pieces, *, vocab_size: int = 5, separator_id: int | None = None, name: str = "train"
) -> dict[str, Any]:
    lengths = np.arange(vocab_size)  # id i stands for i bytes
    with SplitWriter(folder, name, lengths, unknown_id=None, separator_id=separator_id) as writer:
        for starts, ids in pieces:
            writer.add([(starts, np.array(ids, np.int64))])
        return writer.close(text_bytes=17)


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(1, "<u1"), (256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")]
)
def test_the_width_follows_the_vocabulary(vocab_size: int, name: str) -> None:
    assert id_dtype(vocab_size).str.replace("|", "<") == name


def test_a_vocabulary_beyond_four_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="4294967297 ids, but at most 4294967296"):
        id_dtype(2**32 + 1)


def test_id_70000_comes_back_as_70000(tmp_path: Path) -> None:
    written(tmp_path, [(True, [70_000, 1])], vocab_size=70_001)
    assert np.fromfile(tmp_path / "train.ids", "<u4").tolist() == [70_000, 1]


@pytest.mark.parametrize("wrong", [5, -1])
def test_an_id_outside_the_vocabulary_is_never_written(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(AssertionError, match="outside the vocabulary of 5"):
        written(tmp_path, [(True, [1, wrong])])


def test_documents_in_pieces_have_one_start_each(tmp_path: Path) -> None:
    record = written(tmp_path, [(True, [1, 2]), (False, [3]), (True, [4]), (True, [2, 2, 2]), (False, [])])
    assert np.fromfile(tmp_path / "train.ids", "u1").tolist() == [1, 2, 3, 4, 2, 2, 2]
    assert np.fromfile(tmp_path / "train.starts", "<i8").tolist() == [0, 3, 4]
    assert (record["tokens"], record["documents"], record["bytes"]) == (7, 3, 17)
    assert record["bytes_exact"] is False  # 1+2+3+4+2+2+2 = 16 bytes of ids, 17 of text


def test_separators_stand_between_documents_and_belong_to_the_one_before(tmp_path: Path) -> None:
    record = written(tmp_path, [(True, [1, 2]), (False, [3]), (True, [4]), (True, [2, 3])], separator_id=0)
    assert np.fromfile(tmp_path / "train.ids", "u1").tolist() == [1, 2, 3, 0, 4, 0, 2, 3]
    assert np.fromfile(tmp_path / "train.starts", "<i8").tolist() == [0, 4, 6]
    assert record["bytes_exact"] is False  # 15


def test_bytes_are_exact_when_the_ids_add_up_to_the_text(tmp_path: Path) -> None:
    record = written(tmp_path, [(True, [1, 2, 4]), (True, [4, 4, 2])], separator_id=0)
    assert record["bytes_exact"] is True  # 17 of 17, the separator has none


def test_documents_without_tokens_are_dropped_with_their_separators(tmp_path: Path) -> None:
    pieces: Pieces = [(True, []), (True, [1, 3]), (True, []), (False, []), (True, [3]), (True, [])]
    with SplitWriter(tmp_path, "train", np.ones(5, np.int64), unknown_id=3, separator_id=0) as writer:
        writer.add([(starts, np.array(ids, np.int64)) for starts, ids in pieces])
        record = writer.close(text_bytes=4)  # all ids stand for a byte here, but an unknown one for any
    assert np.fromfile(tmp_path / "train.ids", "u1").tolist() == [1, 3, 0, 3]
    assert np.fromfile(tmp_path / "train.starts", "<i8").tolist() == [0, 3]
    assert (writer.dropped, record["unknowns"], record["documents"], record["bytes_exact"]) == (3, 2, 2, False)


def test_a_split_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.valid: its text becomes no token at all"):
        written(tmp_path, [(True, []), (True, [])], name="valid")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    folder.mkdir()
    splits = {name: written(folder, [(True, [1, 2, 3]), (True, [4])], name=name) for name in ("train", "valid", "test")}
    write_file(folder / "tokenizer.json", b"{}")
    manifest = {
        "format": 1,
        "key": "k",
        "dtype": "|u1",
        "splits": splits,
        "corpus_hash": corpus_hash(splits),
        "tokenizer": {"vocab_size": 5, "hash": hashlib.sha256(b"{}").hexdigest()},
    }
    write_file(folder / "manifest.json", json.dumps(manifest).encode())
    return folder


def test_a_whole_folder_is_accepted(folder: Path) -> None:
    manifest = read_manifest(folder, "k")
    verify_ids(folder, manifest)
    ids = hashlib.sha256(bytes([1, 2, 3, 4])).hexdigest()
    starts = hashlib.sha256(np.array([0, 3], "<i8").tobytes()).hexdigest()
    lines = "".join(f"{name} {ids} {starts}\n" for name in ("train", "valid", "test"))
    assert manifest["corpus_hash"] == hashlib.sha256(lines.encode()).hexdigest()


FILES = ["manifest.json", "tokenizer.json", "train.ids", "valid.ids", "test.ids", "train.starts", "test.starts"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "grown", "gone", "emptied", "flipped"])
def test_damage_is_noticed(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    raw = path.read_bytes()
    path.unlink()
    changed = {
        "cut": raw[:-1],
        "grown": raw + b"\0",
        "emptied": b"",
        "flipped": raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:],
    }
    if damage != "gone":
        path.write_bytes(changed[damage])
    if damage == "flipped" and name.endswith(".ids"):
        manifest = read_manifest(folder, "k")  # opening does not read the tokens
        with pytest.raises(DataError, match=rf"{name}: not the tokens that were written"):
            verify_ids(folder, manifest)
    else:
        with pytest.raises(Damaged):
            read_manifest(folder, "k")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"key": "other"},
        {"dtype": "<u2"},
        {"corpus_hash": "0"},
        {"splits": {}},
        {"splits": None},
        {"tokenizer": {"vocab_size": 300, "hash": hashlib.sha256(b"{}").hexdigest()}},
    ],
)
def test_a_manifest_that_does_not_fit_is_noticed(folder: Path, change: dict[str, object]) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Damaged):
        read_manifest(folder, "k")


def test_a_deep_or_endless_manifest_is_noticed(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 1_000_000)
    with pytest.raises(Damaged, match="RecursionError"):
        read_manifest(folder, "k")
    with (folder / "manifest.json").open("wb") as file:
        file.truncate(20_000_000)
    with pytest.raises(Damaged, match="too large"):
        read_manifest(folder, "k")


def test_a_replaced_folder_stays_readable_to_who_mapped_it(folder: Path) -> None:
    mapped = np.memmap(folder / "train.ids", "u1", mode="r")
    with replacing(folder) as made:
        (made / "train.ids").write_bytes(b"new")
    assert mapped.tolist() == [1, 2, 3, 4]
    assert [path.name for path in folder.parent.iterdir()] == ["prepared"]
    assert (folder / "train.ids").read_bytes() == b"new"


def test_a_failed_replacement_leaves_the_old_folder(folder: Path) -> None:
    def fail() -> None:
        with replacing(folder) as made:
            (made / "x").write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [path.name for path in folder.parent.iterdir()] == ["prepared"]
    read_manifest(folder, "k")


def test_what_a_killed_process_left_goes_first(folder: Path) -> None:
    left = folder.with_name("prepared.new")
    left.mkdir()
    (left / "half.ids").write_bytes(b"x")
    with replacing(folder) as made:
        assert list(made.iterdir()) == []


def test_a_lock_file_of_a_dead_process_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    code = f"import fcntl, os\nf = open({str(path)!r}, 'w'); f.write('1'); fcntl.flock(f, fcntl.LOCK_EX); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 9
    told: list[str] = []
    with lock(path, "waiting", lambda what, *rest: told.append(what)):
        assert path.read_text().isdigit()
    assert told == []


def test_the_second_holder_waits_and_says_for_whom(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with lock(tmp_path / "x.lock", "waiting", lambda what, *rest: told.append(what)):
            order.append("second")

    with lock(tmp_path / "x.lock", "waiting", lambda *said: None):
        pid = (tmp_path / "x.lock").read_text()
        thread = threading.Thread(target=second)
        thread.start()
        for _ in range(500):
            if told:
                break
            time.sleep(0.01)
        order.append("first")
    thread.join(20)
    assert order == ["first", "second"]
    assert told == [f"waiting (process {pid})"]
