"""Texts whose best perplexity is known: a model that learns must come near it, and more memory must never hurt."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

import txl
from txl.config import ModelConfig
from txl.model import Model, build_model

TOY = ModelConfig(n_layer=1, d_model=24, n_head=2, d_head=12, d_inner=32, tgt_len=8, mem_len=16, pre_lnorm=True)


def learned(config: ModelConfig, vocab_size: int, make_text: Callable[[int], Tensor], *, steps: int) -> Model:
    """A model after one step a segment of texts int64 B×65, each read in eight segments with its memory."""
    model = build_model(config, vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(steps // 8):
        text, memory = make_text(number), None
        for start in range(0, 64, 8):
            part = text[:, start : start + 9]
            out = model(part[:, :-1], memory, targets=part[:, 1:])
            memory = out.memory
            optimizer.zero_grad()
            out.nll.mean().backward()
            optimizer.step()
    return model.eval()


def perplexity(model: Model, text: Tensor, *, window: int) -> float:
    """Of the tokens after the first 24 of a text int64 N."""
    return math.exp(float(txl.evaluate(model, text, window=window).nll[24:].mean()))


def test_targets_are_shifted_once_so_that_abcabc_is_learned() -> None:
    text = torch.arange(200) % 3
    model = learned(TOY, 3, lambda number: text[number % 3 :][:65].expand(4, -1), steps=160)
    assert perplexity(model, text, window=16) < 1.05


def test_more_memory_never_makes_a_trained_model_worse() -> None:
    """Random texts that repeat themselves every nine tokens: what comes next stands eight back."""

    def repeated(number: int) -> Tensor:
        draw = torch.Generator().manual_seed(number)
        return torch.randint(0, 11, (8, 9), generator=draw).repeat(1, 8)[:, :65]

    model = learned(TOY, 11, repeated, steps=480)
    text = torch.cat([repeated(-1)[row] for row in range(8)])
    found = [perplexity(model, text, window=window) for window in (4, 8, 10, 12, 16)]
    assert all(more <= 1.01 * less for less, more in pairwise(found)), found
    assert found[1] < 0.5 * found[0]
