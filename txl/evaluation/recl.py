"""Relative effective context length: losses of a group of models, token by token and context by context -> one length
a model (Dai et al. 2019, section 4.3 and appendix C).

A context helps a model as long as a longer one still lowers the loss of tokens that no model of the group could predict
well from the short one. Being relative to the group's best, it does not reward a model for being bad with little
context. Works on arrays, made now or read from files. Knows nothing of models, texts or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SHARES = (0.1, 0.5, 1.0)
"""The published r: the hardest tenth of the positions, the harder half, all."""
THRESHOLD = 0.01
"""The published least relative gain."""


@dataclass(frozen=True)
class Gain:
    """What `step` more tokens of context than `context` bring one model, as a share of the group's best perplexity."""

    context: int
    gain: float


@dataclass(frozen=True)
class Recl:
    """The relative effective context length of one model.

    length: tokens.  settled: whether the gain fell below the threshold; False: the longest context scored still
    brought enough, so the length is a lower bound.  share: r.  step: Δ, tokens.  positions: how many make up T_r.
    gains: of each context tried, the last one below the threshold where settled.
    """

    model: str
    share: float
    length: int
    settled: bool
    step: int
    threshold: float
    positions: int
    gains: tuple[Gain, ...]

    @property
    def at_most(self) -> bool:
        """Whether the first context tried brought too little already: the length is an upper bound then."""
        return self.gains[0].gain < self.threshold


def recl(
    losses: Mapping[str, Mapping[int, Array]],
    *,
    limits: Mapping[str, int] | None = None,
    shares: Sequence[float] = SHARES,
    threshold: float = THRESHOLD,
) -> list[Recl]:
    """The length of every model of a group at every share, models in the order given.

    losses: model -> context c -> nats of K targets, each given exactly the c tokens before it, the same targets for
    all. The contexts must be a ladder: the first is where the climb begins, each next one is Δ longer.
    limits: of models that can read no more than so many tokens (a fixed-context model its segment); at longer contexts
    their loss is that at the limit, which must be among their contexts, and no length exceeds it.

    With ℓ_i(c, t) the loss of model i, T_r the share r of positions whose b(c, t) is largest:

        baseline        b(c, t)    = min over i of ℓ_i(c, t)
        relative loss   f_i(c, c') = mean over T_r of min(b(c, t), ℓ_i(c', t))
        relative gain   g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

    and the length is the first c whose g_i(c, c + Δ) is below the threshold. The paper does not state its Δ.
    Raises ValueError for an empty group, contexts that are no ladder, or losses that do not fit or are not finite.
    """
    limits = limits or {}
    ladder, step = _ladder(losses, limits)
    tables = {name: _table(name, losses[name], ladder, limits.get(name)) for name in losses}
    found = []
    for name, table in tables.items():
        for share in shares:
            gains: list[Gain] = []
            settled = False
            for row, context in enumerate(ladder[:-1]):
                baseline = np.min([other[row] for other in tables.values()], axis=0)
                chosen = hardest(baseline, share)
                short = baseline[chosen].mean(dtype=np.float64)
                long = np.minimum(baseline[chosen], table[row + 1][chosen]).mean(dtype=np.float64)
                gains.append(Gain(context, float(-np.expm1(long - short))))
                if gains[-1].gain < threshold:
                    settled = True
                    break
            length = gains[-1].context if settled else ladder[-1]
            at_limit = name in limits and length >= limits[name]
            length = min(length, limits.get(name, length))
            n_positions = len(hardest(tables[name][0], share))
            found.append(Recl(name, share, length, settled or at_limit, step, threshold, n_positions, tuple(gains)))
    return found


def hardest(losses: Array, share: float) -> Array:
    """Indices of the given share of positions with the largest losses, at least one; of equal ones the earliest."""
    count = max(1, round(share * len(losses)))
    return np.sort(np.argsort(-losses, kind="stable")[:count])


def _ladder(losses: Mapping[str, Mapping[int, Array]], limits: Mapping[str, int]) -> tuple[list[int], int]:
    """The contexts of the climb and their distance: those of a model without a limit, or all of the group's."""
    free = [set(table) for name, table in losses.items() if name not in limits] or [
        {context for table in losses.values() for context in table}
    ]
    shared = sorted(set.intersection(*free)) if losses else []
    steps = set(np.diff(shared).tolist())
    if len(shared) < 2 or len(steps) != 1:
        allowed = (
            "at least two, every one the same number of tokens longer than the one before, the same for all models"
        )
        raise ValueError(f"contexts: found {shared or 'none'}; expected {allowed}")
    return shared, int(steps.pop())


def _table(name: str, losses: Mapping[int, Array], ladder: Sequence[int], limit: int | None) -> list[Array]:
    """A model's losses at each context of the ladder; at the limit where that is shorter."""
    rows = []
    for context in ladder:
        at = context if limit is None else min(context, limit)
        if at not in losses:
            raise ValueError(f"{name}: found no losses at context {at}; it has {sorted(losses)}")
        rows.append(np.asarray(losses[at]))
        if not np.isfinite(rows[-1]).all():
            raise ValueError(f"{name}: found losses at context {at} that are not finite; expected nats of every target")
    lengths = {len(row) for row in rows}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"{name}: found {sorted(lengths)} targets by context; expected the same ones at each")
    return rows
