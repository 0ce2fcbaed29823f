"""Generators and memory go out and come back as they were."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models import BASE, VOCAB
from txl.config import Config, RuntimeConfig
from txl.model import Memory, build_model
from txl.runtime import Runtime
from txl.train.state import TrainState, gathered_memory, own_memory, rng_state, set_rng_state, undisturbed


def draw() -> list[float]:
    return [
        random.random(),
        random.gauss(),
        float(np.random.randn()),
        float(torch.rand(())),
        float(torch.randn(3).sum()),
    ]


def test_generators_go_on_after_a_trip_through_json() -> None:
    draw()
    state = json.loads(json.dumps(rng_state()))
    expected = draw()
    draw()
    set_rng_state(state)
    assert draw() == expected


@pytest.mark.parametrize(
    "damage", [{"torch": "zz"}, {"torch": ""}, {"python": [3, [1], None]}, {"numpy": [[1], 0, 0, 0.0]}]
)
def test_generators_that_cannot_be_restored_raise(damage: dict[str, object]) -> None:
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        set_rng_state({**rng_state(), **damage})


def test_what_is_drawn_inside_does_not_change_what_comes_after() -> None:
    state = rng_state()
    expected = draw()
    set_rng_state(state)
    with undisturbed():
        draw()
        torch.manual_seed(3)
    assert draw() == expected


def test_memory_of_all_streams_is_shared_out_in_rows_and_comes_back_in_their_order() -> None:
    runtime = Runtime.create(Config(runtime=RuntimeConfig(device="cpu")))
    model = build_model(BASE, VOCAB)
    memory = model(torch.randint(VOCAB, (6, 5))).memory
    parts = own_memory(memory.state_dict(), runtime, accumulate=3)
    assert [part.batch_size for part in parts if part is not None] == [2, 2, 2]
    assert torch.equal(parts[1].layers[0], memory.layers[0][2:4])  # type: ignore[union-attr]
    back = gathered_memory(parts, runtime)
    assert back.keys() == memory.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in memory.state_dict().items())
    assert gathered_memory((None, None), runtime) == {}
    assert own_memory({}, runtime, accumulate=2) == (None, None)


def test_memory_bytes_are_those_of_all_micro_batches() -> None:
    memory = Memory((torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)), torch.tensor([3, 3]))
    state = TrainState(memory=(memory, None, memory), position={"epoch": 0, "token": 0})
    assert state.memory_bytes == 2 * (2 * 30 * 4 + 2 * 8)


def test_nothing_of_the_run_is_ever_unpickled(tmp_path: Path) -> None:
    source = "".join(path.read_text() for path in (Path(__file__).parents[3] / "txl").rglob("*.py"))
    for word in ("import pickle", 'save_state("', 'load_state("', "all_gather_object", "gather_object("):
        assert word not in source
