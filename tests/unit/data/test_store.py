"""The files of a prepared corpus: widths, damage, the lock and the folder in the making.

Ids given by hand -> files read back with plain numpy. Knows nothing of texts.
"""

from __future__ import annotations

import contextlib
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
    corpus_hash,
    id_dtype,
    lock,
    read_manifest,
    read_record,
    replacing,
    verify_ids,
    write_file,
    write_record,
)
from txl.data.writing import SplitWriter


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(1, "<u1"), (256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")]
)
def test_the_width_follows_the_vocabulary(vocab_size: int, name: str) -> None:
    assert id_dtype(vocab_size).str.replace("|", "<") == name


def test_a_vocabulary_beyond_four_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="4294967297 ids, but at most 4294967296"):
        id_dtype(2**32 + 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    folder.mkdir()
    splits = {}
    for name in ("train", "valid", "test"):
        with SplitWriter(folder, name, np.arange(5), unknown_id=None, separator_id=None) as writer:
            writer.add([(True, np.array([1, 2, 3])), (True, np.array([4]))])
            splits[name] = writer.close(text_bytes=10)
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
    with replacing(folder, {"key": "k"}) as made:
        (made / "train.ids").write_bytes(b"new")
    assert mapped.tolist() == [1, 2, 3, 4]
    assert [path.name for path in folder.parent.iterdir()] == ["prepared"]
    assert (folder / "train.ids").read_bytes() == b"new"


def test_a_failed_replacement_leaves_the_old_folder(folder: Path) -> None:
    def fail() -> None:
        with replacing(folder, {"key": "k"}) as made:
            (made / "x").write_bytes(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [path.name for path in folder.parent.iterdir()] == ["prepared"]
    read_manifest(folder, "k")


def stopped(folder: Path, plan: dict[str, Any]) -> list[str]:
    """Begin to replace a folder and stop; what was in it before."""
    with contextlib.suppress(KeyboardInterrupt), replacing(folder, plan) as made:
        found = sorted(path.name for path in made.iterdir())
        (made / "train.kept").write_bytes(b"half")
        raise KeyboardInterrupt
    return found


def test_what_a_stopped_process_left_is_gone_on_with_only_under_the_same_plan(folder: Path) -> None:
    assert stopped(folder, {"key": "k", "cuts": [3]}) == ["plan.json"]
    assert stopped(folder, {"key": "k", "cuts": [3]}) == ["plan.json", "train.kept"]
    read_manifest(folder, "k")
    with replacing(folder, {"key": "k", "cuts": [4]}) as made:
        assert [path.name for path in made.iterdir()] == ["plan.json"]
        (made / "train.ids").write_bytes(b"new")
    assert [path.name for path in folder.iterdir()] == ["train.ids"]
    assert [path.name for path in folder.parent.iterdir()] == ["prepared"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"null"])
def test_a_note_that_is_no_note_says_nothing(tmp_path: Path, raw: bytes) -> None:
    write_record(tmp_path / "train.kept", {"groups": 3})
    assert read_record(tmp_path / "train.kept") == {"groups": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["train.kept"]
    (tmp_path / "train.kept").write_bytes(raw)
    assert read_record(tmp_path / "train.kept") == {}
    assert read_record(tmp_path / "valid.kept") == {}


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
