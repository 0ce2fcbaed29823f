"""What a model returns: one frozen record instead of a tuple whose places must be counted."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from txl.model.memory import Memory


@dataclass(frozen=True)
class Output:
    """The result of one segment.

    hidden: B×T×D, the state before the head.
    memory: what to pass with the next segment; carries no gradient.
    logits: B×T×V where no targets were given, else None; `logits.log_softmax(-1)` are the log-probabilities.
    nll: B×T nats in input order where targets were given, else None; 0 where a target is -100.
    """

    hidden: Tensor
    memory: Memory
    logits: Tensor | None = None
    nll: Tensor | None = None
