"""The last ids of each row since its reset, for the penalties of sampling: old ids and new ones in, newer ones out.

Knows nothing of models, nor of what the ids are used for.
"""

from __future__ import annotations

import torch
from torch import Tensor

RECENT_TOKENS = 256
"""How many ids back the penalties of sampling look, the prompt included."""


def latest(recent: Tensor, ids: Tensor, lengths: Tensor | None, resets: Tensor | None) -> Tensor:
    """The last R valid ids of each row, int64 B×R on the CPU, -1 where its document is shorter.

    R = 3, recent . a b, ids c d e: lengths 2 gives b c d, a reset at d gives . d e.
    """
    n_kept = recent.shape[1]
    if lengths is None and resets is None:
        return torch.cat([recent[:, ids.shape[1] :], ids[:, -n_kept:].cpu()], dim=1)
    history = torch.cat([recent, ids.cpu()], dim=1)
    if resets is not None:
        steps = torch.arange(history.shape[1])
        newest = torch.where(resets.cpu(), steps[n_kept:], -1).amax(dim=1, keepdim=True)
        history = history.masked_fill(steps < newest, -1)
    if lengths is None:
        return history[:, -n_kept:].clone()
    return history.gather(1, lengths.cpu()[:, None] + torch.arange(n_kept))
