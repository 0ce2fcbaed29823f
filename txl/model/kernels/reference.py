"""Attention as the equation reads: every score is a number in a B×H×T×S tensor. Exact, differentiable, the measure of
the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.model.kernels.term import RelativeTerm, plus


def rel_shift(x: Tensor) -> Tensor:
    """From columns by distance to columns by key: out[…, i, j] = x[…, i, j + T - 1 - i] for j <= S - T + i.

    Row i moves left by T - 1 - i. With T = 3, S = 5 and columns named by the distance they hold:

        4 3 2 1 0        2 1 0 . .
        4 3 2 1 0   ->   3 2 1 0 .
        4 3 2 1 0        4 3 2 1 0

    The dots are future keys and hold whatever the copy left there; the causal mask covers them. One pad and two views
    do it (Dai et al. 2019, appendix B): after a pad column in front, the flat storage read in rows of S is the shifted
    matrix.
    """
    n_queries, n_keys = x.shape[-2:]
    padded = F.pad(x, (1, 0)).reshape(*x.shape[:-2], n_keys + 1, n_queries)
    return padded[..., 1:, :].reshape(x.shape)


def visible(n_queries: int, n_keys: int, first: Tensor | None, device: torch.device) -> Tensor:
    """bool, T×S or B×1×T×S: True where query i may see key j, that is first <= j <= S - T + i."""
    key = torch.arange(n_keys, device=device)
    own = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
    causal = key <= own
    return causal if first is None else causal & (key >= first[:, None, :, None])


def attend(q: Tensor, k: Tensor, v: Tensor, term: RelativeTerm, *, first: Tensor | None, keep: Tensor | None) -> Tensor:
    """The contract of `attend.attend`; keep: B×H×T×S factors of the attention weights."""
    n_queries, n_keys = q.shape[1], k.shape[1]
    scale = q.shape[-1] ** -0.5
    score = torch.einsum("bthe,bshe->bhts", plus(q, term.bias_u), k) * scale
    if term.r is not None:
        score = score + rel_shift(torch.einsum("bthe,she->bhts", plus(q, term.bias_v), term.r) * scale)
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if term.bias is not None:
        score = score + rel_shift(term.bias.to(score.dtype)[:, None].expand(-1, n_queries, -1))
    score = score.masked_fill(~visible(n_queries, n_keys, first, q.device), float("-inf"))
    weight = score.softmax(dim=-1).to(v.dtype)
    return torch.einsum("bhts,bshe->bthe", weight if keep is None else weight * keep.to(v.dtype), v)
