"""What tells one model from another: a model in, 32 bytes out, for the states of sessions that only it can go on from.

Knows nothing of sessions or files.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from txl.model import Model

WITHOUT_EFFECT = (
    *("dropout", "dropatt", "locked_dropout", "activation_checkpointing", "init_std", "proj_init_std"),
    *("tgt_len", "mem_len", "same_length"),
)
"""Fields of a model's config that change nothing of what a session computes; the window is the session's own."""


def fingerprint(model: Model) -> Tensor:
    """SHA-256 of the names, dtypes, shapes and bytes of all weights and of the config that gives them their meaning.

    uint8, 32 elements, on the CPU. Takes about a second for a gigabyte of weights.
    """
    settings = {name: value for name, value in vars(model.config).items() if name not in WITHOUT_EFFECT}
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for name, weight in (*model.named_parameters(), *model.named_buffers()):  # 8-bit weights are buffers
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)
