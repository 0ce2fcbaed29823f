"""What a step of the real model costs: bytes against counting by hand, and steps that are not finite refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from txl.config import Config, apply_overrides
from txl.data import SegmentBatch
from txl.model import build_model
from txl.runtime import Runtime
from txl.train.mock import KeptForBackward, MockStep, mock_step

TINY = (
    "runtime.device=cpu runtime.precision=fp32 data.batch_size=6 train.accumulate=2 model.n_layer=2 model.d_model=16 "
    "model.n_head=3 model.d_head=5 model.d_inner=24 model.tgt_len=7 model.mem_len=10 optim.warmup_steps=4"
).split()


def step_of(*changes: str, world: int = 1, **model: Any) -> MockStep:
    """A mock step of a tiny model on six rows of seven random tokens."""
    config = apply_overrides(Config(), [*TINY, *changes])
    config = replace(config, model=replace(config.model, **model))
    ids = torch.randint(0, 11, (6, 8), generator=torch.Generator().manual_seed(2))
    batch = SegmentBatch(ids[:, :-1], ids[:, 1:], torch.zeros(6, 7, dtype=torch.bool))
    return mock_step(config, Runtime.create(config), build_model(config.model, 11), batch, world=world)


def test_memory_is_that_of_the_rows_of_one_process_and_what_backward_needs_that_of_one_micro_batch() -> None:
    whole, half, shared = step_of(), step_of("train.accumulate=3"), step_of(world=3)
    lengths = 8  # bytes of a row's age, int64
    assert whole.memory_bytes == half.memory_bytes == 6 * (2 * 10 * 16 * 4 + lengths)
    assert shared.memory_bytes == 2 * (2 * 10 * 16 * 4 + lengths)
    assert whole.activation_bytes > half.activation_bytes > shared.activation_bytes
    assert step_of(activation_checkpointing=True).activation_bytes < whole.activation_bytes


def test_the_optimizers_bytes_are_those_of_its_moments() -> None:
    adam, averaged = step_of(), step_of("optim.ema_decay=0.9")
    assert adam.optimizer_bytes == pytest.approx(2 * adam.weight_bytes, rel=0.01)
    assert averaged.optimizer_bytes == pytest.approx(3 * adam.weight_bytes, rel=0.01)


def test_what_is_kept_for_backward_is_counted_once_without_the_parameters() -> None:
    layer = torch.nn.Linear(3, 5)
    x, y = torch.ones(7, 3, requires_grad=True), torch.ones(7, 5, requires_grad=True)
    kept = KeptForBackward(layer)
    with kept:
        out = layer(x) * y * y
    assert kept.nbytes == 4 * 7 * (3 + 3 * 5)  # x, the layer's output, y, and the first product
    assert out.requires_grad


@pytest.mark.parametrize("number", [1, 2])
def test_steps_that_are_not_finite_are_told(number: int) -> None:
    wrong = {1: ["model.init_std=1e30"], 2: ["optim.lr=1e30", "optim.warmup_steps=0"]}[number]
    with pytest.raises(
        FloatingPointError, match=rf"mock step {number}: found loss .*; lower optim\.lr or model\.init_std"
    ):
        step_of(*wrong)
