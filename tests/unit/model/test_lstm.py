"""The LSTM baseline against plain loops, and through the contract of memory, resets and streaming."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests import reference
from tests.models import LSTM, assert_close, make_model, random_ids, weights_of
from txl.model import Memory


def decode(weights: dict[str, Any], ids: list[int]) -> Any:
    """Logits T×V of one row by the loops."""
    return reference.decode(LSTM, weights, ids).logits


def test_segments_with_memory_equal_the_loops_over_the_whole_text() -> None:
    model = make_model(LSTM)
    ids = random_ids(2, 11)
    memory, logits = None, []
    for part in ids.split([5, 1, 3, 2], dim=1):
        out = model(part, memory)
        memory = out.memory
        logits.append(out.logits)
    assert memory.length.tolist() == [11, 11]
    assert all(tensor.grad_fn is None for tensor in memory.layers)
    for row in range(2):
        assert_close(torch.cat(logits, dim=1)[row], decode(weights_of(model), ids[row].tolist()), tolerance=1e-10)


@pytest.mark.parametrize("where", [0, 2, 4])
def test_a_reset_equals_a_fresh_text_and_leaves_other_rows_alone(where: int) -> None:
    model = make_model(LSTM)
    ids = random_ids(2, 10)
    memory = model(ids[:, :5]).memory
    resets = torch.zeros(2, 5, dtype=torch.bool)
    resets[1, where] = True
    out, plain = model(ids[:, 5:], memory, resets=resets), model(ids[:, 5:], memory)
    assert torch.equal(out.logits[0], plain.logits[0])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(out.memory.layers, plain.memory.layers, strict=True))
    assert_close(out.logits[1, :where], plain.logits[1, :where], tolerance=1e-12)
    assert_close(out.logits[1, where:], decode(weights_of(model), ids[1, 5 + where :].tolist()), tolerance=1e-10)
    assert out.memory.length.tolist() == [10, 5 - where]


def test_streaming_in_any_chunks_with_ragged_rows_equals_the_loops() -> None:
    model = make_model(LSTM)
    ids = random_ids(2, 9)
    cache = model.new_cache(2)
    n_bytes = cache.nbytes
    with torch.no_grad():
        first = model.logits(model.advance(ids[:, :4], cache, lengths=torch.tensor([4, 1])))
        both = torch.stack([ids[0, 4:9], ids[1, 1:6]])
        second = model.logits(model.advance(both, cache, lengths=torch.tensor([5, 2])))
    assert cache.age.tolist() == [9, 3]
    assert cache.nbytes == n_bytes
    assert_close(torch.cat([first[0], second[0]]), decode(weights_of(model), ids[0].tolist()), tolerance=1e-10)
    assert_close(
        torch.cat([first[1, :1], second[1, :2]]), decode(weights_of(model), ids[1, :3].tolist()), tolerance=1e-10
    )


def test_every_parameter_gets_a_gradient_and_ignored_targets_count_nothing() -> None:
    model = make_model(replace(LSTM, cutoffs=(4, 9), div_val=2, dropout=0.2)).train()
    targets = torch.tensor([[1, 2, -100, 3, 0], [-100, -100, 2, 2, 2]])
    nll = model(random_ids(2, 5), targets=targets).nll
    assert torch.equal(nll == 0, targets == -100)
    nll.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_memory_of_another_batch_size_is_refused() -> None:
    model = make_model(LSTM)
    memory = model(random_ids(2, 5)).memory
    with pytest.raises(ValueError, match="memory has 2 rows but ids has 3"):
        model(random_ids(3, 5), memory)
    assert isinstance(memory.select([1]), Memory)
    assert model.reach(5) is None
