"""Sampling rules against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from txl.infer.sampling import (
    Sampling,
    adjust,
    choose,
    count,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    penalise_frequency,
    penalise_repetition,
    with_temperature,
)

PROBS = torch.tensor([[0.15, 0.5, 0.05, 0.3], [0.3, 0.1, 0.2, 0.4]], dtype=torch.float64)
NONE = torch.full((2, 3), -1)


def assert_probs(found: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(found.exp(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_temperature_is_a_power_of_the_probability() -> None:
    log_probs = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64).log()
    assert_probs(with_temperature(log_probs, 0.5), [[4 / 68, 64 / 68], [36 / 52, 16 / 52]])  # squares, normalised
    assert_probs(
        with_temperature(log_probs, 2.0), [[1 / 3, 2 / 3], [3**0.5 / (3**0.5 + 2**0.5), 2**0.5 / (3**0.5 + 2**0.5)]]
    )


def test_the_smallest_temperature_leaves_the_best_token_alone() -> None:
    assert_probs(with_temperature(PROBS.log(), 1e-320), [[0, 1, 0, 0], [0, 0, 0, 1]])


def test_top_k_keeps_k_tokens_normalised() -> None:
    assert_probs(keep_top_k(PROBS.log(), 2), [[0, 5 / 8, 0, 3 / 8], [3 / 7, 0, 0, 4 / 7]])
    assert_probs(keep_top_k(PROBS.log(), 9), PROBS.tolist())


def test_top_k_keeps_ties_with_the_last() -> None:
    log_probs = torch.tensor([[0.3, 0.1, 0.3, 0.3]], dtype=torch.float64).log()
    assert_probs(keep_top_k(log_probs, 2), [[1 / 3, 0, 1 / 3, 1 / 3]])


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    # Row 0 in order 0.5 0.3 …: 0.75 is reached with the second. Row 1 in order 0.4 0.3 0.2: with the third.
    assert_probs(keep_top_p(PROBS.log(), 0.75), [[0, 5 / 8, 0, 3 / 8], [3 / 9, 0, 2 / 9, 4 / 9]])


def test_top_p_stops_where_p_is_reached_exactly() -> None:
    log_probs = torch.tensor([[0.125, 0.5, 0.125, 0.25]], dtype=torch.float64).log()
    reached = float(log_probs.exp()[0, 1])  # 0.5 up to the rounding of log and exp
    assert_probs(keep_top_p(log_probs, reached), [[0, 1, 0, 0]])


def test_the_smallest_top_p_keeps_the_best_token() -> None:
    assert_probs(keep_top_p(PROBS.log(), 1e-9), [[0, 1, 0, 0], [0, 0, 0, 1]])


def test_min_p_is_a_share_of_the_best() -> None:
    # 0.4 · 0.5 = 0.2 keeps 0.5 and 0.3; 0.4 · 0.4 = 0.16 keeps 0.3, 0.2 and 0.4.
    assert_probs(keep_min_p(PROBS.log(), 0.4), [[0, 5 / 8, 0, 3 / 8], [3 / 9, 0, 2 / 9, 4 / 9]])


def test_typical_keeps_the_tokens_nearest_the_entropy() -> None:
    # Surprisals 1.897 0.693 2.996 1.204, entropy 1.142: order 0.3, 0.5, 0.15, 0.05.
    # Second row 1.204 2.303 1.609 0.916, entropy 1.280: order 0.3, 0.2, 0.4, 0.1.
    assert_probs(keep_typical(PROBS.log(), 0.2), [[0, 0, 0, 1], [1, 0, 0, 0]])
    assert_probs(keep_typical(PROBS.log(), 0.45), [[0, 5 / 8, 0, 3 / 8], [3 / 5, 0, 2 / 5, 0]])


def test_typical_after_another_filter_has_no_entropy_of_what_is_gone() -> None:
    kept = keep_typical(keep_top_k(PROBS.log(), 2), 0.9)
    assert_probs(kept, [[0, 5 / 8, 0, 3 / 8], [3 / 7, 0, 0, 4 / 7]])


def test_repetition_penalty_is_a_power_of_seen_tokens_only() -> None:
    recent = torch.tensor([[1, 1, -1], [-1, -1, -1]])
    assert_probs(penalise_repetition(PROBS.log(), recent, 2.0), [[0.2, 1 / 3, 1 / 15, 0.4], PROBS[1].tolist()])


def test_frequency_penalty_counts() -> None:
    recent = torch.tensor([[1, 1, 3], [-1, 0, -1]])
    found = penalise_frequency(PROBS.log(), recent, math.log(2))  # each occurrence halves
    assert_probs(
        found, [[0.15 / 0.475, 0.125 / 0.475, 0.05 / 0.475, 0.15 / 0.475], [15 / 85, 10 / 85, 20 / 85, 40 / 85]]
    )


def test_count_leaves_out_empty_places() -> None:
    assert count(torch.tensor([[-1, 2, 2], [0, 3, -1]]), 4).tolist() == [[0, 0, 2, 0], [1, 0, 0, 1]]


def test_draw_inverts_the_distribution_function() -> None:
    # Row 0 cumulates to 0.15 0.65 0.70 1.0.
    for uniform, expected in [(0.0, 0), (0.149, 0), (0.151, 1), (0.649, 1), (0.66, 2), (0.71, 3), (1 - 2**-53, 3)]:
        assert draw(PROBS[:1].log(), torch.tensor([uniform], dtype=torch.float64)).tolist() == [expected]


def test_draw_never_gives_a_token_of_probability_zero() -> None:
    log_probs = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]], dtype=torch.float64).log()
    for uniform, expected in [(0.0, 1), (0.25, 3), (1 - 2**-53, 3)]:
        assert draw(log_probs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_choose_draws_each_row_from_its_own_number(dtype: torch.dtype) -> None:
    uniforms = torch.tensor([0.68, 0.35], dtype=torch.float64)
    assert choose(PROBS.log().to(dtype), Sampling(), NONE, uniforms).tolist() == [2, 1]


def test_greedy_takes_the_best_whatever_the_number() -> None:
    uniforms = torch.tensor([0.999, 0.001], dtype=torch.float64)
    assert choose(PROBS.log(), Sampling(temperature=0, typical_p=0.1), NONE, uniforms).tolist() == [1, 3]


def test_greedy_heeds_penalties() -> None:
    recent = torch.tensor([[1, 0, -1], [-1, -1, -1]])
    sampling = Sampling(temperature=0, repetition_penalty=3.0)
    assert choose(PROBS.log(), sampling, recent, torch.zeros(2, dtype=torch.float64)).tolist() == [3, 3]


def test_rules_apply_one_after_the_other() -> None:
    # Penalty log 2 on token 1: 0.15 0.25 0.05 0.3 -> ×4/3: 0.2 1/3 1/15 0.4; temperature ½ squares: 9 25 1 36 of 71;
    # top-k 3: 9 25 36 of 70; min-p 0.5 of 36 keeps 25 and 36.
    sampling = Sampling(frequency_penalty=math.log(2), temperature=0.5, top_k=3, min_p=0.5)
    assert_probs(adjust(PROBS[:1].log(), sampling, torch.tensor([[1]])), [[0, 25 / 61, 0, 36 / 61]])


def test_defaults_change_nothing() -> None:
    assert torch.equal(adjust(PROBS.log(), Sampling(), torch.tensor([[1], [2]])), PROBS.log())


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_that_are_no_numbers_are_refused(bad: float, temperature: float) -> None:
    log_probs = PROBS.log()
    log_probs[1] = bad
    with pytest.raises(FloatingPointError, match=r"rows \[1\] are not numbers"):
        choose(log_probs, Sampling(temperature=temperature), NONE, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", math.nan),
        ("typical_p", 2.0),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", math.inf),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value}: must be"):
        Sampling(**{name: value})


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ValueError, match=r"temperature is -1.*; top_k is -5.*at least 1"):
        Sampling(temperature=-1, top_k=-5)
