"""Attention by blocks that stay in cache, with a backward written by hand. For CPUs; exact in any dtype.

Contract of `attend.attend`. A block holds the scores of a few heads of all rows, of some queries and of the keys that
any of these sees: position product, shifted add, softmax and the product with the values happen while they are in
cache, and the backward takes the same way. Keys that none of a block's queries sees are never touched. The shift is a
strided view, never a copy, and autograd never sees it (its own backward of a strided view fills a buffer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl.model.kernels.term import RelativeTerm, plus

BLOCK_BYTES = 4 << 20
"""Scores of one block: about a core's share of the last-level cache."""
BLOCK_QUERIES = 128
"""Queries of one block: fewer leave out more keys that are masked, more make better products."""
KEEP_BYTES = 256 << 20
"""Attention weights of one call kept for the backward; beyond it they are computed again."""


@dataclass(frozen=True)
class Block:
    """Scores that are computed together.

    future, early: what is added to the scores of the T newest keys, T×T, and of the W oldest, B×T×W (None for none):
    0 where a query sees a key, -inf where not. All of the block's queries see the keys between.
    """

    heads: slice
    queries: slice
    keys: slice
    future: Tensor
    early: Tensor | None

    @property
    def n_keys(self) -> int:
        """Keys of the block, which are also the distances it needs: 0 to n_keys - 1."""
        return int(self.keys.stop - self.keys.start)


def attend(
    q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None, keep: Tensor | None, whole: bool
) -> Tensor:
    """The contract of `attend.attend`; keep: B×H×T×S factors of the weights. whole: everything in one block."""
    dtype = v.dtype
    q, k = q.to(dtype), k.to(dtype)
    r, bias_u, bias_v = (None if x is None else x.to(dtype) for x in (term.r, term.bias_u, term.bias_v))
    mixed: Tensor = _Attend.apply(q, k, v, r, bias_u, bias_v, term.bias, first, keep, whole)
    return mixed


class _Attend(torch.autograd.Function):
    """Forward and backward over blocks. Content, keys and values lie H×B×T×E, position H×T×B×E: a block of queries is
    then one matrix for the product with the table that all rows share."""

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
        ctx.scale = q.shape[-1] ** -0.5
        content = (plus(q, bias_u) * ctx.scale).permute(2, 0, 1, 3).contiguous()
        position = None if r is None else (plus(q, bias_v) * ctx.scale).permute(2, 1, 0, 3).contiguous()
        keys, values = (dense(x.permute(2, 0, 1, 3)) for x in (k, v))
        table = None if r is None else dense(r.transpose(0, 1))
        ctx.blocks = blocks_of(content, keys, first, whole=whole)
        out = torch.empty_like(content)
        learning = any(ctx.needs_input_grad)
        ctx.keeps_weights = learning and content[..., 0].numel() * keys.shape[2] * q.element_size() <= KEEP_BYTES
        kept = []
        for block in ctx.blocks:
            weight = weights_of(block, content, position, keys, table, bias)
            if ctx.keeps_weights:
                kept.append(weight)
            if keep is not None:
                weight = weight * factors_of(block, keep)
            torch.matmul(weight, values[block.heads, :, block.keys], out=out[block.heads, :, block.queries])
        ctx.bias = bias
        ctx.has = (bias_u is not None, bias_v is not None)
        ctx.save_for_backward(content, position, keys, values, table, keep, *kept)
        return out.permute(1, 2, 0, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        content, position, keys, values, table, keep, *kept = ctx.saved_tensors
        d_out = grad.to(values.dtype).permute(2, 0, 1, 3).contiguous()
        d_content, d_keys, d_values = torch.empty_like(content), torch.zeros_like(keys), torch.zeros_like(values)
        d_position = None if position is None else torch.empty_like(position)
        d_table = None if table is None else torch.zeros_like(table)
        for number, block in enumerate(ctx.blocks):
            heads, queries, seen = block.heads, block.queries, block.keys
            weight = kept[number] if kept else weights_of(block, content, position, keys, table, ctx.bias)
            factor = None if keep is None else factors_of(block, keep)
            add_product(
                d_values[heads, :, seen], weight if factor is None else weight * factor, d_out[heads, :, queries]
            )
            d_weight = d_out[heads, :, queries] @ values[heads, :, seen].transpose(-1, -2)
            if factor is not None:
                d_weight *= factor
            d_score = torch.ops.aten._softmax_backward_data(d_weight, weight, -1, weight.dtype)
            torch.matmul(d_score, keys[heads, :, seen], out=d_content[heads, :, queries])
            add_product(d_keys[heads, :, seen], d_score, content[heads, :, queries])
            if position is None or table is None or d_position is None or d_table is None:
                continue
            flat = by_distance(d_score)
            newest = slice(table.shape[1] - block.n_keys, None)
            torch.bmm(flat, table[heads, newest], out=d_position[heads, queries].flatten(1, 2))
            d_table[heads, newest].baddbmm_(flat.transpose(1, 2), position[heads, queries].flatten(1, 2))
        has_u, has_v = ctx.has
        d_query = d_content.permute(1, 2, 0, 3)
        if d_position is not None:
            d_query = d_query + d_position.permute(2, 1, 0, 3)
        return (
            d_query * ctx.scale,
            d_keys.permute(1, 2, 0, 3),
            d_values.permute(1, 2, 0, 3),
            None if d_table is None else d_table.transpose(0, 1),
            d_content.sum((1, 2)) * ctx.scale if has_u else None,
            d_position.sum((1, 2)) * ctx.scale if has_v and d_position is not None else None,
            *(None,) * 4,
        )


def dense(x: Tensor) -> Tensor:
    """x, copied unless each of its last two axes is a matrix without gaps (as those of a cache are)."""
    return x if x.stride()[-2:] == (x.shape[-1], 1) else x.contiguous()


def weights_of(
    block: Block, content: Tensor, position: Tensor | None, keys: Tensor, table: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Attention weights of a block, heads×B×T×S: scores of content and position, masked, through a softmax."""
    queries = content[block.heads, :, block.queries]
    n_heads, n_rows, n_queries, _ = queries.shape
    score = queries @ keys[block.heads, :, block.keys].transpose(-1, -2)
    if position is not None and table is not None:
        near = table[block.heads, table.shape[1] - block.n_keys :]
        product = torch.bmm(position[block.heads, block.queries].flatten(1, 2), near.transpose(1, 2))
        score += by_key(product.view(n_heads, n_queries, n_rows, -1))
    if bias is not None:
        score += spread(bias[block.heads, bias.shape[1] - block.n_keys :], n_queries).to(score.dtype)[:, None]
    score[..., block.n_keys - n_queries :] += block.future
    if block.early is not None:
        score[..., : block.early.shape[-1]] += block.early
    wide = torch.promote_types(score.dtype, torch.float32)
    return score.softmax(dim=-1, dtype=wide).to(score.dtype)


def by_key(x: Tensor) -> Tensor:
    """A view heads×B×T×S of contiguous x, heads×T×B×P with columns by distance, whose entry (i, j) is
    x[…, i, …, j + T - 1 - i].

    Each query's columns are read from one further left than the query's before it; with P = S = 5 and T = 3, rows of
    distances

        4 3 2 1 0        2 1 0 4 3
        4 3 2 1 0   ->   3 2 1 0 4
        4 3 2 1 0        4 3 2 1 0

    where what stands to the right of distance 0 belongs to future keys and is masked.
    """
    n_heads, n_queries, n_rows, width = x.shape
    stride = (n_queries * n_rows * width, width, n_rows * width - 1, 1)
    return x.as_strided((n_heads, n_rows, n_queries, width), stride, x.storage_offset() + n_queries - 1)


def by_distance(x: Tensor) -> Tensor:
    """The way back: heads×B×T×S by key, 0 at future keys -> heads×(T·B)×S by distance."""
    n_heads, n_rows, n_queries, n_keys = x.shape
    buffer = x.new_empty(n_heads, n_queries, n_rows, n_keys + n_queries)
    buffer[..., : n_queries - 1].zero_()  # distances that only the first queries could have
    stride = (buffer.stride(0), buffer.stride(2), buffer.stride(1) - 1, 1)
    buffer.as_strided(x.shape, stride, n_queries - 1).copy_(x)
    return buffer.flatten(1, 2)[..., :n_keys]


def add_product(total: Tensor, x: Tensor, y: Tensor) -> None:
    """total += xᵀ y in place, for heads×B×S×E, heads×B×T×S and heads×B×T×E."""
    n_batch = x.shape[0] * x.shape[1]
    total.view(n_batch, *total.shape[2:]).baddbmm_(x.flatten(0, 1).transpose(1, 2), y.reshape(n_batch, *y.shape[2:]))


def spread(bias: Tensor, n_queries: int) -> Tensor:
    """heads×S numbers by distance -> heads×T×S by key; future keys repeat distance 0 and are masked."""
    n_keys = bias.shape[-1]
    query = torch.arange(n_queries, device=bias.device)[:, None]
    column = torch.arange(n_keys, device=bias.device) + n_queries - 1 - query
    return bias[:, column.clamp(max=n_keys - 1)]


def blocks_of(content: Tensor, keys: Tensor, first: Tensor | None, *, whole: bool) -> list[Block]:
    """The blocks of a call, in the order in which they are computed; masks are made once for all heads."""
    n_heads, n_rows, n_queries, _ = content.shape
    n_memory = keys.shape[2] - n_queries
    step = n_queries if whole else min(n_queries, BLOCK_QUERIES)
    blocks = []
    for start in range(0, n_queries, step):
        queries = slice(start, min(start + step, n_queries))
        oldest, latest = (0, 0) if first is None else (int(x) for x in first[:, queries].aminmax())
        seen = slice(0 if whole else oldest, n_memory + queries.stop)
        n_block, n_keys = queries.stop - start, seen.stop - seen.start
        future = content.new_full((n_block, n_block), float("-inf")).triu_(1)
        early = None
        if first is not None and latest > seen.start:
            key = torch.arange(seen.start, latest, device=content.device)
            hidden = key < first[:, queries, None]
            early = content.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        heads = n_heads
        if not whole:
            heads = max(1, BLOCK_BYTES // (n_rows * n_block * n_keys * content.element_size()))
        blocks += [
            Block(slice(h, min(h + heads, n_heads)), queries, seen, future, early) for h in range(0, n_heads, heads)
        ]
    return blocks


def factors_of(block: Block, keep: Tensor) -> Tensor:
    """The block's part of B×H×T×S dropout factors, heads×B×T×S."""
    return keep[:, block.heads, block.queries, block.keys].transpose(0, 1)
