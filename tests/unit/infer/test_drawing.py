"""The rows of a call of draw: each has its own numbers, and ends with the stop sequence it has drawn."""

from __future__ import annotations

import torch

from txl.infer.drawing import Rows


def test_a_row_is_done_once_its_newest_ids_are_a_stop_sequence() -> None:
    rows = Rows([3, 4, 5], [[7, 8], [9]])
    assert rows.lengths() is None
    rows.see(torch.tensor([7, 8, 1]))
    assert rows.active == [True, True, True]
    rows.see(torch.tensor([8, 7, 9]))
    assert rows.active == [False, True, False]
    lengths = rows.lengths()
    assert lengths is not None
    assert lengths.tolist() == [0, 1, 0]
    rows.see(torch.tensor([1, 8, 1]))
    assert rows.active == [False, False, False]


def test_a_row_draws_from_its_own_seed_alone() -> None:
    both, alone = Rows([3, 4], []), Rows([4], [])
    for _ in range(3):
        numbers = both.uniforms()
        assert numbers.dtype == torch.float64
        assert numbers[1] == alone.uniforms()[0]
        assert numbers[0] != numbers[1]
    assert both.active == [True, True]
