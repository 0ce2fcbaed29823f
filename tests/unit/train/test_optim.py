"""Decay groups by name, first steps of AdamW and Muon by hand, averages, moments by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from txl.checkpoint import CheckpointError
from txl.config import ModelConfig, OptimConfig
from txl.model import build_model
from txl.train.optim import (
    average_weights,
    averaged,
    build_optimizer,
    decayed_parameters,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)

TINY = ModelConfig(n_layer=2, d_model=10, n_head=3, d_head=4, d_inner=14, tgt_len=5, mem_len=7)


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
    tied, untied = (decayed_parameters(build_model(replace(TINY, tie_weight=tied), 11)) for tied in (True, False))
    assert untied - tied == {"head.weights.0"}


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


MUON = OptimConfig(name="muon", lr=0.5, muon_lr=0.1, muon_momentum=0.9, weight_decay=0.2)


@pytest.mark.parametrize("arch", ["transformer_xl", "lstm"])
def test_muon_has_the_matrices_of_the_layers_and_nothing_else(arch: str) -> None:
    lstm = ModelConfig(arch="lstm", position="none", mem_len=0, n_layer=2, d_model=10, tgt_len=5, tie_weight=False)
    model = build_model(lstm if arch == "lstm" else replace(TINY, tie_weight=False), vocab_size=11)
    optimizer = build_optimizer(model, MUON)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [{names[parameter] for parameter in group["params"]} for group in optimizer.param_groups]
    assert sum(map(len, groups)) == len(names)
    assert groups[0] == decayed_parameters(model) - {"head.weights.0"}
    assert len(groups[0]) == (4 if arch == "lstm" else 14)
    assert groups[1] == {"head.weights.0"}
    set_learning_rate(optimizer, 0.25)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (0.25 * (0.1 / 0.5), 0.2),  # half of its peak, as the others
        (0.25, 0.2),
        (0.25, 0.0),
    ]


def test_muons_first_step_is_an_orthogonal_matrix_and_adamws_beside_it_is_its_own() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(3, 3)])
    weight, bias = model.layers[0].weight, model.layers[0].bias
    before = weight.detach().clone(), bias.detach().clone()
    optimizer = build_optimizer(model, MUON)
    set_learning_rate(optimizer, 0.5)
    # a gradient with singular values 4, 2 and 1 between two rotations
    left, right = (torch.linalg.qr(torch.randn(3, 3)).Q for _ in range(2))
    weight.grad, bias.grad = left @ torch.diag(torch.tensor([4.0, 2.0, 1.0])) @ right.T, torch.tensor([1.0, -2.0, 3.0])
    optimizer.step()
    step = (before[0] * (1 - 0.1 * 0.2) - weight.detach()) / 0.1
    values = torch.linalg.svdvals(step)  # Newton-Schulz: all within about 0.7 and 1.2, whatever they were
    assert 0.6 < values.min() <= values.max() < 1.3
    assert (left.T @ step @ right).diagonal().min() > 0.6  # in the gradient's own directions
    torch.testing.assert_close(bias.detach(), before[1] - 0.5 * bias.grad.sign(), atol=1e-5, rtol=0)


def test_the_average_is_that_of_the_weights_and_is_there_inside_alone() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = build_optimizer(model, OptimConfig())
    for value, decay in ((1.0, 0.5), (3.0, 0.5), (4.0, 0.75)):
        with torch.no_grad():
            model.weight.fill_(value)
        average_weights(model.parameters(), optimizer, decay)
    # 1; then 1/2 + 3/2 = 2; then 3/4 of 2 and 1/4 of 4
    with averaged(model.parameters(), optimizer):
        assert model.weight.tolist() == [[2.5, 2.5]]
        assert model.weight.requires_grad
    assert model.weight.tolist() == [[4.0, 4.0]]
    with pytest.raises(KeyError), averaged(model.parameters(), optimizer):
        raise KeyError
    assert model.weight.tolist() == [[4.0, 4.0]]
    assert optimizer_state(model, optimizer)["average.weight"].tolist() == [[2.5, 2.5]]
    with averaged(nn.Linear(2, 1).parameters(), optimizer):  # no average yet: the weights themselves
        pass


def train_a_little(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        out = model(torch.arange(5)[None] + step, targets=torch.arange(5)[None])
        out.nll.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_by_name_go_on_bit_for_bit(name: Any) -> None:
    config = OptimConfig(name=name)
    model = build_model(TINY, vocab_size=11)
    optimizer = build_optimizer(model, config)
    train_a_little(model, optimizer, 3)
    average_weights(model.parameters(), optimizer, 0.5)
    twin = build_model(TINY, vocab_size=11)
    twin.load_state_dict(model.state_dict())
    other = build_optimizer(twin, config)
    state = optimizer_state(model, optimizer)
    kinds = {
        name: {key.partition(".")[0] for key in state if key.endswith(f".{name}")} for name in parameter_names(model)
    }
    adamw = {"exp_avg", "exp_avg_sq", "step", "average"}
    muon = {"momentum_buffer", "average"}
    assert kinds.pop("head.biases.0") == adamw
    assert kinds.pop("stack.layers.1.attention.q_proj.weight") == (muon if name == "muon" else adamw)
    load_optimizer_state(twin, other, state)
    train_a_little(model, optimizer, 2)
    train_a_little(twin, other, 2)
    for (parameter, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b), parameter


def parameter_names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


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
