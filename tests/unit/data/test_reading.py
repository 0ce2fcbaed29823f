"""Files and rows to pieces: byte-exact text, documents at headings, and a note or a clear error for what is unusual.

Files made here -> pieces joined to documents. The reference for headings is a plain loop over lines.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from txl.config import DataConfig
from txl.data import DataError, reading
from txl.data.reading import Findings, at_headings, read
from txl.data.sources import find_source

RAW = "a\r\nb\rc\0 \U0001f600é\n\n \t last"


def documents(spec: Path | str, **settings: object) -> tuple[list[str], list[str]]:
    """The documents of a source, and the notes on it."""
    findings, found = Findings("data.train"), list[str]()
    data = DataConfig(**settings)  # type: ignore[arg-type]
    for piece in read(find_source("data.train", str(spec)), data, findings):
        if piece.starts:
            found.append("")
        found[-1] += piece.text
    return found, findings.notes()


def put(path: Path, raw: bytes) -> Path:
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a", "a.log.gz"])
@pytest.mark.parametrize("block", [4, 7, 262_144])
def test_text_is_kept_byte_for_byte_whatever_the_blocks(
    tmp_path: Path, name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    found, notes = documents(put(tmp_path / name, RAW.encode()))
    assert found == [RAW]
    assert notes == [
        f"data.train: {name}: with CRLF line ends, kept as they are",
        f"data.train: {name}: with NUL characters, kept",
    ]


def test_no_block_ends_inside_a_character_or_a_crlf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 5)
    path = put(tmp_path / "a.txt", ("é\r\n\U0001f600\u4e16x\r\n" * 40).encode())
    pieces = list(read(find_source("data.train", str(path)), DataConfig(), Findings("data.train")))
    assert len(pieces) > 20
    assert not [piece for piece in pieces if piece.text.endswith("\r")]


def test_a_byte_order_mark_is_left_out_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.txt", b"\xef\xbb\xbfab\xef\xbb\xbfc")
    for block in (4, 262_144):
        monkeypatch.setattr(reading, "BLOCK_BYTES", block)
        found, notes = documents(path)
        assert found == ["ab\ufeffc"]
        assert notes == ["data.train: a.txt: began with a byte order mark, which is left out"]


def test_empty_files_are_skipped_and_noted_by_name(tmp_path: Path) -> None:
    for name, raw in {"a": b"", "b": b"\xef\xbb\xbf", "c": b"", "d": b"", "e": b"", "f": b"text", "g": b" \n"}.items():
        put(tmp_path / f"{name}.txt", raw)
    found, notes = documents(tmp_path)
    assert found == ["text", " \n"]
    assert "data.train: a.txt, b.txt, c.txt and 2 more: empty, skipped" in notes


@pytest.mark.parametrize("block", [4, 9, 262_144])
@pytest.mark.parametrize("lead", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_names_file_and_byte(
    tmp_path: Path, block: int, lead: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    path = put(tmp_path / "bad.txt", lead + "aé\U0001f600bcd".encode() + b"\xe4\xb8x")
    offset = len(lead) + 10
    with pytest.raises(DataError, match=rf"data.train: .*bad.txt: not valid UTF-8 at byte {offset} \(0xe4\)"):
        documents(path)
    with pytest.raises(DataError, match=r"convert the file to UTF-8, or set data.invalid_utf8=replace"):
        documents(path)


def test_a_character_cut_off_by_the_end_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not valid UTF-8 at byte 2"):
        documents(put(tmp_path / "bad.txt", b"ab\xf0\x9f\x98"))


@pytest.mark.parametrize("block", [5, 262_144])
def test_replaced_sequences_are_counted_without_real_ones(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    raw = b"a\xffb" + "\ufffd".encode() * 3 + b"\xe4\xb8x\xc3" + "é".encode() + b"\xf0\x9f"
    found, notes = documents(put(tmp_path / "bad.txt", raw), invalid_utf8="replace")
    assert found == [raw.decode("utf-8", "replace")] == ["a\ufffdb\ufffd\ufffd\ufffd\ufffdx\ufffdé\ufffd"]
    assert notes == ["data.train: 4 invalid sequences became U+FFFD (data.invalid_utf8: replace)"]


def test_other_encodings_and_packed_files_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at byte 0 \(0xff\); it looks like UTF-16"):
        documents(put(tmp_path / "wide.txt", "text".encode("utf-16")))
    (tmp_path / "packed.txt").write_bytes(gzip.compress(b"text"))
    with pytest.raises(DataError, match=r"it looks like a packed or binary file: name it with its suffix"):
        documents(tmp_path / "packed.txt")


@pytest.mark.parametrize("damage", ["cut", "flip", "none"])
def test_a_damaged_gz_is_named(tmp_path: Path, damage: str) -> None:
    raw = gzip.compress(random.Random(1).randbytes(4000).hex().encode())
    raw = {"cut": raw[:-400], "flip": raw[:900] + bytes([raw[900] ^ 255]) + raw[901:], "none": b"plain"}[damage]
    (tmp_path / "a.txt.gz").write_bytes(raw)
    with pytest.raises(DataError, match=r"data.train: .*a.txt.gz"):
        documents(tmp_path / "a.txt.gz")


def reference(text: str, pattern: str) -> list[str]:
    """Documents of a text by a plain loop over its lines."""
    found = [""]
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        if re.match(pattern, line.rstrip("\n").removesuffix("\r")) and found[-1].strip():
            found.append("")
        found[-1] += line
    return [document for document in found if document]


ARTICLES = " \n = One = \n \n text = x = \n = = Part = = \n more\n\n = Two = \nb\n = Three = \n = Four = "


@pytest.mark.parametrize("block", [4, 11, 262_144])
@pytest.mark.parametrize(
    "text", [ARTICLES, "lead\n" + ARTICLES, ARTICLES.replace("\n", "\r\n"), "no heading\n\n", " \n\n"]
)
def test_headings_begin_documents(tmp_path: Path, block: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    pattern = r" = [^=].* = $"
    found, _ = documents(put(tmp_path / "a.txt", text.encode()), document_pattern=pattern)
    assert found == reference(text, pattern)
    assert "".join(found) == text


def test_the_level_one_headings_of_an_article_collection_and_no_others() -> None:
    found = list(at_headings([ARTICLES], re.compile(r" = [^=].* = $")))
    assert [piece.text.split("\n")[0] for piece in found] == [" ", " = Two = ", " = Three = ", " = Four = "]
    assert all(piece.starts for piece in found)


def test_each_file_begins_a_document_besides_its_headings(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"# A\n1\n# B\n2\n")
    put(tmp_path / "b.txt", b"3\n# C\n4\n")
    assert documents(tmp_path, document_pattern="# ")[0] == ["# A\n1\n", "# B\n2\n", "3\n", "# C\n4\n"]


def rows_file(path: Path, rows: list[object]) -> Path:
    return put(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz"])
def test_each_json_line_is_a_document(tmp_path: Path, name: str) -> None:
    rows: list[object] = [{"body": "one\r\n"}, {"body": "", "x": 1}, {"body": None}, {"body": "é\0"}]
    found, notes = documents(rows_file(tmp_path / name, rows), text_field="body")
    assert found == ["one\r\n", "é\0"]
    assert notes == [f"data.train: 2 rows of {name}: empty, skipped"]


def test_json_lines_may_have_a_mark_and_blank_lines(tmp_path: Path) -> None:
    found, notes = documents(put(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n\n  {"text": "b"}'))
    assert found == ["a", "b"]
    assert notes == ["data.train: a.jsonl: began with a byte order mark, which is left out"]


def test_with_a_pattern_rows_are_the_lines_of_one_text(tmp_path: Path) -> None:
    rows: list[object] = [{"text": text} for text in ("", " = A = \n", "", "one", " = B = ", "two\n")]
    found, _ = documents(rows_file(tmp_path / "a.jsonl", rows), document_pattern=r" = .* = $")
    assert found == ["\n = A = \n\none\n", " = B = \ntwo\n"]


BAD_LINES = {
    "json": (b'{"text": "a"}\n{"text": \n', r"line 2 is not JSON: .*; each line must be one JSON object"),
    "list": (b"[1]\n", r"line 1 is list, but no field 'text'; set data.text_field"),
    "field": (b'{"body": "a", "id": 2}\n', r"line 1 has body, id, but no field 'text'"),
    "number": (b'{"text": 5}\n', r"row 1 has int in field 'text', which must be text"),
    "bytes": (b'{"text": "a"}\n{"text": "\xff"}\n', r"not valid UTF-8 at byte 24 \(0xff\)"),
    "deep": (b"[" * 1_000_000 + b"\n", r"line 1 is not JSON: nested too deep"),
    "half": (b'{"text": "a\\ud800"}\n', r"row 1 holds half of a surrogate pair"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_json_lines_are_named(tmp_path: Path, name: str) -> None:
    raw, message = BAD_LINES[name]
    with pytest.raises(DataError, match=r"data.train: .*a.jsonl.*" + message):
        documents(put(tmp_path / "a.jsonl", raw))


def test_half_surrogates_in_rows_are_replaced_and_counted(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", b'{"text": "a\\ud800b\\udc00"}\n{"text": "\\ud83d\\ude00"}\n')
    found, notes = documents(path, invalid_utf8="replace")
    assert found == ["a\ufffdb\ufffd", "\U0001f600"]
    assert notes == ["data.train: 2 invalid sequences became U+FFFD (data.invalid_utf8: replace)"]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [f"row {i}\n" for i in range(150)] + [None, ""]
    table = pyarrow.table({"n": range(152), "text": texts})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    found, notes = documents(tmp_path / "a.parquet")
    assert found == texts[:150]
    assert notes == ["data.train: 2 rows of a.parquet: empty, skipped"]
    with pytest.raises(DataError, match=r"a.parquet: no field 'body'; it has n, text; set data.text_field"):
        documents(tmp_path / "a.parquet", text_field="body")
    with pytest.raises(DataError, match=r"row 1 has int in field 'n'"):
        documents(tmp_path / "a.parquet", text_field="n")
    put(tmp_path / "b.parquet", b"PAR1 no table")
    with pytest.raises(DataError, match=r"b.parquet: not a readable .parquet file"):
        documents(tmp_path / "b.parquet")
    put(tmp_path / "c.parquet.gz", b"x")
    with pytest.raises(DataError, match=r"a packed .parquet file; unpack it first"):
        documents(tmp_path / "c.parquet.gz")


def test_library_files_that_are_not_utf8_are_skipped_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.py", b"# coding: latin-1\nx = '\xe9'\n")
    put(tmp_path / "b.py", b"y = 1\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert documents("stdlib") == (["y = 1\n"], ["data.train: a.py: not UTF-8, skipped"])


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.txt", b"text")
    source = find_source("data.train", str(path))
    path.unlink()
    with pytest.raises(DataError, match=r"data.train: .*a.txt cannot be read: No such file or directory"):
        list(read(source, DataConfig(), Findings("data.train")))
