"""Attention through torch's fused kernels: position enters as an additive bias. For GPUs, and where nothing is learned
of distances.

Contract of `attend.attend`. The shifted bias is a strided view of the position product, padded to multiples of 8 so
that the memory-efficient kernel takes it without a copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.kernels import reference
from txl.model.kernels.blocked import by_key, spread
from txl.model.kernels.reference import visible
from txl.model.kernels.term import RelativeTerm, plus


def attend(q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None, keep: Tensor | None) -> Tensor:
    """The contract of `attend.attend`; a given `keep` needs the weights themselves, which only `reference` has."""
    if keep is not None:
        return reference.attend(q, k, v, term, first=first, keep=keep)
    n_queries, n_keys = q.shape[1], k.shape[1]
    scale = q.shape[-1] ** -0.5
    content, keys, values = (x.transpose(1, 2).to(v.dtype) for x in (plus(q, term.bias_u), k, v))
    bias = None
    if term.r is not None:
        query = (plus(q, term.bias_v) * scale).permute(2, 0, 1, 3).flatten(1, 2)
        product = torch.bmm(query, term.r.permute(1, 2, 0).to(query.dtype))
        shifted: Tensor = _Shift.apply(product.view(q.shape[2], q.shape[0], n_queries, n_keys))
        bias = shifted.transpose(0, 1)
    if term.bias is not None:
        bias = spread(term.bias, n_queries).to(v.dtype)[None]
    causal = bias is None and first is None and n_queries == n_keys
    if not causal:
        seen = visible(n_queries, n_keys, first, q.device)
        bias = seen if bias is None else bias.masked_fill(~seen, float("-inf"))
    mixed = F.scaled_dot_product_attention(content, keys, values, attn_mask=bias, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2)


class _Shift(torch.autograd.Function):
    """heads×B×T×S by distance -> the same by key; future keys hold anything."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return by_key(x.contiguous(), x.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        n_queries, n_keys = grad.shape[-2:]
        buffer = grad.new_zeros(*grad.shape[:-1], n_keys + n_queries)
        by_key(buffer, n_keys).copy_(grad)
        return buffer[..., :n_keys]
