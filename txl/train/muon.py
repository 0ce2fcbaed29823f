"""Muon: a matrix moves by its momentum made orthogonal, so that it learns alike in all directions (Jordan 2024).

Gradients of matrices -> the matrices' next values. The products are in bf16 where the device multiplies it natively
and else in the matrices' own precision: bf16 emulated is some fifty times slower than float32. Matrices of one shape
are multiplied side by side. Knows nothing of models, schedules or of what other parameters do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from txl.runtime import multiplies_bf16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a·s + b·s³ + c·s⁵ that drives every singular value s of (0, 1] to about 1: Jordan's."""
ITERATIONS = 5
SMALLEST_NORM = 1e-7
BYTES_AT_ONCE = 32 << 20
"""Of matrices multiplied side by side; a larger matrix is multiplied alone."""


class Muon(torch.optim.Optimizer):
    """Momentum B ← μB + (1 - μ)G of each matrix's gradient G; the matrix W, decoupled decay λ and rate η:

    W ← (1 - ηλ)W - η·√max(1, rows/columns)·orthogonal((1 - μ)G + μB), the look ahead being Nesterov's.

    The state of a matrix is `momentum_buffer`, of its shape.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for matrices in side_by_side([matrix for matrix in group["params"] if matrix.grad is not None]):
                directions = torch.stack([self._direction(matrix, group["momentum"]) for matrix in matrices])
                rows, columns = matrices[0].shape
                rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                for matrix, direction in zip(matrices, orthogonal(directions), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(direction, alpha=-rate)

    def _direction(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        """Where the matrix's momentum leads, this step's gradient in it."""
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        return gradient.lerp(state["momentum_buffer"].lerp_(gradient, 1 - momentum), momentum)


def side_by_side(matrices: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The matrices in groups of one shape, as many in a group as BYTES_AT_ONCE hold."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for same in by_shape.values():
        count = max(1, BYTES_AT_ONCE // max(1, same[0].nbytes))
        yield from (same[at : at + count] for at in range(0, len(same), count))


def orthogonal(matrices: Tensor) -> Tensor:
    """N×R×C -> N×R×C: each matrix USVᵀ becomes nearly UVᵀ, its singular values within about 0.7 and 1.2.

    By ITERATIONS of Newton-Schulz, which multiplies alone; values below about a thousandth of a matrix's norm come out
    smaller.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.to(torch.bfloat16) if multiplies_bf16(matrices.device.type) else matrices
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)
