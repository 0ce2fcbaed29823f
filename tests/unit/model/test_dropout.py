"""What drops out: positions, attention weights, and under locked dropout the same features at every position."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.models import BASE, make_model, random_ids
from txl.model.dropout import Dropout


def test_locked_dropout_keeps_one_mask_for_all_positions() -> None:
    x = torch.ones(3, 50, 40)
    locked = Dropout(0.5, locked=True).train()(x)
    assert torch.equal(locked, locked[:, :1].expand_as(x))
    assert set(locked.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(locked[0], locked[1])
    free = Dropout(0.5).train()(x)
    assert not torch.equal(free, free[:, :1].expand_as(x))
    assert Dropout(0.5).eval()(x) is x


def test_dropout_falls_on_positions_as_on_embeddings() -> None:
    model = make_model(replace(BASE, dropout=0.5))
    like = torch.zeros(1, dtype=torch.float64)
    plain = model.stack.geometry(200, like).R
    dropped = model.train().stack.geometry(200, like).R
    assert plain is not None
    assert dropped is not None
    kept = dropped != 0
    assert torch.equal(dropped[kept], 2 * plain[kept])
    assert 0.4 < kept.double().mean() < 0.6
    assert not torch.equal(model.stack.geometry(200, like).R, dropped)


def test_dropout_on_attention_weights_is_for_training_alone() -> None:
    model = make_model(replace(BASE, dropatt=0.5))
    ids = random_ids(2, 5)
    assert torch.equal(model(ids).logits, make_model(BASE)(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)
