"""Bootstrap intervals: against exact cases and against the normal theory they must agree with."""

from __future__ import annotations

import random

import numpy as np
import pytest

from txl.evaluation.interval import comparison_intervals, ratio_interval, stretches_of, sums_by_stretch


def test_stretches_are_of_equal_length_where_documents_are_few() -> None:
    assert stretches_of(5, None).tolist() == [0, 1, 2, 3, 4]
    begins = stretches_of(1001, np.array([0, 10, 500]))
    assert len(begins) == 64
    assert set(np.diff(begins, append=1001).tolist()) == {15, 16}


def test_stretches_are_whole_documents_where_there_are_enough() -> None:
    starts = np.array([0, *range(7, 1000, 40)])  # 26 documents
    begins = stretches_of(1000, starts)
    assert begins.tolist() == starts.tolist()
    many = np.arange(0, 1000, 3)  # 334: as many as fit, each stretch of several
    begins = stretches_of(1000, many)
    assert len(begins) == 64
    assert set(begins.tolist()) <= set(many.tolist())


def test_sums_by_stretch_go_where_the_inputs_are_and_add_up() -> None:
    begins = np.array([0, 3, 10])
    assert sums_by_stretch(np.array([1, 2, 4, 8]), np.array([0, 2, 3, 9]), begins) == (3.0, 12.0, 0.0)
    values = np.full(1 << 20, 0.1, dtype=np.float32)  # summed in float64
    found = sums_by_stretch(values, np.arange(1 << 20), np.zeros(1, dtype=np.int64))
    assert found[0] == pytest.approx((1 << 20) * float(np.float32(0.1)), rel=1e-12)


def test_a_stretch_without_tokens_says_nothing() -> None:
    assert ratio_interval([6.0, 0.0, 6.0, 0.0], [3.0, 0.0, 3.0, 0.0]) == (2.0, 2.0)
    assert np.isnan(ratio_interval([6.0, 0.0], [3.0, 0.0])).all()
    assert np.isnan(comparison_intervals([[6.0, 0.0], [5.0, 0.0]], [3.0, 0.0])).all()
    rows = [[6.0, 0.0, 5.0], [3.0, 0.0, 2.0]]
    assert comparison_intervals(rows, [3.0, 0.0, 3.0]) == comparison_intervals([[6.0, 5.0], [3.0, 2.0]], [3.0, 3.0])


def test_equal_stretches_leave_no_doubt() -> None:
    assert ratio_interval([6.0] * 9, [3.0] * 9) == (2.0, 2.0)


def test_a_mean_of_many_stretches_has_the_normal_interval() -> None:
    draw = np.random.default_rng(1)
    sums = draw.normal(100, 8, size=400)
    low, high = ratio_interval(list(sums), [10.0] * 400)
    error = sums.std(ddof=1) / np.sqrt(400) / 10
    assert low == pytest.approx(sums.mean() / 10 - 1.96 * error, abs=0.12 * error)
    assert high == pytest.approx(sums.mean() / 10 + 1.96 * error, abs=0.12 * error)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(2)
    held = 0
    for _ in range(100):
        low, high = ratio_interval(list(draw.exponential(1.0, size=64)), [1.0] * 64)
        held += low <= 1.0 <= high
    assert 87 <= held <= 99


def test_a_paired_ratio_ignores_how_hard_the_text_is() -> None:
    hard = np.random.default_rng(3).uniform(50, 150, size=64)
    low, high = ratio_interval(list(0.9 * hard), list(hard))
    assert (low, high) == (pytest.approx(0.9), pytest.approx(0.9))


def test_a_paired_interval_is_the_one_of_drawing_stretches_one_by_one() -> None:
    """Plain loops and another source of random numbers: a stretch is drawn with both models' sums on it."""
    draw = np.random.default_rng(6)
    text = draw.uniform(50, 150, size=30)
    top, bottom = (list(text * factor + draw.normal(0, 6, 30)) for factor in (0.95, 1.0))
    chance, ratios = random.Random(3), []
    for _ in range(8000):
        drawn = [chance.randrange(30) for _ in range(30)]
        ratios.append(sum(top[i] for i in drawn) / sum(bottom[i] for i in drawn))
    ratios.sort()
    error = float(np.std(ratios))
    assert ratio_interval(top, bottom) == pytest.approx((ratios[200], ratios[-201]), abs=0.12 * error)
    alone = ratio_interval(top, [100.0] * 30)
    assert alone[1] - alone[0] > 3 * (ratios[-201] - ratios[200])  # what pairing is worth here


def test_comparison_intervals_leave_out_what_all_rows_share() -> None:
    draw = np.random.default_rng(4)
    hard = draw.uniform(50, 150, size=64)
    rows = [hard + 5 + draw.normal(0, 1, 64), hard + draw.normal(0, 1, 64)]
    plain = [ratio_interval(list(row), [10.0] * 64) for row in rows]
    compared = comparison_intervals([list(row) for row in rows], [10.0] * 64)
    for row, (low, high), (wide_low, wide_high) in zip(rows, compared, plain, strict=True):
        assert low < row.sum() / 640 < high
        assert high - low < 0.1 * (wide_high - wide_low)
    # Two rows: the spread of each about the shared part is that of half their difference, corrected by root 2.
    error = (rows[0] - rows[1]).std(ddof=1) / np.sqrt(2) / np.sqrt(64) / 10
    assert compared[0][1] - compared[0][0] == pytest.approx(2 * 1.96 * error, rel=0.12)


def test_comparison_intervals_leave_out_what_is_shared_where_stretches_are_unequal_too() -> None:
    draw = np.random.default_rng(5)
    counts, hard = draw.integers(50, 1500, size=30).astype(float), draw.normal(3, 0.3, size=30)
    rows = [list(counts * (hard + 0.1)), list(counts * hard)]
    mean = float((counts * hard).sum() / counts.sum())
    for (low, high), expected in zip(comparison_intervals(rows, list(counts)), (mean + 0.1, mean), strict=True):
        assert low == pytest.approx(expected, rel=1e-12)  # one is worse by the same everywhere: no doubt is left
        assert high == pytest.approx(expected, rel=1e-12)


def test_one_row_keeps_its_plain_interval() -> None:
    sums = [1.0, 5.0, 3.0, 2.0]
    assert comparison_intervals([sums], [1.0] * 4) == [ratio_interval(sums, [1.0] * 4)]


@pytest.mark.parametrize(("top", "bottom"), [([1.0], [1.0]), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([], [])])
def test_too_few_or_other_stretches_are_refused(top: list[float], bottom: list[float]) -> None:
    with pytest.raises(ValueError, match="the same stretches twice, two or more"):
        ratio_interval(top, bottom)
