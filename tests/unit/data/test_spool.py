"""The text of a corpus in one plain file, shared out to splits by documents or by position.

Texts written here -> byte ranges and pieces. The reference for pieces is the file read at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from txl.config import DataConfig
from txl.data import DataError, spool
from txl.data.cutting import after_line_end, after_white_space
from txl.data.reading import Findings
from txl.data.sources import find_source
from txl.data.spool import Text, share_out


def text_of(path: Path, documents: list[str]) -> Text:
    sizes = [len(document.encode()) for document in documents]
    path.write_bytes("".join(documents).encode())
    ends = np.cumsum(sizes)
    return Text(path, ends - sizes, ends)


def read_back(text: Text) -> list[str]:
    raw = text.path.read_bytes()
    return [raw[start:stop].decode() for start, stop in zip(text.starts, text.stops, strict=True)]


def test_every_source_is_written_once_with_its_documents(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "b.txt").write_bytes("é\n".encode())
    (folder / "a.txt").write_bytes(b"one\r\n")
    told: list[tuple[str, int, int | None]] = []
    source = find_source("data.train", str(folder))
    text = spool.spool(
        source, DataConfig(), tmp_path / "out", Findings("data.train"), None, lambda *said: told.append(said)
    )
    assert read_back(text) == ["one\r\n", "é\n"]
    assert (text.documents, text.bytes) == (2, 8)
    assert told[-1] == ("reading data.train", 8, 8)


@pytest.mark.parametrize("cut", [len, after_line_end, after_white_space, lambda text: 0])
@pytest.mark.parametrize("block", [4, 5, 262_144])
def test_pieces_are_the_documents_cut_only_where_allowed(
    tmp_path: Path, block: int, cut: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "BLOCK_BYTES", block)
    documents = ["one two\nthree\U0001f600\u4e16é\n\n", "x", "line without end " * 7, "\u4e16" * 30]
    text = text_of(tmp_path / "t", documents)
    found: list[list[str]] = []
    for piece in text.pieces(cut):  # type: ignore[arg-type]
        assert piece.text
        if piece.starts:
            found.append([])
        found[-1].append(piece.text)
    assert ["".join(parts) for parts in found] == documents
    if cut is after_line_end:
        assert all(part.endswith("\n") for parts in found for part in parts[:-1])
    if cut is after_white_space:
        assert all(part[-1] in " \n" for parts in found for part in parts[:-1])
    if cut is len and block < 6:
        assert len(found[2]) > 10


def test_splits_that_are_named_are_left_alone(tmp_path: Path) -> None:
    texts = {name: text_of(tmp_path / name, [name]) for name in ("train", "valid", "test")}
    assert share_out(texts, DataConfig()) == texts


def test_documents_are_drawn_whole_once_and_in_order(tmp_path: Path) -> None:
    documents = [f"document {i:02d}\n" for i in range(40)]
    text = text_of(tmp_path / "t", documents)
    data = DataConfig(valid_fraction=0.1, test_fraction=0.2, split_seed=3)
    parts = {name: read_back(part) for name, part in share_out({"train": text}, data).items()}
    assert {name: len(part) for name, part in parts.items()} == {"train": 28, "valid": 4, "test": 8}
    assert all(part == sorted(part) for part in parts.values())
    assert sorted(document for part in parts.values() for document in part) == documents
    again = share_out({"train": text}, data)
    assert {name: read_back(part) for name, part in again.items()} == parts
    other = share_out({"train": text}, DataConfig(valid_fraction=0.1, test_fraction=0.2, split_seed=4))
    assert read_back(other["test"]) != parts["test"]


def test_the_draw_is_a_fixed_function_of_the_seed(tmp_path: Path) -> None:
    # The published PCG64 stream of numpy.random.SeedSequence(0), sorted by hand: the draw of a corpus never changes.
    keys = np.random.Generator(np.random.PCG64(0)).integers(0, 2**64, 6, dtype=np.uint64)
    first = sorted(range(6), key=lambda i: int(keys[i]))
    text = text_of(tmp_path / "t", list("abcdef"))
    parts = share_out({"train": text}, DataConfig(valid_fraction=0.01, test_fraction=0.3))
    assert read_back(parts["valid"]) == ["abcdef"[first[0]]]
    assert read_back(parts["test"]) == sorted("abcdef"[i] for i in first[1:3])


def test_each_split_gets_a_document_however_small_its_share(tmp_path: Path) -> None:
    text = text_of(tmp_path / "t", ["a", "b", "c"])
    for shares in ((0.001, 0.001), (0.9, 0.05)):
        parts = share_out({"train": text}, DataConfig(valid_fraction=shares[0], test_fraction=shares[1]))
        assert [parts[name].documents for name in ("train", "valid", "test")] == [1, 1, 1]


def test_only_a_missing_split_is_drawn(tmp_path: Path) -> None:
    texts = {"train": text_of(tmp_path / "t", ["a", "b"]), "test": text_of(tmp_path / "u", ["z"])}
    parts = share_out(texts, DataConfig())
    assert parts["test"] is texts["test"]
    assert sorted(read_back(parts["train"]) + read_back(parts["valid"])) == ["a", "b"]


def test_too_few_documents_say_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"data.train: 1 document, but 3 are needed to draw data.valid and data.test from them; set "
        r"data.split_by=position .*data.document_pattern .* or name data.valid and data.test",
    ):
        share_out({"train": text_of(tmp_path / "t", ["a"])}, DataConfig())
    with pytest.raises(DataError, match=r"data.train: 2 documents, but 3 are needed"):
        share_out({"train": text_of(tmp_path / "t", ["a", "b"])}, DataConfig())
    texts = {"train": text_of(tmp_path / "t", ["a"]), "test": text_of(tmp_path / "u", ["z"])}
    with pytest.raises(DataError, match=r"1 document, but 2 are needed to draw data.valid from"):
        share_out(texts, DataConfig())


def by_position(text: Text, valid: float = 0.2, test: float = 0.1) -> dict[str, list[str]]:
    data = DataConfig(split_by="position", valid_fraction=valid, test_fraction=test)
    parts = share_out({"train": text}, data)
    found = {name: read_back(part) for name, part in parts.items()}
    joined = "".join("".join(found[name]) for name in ("train", "valid", "test"))
    assert joined == text.path.read_text("utf-8")
    return found


def test_position_cuts_at_the_next_line_start(tmp_path: Path) -> None:
    lines = "".join(f"line {i:03d}\n" for i in range(100))  # 900 bytes: cuts from byte 630 (a line start) and 810
    found = by_position(text_of(tmp_path / "t", [lines]))
    assert found == {"train": [lines[:630]], "valid": [lines[630:810]], "test": [lines[810:]]}
    found = by_position(text_of(tmp_path / "t", ["x" + lines]))  # 901 bytes: from 631 and 811, inside a line
    assert found["train"] == ["x" + lines[:630]]
    found = by_position(text_of(tmp_path / "t", ["xy" + lines]))
    assert [found["valid"][0][:8], found["test"][0][:8]] == ["line 070", "line 090"]


def test_position_cuts_between_characters_where_no_line_ends(tmp_path: Path) -> None:
    # 350 bytes, characters of 3 and 4: bytes 239 and 312 are inside of one, 241 and 315 begin the next.
    found = by_position(text_of(tmp_path / "t", ["\u4e16\U0001f600" * 50]), valid=0.21, test=0.11)
    assert [len("".join(found[name]).encode()) for name in ("train", "valid", "test")] == [241, 74, 35]


def test_position_keeps_document_starts_inside_a_split(tmp_path: Path) -> None:
    found = by_position(text_of(tmp_path / "t", ["a" * 40, "b" * 40, "c" * 20]), valid=0.25, test=0.15)
    assert found == {"train": ["a" * 40, "b" * 20], "valid": ["b" * 20, "c" * 5], "test": ["c" * 15]}


def test_position_with_too_few_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.train: 9 bytes are too few to cut data.valid and data.test from them"):
        by_position(text_of(tmp_path / "t", ["123456789"]), valid=0.05, test=0.05)
