"""Attention of one new query a row: two products with vectors, no shift, no copy of keys. Forward alone.

Contract of `attend.attend` for T = 1, where the columns of `r` stand under their keys already.
"""

from __future__ import annotations

import torch
from torch import Tensor

from txl.model.kernels.term import RelativeTerm, plus


def attend(q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None, keep: Tensor | None) -> Tensor:
    """The contract of `attend.attend`. Raises ValueError for more than one query or a dropout mask."""
    if q.shape[1] != 1 or keep is not None:
        raise ValueError(f"the decode backend takes one query without dropout, found {q.shape[1]}: choose auto")
    n_rows, n_keys, n_heads, width = k.shape
    scale = width**-0.5
    keys, values = (x.permute(2, 0, 1, 3).reshape(n_heads * n_rows, n_keys, width) for x in (k, v))
    content = plus(q, term.bias_u)[:, 0].transpose(0, 1).reshape(-1, width, 1)
    if term.r is None:
        score = torch.bmm(keys, content).mul_(scale)
    else:
        query = plus(q, term.bias_v)[:, 0].transpose(0, 1)
        position = torch.bmm(query, term.r.permute(1, 2, 0).to(q.dtype))
        score = position.view(-1, n_keys, 1).baddbmm_(keys, content, beta=scale, alpha=scale)
    score = score.view(n_heads, n_rows, n_keys).to(torch.promote_types(score.dtype, torch.float32))
    if term.bias is not None:
        score = score + term.bias[:, None].to(score.dtype)
    if first is not None:
        score = score.masked_fill(torch.arange(n_keys, device=k.device) < first, float("-inf"))
    weight = score.softmax(dim=-1).to(v.dtype)
    mixed = torch.bmm(weight.view(-1, 1, n_keys), values)
    return mixed.view(n_heads, n_rows, 1, width).permute(1, 2, 0, 3)
