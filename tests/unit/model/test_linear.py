"""Products by oneDNN equal torch's with all gradients, and are chosen only where they exist, are exact and faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.models import BASE, assert_close, make_model, random_ids
from txl.model.kernels import linear as products


@pytest.fixture(autouse=True)
def _back_to_auto() -> Iterator[None]:
    yield
    products.use_products("auto")
    products.probe.cache_clear()


def leaves(n_rows: int, *, strided: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n_rows, 3, 14, generator=draw)[..., ::2] if strided else torch.randn(n_rows, 3, 7, generator=draw)
    weight, bias = torch.randn(5, 7, generator=draw), torch.randn(5, generator=draw)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_and_its_gradients_equal_those_in_float64(has_bias: bool, strided: bool) -> None:
    products.use_products("onednn")
    x, weight, bias = leaves(11, strided=strided)
    inputs = [x, weight, bias][: 2 + has_bias]
    found = products.linear(*inputs)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = F.linear(*exact)
    assert type(found.grad_fn).__name__ == "_ProductBackward"
    assert_close(found, expected, tolerance=1e-6)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    pairs = zip(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, exact, grad.double()), strict=True
    )
    for left, right in pairs:
        assert_close(left, right, tolerance=1e-5)


def test_few_rows_other_dtypes_and_autocast_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    products.use_products("onednn")
    monkeypatch.setattr(products, "onednn", None)  # calling it would fail
    x, weight, bias = leaves(5, strided=False)
    assert torch.equal(products.linear(x, weight, bias), F.linear(x, weight, bias))
    many, wide, long = leaves(30, strided=False)
    assert products.linear(many.double(), wide.double(), long.double()).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert products.linear(many, wide, long).dtype == torch.bfloat16


def test_the_probe_chooses_by_speed_exactness_and_existence(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(own: float, theirs: float) -> str:
        products.probe.cache_clear()
        clock = iter([own, theirs] * 15)
        monkeypatch.setattr(products, "seconds_of", lambda call: next(clock))
        return products.chosen()

    assert answer(2.0, 1.0) == "onednn"
    assert answer(1.3, 1.0) == "torch"
    monkeypatch.setattr(products, "onednn", lambda x, weight, bias: F.linear(x, weight) + 0.01)
    assert answer(2.0, 1.0) == "torch"

    def missing(*_: Any) -> None:
        raise AttributeError

    monkeypatch.setattr(products, "onednn", missing)
    assert answer(2.0, 1.0) == "torch"
    products.use_products("onednn")
    assert products.chosen() == "onednn"


def test_a_model_trains_the_same_by_either() -> None:
    ids = random_ids(3, 12)
    found = []
    for name in ("torch", "onednn"):
        products.use_products(name)
        model = make_model(BASE, dtype=torch.float32)
        out = model(ids[:, :-1], targets=ids[:, 1:])
        out.nll.mean().backward()
        found.append([out.nll, *(p.grad for p in model.parameters())])
    for left, right in zip(*found, strict=True):
        assert_close(left, right, tolerance=1e-5)
