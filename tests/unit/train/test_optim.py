"""Rates against hand-computed numbers, decay groups by name, AdamW's first step by hand, moments by name."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from txl.checkpoint import CheckpointError
from txl.config import ModelConfig, OptimConfig
from txl.model import build_model
from txl.train.optim import (
    build_optimizer,
    decayed_parameters,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)

TINY = ModelConfig(n_layer=2, d_model=10, n_head=3, d_head=4, d_inner=14, tgt_len=5, mem_len=7)
COSINE = OptimConfig(lr=0.8, min_lr=0.2, schedule="cosine", warmup_steps=4)


@pytest.mark.parametrize(
    ("step", "rate"),
    # w = 4, N = 12: a quarter of the half-wave after 2 of 8 steps, its middle after 4, its end after 8.
    [(0, 0.0), (1, 0.2), (3, 0.6), (4, 0.8), (6, 0.2 + 0.3 * (1 + math.sqrt(0.5))), (8, 0.5), (12, 0.2), (13, 0.2)],
)
def test_cosine_rises_to_the_peak_at_step_w_and_ends_at_min_lr(step: int, rate: float) -> None:
    assert learning_rate(step, COSINE, 12) == pytest.approx(rate, abs=1e-15)


@pytest.mark.parametrize(("step", "rate"), [(0, 0.0), (1, 0.2), (3, 0.6), (4, 0.8), (5, 0.8), (12, 0.8), (13, 0.8)])
def test_constant_stays_at_the_full_rate_after_warm_up(step: int, rate: float) -> None:
    config = OptimConfig(lr=0.8, schedule="constant", warmup_steps=4)
    assert learning_rate(step, config, 12) == pytest.approx(rate, abs=1e-15)


@pytest.mark.parametrize(
    ("step", "rate"), [(1, 0.2), (3, 0.6), (4, 0.8), (5, 0.8 * 2 / math.sqrt(5)), (16, 0.4), (64, 0.25), (65, 0.25)]
)
def test_inverse_sqrt_halves_when_the_step_is_four_times_w_and_never_falls_below_min_lr(step: int, rate: float) -> None:
    config = OptimConfig(lr=0.8, min_lr=0.25, schedule="inverse_sqrt", warmup_steps=4)
    assert learning_rate(step, config, 64) == pytest.approx(rate, abs=1e-15)


@pytest.mark.parametrize("schedule", ["cosine", "constant", "inverse_sqrt"])
def test_without_warm_up_the_first_step_takes_what_the_schedule_says(schedule: str) -> None:
    config = OptimConfig(lr=0.8, schedule=schedule, warmup_steps=0)  # type: ignore[arg-type]
    expected = {"cosine": 0.4 * (1 + math.cos(math.pi / 10)), "constant": 0.8, "inverse_sqrt": 0.8}[schedule]
    assert learning_rate(1, config, 10) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("schedule", ["cosine", "constant", "inverse_sqrt"])
def test_no_schedule_jumps_at_the_end_of_warm_up(schedule: str) -> None:
    config = OptimConfig(lr=1.0, schedule=schedule, warmup_steps=50)  # type: ignore[arg-type]
    rates = [learning_rate(step, config, 1000) for step in range(1001)]
    assert max(abs(a - b) for a, b in pairwise(rates)) <= 1 / 50 + 1e-12
    assert max(rates) == 1.0 == rates[50]


def test_decay_touches_matrices_alone() -> None:
    model = build_model(replace(TINY, tie_weight=False), vocab_size=11)
    decayed = decayed_parameters(model)
    assert decayed == {
        "head.weights.0",
        *(
            f"stack.layers.{i}.{name}.weight"
            for i in range(2)
            for name in (
                *(f"attention.{kind}_proj" for kind in "qkvro"),
                "feed_forward.in_proj",
                "feed_forward.out_proj",
            )
        ),
    }


def test_clusters_and_projections_decay_and_narrow_tables_do_not() -> None:
    config = replace(TINY, cutoffs=(4, 7), div_val=2, d_embed=8, tie_weight=False, tie_projs="none")
    names = {name.removeprefix("stack.") for name in decayed_parameters(build_model(config, vocab_size=11))}
    assert {name for name in names if not name.startswith("layers")} == {
        "head.cluster_weight",
        *(f"{kind}.{i}" for kind in ("embedding.projections", "head.projections", "head.weights") for i in range(3)),
    }


@pytest.mark.parametrize("position", ["learned", "shaw"])
def test_tables_of_positions_do_not_decay(position: str) -> None:
    config = replace(TINY, position=position, mem_len=0 if position == "learned" else 7)
    decayed = decayed_parameters(build_model(config, vocab_size=11))
    assert not [name for name in decayed if "table" in name or "embedding" in name]


def test_a_matrix_tied_to_the_embedding_does_not_decay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 7, bias=False)
            self.embedding = nn.Embedding(7, 3)
            self.out.weight = self.embedding.weight
            self.inner = nn.Linear(3, 3)

    assert decayed_parameters(Tied()) == {"inner.weight"}


def test_the_first_step_is_adamws_by_hand() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(3.0)
    optimizer = build_optimizer(model, OptimConfig(lr=0.5, weight_decay=0.1, beta1=0.9, beta2=0.99, eps=1e-8))
    set_learning_rate(optimizer, 0.01)
    model.weight.grad, model.bias.grad = torch.tensor([[4.0, -0.5]]), torch.tensor([2.0])
    optimizer.step()
    # Bias-corrected moments of a first step give lr * sign(gradient); decay takes lr * 0.1 of the matrix, none of the
    # bias.
    torch.testing.assert_close(
        model.weight.detach(), torch.tensor([[1.0 * 0.999 - 0.01, -2.0 * 0.999 + 0.01]]), atol=1e-7, rtol=0
    )
    torch.testing.assert_close(model.bias.detach(), torch.tensor([2.99]), atol=1e-7, rtol=0)


def train_a_little(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        out = model(torch.arange(5)[None] + step, targets=torch.arange(5)[None])
        out.nll.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_moments_by_name_go_on_bit_for_bit() -> None:
    model = build_model(TINY, vocab_size=11)
    optimizer = build_optimizer(model, OptimConfig())
    train_a_little(model, optimizer, 3)
    twin = build_model(TINY, vocab_size=11)
    twin.load_state_dict(model.state_dict())
    other = build_optimizer(twin, OptimConfig())
    state = optimizer_state(model, optimizer)
    assert set(state) == {f"{k}.{n}" for n, _ in model.named_parameters() for k in ("exp_avg", "exp_avg_sq", "step")}
    load_optimizer_state(twin, other, state)
    train_a_little(model, optimizer, 2)
    train_a_little(twin, other, 2)
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_loaded_moments_are_copies() -> None:
    model = build_model(TINY, vocab_size=11)
    optimizer = build_optimizer(model, OptimConfig())
    train_a_little(model, optimizer, 1)
    state = {name: tensor.clone() for name, tensor in optimizer_state(model, optimizer).items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    load_optimizer_state(model, optimizer, state)
    train_a_little(model, optimizer, 1)
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_moments_of_another_model_are_refused_by_name() -> None:
    model = build_model(TINY, vocab_size=11)
    optimizer = build_optimizer(model, OptimConfig())
    train_a_little(model, optimizer, 1)
    state = optimizer_state(model, optimizer)
    with pytest.raises(CheckpointError, match=r"exp_avg.nowhere.weight of shape \(2,\) belongs to no parameter"):
        load_optimizer_state(model, optimizer, {**state, "exp_avg.nowhere.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"exp_avg.head.biases.0 of shape \(9,\) belongs to no parameter"):
        load_optimizer_state(model, optimizer, {**state, "exp_avg.head.biases.0": torch.zeros(9)})
    some = {name: tensor for name, tensor in state.items() if not name.endswith("head.biases.0")}
    with pytest.raises(CheckpointError, match=r"no state for head\.biases\.0"):
        load_optimizer_state(model, optimizer, some)
    load_optimizer_state(model, optimizer, {})  # a checkpoint from before the first step
