"""The last ids of a row against a list that grows."""

from __future__ import annotations

import random

import torch

from txl.infer.recent import latest


def test_the_example_of_the_docstring() -> None:
    recent, ids = torch.tensor([[-1, 7, 8], [-1, 7, 8]]), torch.tensor([[1, 2, 3], [1, 2, 3]])
    assert latest(recent, ids, torch.tensor([2, 3]), None).tolist() == [[8, 1, 2], [1, 2, 3]]
    assert latest(recent, ids, None, torch.tensor([[False, True, False]] * 2)).tolist() == [[-1, 2, 3]] * 2


def test_it_equals_the_end_of_each_document() -> None:
    draw = random.Random(0)
    recent, documents = torch.full((2, 5), -1), [[], []]  # type: ignore[var-annotated]
    for _ in range(60):
        width = draw.randint(1, 7)
        ids, lengths = torch.randint(0, 50, (2, width)), torch.tensor([draw.randint(0, width) for _ in range(2)])
        resets = (torch.rand(2, width) < 0.1) & (torch.arange(width) < lengths[:, None])
        recent = latest(recent, ids, lengths, resets)
        for row in range(2):
            for t in range(int(lengths[row])):
                documents[row] = ([] if resets[row, t] else documents[row]) + [int(ids[row, t])]
            tail = documents[row][-5:]
            assert recent[row].tolist() == [-1] * (5 - len(tail)) + tail
