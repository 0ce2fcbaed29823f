"""8-bit weights: rounded to the nearest of 255 levels a row, used exactly so, the same for every batch and chunk."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import BASE, assert_close, make_model, random_ids
from txl.infer import Session
from txl.model.int8 import Int8Linear, to_int8
from txl.model.kernels.linear import Linear


def test_a_row_is_rounded_to_the_nearest_level_by_hand() -> None:
    layer = nn.Linear(3, 3, bias=False)
    layer.weight.data = torch.tensor([[127.0, -63.6, 0.4], [0.0, 0.0, 0.0], [-2.54, 1.27, 0.011]])
    small = Int8Linear(layer)
    assert small.weight.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 64, 1]]
    assert small.scale[[0, 2]].tolist() == pytest.approx([1.0, 0.02])


@pytest.mark.parametrize("n_rows", [1, 3, 15, 16, 40])
def test_products_are_those_of_the_rounded_weights(n_rows: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 32)
    small = Int8Linear(layer)
    rounded = small.weight.double() * small.scale.double()[:, None]
    x = torch.randn(n_rows, 24)
    assert_close(small(x), F.linear(x.double(), rounded, layer.bias.double()), tolerance=1e-5)
    assert (rounded - layer.weight).abs().max() <= small.scale.max() / 2 * 1.001


def test_a_session_of_8_bit_weights_does_not_depend_on_chunks_or_batch() -> None:
    model = make_model(BASE, dtype=torch.float32).eval()
    exact = Session(model).feed(random_ids(1, 40))
    to_int8(model)
    assert not any(isinstance(module, Linear) for module in model.modules())
    ids = random_ids(3, 40)
    whole = Session(model, batch_size=3).feed(ids)
    session = Session(model)
    parts = torch.cat([session.feed(part) for part in ids[:1].split([1, 20, 2, 17], dim=1)], dim=1)
    assert_close(parts[:, 1:], whole[:1, 1:].double(), tolerance=1e-5)
    away = (Session(model).feed(random_ids(1, 40)) - exact).abs()[:, 1:]
    assert 1e-5 < away.mean() < 0.1
