"""What a run would be: counts against counting by hand, and every way in which data or model can be refused."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import words
from txl.config import Config, ConfigError, apply_overrides
from txl.data import DataError, SegmentBatch, prepare
from txl.data.symbols import ByteTokenizer
from txl.model import build_model
from txl.train.validate import check_round_trip, check_targets, parameters_by_part, unknown_warnings, validate

TINY = (
    "data.split_by=position data.batch_size=6 train.accumulate=2 model.n_layer=2 model.d_model=16 model.n_head=3 "
    "model.d_head=5 model.d_inner=24 model.tgt_len=7 model.mem_len=10 train.max_steps=50 optim.warmup_steps=4"
).split()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A tiny model on one file."""
    text = tmp_path / "corpus.txt"
    text.write_text(words(3000), encoding="utf-8")
    places = [f"data.train={text}", f"data.cache_dir={tmp_path / 'cache'}", f"run.dir={tmp_path / 'run'}"]
    return apply_overrides(Config(), [*TINY, *places])


def test_counts_are_those_counted_by_hand(config: Config) -> None:
    heard: list[tuple[str, int, int | None]] = []
    found = validate(config, report=lambda *progress: heard.append(progress))
    step, model = found.step, config.model
    # attention: q, k, v, r and o, each 16 -> 15 or back, and the two biases u and v; feed-forward 16 -> 24 -> 16 with
    # biases; two norms. Embedding, tied to the softmax, and the softmax's own bias.
    attention = 5 * 16 * 15 + 2 * 15
    layer = attention + (16 * 24 + 24) + (24 * 16 + 16) + 2 * (16 + 16)
    assert sum(found.parameters.values()) == 2 * layer + 256 * 16 + 256
    assert step.weight_bytes == 4 * sum(found.parameters.values()) == step.gradient_bytes
    assert step.optimizer_bytes == pytest.approx(2 * step.weight_bytes, rel=0.01)
    assert step.memory_bytes == pytest.approx(6 * 10 * 16 * 2 * 4, rel=0.05)
    assert found.reach_tokens == 2 * model.mem_len
    tokens = found.corpus.train.tokens
    assert found.steps_an_epoch == math.ceil(math.ceil((tokens - 1) / 6) / 7)
    assert step.first_nll == pytest.approx(np.log(256), abs=0.3)
    assert step.seconds > 0
    # Per token: 2 FLOPs a multiply-add, three times forward (backward is two), every matrix of a layer but r once, and
    # the softmax. Attention over 17 keys and the projections of memory come on top.
    least = 3 * 2 * (2 * (4 * 16 * 15 + 2 * 16 * 24) + 16 * 256)
    assert least < step.trained_flops < 2 * least
    # Streaming one token: the same matrices once, and attention of one query over 11 keys: content, position, values.
    streamed = 2 * (2 * (4 * 16 * 15 + 2 * 16 * 24) + 16 * 256) + 2 * (3 * 2 * 11 * 15)
    assert step.streamed_flops == streamed
    # In chunks of 256 every query meets 266 keys of which it sees 11: more work a token, by that product alone.
    assert step.scored_flops == streamed + 2 * (3 * 2 * (266 - 11) * 15)
    assert set(found.parameters) == {"embedding", "attention", "feed-forward", "norms", "softmax"}
    assert found.parameters["attention"] == 2 * attention
    assert found.parameters["norms"] == 2 * 2 * 32
    # At least the inputs of every product: three layer inputs, the inner width, keys, values and weights, float32.
    assert step.activation_bytes > 3 * 7 * 4 * 2 * (3 * 16 + 24 + 3 * 15)
    assert heard[-1][0] == "mock steps"
    assert not Path(config.run.dir).exists()


def test_the_facts_are_told_in_words(config: Config) -> None:
    found = validate(config)
    facts = dict(found.facts())
    assert facts["text begins"].startswith("'")
    assert facts["round trip"].startswith("exact on ")
    assert "20 tokens back" in facts["reach"]
    assert facts["first loss"].endswith("a uniform guess has 5.545")
    assert "epochs" in facts["steps"]
    assert "cpu" in facts["time"]
    assert re.fullmatch(
        r"[\d,]+ \(embedding [\d,]+, attention .*, norms .*, feed-forward .*, softmax 256\)", facts["parameters"]
    )
    assert re.fullmatch(r"[\d.]+ million FLOPs trained, [\d.]+ scored, [\d.]+ streamed", facts["work a token"])
    assert re.findall("[a-z]+(?= [0-9.]+(?:,|$))", facts["bytes"]) == [
        "weights",
        "gradients",
        "optimizer",
        "memory",
        "activations",
    ]
    for seconds, told in ((0.6, "0.600 s a step here .*, about 0.5 min in all"), (720, ", about 10.0 h in all")):
        slower = dataclasses.replace(found, step=dataclasses.replace(found.step, seconds=seconds))
        assert re.search(told, dict(slower.facts())["time"])


def test_rows_that_cannot_be_shared_are_refused(config: Config) -> None:
    broken = dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=5))
    with pytest.raises(ConfigError, match=r"data\.batch_size: found 5"):
        validate(broken)


def test_a_tokenizer_that_changes_text_is_caught(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = prepare(config)
    assert check_round_trip(corpus).startswith("exact on ")
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: list(text.replace("river", "raver").encode()))
    with pytest.raises(DataError, match=r"the tokenizer|train split: character \d+, 'iver.*became 'aver"):
        check_round_trip(corpus)
    monkeypatch.setattr(ByteTokenizer, "lossless", False)
    assert check_round_trip(corpus).startswith("not exact, as this tokenizer is: train split: character ")


def test_many_unknown_symbols_are_told(config: Config) -> None:
    word = apply_overrides(config, ["tokenizer.kind=word", "tokenizer.max_size=5"])
    corpus = prepare(word)
    warnings = unknown_warnings(corpus)
    assert len(warnings) == 3
    assert warnings[0].startswith(f"{corpus.train.unknowns / corpus.train.tokens:.1%} of the train split are unknown")
    assert unknown_warnings(prepare(config)) == ()


def batch(inputs: list[list[int]], targets: list[list[int]], first_reset: bool = False) -> SegmentBatch:
    """A segment of two rows."""
    resets = torch.zeros(len(inputs), len(inputs[0]), dtype=torch.bool)
    resets[:, 0] = first_reset
    return SegmentBatch(torch.tensor(inputs), torch.tensor(targets), resets)


def test_a_target_must_be_the_next_input() -> None:
    second = batch([[4, 5, 6], [14, 15, 0]], [[5, 6, 7], [15, 16, -100]])
    check_targets(batch([[1, 2, 3], [11, 12, 13]], [[2, 3, 4], [12, 13, 14]]), second)
    check_targets(batch([[1, 2, 3], [11, 12, 13]], [[2, 3, 4], [12, 13, -100]]), second)
    check_targets(batch([[1, 2, 3], [11, 12, 13]], [[2, 3, 9], [12, 13, 9]]), batch([[0], [0]], [[1], [1]], True))
    for wrong in ([[2, 2, 4], [12, 13, 14]], [[2, 3, 4], [12, 13, 15]], [[2, 3, 4], [12, 99, 14]]):
        with pytest.raises(DataError, match="a target is not the token after its input"):
            check_targets(batch([[1, 2, 3], [11, 12, 13]], wrong), second)


def test_a_row_that_ends_early_is_sound(config: Config, tmp_path: Path) -> None:
    for size in (200, 300, 400):  # six rows, none of which fills its last segment
        (tmp_path / "corpus.txt").write_text(words(3000)[:size], encoding="utf-8")
        for more in ([], ["model.mem_len=0", "data.shuffle_segments=true"], ["model.tgt_len=64"]):
            assert validate(apply_overrides(config, more)).steps_an_epoch > 0


def test_shared_parameters_are_counted_once() -> None:
    model = build_model(apply_overrides(Config(), TINY).model, 50)
    assert sum(parameters_by_part(model).values()) == sum(parameter.numel() for parameter in model.parameters())


def test_cutoffs_of_auto_are_chosen_by_the_text(config: Config) -> None:
    found = validate(apply_overrides(config, ["model.cutoffs=auto", "tokenizer.kind=word"]))
    counts = np.bincount(found.corpus.train.ids)
    cuts = [next(n for n in range(len(counts) + 1) if counts[:n].sum() >= s * counts.sum()) for s in (0.8, 0.92, 0.98)]
    assert found.config.model.cutoffs == tuple(sorted({cut for cut in cuts if cut < len(counts)})) != ()
    assert found.parameters["softmax"] == len(counts) + len(found.config.model.cutoffs) * (16 + 1)
