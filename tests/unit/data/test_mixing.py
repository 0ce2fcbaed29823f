"""Epochs of a mixture written out by hand, and from a config's words to the streams of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runs import differences, remains, text, tiny, train_in_parts
from txl.config import Config, ConfigError, apply_overrides
from txl.data import DataError, Streams, prepare
from txl.data.mixing import Share, mixed_epoch
from txl.train.loop import train

A_AND_B = (Share(0, 1.0), Share(3, 3.0))


def test_the_epochs_of_the_docstring() -> None:
    lengths = np.array([1, 1, 2, 4])
    epochs = [mixed_epoch(lengths, A_AND_B, epoch=epoch, seed=None).tolist() for epoch in range(4)]
    # A is read 0 1 | 2 | 0 1 | 2 (its document 2 fills an epoch), B from tokens 0 4 | 8 | 12 16 | 20.
    assert epochs == [[0, 3, 1, 3], [2, 3], [0, 3, 1, 3], [2, 3]]


def test_shuffled_passes_have_each_document_once_in_an_order_of_their_own() -> None:
    lengths = np.full(12, 5)
    shares = (Share(0, 1.0), Share(8, 1.0))
    orders = set()
    for turn in range(6):  # 60 tokens, 30 of each source: 6 of its 8 documents, 6 of its 4
        read = np.concatenate([mixed_epoch(lengths, shares, epoch=4 * turn + i, seed=3) for i in range(4)])
        first = [int(document) for document in read if document < 8]
        assert sorted(first[:8]) == sorted(first[8:16]) == sorted(first[16:]) == list(range(8))
        orders.add(tuple(first[:8]))
        assert np.bincount(read, minlength=12).tolist() == [3] * 8 + [6] * 4
    assert len(orders) == 6


def mixed(folder: Path, *overrides: str) -> Config:
    """A run on five documents of letters and three of digits, the digits with twice the weight."""
    config = tiny(folder, *overrides)
    digits = bytes.maketrans(b"abcdefgh", b"01234567")
    for name, count in (("letters", 5), ("digits", 3)):
        (folder / name).mkdir(exist_ok=True)
        for number in range(count):
            content = text(60 + number, seed=number)
            path = folder / name / f"{number}.txt"
            if not path.exists():
                path.write_bytes(content.translate(digits) if name == "digits" else content)
    return apply_overrides(config, [f"data.mixture=[1 {folder}/letters,2 {folder}/digits]", "data.train=stdlib"])


def test_a_mixture_is_prepared_source_by_source_and_read_by_weight(tmp_path: Path) -> None:
    config = mixed(tmp_path)
    corpus = prepare(config)
    assert corpus.train.mixture == (Share(0, 1.0), Share(5, 2.0))
    assert corpus.train.documents == 8
    assert corpus.train.tokens == sum(range(60, 65)) + sum(range(60, 63))
    assert prepare(config).train.mixture == corpus.train.mixture  # from the cache
    other = prepare(apply_overrides(config, [f"data.mixture=[3 {tmp_path}/letters,1 {tmp_path}/digits]"]))
    assert other.train.mixture == (Share(0, 3.0), Share(5, 1.0))
    assert other.folder == corpus.folder  # weights decide on no token
    split = corpus.train
    streams = Streams(split.ids, split.document_starts, batch_size=1, tgt_len=600, mixture=split.mixture)
    served = np.concatenate([next(streams).inputs[0].numpy() for _ in range(12)])
    assert streams.targets == len(next(streams).inputs[0])  # an epoch is one segment here, whatever its length
    share = np.isin(served, list(b"01234567")).sum() / np.isin(served, list(b"01234567abcdefgh")).sum()
    assert share == pytest.approx(2 / 3, abs=0.03)


def test_a_run_on_a_mixture_goes_on_bit_for_bit_over_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("data.shuffle_documents=true", "model.tgt_len=30", "train.max_steps=14")
    parts = mixed(tmp_path, *few)
    whole = apply_overrides(parts, [f"run.dir={tmp_path / 'whole'}"])
    train(whole)
    train_in_parts(parts, (4, 9), monkeypatch)
    one, other = remains(whole.run.dir, 14), remains(parts.run.dir, 14)
    assert one["position"]["epoch"] >= 2
    assert differences(one, other) == []


def test_a_mixture_holds_nothing_out_and_needs_text_in_every_source(tmp_path: Path) -> None:
    config = mixed(tmp_path)
    with pytest.raises(ConfigError, match=r"data.valid: found null with data.mixture"):
        apply_overrides(config, ["data.valid=null"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"data.mixture.1: .* holds no text"):
        prepare(apply_overrides(config, [f"data.mixture=[1 {tmp_path}/letters,1 {tmp_path}/empty]"]))
    with pytest.raises(DataError, match=r"data.mixture.0: no such file or folder"):
        prepare(apply_overrides(config, [f"data.mixture=[1 {tmp_path}/nowhere]"]))
