"""The one contract of attention: queries, keys, values and what position adds -> the weighted values.

Knows nothing of modules, memory or where keys came from: a query sees the keys from `first` to its own, whatever they
are. Which backend computes it is a matter of speed alone; every one passes the same test against `reference`.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.model.kernels import blocked, decode, reference, sdpa
from txl.model.kernels.term import RelativeTerm

Backend = Literal["auto", "reference", "blocked", "batched", "sdpa", "decode"]

SMALL_SCORES = 1 << 16
"""Scores T·S of one head up to which 16-bit products are better taken all at once than in blocks."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    term: RelativeTerm,
    *,
    first: Tensor | None = None,
    dropatt: float = 0.0,
    backend: Backend = "auto",
) -> Tensor:
    """Causal attention of T queries over S = M + T keys, query i standing at key M + i.

        score(i, j) = E^-1/2 [(q_i + bias_u)·k_j + (q_i + bias_v)·r(M + i - j)] + bias(M + i - j)

    q: B×T×H×E.  k, v: B×S×H×E, oldest first.  first: int64 B×T, the oldest key each query sees; None means key 0.
    dropatt: probability with which an attention weight is dropped; pass 0 in evaluation.
    Returns B×T×H×E in the dtype of v (Dai et al. 2019, section 3.3; the scale multiplies both products).
    Raises ValueError where the backend cannot do what is asked (`decode`: more than one query, or dropout).
    """
    keep = keep_mask(q, k, dropatt) if dropatt else None
    name = backend
    if backend == "auto":
        name = choose(
            q.device.type,
            q.dtype,
            n_queries=q.shape[1],
            n_keys=k.shape[1],
            learning=torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)),
            distances_learned=term.r is not None,
            dropped=keep is not None,
        )
    if name == "reference":
        return reference.attend(q, k, v, term, first=first, keep=keep)
    if name == "decode":
        return decode.attend(q, k, v, term, first=first, keep=keep)
    if name == "sdpa":
        return sdpa.attend(q, k, v, term, first=first, keep=keep)
    return blocked.attend(q, k, v, term, first=first, keep=keep, whole=name == "batched")


def choose(
    device: str,
    dtype: torch.dtype,
    *,
    n_queries: int,
    n_keys: int,
    learning: bool,
    distances_learned: bool,
    dropped: bool,
) -> Backend:
    """The fastest backend seen for a kind of device, a dtype, these sizes and this kind of position.

    learning: whether gradients are wanted. distances_learned: whether each distance has a vector (relative, shaw).
    """
    if n_queries == 1 and not learning:
        return "decode"
    if device != "cpu":
        return "batched" if dropped else "sdpa"  # whose fused kernels do not drop weights by a mask of ours
    halves = dtype.itemsize == 2
    if not (distances_learned or dropped):
        return "blocked" if halves and learning else "sdpa"  # backward of torch's kernel is slow in 16 bits
    return "batched" if halves and n_queries * n_keys <= SMALL_SCORES else "blocked"


def keep_mask(q: Tensor, k: Tensor, p: float) -> Tensor:
    """B×H×T×S: 0 where an attention weight is dropped, 1/(1-p) elsewhere."""
    return F.dropout(q.new_ones(q.shape[0], q.shape[2], q.shape[1], k.shape[1]), p)
