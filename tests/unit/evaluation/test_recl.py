"""Effective context lengths of loss tables whose answers are worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from txl.evaluation.recl import Gain, hardest, recl


def table(until: int, *, contexts: range = range(100, 801, 100), gain: float = 0.02, first: float = 5.0) -> dict:
    """Six equal tokens whose loss falls by a relative gain of perplexity at each step up to `until`, then stays.

    exp(a) (1 - g) is the perplexity after a step, so the loss falls by -ln(1 - g).
    """
    falls = {c: min((c - contexts[0]) // 100, (until - contexts[0]) // 100) for c in contexts}
    return {c: np.full(6, first + n * math.log(1 - gain)) for c, n in falls.items()}


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("until", [100, 300, 700])
def test_a_model_that_stops_improving_at_300_in_steps_of_100_has_300(until: int, share: float) -> None:
    (found,) = recl({"a": table(until)}, shares=[share])
    assert (found.length, found.settled, found.step) == (until, True, 100)
    assert found.gains[-1] == Gain(until, 0.0)
    assert [g.context for g in found.gains] == list(range(100, until + 1, 100))
    assert [g.gain for g in found.gains[:-1]] == pytest.approx([0.02] * (until // 100 - 1))


def test_a_gain_at_the_threshold_counts_and_one_below_it_does_not() -> None:
    assert recl({"a": table(800, gain=0.0101)}, shares=[1.0])[0].length == 800
    assert recl({"a": table(800, gain=0.0099)}, shares=[1.0])[0].length == 100


def test_a_model_that_still_gains_at_the_end_has_a_lower_bound() -> None:
    (found,) = recl({"a": table(800)}, shares=[1.0])
    assert (found.length, found.settled) == (800, False)


def test_a_model_that_gains_nothing_from_the_first_context_on_has_an_upper_bound() -> None:
    assert [recl({"a": table(until)}, shares=[1.0])[0].at_most for until in (100, 200, 800)] == [True, False, False]


def test_the_hardest_positions_decide_at_small_shares() -> None:
    """Ten tokens: one hard, whose loss falls by 0.5 at 200 and at 300; nine easy ones that never change.

    r = 0.1: the hard one alone, gains 1 - exp(-0.5) = 0.393 at 100 and at 200, then 0: 300.
    r = 1: the mean falls by 0.05, gains 1 - exp(-0.05) = 0.0488 at 100 and at 200, then 0: 300 too.
    With a fall of 0.05 instead of 0.5 the mean falls by 0.005, a gain of 0.00499 < 0.01: 100 at r = 1, 300 at r = 0.1.
    """
    for fall, whole in ((0.5, 300), (0.05, 100)):
        hard = {100: 4.0, 200: 4.0 - fall, 300: 4.0 - 2 * fall, 400: 4.0 - 2 * fall}
        losses = {c: np.array([1.0] * 4 + [value] + [1.0] * 5) for c, value in hard.items()}
        tenth, all_of_them = recl({"a": losses}, shares=[0.1, 1.0])
        assert (tenth.length, tenth.positions) == (300, 1)
        assert (all_of_them.length, all_of_them.positions) == (whole, 10)
        assert tenth.gains[0].gain == pytest.approx(1 - math.exp(-fall))
        assert all_of_them.gains[0].gain == pytest.approx(1 - math.exp(-fall / 10))


def test_the_baseline_is_the_groups_so_a_bad_start_earns_nothing() -> None:
    """b learns until 400 only what a knows at 100: alone it has 400, beside a it has 100."""
    good = {c: np.full(5, 1.0) for c in (100, 200, 300, 400, 500)}
    bad = {c: np.full(5, value) for c, value in zip(good, (3.0, 2.0, 1.5, 1.1, 1.1), strict=True)}
    assert [r.length for r in recl({"b": bad}, shares=[1.0])] == [400]
    assert [(r.model, r.length) for r in recl({"a": good, "b": bad}, shares=[1.0])] == [("a", 100), ("b", 100)]


def test_a_longer_context_counts_only_where_it_beats_the_baseline() -> None:
    """Two tokens at 100: losses 2 and 1. At 200 the first falls to 1.9, the second rises to 5, which is not counted.

    f(100, 100) = 1.5, f(100, 200) = (1.9 + 1) / 2 = 1.45: gain 1 - exp(-0.05).
    At 200 the hardest tenth is the second token (5 > 1.9): T_r moves with c.
    """
    losses = {100: np.array([2.0, 1.0]), 200: np.array([1.9, 5.0]), 300: np.array([1.9, 4.0])}
    (found,) = recl({"a": losses}, shares=[1.0])
    assert found.gains[0] == Gain(100, pytest.approx(1 - math.exp(-0.05)))
    assert found.gains[1].gain == pytest.approx(1 - math.exp(-0.5))
    (tenth,) = recl({"a": losses}, shares=[0.1])
    assert [g.gain for g in tenth.gains] == pytest.approx([1 - math.exp(-0.1), 1 - math.exp(-1.0)])


def test_a_model_of_fixed_context_has_no_more_than_its_segment() -> None:
    """The published plain Transformer: 128, its segment, though Δ is 100. It gains from 100 to 128, then no more."""
    free = table(400, gain=0.05)  # at 200 the free model is the better one, so nothing is left to gain
    fixed = {100: np.full(6, 5.0), 128: np.full(6, 4.98)}
    found = recl({"xl": free, "vanilla": fixed}, limits={"vanilla": 128}, shares=[1.0])
    assert [(r.model, r.length, r.settled) for r in found] == [("xl", 400, True), ("vanilla", 128, True)]


def test_equal_losses_are_taken_from_the_front_and_at_least_one() -> None:
    assert hardest(np.array([1.0, 3.0, 3.0, 2.0]), 0.5).tolist() == [1, 2]
    assert hardest(np.array([3.0, 1.0, 3.0]), 0.01).tolist() == [0]


def by_the_recipe(losses: dict[str, dict[int, list[float]]], r: float, limit: dict[str, int]) -> dict[str, int]:
    """Appendix C in loops over single tokens: no array, no function of the package."""
    group, ladder = list(losses), sorted(set.intersection(*(set(of) for m, of in losses.items() if m not in limit)))

    def loss(m: str, c: int, t: int) -> float:
        return losses[m][min(c, limit.get(m, c))][t]

    lengths = {}
    for m in group:
        length = ladder[-1]
        for c, longer in pairwise(ladder):
            b = [min(loss(i, c, t) for i in group) for t in range(len(losses[m][ladder[0]]))]
            hard = sorted(range(len(b)), key=lambda t: -b[t])[: round(r * len(b))]
            f, f_longer = (sum(min(b[t], loss(m, at, t)) for t in hard) / len(hard) for at in (c, longer))
            if (math.exp(f) - math.exp(f_longer)) / math.exp(f) < 0.01:
                length = c
                break
        lengths[m] = min(length, limit.get(m, length))
    return lengths


def test_lengths_are_those_of_the_recipe_on_random_tables() -> None:
    draw, seen = np.random.default_rng(12), set()
    for _ in range(40):
        falls = {m: draw.exponential(draw.uniform(0.005, 0.1), (6, 50)) * draw.binomial(1, 0.5, (6, 50)) for m in "abc"}
        raw = {m: draw.uniform(1, 6, 50) - np.cumsum(falls[m], axis=0) for m in "abc"}
        tables = {m: dict(zip(range(30, 181, 30), raw[m], strict=True)) for m in "abc"}
        tables["c"] = {c: tables["c"][c] for c in (30, 60, 90)} | {70: tables["c"][90] + 0.05}
        for share in (0.1, 0.5, 1.0):
            for limit in ({"c": 70}, {"c": 90}):
                plain = {m: {c: row.tolist() for c, row in of.items()} for m, of in tables.items()}
                wanted = by_the_recipe(plain, share, limit)
                found = {one.model: one.length for one in recl(tables, limits=limit, shares=[share])}
                assert found == wanted
                seen |= set(wanted.values())
    assert seen >= {30, 60, 70, 90, 120, 150, 180}  # every length that can come was there


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({}, "contexts: found none"),
        ({"a": {100: np.ones(3)}}, r"contexts: found \[100\]; expected at least two"),
        ({"a": {100: np.ones(3), 200: np.ones(3), 400: np.ones(3)}}, "the same number of tokens longer"),
        ({"a": {100: np.ones(3), 200: np.ones(4)}}, r"a: found \[3, 4\] targets by context"),
        ({"a": {100: np.ones(3), 200: np.array([1, np.nan, 1])}}, "a: found losses at context 200 that are not finite"),
    ],
)
def test_what_is_no_table_of_a_group_is_refused(losses: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recl(losses)


def test_a_limit_that_was_not_scored_is_refused() -> None:
    with pytest.raises(ValueError, match="vanilla: found no losses at context 128"):
        recl({"xl": table(300), "vanilla": {100: np.ones(6)}}, limits={"vanilla": 128})
