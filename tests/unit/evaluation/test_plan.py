"""Sharing a text out to rows: every input once, lead-ins long enough, equal work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl.evaluation.plan import Stream, plan_streams

ZERO = np.zeros(1, dtype=np.int64)


def test_the_docstrings_picture() -> None:
    streams = plan_streams(0, 6, starts=ZERO, reach=2, batch_size=2)
    assert streams == [Stream(0, 0, 4), Stream(2, 4, 6)]


@pytest.mark.parametrize(
    ("first", "stop", "starts", "reach", "batch_size", "expected"),
    [
        (0, 10, [0], 0, 2, [Stream(0, 0, 5), Stream(5, 5, 10)]),
        (0, 10, [0], 3, 1, [Stream(0, 0, 10)]),
        (4, 10, [0], 3, 1, [Stream(1, 4, 10)]),  # a share of the text still gets its lead-in
        (0, 10, [0], 99, 3, [Stream(0, 0, 10)]),  # a reach beyond the text: no other row could help
        (0, 10, [0], None, 4, [Stream(0, 0, 10)]),  # nor with unbounded reach and no reset
        (0, 10, [0, 5], None, 2, [Stream(0, 0, 5), Stream(5, 5, 10)]),
        (0, 10, [0, 5], 3, 2, [Stream(0, 0, 5), Stream(5, 5, 10)]),  # a reset makes a lead-in unnecessary
        (0, 3, [0], 0, 7, [Stream(0, 0, 1), Stream(1, 1, 2), Stream(2, 2, 3)]),
    ],
)
def test_known_plans(
    first: int, stop: int, starts: list[int], reach: int | None, batch_size: int, expected: list[Stream]
) -> None:
    assert plan_streams(first, stop, starts=np.array(starts), reach=reach, batch_size=batch_size) == expected


@given(
    n_inputs=st.integers(1, 200),
    begin=st.integers(0, 199),
    reach=st.none() | st.integers(0, 60),
    batch_size=st.integers(1, 9),
    resets=st.sets(st.integers(1, 200), max_size=6),
)
def test_every_input_is_scored_once_after_all_it_needs(
    n_inputs: int, begin: int, reach: int | None, batch_size: int, resets: set[int]
) -> None:
    first = min(begin, n_inputs - 1)
    starts = np.array([0, *sorted(resets)])
    streams = plan_streams(first, n_inputs, starts=starts, reach=reach, batch_size=batch_size)
    assert len(streams) <= batch_size
    assert [p for row in streams for p in range(row.first, row.stop)] == list(range(first, n_inputs))
    for row in streams:
        context = max(start for start in starts if start <= row.first)
        assert row.begin == (context if reach is None else max(context, row.first - reach))
    fed = [row.stop - row.begin for row in streams]
    assert max(fed) <= n_inputs - max(0 if reach is None else first - reach, *(s for s in starts if s <= first))
    assert set(fed[:-1]) <= {max(fed)}  # all rows but the last end together
