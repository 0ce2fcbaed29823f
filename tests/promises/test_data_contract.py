"""Promise 13, bytes in are bytes accounted for: what of unusual text is refused, with which words, and what is kept.

A file of each kind -> `prepare` and `Streams` as a run calls them -> `DataError` with the place, or the exact bytes.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.config import Config, DataConfig, TokenizerConfig
from txl.data import Corpus, DataError, Streams, prepare


def run(train: Path, *, kind: str = "byte", **data: Any) -> Corpus:
    """What a run does first: prepare, then make the streams."""
    settings = {"train": str(train), "split_by": "position", "batch_size": 2} | data
    config = Config(
        tokenizer=TokenizerConfig(kind=kind),  # type: ignore[arg-type]
        data=DataConfig(**settings),
    )
    corpus = prepare(config)
    Streams(corpus.train.ids, corpus.train.document_starts, batch_size=config.data.batch_size, tgt_len=8)
    return corpus


def whole(corpus: Corpus) -> bytes:
    """The bytes of all splits in order."""
    return b"".join(bytes(split.ids) for split in (corpus.train, corpus.valid, corpus.test))


def refused(train: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        run(train, **settings)
    return str(caught.value)


def test_p13_a_missing_file_names_the_key_and_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("text")
    message = refused(tmp_path / "corpsu.txt")
    assert message.startswith("data.train: no such file or folder: ")
    assert message.endswith("did you mean " + str(tmp_path / "corpus.txt") + "?")


def test_p13_a_missing_validation_file_names_its_own_key(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("text " * 50)
    assert refused(tmp_path / "corpus.txt", valid=str(tmp_path / "none")).startswith("data.valid: no such file")


@pytest.mark.parametrize("raw", [b"", b"\xef\xbb\xbf"])
def test_p13_text_that_is_all_empty_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "empty.txt").write_bytes(raw)
    assert refused(tmp_path / "empty.txt").endswith("holds no text: all its files or rows are empty")
    assert "holds no text" in refused(tmp_path)


def test_p13_one_empty_file_among_others_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_text("text\n" * 40)
    corpus = run(tmp_path)
    assert corpus.manifest["notes"] == ["data.train: a.txt: empty, skipped"]
    assert whole(corpus) == b"text\n" * 40


def test_p13_invalid_utf8_names_file_and_byte_offset(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("é".encode() * 300_000 + b"caf\xe9 " + b"x" * 100)
    message = refused(path)
    assert f"data.train: {path}: not valid UTF-8 at byte 600003 (0xe9)" in message
    assert "data.invalid_utf8=replace" in message


def test_p13_invalid_utf8_replaced_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 au lait\n" * 30)
    corpus = run(path, invalid_utf8="replace")
    assert whole(corpus).decode() == "caf\ufffd au lait\n" * 30
    assert corpus.manifest["notes"] == ["data.train: 30 invalid sequences became U+FFFD (data.invalid_utf8: replace)"]


def test_p13_too_little_text_says_the_largest_batch_that_fits(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_bytes(b"0123456789" * 4)
    message = refused(tmp_path / "short.txt", batch_size=64, valid_fraction=0.1, test_fraction=0.1)
    assert "64 streams, but the split has only 32 tokens; at most 31 streams fit: set data.batch_size=31" in message
    run(tmp_path / "short.txt", batch_size=31, valid_fraction=0.1, test_fraction=0.1)


def test_p13_one_document_asks_for_a_cut_by_position(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("text\n" * 40)
    message = refused(tmp_path / "one.txt", split_by="documents")
    assert "1 document, but 3 are needed" in message
    assert "set data.split_by=position" in message


UNUSUAL = {
    "crlf": b"one\r\ntwo\r\n" * 20,
    "lone cr": b"one\rtwo\r" * 20,
    "nul": b"one\0two\0\0" * 20,
    "no final newline": b"one\ntwo\n" * 20 + b"end",
    "only white space": b" \t\n\r\n  \n" * 20,
    "shorter than a segment": b"short",
    "other line ends": "one\u2028two\x0b\x0c\x85".encode() * 20,
}


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_p13_unusual_text_is_kept_byte_for_byte(tmp_path: Path, name: str, kind: str) -> None:
    raw = UNUSUAL[name]
    (tmp_path / "a.txt").write_bytes(raw)
    corpus = run(tmp_path / "a.txt", kind=kind, valid_fraction=0.25, test_fraction=0.25)
    splits = (corpus.train, corpus.valid, corpus.test)
    if kind != "char":  # a character of valid may be one that train lacks
        assert "".join(corpus.tokenizer.decode(split.ids.tolist()) for split in splits).encode() == raw
        assert all(split.scored_bytes(0, split.tokens) == split.bytes for split in splits)
    assert sum(split.bytes for split in splits) == len(raw)


def test_p13_a_byte_order_mark_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"text\n" * 40)
    corpus = run(tmp_path / "a.txt")
    assert whole(corpus) == b"text\n" * 40
    assert "byte order mark" in corpus.manifest["notes"][0]


def test_p13_crlf_and_nul_are_noted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\0b\r\n" * 40)
    assert [note.split(": ")[-1] for note in run(tmp_path / "a.txt").manifest["notes"]] == [
        "with CRLF line ends, kept as they are",
        "with NUL characters, kept",
    ]


def test_p13_words_of_only_white_space_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b" \t \r" * 40)
    assert "no symbol of the training split occurs that often" in refused(tmp_path / "a.txt", kind="word")


@pytest.mark.parametrize("kind", ["byte", "word"])
def test_p13_a_single_line_of_30_mb_is_prepared(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "line.txt"
    path.write_bytes(("naïve words in one endless line " * 1024).encode() * 930)
    size = path.stat().st_size
    assert size > 30_000_000
    corpus = run(path, kind=kind)
    assert sum(split.bytes for split in (corpus.train, corpus.valid, corpus.test)) == size
    if kind == "word":
        assert sum(split.tokens for split in (corpus.train, corpus.valid, corpus.test)) == 6 * 1024 * 930
        assert corpus.train.unknowns == 0


@pytest.mark.slow
def test_p13_a_single_line_of_30_mb_is_prepared_by_bpe(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_bytes(("naïve words in one endless line " * 1024).encode() * 930)
    corpus = run(path, kind="bpe")
    assert corpus.train.bytes_exact


def test_p13_a_damaged_gz_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"text\n" * 4000)[:-9])
    assert f"data.train: {tmp_path / 'a.txt.gz'} cannot be read: " in refused(tmp_path / "a.txt.gz")


def test_p13_a_separator_with_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text\n" * 40)
    assert refused(tmp_path / "a.txt", separator="<eos>").startswith("data.separator: '<eos>' with tokenizer.kind byte")


def test_p13_inputs_and_targets_agree_from_file_to_batch(tmp_path: Path) -> None:
    raw = bytes(range(32, 127)) * 11
    (tmp_path / "a.txt").write_bytes(raw)
    corpus = run(tmp_path / "a.txt", split_by="position")
    streams = Streams(corpus.train.ids, corpus.train.document_starts, batch_size=3, tgt_len=7)
    rows: list[list[int]] = [[], [], []]
    for _ in range(len(streams)):
        batch = next(streams)
        for row, inputs, targets in zip(rows, batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            assert not row or row[-1] == inputs[0] or targets[0] == -100
            row += [inputs[0]] * (not row) + [target for target in targets if target != -100]
    served = rows[0] + rows[1][1:] + rows[2][1:]
    assert bytes(served) == raw[: corpus.train.tokens]
    assert np.array_equal(corpus.train.ids, np.frombuffer(raw, np.uint8)[: corpus.train.tokens])
