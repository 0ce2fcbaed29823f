"""Speed: what is timed, how often, and what the rates count."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.unit.evaluation.fakes import Uniform
from txl.config import ModelConfig
from txl.evaluation import speed
from txl.evaluation.speed import cached_twin, speed_of, speeds
from txl.model import build_model


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which the runs take 1, 2, 3, 4, … seconds."""
    taken = itertools.count(1)
    now = itertools.accumulate(itertools.chain.from_iterable((0, next(taken)) for _ in itertools.repeat(None)))
    monkeypatch.setattr(speed.time, "perf_counter", lambda: float(next(now)))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("kind", "model_kind", "scored", "fed"),
    [("window", "window", 2048, 1), ("slide", "slide", 128, 16), ("block", "slide", 2048, 1)],
)
def test_median_and_spread_of_the_scored_tokens_a_second(kind: str, model_kind: str, scored: int, fed: int) -> None:
    model = Uniform(5, model_kind)
    timed = speed_of(model, kind, 16, batch_size=8, runs=5)
    assert (timed.kind, timed.context, timed.runs) == (kind, 16, 5)
    assert timed.median == pytest.approx(scored / 3)
    assert timed.low == pytest.approx(scored / 5)
    assert timed.high == pytest.approx(scored / 1)
    assert timed.fed_per_scored == fed
    assert timed.rows * timed.segment_tokens == 2048
    assert timed.state_bytes == (123 if kind == "window" else 0)
    assert (timed.threads, timed.dtype, timed.device) == (torch.get_num_threads(), "float64", "cpu")


def test_one_run_is_not_counted_and_the_cache_is_full_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "WORK_TOKENS", 64)
    model = Uniform(5)
    speed_of(model, "window", 20, batch_size=8, runs=5)
    assert model.calls == 1 + 1 + 5  # a window of 20 is filled at once
    model = Uniform(5, "slide")
    speed_of(model, "slide", 16, batch_size=8, runs=6)
    assert model.calls == 1 + 6


def test_a_model_is_timed_at_its_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "WORK_TOKENS", 64)
    told: list[tuple[int, int]] = []
    timed = speeds(Uniform(5), (32, 8), batch_size=4, runs=5, progress=lambda *now: told.append(now))
    assert [(s.kind, s.context) for s in timed] == [("window", 8), ("token", 8), ("window", 32), ("token", 32)]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    timed = speeds(Uniform(5, "slide", tgt_len=8), (4, 16, 32), batch_size=4, runs=5)
    wanted = [(kind, context) for context, kind in itertools.product((4, 8, 16), ("slide", "block"))]
    wanted += [(kind, context) for context, kind in itertools.product((4, 16, 32), ("kv", "kv-token"))]
    assert [(s.kind, s.context) for s in timed] == wanted
    assert [(s.kind, s.context) for s in speeds(Uniform(5, "state"), (4, 8), batch_size=4)] == [
        ("state", None),
        ("token", None),
    ]


def test_the_peak_is_what_a_run_takes_when_as_much_was_freed_before() -> None:
    kept = []  # what still lives behind freed blocks keeps them with the process

    def run() -> None:
        blocks = [torch.ones(1 << 14) for _ in range(384)]  # 25 MB, each too small to be mapped by itself
        kept.append(torch.ones(1 << 12))
        del blocks

    run()
    run()
    peak = speed._peak_bytes(run, torch.device("cpu"))
    assert peak is None or 24e6 < peak < 40e6


def test_one_token_at_a_time_is_fed_and_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "TOKEN_STEPS", 10)
    model = Uniform(5)
    timed = speed_of(model, "token", 20, batch_size=8, runs=3)
    assert (timed.rows, timed.segment_tokens, timed.fed_per_scored) == (1, 1, 1)
    assert model.calls == 1 + (1 + 3) * 10


def test_the_bytes_of_a_cache_are_those_of_its_keys_and_values() -> None:
    config = ModelConfig(
        n_layer=3, d_model=10, n_head=2, d_head=6, d_inner=8, tgt_len=16, mem_len=16, position="rotary"
    )
    timed = speed_of(build_model(config, 7), "token", 50, batch_size=4, runs=2)
    columns = 50 + 256  # the window, and the longest chunk read into it
    assert timed.state_bytes == 2 * 3 * columns * 2 * 6 * 4 + 8  # keys and values, layers, heads, features; the age


def test_a_decoder_of_absolute_positions_has_a_twin_that_can_cache() -> None:
    config = ModelConfig("transformer", 1, 8, 1, 4, 8, position="sinusoidal", tgt_len=16, mem_len=0, pre_lnorm=True)
    twin = cached_twin(build_model(config, 7).double())
    assert (twin.config.position, twin.vocab_size) == ("rotary", 7)
    assert next(twin.parameters()).dtype == torch.float64
    odd = cached_twin(build_model(ModelConfig("transformer", 1, 8, 1, 3, 8, position="none", mem_len=0), 7))
    assert odd.config.position == "alibi"


@pytest.mark.parametrize("arch", ["transformer_xl", "transformer"])
def test_real_models_run_and_keep_their_mode(arch: str) -> None:
    vanilla = arch == "transformer"
    config = ModelConfig(
        arch="transformer" if vanilla else "transformer_xl",
        position="sinusoidal" if vanilla else "relative",
        n_layer=1,
        d_model=8,
        n_head=1,
        d_head=4,
        d_inner=8,
        tgt_len=16,
        mem_len=0 if vanilla else 16,
    )
    model = build_model(config, 7).train()
    timed = speeds(model, (8, 16), batch_size=3)
    assert model.training
    assert all(0 < s.low <= s.median <= s.high and s.runs == 5 for s in timed)
