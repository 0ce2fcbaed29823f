"""Attention through torch's fused kernels: position enters as an additive bias. For GPUs, and where nothing is learned
of distances.

Contract of `attend.attend`. The bias is a strided view of the position product, shifted without a copy and -inf at
future keys without a mask; its offset and strides are multiples of 8, which the memory-efficient kernel asks for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.kernels import reference
from txl.model.kernels.blocked import spread
from txl.model.kernels.reference import visible
from txl.model.kernels.term import RelativeTerm, plus

ALIGNMENT = 8
"""Elements to which the fused kernels want a bias aligned."""


def attend(q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None, keep: Tensor | None) -> Tensor:
    """The contract of `attend.attend`; a given `keep` needs the weights themselves, which only `reference` has."""
    if keep is not None:
        return reference.attend(q, k, v, term, first=first, keep=keep)
    n_queries, n_keys = q.shape[1], k.shape[1]
    scale = q.shape[-1] ** -0.5
    content, keys, values = (x.transpose(1, 2).to(v.dtype) for x in (plus(q, term.bias_u), k, v))
    bias: Tensor | None = None
    if term.r is not None:
        query = (plus(q, term.bias_v) * scale).permute(2, 0, 1, 3)
        shifted: Tensor = _PositionBias.apply(query.contiguous(), term.r.transpose(0, 1).to(query.dtype))
        bias = shifted.to(v.dtype).transpose(0, 1)
    elif term.bias is not None:
        future = ~visible(n_queries, n_keys, None, q.device)
        bias = spread(term.bias, n_queries).to(v.dtype).masked_fill(future, float("-inf"))[None]
    causal = bias is None and first is None and n_queries == n_keys
    if first is not None or (bias is None and not causal):
        seen = visible(n_queries, n_keys, first, q.device)
        bias = seen if bias is None else bias.masked_fill(~seen, float("-inf"))
    mixed = F.scaled_dot_product_attention(content, keys, values, attn_mask=bias, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2)


class _PositionBias(torch.autograd.Function):
    """heads×B×T×E queries and heads×S×E vectors of distances -> heads×B×T×S scores by key, -inf at future keys.

    The product fills columns a to a + S of a buffer of P columns whose rest is -inf; read in rows of P - 1 from element
    a + T - 1 on, query i finds key j at the distance S - T + i - j, and what is right of distance 0 is the -inf tail.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, table: Tensor) -> Tensor:
        n_heads, n_rows, n_queries, _ = query.shape
        n_keys = table.shape[1]
        left = (1 - n_queries) % ALIGNMENT
        width = 1 + _aligned(left + n_keys + n_queries - 2)
        buffer = query.new_full((n_heads, n_rows, _aligned(n_queries), width), float("-inf"))
        product = torch.bmm(query.flatten(1, 2), table.transpose(1, 2))
        buffer[:, :, :n_queries, left : left + n_keys] = product.view(n_heads, n_rows, n_queries, n_keys)
        ctx.save_for_backward(query, table)
        ctx.left = left
        return _by_key(buffer, n_queries, n_keys, left)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, table = ctx.saved_tensors
        n_heads, n_rows, n_queries, _ = query.shape
        n_keys = table.shape[1]
        buffer = grad.new_zeros(n_heads, n_rows, n_queries, ctx.left + n_keys + n_queries - 1)
        _by_key(buffer, n_queries, n_keys, ctx.left).copy_(grad)
        flat = buffer[..., ctx.left : ctx.left + n_keys].reshape(n_heads, -1, n_keys)
        d_query = torch.bmm(flat, table).view_as(query)
        return d_query, torch.bmm(flat.transpose(1, 2), query.flatten(1, 2))


def _by_key(buffer: Tensor, n_queries: int, n_keys: int, left: int) -> Tensor:
    """The shifted view of a contiguous buffer heads×B×T×P whose distances begin at column `left`: heads×B×T×S."""
    n_heads, n_rows = buffer.shape[:2]
    stride = (buffer.stride(0), buffer.stride(1), buffer.stride(2) - 1, 1)
    return buffer.as_strided((n_heads, n_rows, n_queries, n_keys), stride, left + n_queries - 1)


def _aligned(n: int) -> int:
    """n, rounded up to a multiple of ALIGNMENT."""
    return -(-n // ALIGNMENT) * ALIGNMENT
