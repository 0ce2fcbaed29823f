"""Promises 14 and 15: a run goes on with its own vocabulary, text and config alone, and its numbers compare.

A run and something else than it was begun with -> refused by name, or taken over where nothing depends on it.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import txl
from tests.runs import tiny
from txl.checkpoint import CheckpointError, checkpoints, read
from txl.config import Config, ModelConfig
from txl.data import DataError, Streams, prepare
from txl.data.writing import SplitWriter
from txl.evaluation.perplexity import evaluate, one_pass
from txl.model import build_model
from txl.train.loop import train

SHORT = ("train.max_steps=4", "optim.warmup_steps=0", "train.sample_tokens=1", "train.eval_every=100")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The config of a run of two steps that has two to go, with a vocabulary of characters."""
    folder = tmp_path_factory.mktemp("begun")
    config = tiny(folder, "tokenizer.kind=char", *SHORT, "train.max_steps=2")
    train(config)
    return replace(config, train=replace(config.train, max_steps=4))


def test_p14_a_checkpoint_holds_what_its_numbers_mean(begun: Config) -> None:
    path = checkpoints(begun.run.dir)[0]
    saved, bundle = read(path), txl.load(path)
    assert saved.state["tokenizer_hash"] == bundle.tokenizer.hash
    assert saved.state["vocab_size"] == bundle.tokenizer.vocab_size
    assert len(saved.state["corpus"]) == 64
    assert saved.config.model == begun.model
    assert json.loads((path / "manifest.json").read_text())["format"] == 1


OTHER = {
    "model.mem_len": ("model", {"mem_len": 8}, "found 8, the run was begun with 9"),
    "model.d_model": ("model", {"d_model": 14}, "found 14, the run was begun with 12"),
    "tokenizer.kind": ("tokenizer", {"kind": "byte"}, "found 'byte', the run was begun with 'char'"),
    "tokenizer.max_size": ("tokenizer", {"max_size": 5}, "found 5, the run was begun with None"),
    "data.reset_memory": ("data", {"reset_memory": True}, "found True, the run was begun with False"),
}


@pytest.mark.parametrize("key", OTHER)
def test_p14_a_run_is_not_gone_on_with_under_another_config(key: str, begun: Config) -> None:
    section, changes, message = OTHER[key]
    other = replace(begun, **{section: replace(getattr(begun, section), **changes)})
    with pytest.raises(CheckpointError, match=f"{key}: {message}"):
        train(other)


def test_p14_a_run_is_not_gone_on_with_under_another_vocabulary(begun: Config, tmp_path: Path) -> None:
    tokenizer = txl.load(begun.run.dir).tokenizer
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer.to_json(), encoding="utf-8")
    named = replace(begun.tokenizer, kind="file", path=str(file))
    config = replace(begun, tokenizer=named, run=replace(begun.run, dir=str(tmp_path / "run")))
    train(replace(config, train=replace(config.train, max_steps=2)))
    document = json.loads(tokenizer.to_json())
    document["symbols"].append("Ω")  # one symbol more
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer_hash: found \w{12}, the run was begun with \w{12}"):
        train(config)


def test_p14_a_newer_format_asks_for_a_newer_txl(begun: Config, tmp_path: Path) -> None:
    shutil.copytree(begun.run.dir, tmp_path / "run")
    manifest = checkpoints(tmp_path / "run")[0] / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(CheckpointError, match=r"written in format 2, this txl reads up to 1: install a newer txl"):
        train(replace(begun, run=replace(begun.run, dir=str(tmp_path / "run"))))


def test_p14_a_trained_model_is_loaded_with_other_memory_but_not_with_another_width(begun: Config) -> None:
    bundle = txl.load(begun.run.dir, mem_len=31)
    assert (bundle.config.model.mem_len, bundle.model.default_window) == (31, 31)
    with pytest.raises(CheckpointError, match=r"model.d_model: found 14, trained with 12, which changes"):
        txl.load(begun.run.dir, d_model=14)


def test_p14_an_id_outside_the_vocabulary_is_caught_when_written_and_when_served(tmp_path: Path) -> None:
    with (
        SplitWriter(tmp_path, "train", np.ones(7, np.int64), unknown_id=None, separator_id=None) as writer,
        pytest.raises(AssertionError, match="id 7 outside the vocabulary of 7"),
    ):
        writer.add([(True, np.array([0, 6, 7]))])
    streams = Streams(np.array([0, 6, 7, 1]), np.array([0]), batch_size=1, tgt_len=3, vocab_size=7)
    with pytest.raises(DataError, match="token id 7 in the corpus, but the vocabulary has 7 ids"):
        next(streams)


MODEL = ModelConfig(n_layer=2, d_model=12, n_head=3, d_head=4, d_inner=14, tgt_len=6, mem_len=5, init_std=0.3)


@pytest.mark.parametrize("reset", [False, True])
def test_p15_batch_segment_padding_and_ranks_do_not_change_the_nats(reset: bool) -> None:
    model = build_model(MODEL, 13).double()
    short, long = 9, 160
    ids = np.random.default_rng(2).integers(0, 13, short + long)
    resets = np.zeros(len(ids), bool)
    resets[short] = reset
    alone = evaluate(model, ids, None, 1, resets=resets).nll
    assert len(alone) == len(ids) - 1
    for batch_size in (3, 8):
        for segment_tokens in (4, 50):
            nll = evaluate(model, ids, None, batch_size, resets=resets, segment_tokens=segment_tokens).nll
            torch.testing.assert_close(nll, alone, atol=1e-6, rtol=0)
    for world in (1, 2, 3):  # ranks score their share each, and their sums are added
        bounds = [(len(ids) - 1) * rank // world for rank in range(world + 1)]
        spans = [one_pass(model, ids, None, 3, resets, span=(a, b)) for a, b in pairwise(bounds)]
        assert sum(span.tokens for span in spans) == len(ids) - 1
        assert sum(span.nats for span in spans) == pytest.approx(float(alone.sum()), abs=1e-6)


def test_p15_a_uniform_model_needs_log2_of_the_vocabulary_and_bits_per_byte_count_the_bytes_of_the_text(
    tmp_path: Path,
) -> None:
    model = build_model(MODEL, 13)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    result = evaluate(model, np.arange(80) % 13, None, 3)
    assert result.nats / result.tokens / math.log(2) == pytest.approx(math.log2(13), rel=1e-6)
    config = tiny(tmp_path, "tokenizer.kind=word", "data.separator=<eos>", *SHORT)
    for number, text in enumerate(("naïve café café π\n", "π naïve\n")):  # 22 and 10 bytes
        (tmp_path / f"valid{number}.txt").write_text(text, encoding="utf-8")
    config = replace(config, data=replace(config.data, train=str(tmp_path / "valid*.txt"), batch_size=2))
    config = replace(config, data=replace(config.data, valid=str(tmp_path / "valid[01].txt")))
    split = prepare(config).valid
    assert (split.bytes, split.tokens) == (32, 9)  # six words, two line ends and the separator, which has no byte
    assert split.unknowns == 0
