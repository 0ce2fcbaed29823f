"""Laws of the loss, each named by its sentence: order of the nll, ignored targets, a gradient for every parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests import reference
from tests.models import BASE, TOLERANCE, VOCAB, assert_close, make_model, random_ids, weights_of, window_of
from tests.options import both_dtypes, every_model
from txl.config import ModelConfig
from txl.model import softmax


@every_model
@both_dtypes
def test_law_11_nll_comes_in_input_order_and_equals_minus_the_log_probability(
    config: ModelConfig, dtype: torch.dtype
) -> None:
    model = make_model(config, dtype=dtype)
    ids = random_ids(2, 5)
    targets = torch.tensor([[0, 12, 5, 9, 3], [11, 1, 2, 12, 0]])
    out = model(ids, targets=targets)
    log_probability = model(ids).logits.log_softmax(-1).detach()
    assert out.logits is None
    assert out.nll.dtype == dtype
    expected = torch.tensor([[-log_probability[b, t, targets[b, t]] for t in range(5)] for b in range(2)])
    assert_close(out.nll, expected.to(dtype), tolerance=TOLERANCE[dtype])
    for row in range(2):
        scores = reference.decode(config, weights_of(model), ids[row].tolist(), window=window_of(config)).logits
        shares = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        assert_close(log_probability[row], shares, tolerance=TOLERANCE[dtype])
    assert_close(log_probability.exp().sum(-1), torch.ones(2, 5), tolerance=TOLERANCE[dtype])


@every_model
def test_law_12_ignored_targets_count_in_neither_numerator_nor_denominator(config: ModelConfig) -> None:
    model = make_model(config)
    ids = random_ids(2, 5)
    targets = random_ids(2, 5, seed=2)
    full = model(ids, targets=targets).nll
    half = targets.clone()
    half[:, ::2] = -100
    nll = model(ids, targets=half).nll
    assert_close(nll[:, 1::2], full[:, 1::2], tolerance=1e-13)  # a product of fewer rows may round otherwise
    assert torch.equal(nll[:, ::2], torch.zeros(2, 3, dtype=torch.float64))


@every_model
def test_law_12_an_all_ignored_batch_gives_0_and_zero_gradients(config: ModelConfig) -> None:
    model = make_model(config)
    nll = model(random_ids(2, 5), targets=torch.full((2, 5), -100)).nll
    assert nll.sum() == 0
    nll.sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter)), name


@every_model
@both_dtypes
@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize("with_memory", [False, True])
def test_law_13_every_parameter_gets_a_gradient_on_every_step(
    config: ModelConfig, dtype: torch.dtype, n_tokens: int, with_memory: bool
) -> None:
    model = make_model(config, dtype=dtype).train()
    memory = model(random_ids(2, 5)).memory if with_memory else None
    model(random_ids(2, n_tokens), memory, targets=random_ids(2, n_tokens, seed=3)).nll.sum().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert missing == []
    assert len(model.state_dict()) == len(list(model.parameters()))  # none serves twice, under two names
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_gradient_of_a_segment_treats_memory_as_a_constant() -> None:
    """Finite differences of the second segment's loss, its memory held fixed (stop-gradient, section 3.2)."""
    model = make_model(replace(BASE, d_inner=6))
    ids = random_ids(1, 10)
    memory = model(ids[:, :5]).memory
    weight = model.stack.layers[0].attention.k_proj.weight

    def loss() -> torch.Tensor:
        return model(ids[:, 5:9], memory, targets=ids[:, 6:10]).nll.sum()

    loss().backward()
    for index in ((0, 0), (7, 3), (11, 9)):
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight[index] += step
                ends.append(loss().item())
                weight[index] -= step
        assert abs((ends[0] - ends[1]) / 2e-6 - weight.grad[index].item()) < 1e-6


def test_a_uniform_model_scores_log_v_on_every_token() -> None:
    model = make_model(BASE)
    with torch.no_grad():
        model.head.biases[0].zero_()
        model.stack.embedding.tables[0].zero_()
    nll = model(random_ids(2, 5), targets=random_ids(2, 5)).nll
    assert_close(nll, torch.full((2, 5), VOCAB).double().log(), tolerance=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("div_val", [1, 2, 4])
@pytest.mark.parametrize("targets", [[[0, 1, 2]], [[5, 6, 12]], [[3, 4, 12]], [[-100, 9, -100]]])
def test_law_13_clusters_without_targets_get_zero_gradients_and_bf16_stays_finite(
    div_val: int, targets: list[list[int]], autocast: bool, tied: bool
) -> None:
    projections = "all" if tied else "none"
    config = replace(BASE, cutoffs=(4, 9), div_val=div_val, d_embed=16, tie_weight=tied, tie_projs=projections)
    model = make_model(config, dtype=torch.float32 if autocast else torch.bfloat16).train()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        nll = model(torch.tensor([[0, 1, 2]]), targets=torch.tensor(targets)).nll
    assert nll.dtype == torch.float32
    nll.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    hit = {sum(target >= cut for cut in (4, 9)) for target in targets[0] if target >= 0}
    for index, table in enumerate(model.stack.embedding.tables if tied else model.head.weights):
        assert index == 0 or bool(table.grad.any()) == (index in hit)


class LargestTensor(TorchDispatchMode):
    """Inside, remembers the numbers of the largest tensor that any operation gives, forward or backward."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))])
        return out


@pytest.mark.parametrize("first", [0, 1900, 267_650])
def test_a_training_step_at_267735_words_makes_no_tensor_of_positions_times_vocabulary(first: int) -> None:
    """Targets in the head, in the head and the first tail, in the last tail: only these clusters are scored, and only
    for the positions whose targets lie there."""
    config = replace(BASE, cutoffs=(2000, 20_000), div_val=4, d_embed=16)
    model = make_model(config, dtype=torch.float32, vocab=267_735).train()
    ids = torch.arange(first, first + 2 * 40).view(2, 40)
    targets = ids + 1 if first < 20_000 else (ids + 1).where(ids % 40 == 0, 7)  # two in the last tail
    with LargestTensor() as largest:
        model(ids, targets=targets).nll.sum().backward()
    tables = max(parameter.numel() for parameter in model.parameters())
    assert tables == 247_735 < 2 * 40 * 20_000
    assert largest.numel <= (2 * tables if first > 20_000 else 2 * 40 * 18_000)


@pytest.mark.parametrize("cutoffs", [(), (4, 9)])
def test_a_loss_in_pieces_is_the_same_loss_with_the_same_gradients(
    cutoffs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """19 targets of 13 words, some ignored; pieces of two rows of the largest cluster, the last one shorter."""
    config = replace(BASE, cutoffs=cutoffs)
    hidden = torch.randn(1, 19, BASE.d_model, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    targets = random_ids(1, 19).masked_fill(torch.arange(19) % 5 == 2, -100)
    found = []
    for most in (1 << 25, 2 * 13):
        monkeypatch.setattr(softmax, "SCORES_AT_ONCE", most)
        model, x = make_model(config), hidden.clone().requires_grad_()
        with LargestTensor() as largest:
            nll = model.nll(x, targets)
            nll.sum().backward()
        found.append([nll, x.grad, *(parameter.grad for parameter in model.head.parameters())])
        with torch.no_grad():
            assert torch.equal(model.nll(hidden, targets), nll)
    assert largest.numel <= 19 * BASE.d_model  # nothing of 19 positions by 13 words
    for left, right in zip(*found, strict=True):
        assert_close(left, right, tolerance=1e-12)
