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
    scale = q.shape[-1] ** -0.5
    keys, values = k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)
    content = (plus(q, term.bias_u) * scale).permute(0, 2, 3, 1)
    score = keys @ content
    if term.r is not None:
        query = (plus(q, term.bias_v) * scale)[:, 0].permute(1, 2, 0)
        score = score + (term.r.permute(1, 0, 2).to(query.dtype) @ query).permute(2, 0, 1)[..., None]
    score = score[..., 0].to(torch.promote_types(score.dtype, torch.float32))
    if term.bias is not None:
        score = score + term.bias.to(score.dtype)
    if first is not None:
        early = torch.arange(k.shape[1], device=k.device) < first
        score = score.masked_fill(early[:, None], float("-inf"))
    weight = score.softmax(dim=-1).to(v.dtype)
    return (weight[:, :, None] @ values).permute(0, 2, 1, 3)
