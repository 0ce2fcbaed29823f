"""Under torch.compile the model is one graph whatever the age of its memory: no break, no recompilation, equal
numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from tests.models import BASE, assert_close, make_model, random_ids
from txl.model.attention import use_attention


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("position", ["relative", "shaw", "rotary", "alibi"])
@pytest.mark.filterwarnings("ignore")
def test_p24_no_silent_fall_back_one_graph_serves_memories_of_every_age(position: Any) -> None:
    config = replace(BASE, position=position)
    model = make_model(config, dtype=torch.float32)
    use_attention(model, "sdpa")
    compiled = torch.compile(model, backend="aot_eager", dynamic=False, fullgraph=True)
    ids = random_ids(2, 3 * BASE.tgt_len + 1)
    cold, memory = model.cold_memory(2), None
    for start in range(0, 3 * BASE.tgt_len, BASE.tgt_len):
        part = ids[:, start : start + BASE.tgt_len + 1]
        out = compiled(part[:, :-1], memory=cold, targets=part[:, 1:])
        plain = model(part[:, :-1], memory=memory, targets=part[:, 1:])
        assert_close(out.nll, plain.nll.double(), tolerance=1e-5)
        out.nll.mean().backward()
        cold, memory = out.memory, plain.memory
        assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert cold.length.tolist() == [7, 7]
