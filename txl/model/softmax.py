"""From hidden states to the next token: logits, and the negative log-likelihood of targets, in nats.

B×T×D -> B×T×V or B×T. Targets are already shifted; nothing is shifted here. Knows nothing of layers or memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100
"""The target that counts neither as a numerator nor as a denominator."""


class Softmax(nn.Module):
    """The full softmax: a bias, and a matrix V×D of its own unless the embedding's is used."""

    def __init__(self, vocab_size: int, d_model: int, *, tied: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.weight = None if tied else nn.Parameter(torch.zeros(vocab_size, d_model))

    def logits(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Unnormalised log-probabilities, …×D -> …×V."""
        weight = embedding if self.weight is None else self.weight
        return F.linear(hidden, weight, self.bias)

    def nll(self, hidden: Tensor, targets: Tensor, embedding: Tensor) -> Tensor:
        """Nats of each target in input order, B×T×D and int64 B×T -> B×T; at least float32, 0 where ignored."""
        logits = self.logits(hidden, embedding)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED)
        return flat.view(targets.shape)
