"""Attention by blocks of heads that stay in cache, with a backward written by hand. For CPUs; exact in any dtype.

Contract of `attend.attend`. A block holds the T×S scores of a few heads of all rows: position product, shifted add,
softmax and the product with the values happen while they are in cache, and the backward takes the same way. The shift
is a strided view, never a copy, and autograd never sees it (its own backward of a strided view fills a buffer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.kernels.reference import visible
from txl.model.kernels.term import RelativeTerm

BLOCK_BYTES = 4 << 20
"""Scores of one block: about a core's share of the last-level cache."""
KEEP_BYTES = 256 << 20
"""Attention weights of one call kept for the backward; beyond it they are computed again."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None, keep: Tensor | None, whole: bool
) -> Tensor:
    """The contract of `attend.attend`; keep: B×H×T×S factors of the weights. whole: all heads in one block."""
    dtype = v.dtype
    q, k = q.to(dtype), k.to(dtype)
    r, bias_u, bias_v = (None if x is None else x.to(dtype) for x in (term.r, term.bias_u, term.bias_v))
    mixed: Tensor = _Attend.apply(q, k, v, r, bias_u, bias_v, term.bias, first, keep, whole)
    return mixed


class _Attend(torch.autograd.Function):
    """Forward and backward over blocks of heads; all saved tensors are laid out head first."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor | None,
        bias_u: Tensor | None,
        bias_v: Tensor | None,
        bias: Tensor | None,
        first: Tensor | None,
        keep: Tensor | None,
        whole: bool,
    ) -> Tensor:
        n_rows, n_queries, n_heads, _ = q.shape
        n_keys = k.shape[1]
        ctx.scale = q.shape[-1] ** -0.5
        hidden = hidden_keys(n_queries, n_keys, first, q.device)
        scaled = head_first(q) * ctx.scale
        content = scaled if bias_u is None else scaled + bias_u[:, None, None] * ctx.scale
        position = scaled if bias_v is None else scaled + bias_v[:, None, None] * ctx.scale
        keys, values = head_first(k), head_first(v)
        table = None if r is None else r.transpose(0, 1).contiguous()
        block = n_heads if whole else heads_per_block(n_rows, n_queries, n_keys, q.dtype)
        out = torch.empty_like(scaled)
        learning = any(ctx.needs_input_grad)
        ctx.keeps_weights = learning and n_rows * n_heads * n_queries * n_keys * q.element_size() <= KEEP_BYTES
        kept = []
        for start in range(0, n_heads, block):
            heads = slice(start, min(start + block, n_heads))
            weight = weights_of(heads, content, position, keys, table, bias, hidden)
            if ctx.keeps_weights:
                kept.append(weight)
            if keep is not None:
                weight = weight * keep.transpose(0, 1)[heads]
            torch.matmul(weight, values[heads], out=out[heads])
        ctx.block, ctx.bias = block, bias
        ctx.save_for_backward(content, position, keys, values, table, hidden, keep, *kept)
        ctx.has = (r is not None, bias_u is not None, bias_v is not None)
        return row_first(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        content, position, keys, values, table, hidden, keep, *kept = ctx.saved_tensors
        n_heads, n_rows, n_queries, _ = content.shape
        n_keys = keys.shape[2]
        d_out = head_first(grad.to(values.dtype))
        d_content, d_keys, d_values = torch.empty_like(content), torch.empty_like(keys), torch.empty_like(values)
        d_position = None if table is None else torch.empty_like(content)
        d_table = None if table is None else torch.empty_like(table)
        shifted: Tensor | None = None
        for number, start in enumerate(range(0, n_heads, ctx.block)):
            heads = slice(start, min(start + ctx.block, n_heads))
            weight = kept[number] if kept else weights_of(heads, content, position, keys, table, ctx.bias, hidden)
            factor = None if keep is None else keep.transpose(0, 1)[heads]
            used = weight if factor is None else weight * factor
            torch.matmul(used.transpose(-1, -2), d_out[heads], out=d_values[heads])
            d_weight = d_out[heads] @ values[heads].transpose(-1, -2)
            if factor is not None:
                d_weight = d_weight * factor
            d_score = torch.ops.aten._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            torch.matmul(d_score, keys[heads], out=d_content[heads])
            torch.matmul(d_score.transpose(-1, -2), content[heads], out=d_keys[heads])
            if table is None or d_position is None or d_table is None:
                continue
            if shifted is None or shifted.shape[0] != d_score.shape[0]:
                shifted = d_score.new_zeros(*d_score.shape[:3], n_keys + n_queries)
            by_key(shifted, n_keys).copy_(d_score)
            flat = shifted.view(d_score.shape[0], n_rows * n_queries, -1)[..., :n_keys]
            torch.bmm(flat, table[heads], out=d_position[heads].view(len(flat), n_rows * n_queries, -1))
            torch.bmm(flat.transpose(1, 2), position[heads].flatten(1, 2), out=d_table[heads])
        scale, (has_r, has_u, has_v) = ctx.scale, ctx.has
        d_query = d_content if d_position is None else d_content + d_position
        return (
            row_first(d_query) * scale,
            row_first(d_keys),
            row_first(d_values),
            d_table.transpose(0, 1) if has_r and d_table is not None else None,
            d_content.sum((1, 2)) * scale if has_u else None,
            d_position.sum((1, 2)) * scale if has_v and d_position is not None else None,
            *(None,) * 4,
        )


def weights_of(
    heads: slice,
    content: Tensor,
    position: Tensor,
    keys: Tensor,
    table: Tensor | None,
    bias: Tensor | None,
    hidden: Tensor,
) -> Tensor:
    """Attention weights of a block, heads×B×T×S: scores of content and position, masked, through a softmax."""
    n_rows, n_queries = content.shape[1:3]
    score = content[heads] @ keys[heads].transpose(-1, -2)
    n_keys = score.shape[-1]
    if table is not None:
        product = torch.bmm(position[heads].flatten(1, 2), table[heads].transpose(1, 2))
        score += by_key(product.view(-1, n_rows, n_queries, n_keys), n_keys)
    if bias is not None:
        score += spread(bias[heads], n_queries).to(score.dtype)[:, None]
    score.masked_fill_(hidden, float("-inf"))
    wide = torch.promote_types(score.dtype, torch.float32)
    return score.softmax(dim=-1, dtype=wide).to(score.dtype)


def by_key(x: Tensor, n_keys: int) -> Tensor:
    """A view of contiguous x, heads×B×T×P with columns by distance, whose entry (i, j) is x[…, i, j + T - 1 - i].

    Rows are read P - 1 apart, so each starts one column further left; with P = S = 5 and T = 3, rows of distances

        4 3 2 1 0        2 1 0 4 3
        4 3 2 1 0   ->   3 2 1 0 4
        4 3 2 1 0        4 3 2 1 0

    where what stands to the right of distance 0 belongs to future keys and is masked.
    """
    n_heads, n_rows, n_queries, width = x.shape
    stride = (n_rows * n_queries * width, n_queries * width, width - 1, 1)
    return x.as_strided((n_heads, n_rows, n_queries, n_keys), stride, x.storage_offset() + n_queries - 1)


def spread(bias: Tensor, n_queries: int) -> Tensor:
    """heads×S numbers by distance -> heads×T×S by key; future keys repeat distance 0 and are masked."""
    n_keys = bias.shape[-1]
    query = torch.arange(n_queries, device=bias.device)[:, None]
    column = torch.arange(n_keys, device=bias.device) + n_queries - 1 - query
    return bias[:, column.clamp(max=n_keys - 1)]


def hidden_keys(n_queries: int, n_keys: int, first: Tensor | None, device: torch.device) -> Tensor:
    """bool, T×S or B×T×S: True where a query must not see a key."""
    seen = visible(n_queries, n_keys, first, device)
    return ~(seen if first is None else seen[:, 0])


def heads_per_block(n_rows: int, n_queries: int, n_keys: int, dtype: torch.dtype) -> int:
    """How many heads' scores fit into a block; at least one."""
    return max(1, BLOCK_BYTES // (n_rows * n_queries * n_keys * dtype.itemsize))


def head_first(x: Tensor) -> Tensor:
    """B×T×H×E -> contiguous H×B×T×E."""
    return x.permute(2, 0, 1, 3).contiguous()


def row_first(x: Tensor) -> Tensor:
    """H×B×T×E -> a view B×T×H×E."""
    return x.permute(1, 2, 0, 3)
