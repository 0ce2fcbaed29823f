"""Several processes write the bytes that one writes, and pass on what goes wrong in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import words
from tests.runs import tiny
from txl.config import TokenizerConfig
from txl.data import making as module
from txl.data import prepare
from txl.data.symbols import ByteTokenizer
from txl.data.workers import encoded_in_order


def test_the_order_is_kept_and_little_is_read_ahead() -> None:
    read = []

    def groups() -> Iterator[tuple[int, list[str]]]:
        for number in range(40):
            read.append(number)
            yield number, [f"text {number}", "é"]

    for number, ids in encoded_in_order(ByteTokenizer(), groups(), workers=2):
        assert bytes(ids[0]) == f"text {number}".encode()
        assert bytes(ids[1]) == "é".encode()
        assert len(read) <= number + 6
    assert read == list(range(40))


def test_two_processes_prepare_what_one_prepares_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 700)  # many groups
    config = tiny(tmp_path)
    for number in range(4):
        Path(config.data.train, f"more{number}.txt").write_text(words(500, seed=number), encoding="utf-8")
    config = replace(config, tokenizer=TokenizerConfig(kind="word", max_size=11))
    one, two = (
        prepare(replace(config, data=replace(config.data, workers=workers, cache_dir=str(tmp_path / f"{workers}"))))
        for workers in (1, 2)
    )
    assert one.fingerprint == two.fingerprint
    names = sorted(path.name for path in one.folder.iterdir())
    assert "train.ids" in names
    assert names == sorted(path.name for path in two.folder.iterdir())
    for name in names:
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_what_goes_wrong_in_a_worker_is_raised(tmp_path: Path) -> None:
    groups = ((number, ["fine" if number < 3 else "half a pair \ud800"]) for number in range(9))
    with pytest.raises(Exception, match="surrogate"):
        list(encoded_in_order(ByteTokenizer(), groups, workers=2))
