"""Muon's step against torch's own and against singular values; many matrices at once against each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from txl.train import muon
from txl.train.muon import Muon, orthogonal, side_by_side

SHAPES = ((8, 8), (24, 8), (8, 24), (8, 8), (24, 8), (8, 8))


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=draw, dtype=dtype)) for shape in SHAPES]


def give_gradients(matrices: list[nn.Parameter], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for matrix in matrices:
        matrix.grad = torch.randn(matrix.shape, generator=draw, dtype=matrix.dtype)


@pytest.fixture
def without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not multiply bf16, whatever this one does."""
    monkeypatch.setattr(muon, "multiplies_bf16", lambda device: False)


@pytest.mark.parametrize("bf16", [False, True])
def test_steps_are_those_of_torchs_muon_up_to_its_bf16(bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "multiplies_bf16", lambda device: bf16)
    ours, theirs = parameters(), parameters()
    both = (
        Muon(ours, lr=0.1, momentum=0.9, weight_decay=0.3),
        torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.3),
    )
    for seed in range(4):
        for matrices, optimizer in zip((ours, theirs), both, strict=True):
            give_gradients(matrices, seed)
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        # four steps of 0.1 (0.17 where there are three rows a column), bf16 has eight bits
        torch.testing.assert_close(a, b, atol=1e-6 if bf16 else 0.02, rtol=0)


@pytest.mark.usefixtures("without_bf16")
@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_orthogonal_keeps_directions_and_makes_all_singular_values_about_one(shape: tuple[int, int]) -> None:
    gradient = torch.randn((1, *shape), dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    left, values, right = torch.linalg.svd(gradient[0], full_matrices=False)
    assert values.max() / values.min() > 2
    inner = left.T @ orthogonal(gradient)[0] @ right.T
    assert 0.6 < inner.diagonal().min() <= inner.diagonal().max() < 1.3
    assert (inner - inner.diagonal().diag()).abs().max() < 1e-9


@pytest.mark.usefixtures("without_bf16")
def test_a_matrix_comes_out_alike_alone_or_among_others_whatever_their_sizes() -> None:
    many = torch.randn(5, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    many *= torch.logspace(-9, 9, 5, dtype=torch.float64)[:, None, None]
    alone = torch.cat([orthogonal(one[None]) for one in many])
    torch.testing.assert_close(orthogonal(many), alone, atol=1e-12, rtol=0)
    assert orthogonal(torch.zeros(2, 3, 3)).tolist() == torch.zeros(2, 3, 3).tolist()


def test_only_matrices_of_one_shape_stand_side_by_side_and_no_more_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = parameters()
    monkeypatch.setattr(muon, "BYTES_AT_ONCE", 2 * 8 * 8 * 4)
    groups = list(side_by_side(matrices))
    assert sorted(len(group) for group in groups) == [1, 1, 1, 1, 2]
    assert all(len({matrix.shape for matrix in group}) == 1 for group in groups)
    assert {id(matrix) for group in groups for matrix in group} == {id(matrix) for matrix in matrices}


def test_a_matrix_without_a_gradient_stays_as_it_is() -> None:
    matrices = parameters()
    before = [matrix.detach().clone() for matrix in matrices]
    give_gradients(matrices, 1)
    matrices[2].grad = None
    Muon(matrices, lr=0.1, momentum=0.9, weight_decay=0.5).step()
    moved = [not torch.equal(a, b) for a, b in zip(matrices, before, strict=True)]
    assert moved == [True, True, False, True, True, True]


def test_products_are_in_bf16_where_the_device_multiplies_it_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    product = torch.baddbmm

    def noted(*tensors: Tensor, **factors: Any) -> Tensor:
        seen.append(tensors[1].dtype)
        out: Tensor = product(*tensors, **factors)
        return out

    monkeypatch.setattr(torch, "baddbmm", noted)
    for multiplies in (False, True):
        monkeypatch.setattr(muon, "multiplies_bf16", lambda device, multiplies=multiplies: multiplies)
        orthogonal(torch.randn(1, 4, 4))
    half = len(seen) // 2
    assert set(seen[:half]) == {torch.float32}
    assert set(seen[half:]) == {torch.bfloat16}
