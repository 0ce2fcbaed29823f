"""A split as it is written: counts, separators, dropped documents, and going on after a killed writer.

Ids given by hand -> files read back with plain numpy. Knows nothing of texts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.data import DataError
from txl.data.writing import SplitWriter

Pieces = list[tuple[bool, list[int]]]


def written(
    folder: Path, pieces: Pieces, *, vocab_size: int = 5, separator_id: int | None = None, name: str = "train"
) -> dict[str, Any]:
    lengths = np.arange(vocab_size)  # id i stands for i bytes
    with SplitWriter(folder, name, lengths, unknown_id=None, separator_id=separator_id) as writer:
        for starts, ids in pieces:
            writer.add([(starts, np.array(ids, np.int64))])
        return writer.close(text_bytes=17)


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
    assert (writer.written.dropped, record["unknowns"], record["documents"], record["bytes_exact"]) == (3, 2, 2, False)


def test_a_split_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.valid: its text becomes no token at all"):
        written(tmp_path, [(True, []), (True, [])], name="valid")


# Groups of pieces; a document without tokens and one cut by the end of a group among them.
GROUPS: list[Pieces] = [[(True, [1, 2]), (True, [])], [(True, [3]), (False, [4])], [(False, [2])], [(True, [4, 4])]]


def add(writer: SplitWriter, groups: list[Pieces]) -> None:
    for pieces in groups:
        begins = pieces[0][1] in ([1, 2], [4, 4])
        writer.add([(starts, np.array(ids, np.int64)) for starts, ids in pieces], begins_text=begins)


def writer_in(folder: Path) -> SplitWriter:
    folder.mkdir(exist_ok=True)
    return SplitWriter(folder, "train", np.arange(5), unknown_id=3, separator_id=0)


def of(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "train.ids").read_bytes(), (folder / "train.starts").read_bytes()


@pytest.mark.parametrize("groups", range(5))
def test_a_writer_goes_on_after_the_last_group_of_one_that_was_killed(tmp_path: Path, groups: int) -> None:
    with writer_in(tmp_path / "whole") as whole:
        add(whole, GROUPS)
        expected = whole.close(text_bytes=16)
    with writer_in(tmp_path / "parts") as killed:
        add(killed, GROUPS[:groups])
    for name in ("train.ids", "train.starts"):  # a write that was under way
        with (tmp_path / "parts" / name).open("ab") as file:
            file.write(b"half")
    with writer_in(tmp_path / "parts") as writer:
        assert writer.written.groups == groups
        add(writer, GROUPS[groups:])
        assert writer.close(text_bytes=16) == expected
    assert of(tmp_path / "parts") == of(tmp_path / "whole")
    assert np.fromfile(tmp_path / "whole" / "train.ids", "u1").tolist() == [1, 2, 0, 3, 4, 2, 0, 4, 4]
    assert writer.written.firsts == whole.written.firsts == [0, 2]
    assert writer.written.dropped == 1


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a token flipped": lambda folder: (folder / "train.ids").write_bytes(b"\2\2\0\3\4"),
    "tokens lost": lambda folder: os.truncate(folder / "train.ids", 3),
    "starts lost": lambda folder: os.truncate(folder / "train.starts", 8),
    "tokens gone": lambda folder: (folder / "train.ids").unlink(),
    "the note cut": lambda folder: os.truncate(folder / "train.kept", 20),
    "the note of another kind": lambda folder: (folder / "train.kept").write_text('{"written": {"steps": 3}}'),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_not_as_it_was_noted_is_written_anew(tmp_path: Path, kind: str) -> None:
    with writer_in(tmp_path) as killed:
        add(killed, GROUPS[:2])
    DAMAGE[kind](tmp_path)
    with writer_in(tmp_path) as writer:
        assert (writer.written.groups, of(tmp_path)) == (0, (b"", b""))
