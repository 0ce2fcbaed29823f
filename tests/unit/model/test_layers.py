"""The stack of layers: activations that are computed again in the backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.models import make_model, random_ids
from tests.options import FEW, label
from txl.config import ModelConfig


@pytest.mark.parametrize("config", FEW, ids=label)
def test_activations_computed_again_give_the_same_loss_memory_and_gradients(config: ModelConfig) -> None:
    """To the last bit, behind memory, with a reset, and with dropout drawn alike."""
    found = []
    resets = torch.zeros(2, 5, dtype=torch.bool)
    resets[1, 3] = True
    for again in (False, True):
        model = make_model(replace(config, dropout=0.3, dropatt=0.2, activation_checkpointing=again)).train()
        torch.manual_seed(3)
        memory = model(random_ids(2, 5)).memory
        out = model(random_ids(2, 5, seed=4), memory, targets=random_ids(2, 5, seed=2), resets=resets)
        out.nll.sum().backward()
        found.append([out.nll, *out.memory.layers, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
