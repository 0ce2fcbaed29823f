"""What a session refuses: every message says what was found and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from txl.infer.checks import checked_batch, checked_rows, checked_seeds, checked_state, checked_stop

CPU = torch.device("cpu")
IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def check(ids: torch.Tensor = IDS, lengths: Any = None, resets: Any = None) -> Any:
    return checked_batch(ids, lengths, resets, batch_size=2, vocab_size=7, device=CPU)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": IDS.int()}, "ids is int32 of shape 2×3: must be int64 of shape B×T, here 2×T"),
        ({"ids": IDS.double()}, "ids is float64 of shape 2×3"),
        ({"ids": IDS[0]}, "ids is int64 of shape 3: must be"),
        ({"ids": IDS[:1]}, "ids has 1 rows but the session has 2"),
        ({"ids": IDS + 1}, r"ids\[1, 2\] is 7: the model's vocabulary has ids 0 to 6"),
        ({"ids": IDS - 2}, r"ids\[0, 0\] is -1"),
        ({"lengths": [1]}, "lengths is int64 of shape 1: must be 2 integers, one a row"),
        ({"lengths": torch.tensor([1.0, 2.0])}, "lengths is float32 of shape 2"),
        ({"lengths": [0, 4]}, r"lengths is \[0, 4\]: each must be 0 to 3"),
        ({"lengths": [-1, 2]}, r"lengths is \[-1, 2\]"),
        ({"resets": torch.zeros(2, 3)}, r"resets is float32 of shape 2×3: must be bool of the shape of ids, \(2, 3\)"),
        ({"resets": torch.zeros(2, 1, dtype=torch.bool)}, "resets is bool of shape 2×1"),
    ],
)
def test_wrong_batches_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(**arguments)


def test_padding_is_not_looked_at() -> None:
    ids = torch.tensor([[1, -100, 999], [4, 5, 6]])
    resets = torch.tensor([[True, True, False], [False, False, True]])
    batch = check(ids, torch.tensor([1, 3]), resets)
    assert batch.ids.tolist() == [[1, 0, 0], [4, 5, 6]]
    assert batch.valid.tolist() == [[True, False, False], [True, True, True]]
    assert batch.resets.tolist() == [[True, False, False], [False, False, True]]
    assert ids[0, 2] == 999  # the caller's tensor is left alone


def test_pieces_carry_what_is_left_of_each_row() -> None:
    ids = torch.arange(10).view(2, 5) % 7
    batch = check(ids, torch.tensor([3, 5]))
    assert [batch.piece(start, start + 2).lengths.tolist() for start in (0, 2, 4)] == [[2, 2], [1, 2], [0, 1]]
    assert batch.piece(4, 6).ids.tolist() == [[0], [2]]
    assert batch.piece(2, 4).valid.tolist() == [[True, False], [True, True]]
    assert check(ids).piece(2, 4).lengths is None


def test_rows() -> None:
    assert checked_rows(None, batch_size=3) == [0, 1, 2]
    assert checked_rows([2, 2], batch_size=3) == [2, 2]
    for rows in ([3], [-1]):
        with pytest.raises(ValueError, match="the session has rows 0 to 2"):
            checked_rows(rows, batch_size=3)


def test_stop_lists() -> None:
    assert checked_stop([(1, 2), [3]], vocab_size=7) == [[1, 2], [3]]
    with pytest.raises(ValueError, match=r"stop is \[5, 6\]: must be lists of ids such as"):
        checked_stop([5, 6], vocab_size=7)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="for strings see generate_text"):
        checked_stop(["x"], vocab_size=7)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="at least one id, each id 0 to 6"):
        checked_stop([[]], vocab_size=7)
    with pytest.raises(ValueError, match="each id 0 to 6"):
        checked_stop([[1, 7]], vocab_size=7)


def test_seeds() -> None:
    assert checked_seeds(5, batch_size=3) == [5, 6, 7]
    assert checked_seeds([9, 9, 1], batch_size=3) == [9, 9, 1]
    for seed in (-1, 2**63, [1, 2]):
        with pytest.raises(ValueError, match=r"must be an integer from 0 to 2\^63 - 1, or 3 of them"):
            checked_seeds(seed, batch_size=3)


def test_states_that_do_not_fit_are_refused_with_every_reason() -> None:
    like = {"hidden": torch.zeros(2, 3), "window": torch.tensor(5), "cache.age": torch.zeros(2, dtype=torch.int64)}
    found = {"hidden": torch.zeros(4, 3, dtype=torch.float64), "window": torch.tensor(5), "other": torch.zeros(1)}
    with pytest.raises(ValueError, match="not of a session like this one") as problem:
        checked_state(found, like)
    for reason in (
        "hidden is float64 of shape 4×3 instead of float32 of shape 2×3",
        "cache.age is missing",
        "other is unknown",
    ):
        assert reason in str(problem.value)
    with pytest.raises(ValueError, match=r"one: window is 7 instead of 5\. Make"):  # which explains the shapes
        checked_state({**found, "window": torch.tensor(7)}, like)


def test_a_state_is_copied() -> None:
    state = {"hidden": torch.zeros(2)}
    checked_state(state, {"hidden": torch.ones(2)})["hidden"][0] = 3
    assert state["hidden"][0] == 0
