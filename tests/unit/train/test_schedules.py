"""Rates and decays against hand-computed numbers, at both ends of every stretch."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args, get_type_hints

import pytest

from txl.config import Config, ModelConfig, OptimConfig, TrainConfig
from txl.train.schedules import average_decay, learning_rate, mean_segment_length, segment_length

SCHEDULES = get_args(get_type_hints(OptimConfig)["schedule"])
# lr 0.8, min_lr 0.2, w = 4, N = 12, d = 3: the rate of each step, worked out by hand.
WARM_UP = {0: 0.0, 1: 0.2, 3: 0.6, 4: 0.8}
RATES: dict[str, dict[int, float]] = {
    # a quarter of the half-wave after 2 of 8 steps, its middle after 4, its end after 8
    "cosine": {5: 0.5 + 0.3 * math.cos(math.pi / 8), 6: 0.5 + 0.3 * math.sqrt(0.5), 8: 0.5, 12: 0.2, 13: 0.2},
    "linear": {5: 0.725, 6: 0.65, 8: 0.5, 11: 0.275, 12: 0.2, 13: 0.2},
    "wsd": {5: 0.8, 8: 0.8, 9: 0.8, 10: 0.6, 11: 0.4, 12: 0.2, 13: 0.2},
    "inverse_sqrt": {5: 1.6 / math.sqrt(5), 8: 0.8 / math.sqrt(2), 12: 0.8 / math.sqrt(3), 13: 0.8 / math.sqrt(3)},
    "constant": {5: 0.8, 8: 0.8, 12: 0.8, 13: 0.8},
}


def settings(schedule: Any, **rest: Any) -> OptimConfig:
    floor = 0.0 if schedule == "constant" else 0.2
    return OptimConfig(
        **{"lr": 0.8, "min_lr": floor, "schedule": schedule, "warmup_steps": 4, "decay_steps": 3, **rest}
    )


def test_every_schedule_has_its_table() -> None:
    assert set(RATES) == set(SCHEDULES)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_is_its_closed_form_at_both_ends_of_every_stretch(schedule: str) -> None:
    for step, rate in (WARM_UP | RATES[schedule]).items():
        assert learning_rate(step, settings(schedule), 12) == pytest.approx(rate, abs=1e-15), step


def test_inverse_sqrt_never_falls_below_min_lr() -> None:
    config = settings("inverse_sqrt", min_lr=0.25)
    assert [learning_rate(step, config, 64) for step in (16, 36, 64)] == pytest.approx([0.4, 0.8 / 3, 0.25])


@pytest.mark.parametrize(
    ("schedule", "first", "second"),
    [
        ("cosine", 0.5 + 0.3 * math.cos(math.pi / 10), 0.5 + 0.3 * math.cos(math.pi / 5)),
        ("linear", 0.74, 0.68),
        ("wsd", 0.8, 0.8),
        ("inverse_sqrt", 0.8, 0.8 / math.sqrt(2)),
        ("constant", 0.8, 0.8),
    ],
)
def test_without_warm_up_the_first_step_takes_what_the_schedule_says(
    schedule: str, first: float, second: float
) -> None:
    config = settings(schedule, warmup_steps=0)
    assert [learning_rate(step, config, 10) for step in (1, 2)] == pytest.approx([first, second], abs=1e-15)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_schedule_jumps_and_each_has_its_peak_at_the_end_of_warm_up(schedule: str) -> None:
    config = settings(schedule, lr=1.0, min_lr=0.0, warmup_steps=50, decay_steps=200)
    rates = [learning_rate(step, config, 1000) for step in range(1001)]
    assert max(abs(a - b) for a, b in pairwise(rates)) <= 1 / 50 + 1e-12
    assert max(rates) == 1.0 == rates[50]


def test_wsd_may_fall_from_the_end_of_warm_up_on() -> None:
    config = settings("wsd", decay_steps=8)
    assert [learning_rate(step, config, 12) for step in (4, 5, 12)] == pytest.approx([0.8, 0.725, 0.2])


def test_the_average_forgets_the_first_weights_in_time() -> None:
    config = OptimConfig(ema_decay=0.9)
    # (1 + k)/(10 + k) reaches 0.9 at step 80
    assert [average_decay(step, config) for step in (1, 8, 79, 80, 81, 1000)] == pytest.approx(
        [2 / 11, 0.5, 80 / 89, 0.9, 0.9, 0.9]
    )


def test_a_stage_begins_with_the_step_after_those_it_waits_for() -> None:
    train = TrainConfig(max_steps=12, tgt_len_schedule=((0, 3), (4, 5), (9, 7)))
    config = Config(train=train, model=ModelConfig(tgt_len=7))
    assert [segment_length(step, config) for step in range(1, 13)] == [3] * 4 + [5] * 5 + [7] * 3
    assert mean_segment_length(config) == pytest.approx((3 * 4 + 5 * 5 + 7 * 3) / 12)
    assert (
        segment_length(1, Config(model=ModelConfig(tgt_len=7)))
        == 7
        == mean_segment_length(replace(config, train=TrainConfig()))
    )
