"""Measurements: the numbers of a run, all they depend on, and their way through JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from tests.unit.evaluation.fakes import (
    Counting,
    FakeTokenizer,
    Reader,
    Uniform,
    fake_bundle,
    fake_corpus,
    reader_nll,
)
from txl.config import DataConfig, EvalConfig
from txl.evaluation import speed
from txl.evaluation.measure import Measurement, measure


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing a fake model takes Python's time."""
    monkeypatch.setattr(speed, "WORK_TOKENS", 64)
    monkeypatch.setattr(speed, "TOKEN_STEPS", 4)


SETTINGS = EvalConfig(window=3, batch_size=2, contexts=(2, 5), sample_targets=40)


def record(step: int, **more: Any) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    usual = {
        "step": step,
        "nll": 1.0 + 1 / step,
        "tokens": 20 * step,
        "tokens_per_second": 100.0,
        "elapsed_seconds": 0.2 * step,
    }
    return {**usual, **more}


def test_the_headline_is_all_targets_of_the_test_split_at_the_window_asked_for() -> None:
    tokenizer = FakeTokenizer(13, lengths=[2] * 13)
    corpus = fake_corpus(tokenizer)
    found = measure(fake_bundle(Reader(13), tokenizer), corpus, SETTINGS, timed=False)
    wanted = reader_nll(corpus.test.ids.tolist(), window=3)
    assert found.headline.context == 3
    assert found.headline.tokens == 299
    assert found.headline.nats == pytest.approx(sum(wanted))
    assert found.headline.bits_per_byte == pytest.approx(sum(wanted) / math.log(2) / 598)
    assert found.headline.perplexity == pytest.approx(math.exp(sum(wanted) / 299))
    assert (found.name, found.arch, found.step, found.split) == ("xl", "transformer_xl", 77, "test")
    assert (found.parameters, found.vocab_size, found.text_tokens) == (1, 13, 300)
    assert found.corpus_hash == corpus.fingerprint
    assert found.tokenizer_hash == tokenizer.hash
    assert found.config["run"]["dir"] == "runs/some/xl"
    assert found.environment["packages"]["torch"]
    assert found.environment["python"].count(".") == 2
    assert found.speeds == ()
    assert found.incomparable == ""
    assert found.trained_tokens == 0
    assert found.step_seconds is None


@pytest.mark.parametrize("vocab_size", [2, 100])
def test_a_uniform_model_needs_log2_v_bits_a_token_shared_by_its_bytes(vocab_size: int) -> None:
    tokenizer = FakeTokenizer(vocab_size, lengths=[3] * vocab_size)
    for model in (Uniform(vocab_size), Uniform(vocab_size, "slide")):
        found = measure(fake_bundle(model, tokenizer), fake_corpus(tokenizer), SETTINGS, timed=False)
        for point in found.points:
            assert point.bits_per_byte == pytest.approx(math.log2(vocab_size) / 3, rel=1e-12)


@pytest.mark.parametrize("kind", ["window", "slide", "state"])
def test_bits_per_byte_are_those_of_batch_1_for_any_batch_and_a_short_document_beside_a_long_one(kind: str) -> None:
    tokenizer = FakeTokenizer(13, lengths=[1, 2, 3, *[1] * 10])
    corpus = fake_corpus(tokenizer, starts=[0, 3, 280])
    found = []
    for batch_size in (1, 3, 8):
        settings = EvalConfig(window=None, batch_size=batch_size, contexts=(2, 5), sample_targets=40)
        bundle = fake_bundle(Reader(13, kind), tokenizer, data=DataConfig(reset_memory=True))
        points = measure(bundle, corpus, settings, timed=False).points
        found.append([(p.settings.kind, p.context, p.targets, p.tokens, p.bits_per_byte) for p in points])
    assert found[0] == found[1] == found[2]


def test_the_headlines_loss_is_split_by_class_and_nothing_is_lost() -> None:
    tokenizer = FakeTokenizer(13)
    found = measure(fake_bundle(Reader(13), tokenizer), fake_corpus(tokenizer), SETTINGS, timed=False)
    for targets in ("all", "sample"):
        for by in {group.by for group in found.groups}:
            mine = [g.point for g in found.groups if g.by == by and g.point.targets == targets]
            whole = next(p for p in found.points if (p.context, p.targets) == (3, targets))
            assert sum(p.tokens for p in mine) == whole.tokens
            assert sum(p.nats for p in mine) == pytest.approx(whole.nats)
    assert {group.by.split(" (")[0] for group in found.groups} == {
        *("position in segment of 8", "position in document", "share of the training text", "copied from")
    }


def test_special_tokens_stand_for_no_bytes() -> None:
    tokenizer = FakeTokenizer(4, lengths=[0, 1, 1, 1])
    corpus = fake_corpus(tokenizer)
    found = measure(fake_bundle(Uniform(4), tokenizer), corpus, SETTINGS, timed=False)
    assert found.headline.text_bytes == np.count_nonzero(corpus.test.ids[1:])


def test_a_lossy_tokenizer_and_unknown_symbols_are_marked() -> None:
    tokenizer = FakeTokenizer(5, unknown=2)
    corpus = fake_corpus(tokenizer)
    found = measure(fake_bundle(Uniform(5), tokenizer), corpus, SETTINGS, timed=False)
    unknowns = int(np.count_nonzero(corpus.test.ids[1:] == 2))
    assert found.unknowns == unknowns
    assert "bytes are counted pro rata" in found.incomparable
    assert f"{unknowns} of the scored tokens are <unk>" in found.incomparable
    assert found.headline.text_bytes == pytest.approx(299 * 3)  # its split has 3 bytes a token


def test_another_split_and_a_limit() -> None:
    tokenizer = FakeTokenizer(13)
    corpus = fake_corpus(tokenizer)
    settings = EvalConfig(window=3, contexts=(), sample_targets=10, max_tokens=21)
    found = measure(fake_bundle(Reader(13), tokenizer), corpus, settings, split="valid", timed=False)
    assert (found.split, found.text_tokens, found.headline.tokens) == ("valid", 21, 20)
    assert found.headline.nats == pytest.approx(sum(reader_nll(corpus.valid.ids[:21].tolist(), window=3)))


def test_memory_is_reset_at_documents_where_training_did() -> None:
    tokenizer = FakeTokenizer(13)
    corpus = fake_corpus(tokenizer, starts=[0, 17, 250])
    for reset in (False, True):
        bundle = fake_bundle(Reader(13), tokenizer, data=DataConfig(reset_memory=reset))
        found = measure(bundle, corpus, SETTINGS, timed=False)
        wanted = reader_nll(corpus.test.ids.tolist(), window=3, resets=[17, 250] if reset else [])
        assert found.headline.nats == pytest.approx(sum(wanted))
        assert found.headline.settings.resets == (2 if reset else 0)


def test_progress_names_the_run_and_what_it_does() -> None:
    tokenizer = FakeTokenizer(13)
    told: list[tuple[str, int, int | None]] = []
    found = measure(fake_bundle(Reader(13), tokenizer), fake_corpus(tokenizer), SETTINGS, lambda *now: told.append(now))
    assert list(dict.fromkeys(what for what, _, _ in told)) == ["scoring xl", "timing xl"]
    last = {what: (done, total) for what, done, total in told}
    assert last["scoring xl"] == (3 * 299 + 40 * (2 + 5), 3 * 299 + 40 * (2 + 5))  # windows, then fresh passes
    assert last["timing xl"] == (6, 6)
    assert [s.context for s in found.speeds if s.kind == "window"] == [2, 3, 5]


def test_the_log_becomes_learning_curves_and_the_time_of_a_step() -> None:
    tokenizer = FakeTokenizer(13, lengths=[2] * 13)
    history = [record(step) for step in range(1, 1001)]
    history[499]["valid_nll"], history[999]["valid_nll"] = 2.5, 2.25
    history[3]["nll"] = None  # a step that was not finite is a gap
    history[7]["tokens_per_second"] = 50.0
    found = measure(fake_bundle(Reader(13), tokenizer), fake_corpus(tokenizer), SETTINGS, history=history, timed=False)
    train, valid = found.learning
    assert (train.name, valid.name) == ("train", "valid")
    assert len(train.steps) == 200
    assert (train.steps[-1], train.tokens[-1], train.seconds[-1]) == (1000, 20_000, pytest.approx(200.0))
    assert train.nll[-1] == pytest.approx(np.mean([1 + 1 / step for step in range(996, 1001)]))
    assert train.nll[0] == pytest.approx(np.mean([1 + 1 / step for step in (1, 2, 3, 5)]), rel=0.05)
    assert (valid.steps, valid.nll) == ((500, 1000), (2.5, 2.25))
    assert train.bytes_per_token == 2
    assert found.trained_tokens == 76 * 20  # the bundle is of step 77: what the log says of later steps is not in it
    assert found.step_seconds == pytest.approx((0.2, 0.2, 0.2))


def test_a_short_log_is_taken_as_it_is() -> None:
    tokenizer = FakeTokenizer(13)
    for history in ([record(1)], [record(1), record(2)], [record(1), record(2), record(3)]):
        found = measure(
            fake_bundle(Reader(13), tokenizer), fake_corpus(tokenizer), SETTINGS, history=history, timed=False
        )
        assert found.learning[0].nll == tuple(line["nll"] for line in history)
        assert (found.step_seconds is None) == (len(history) < 3)


@pytest.mark.parametrize("model", [Reader(13), Reader(13, "slide"), Reader(13, "state")])
def test_json_gives_the_same_record_back(model: Reader) -> None:
    tokenizer = FakeTokenizer(13)
    history = [record(step) for step in range(1, 6)]
    corpus, bundle = fake_corpus(tokenizer), fake_bundle(model, tokenizer)
    found = measure(bundle, corpus, SETTINGS, history=history, sample="naïve ☃\n")
    assert Measurement.from_json(found.to_json()) == found


def test_a_loss_that_is_not_finite_is_null_in_json_and_nan_again() -> None:
    tokenizer = FakeTokenizer(9)
    found = measure(fake_bundle(Counting(9), tokenizer), fake_corpus(tokenizer), SETTINGS, timed=False)
    assert found.headline.nats == math.inf
    text = found.to_json()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["points"][0]["nats"] is None
    assert math.isnan(Measurement.from_json(text).headline.nats)


def test_runs_share_a_text_only_where_all_of_it_is_the_same() -> None:
    tokenizer = FakeTokenizer(13)
    corpus = fake_corpus(tokenizer)
    one, other = (
        measure(fake_bundle(model, tokenizer), corpus, SETTINGS, timed=False)
        for model in (Reader(13), Reader(13, "slide"))
    )
    assert one.text == other.text
    for settings in (EvalConfig(contexts=(), sample_targets=30), EvalConfig(contexts=(), max_tokens=100)):
        assert measure(fake_bundle(Reader(13), tokenizer), corpus, settings, timed=False).text != one.text


def test_a_corpus_of_another_tokenizer_is_refused() -> None:
    bundle = fake_bundle(Reader(13), FakeTokenizer(13))
    with pytest.raises(
        ValueError, match=r"runs/some/xl was trained with tokenizer \w+, the corpus was prepared with \w+"
    ):
        measure(bundle, fake_corpus(FakeTokenizer(13, lengths=[2] * 13)), SETTINGS)


def test_a_split_of_one_token_is_refused() -> None:
    tokenizer = FakeTokenizer(13)
    with pytest.raises(ValueError, match=r"the test split has 1 token\(s\); scoring needs at least 2"):
        measure(fake_bundle(Reader(13), tokenizer), fake_corpus(tokenizer, test=1), SETTINGS)
