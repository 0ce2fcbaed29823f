"""How the next token is drawn: log-probabilities B×V and one uniform number a row in, ids B out.

Every rule is a pure function from normalised log-probabilities to normalised log-probabilities (natural logarithm;
-inf for a token that cannot come). Knows nothing of models, sessions or text, and holds no generator of random
numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Which rules apply, in the order of their application; the defaults draw from the model's own distribution.

    Raises ValueError naming every value out of range.
    """

    repetition_penalty: float = 1.0
    """Power of the probability of each token seen recently; above 1 discourages, 1 does nothing."""
    frequency_penalty: float = 0.0
    """Nats taken from a token for each time it was seen recently; 0 does nothing."""
    temperature: float = 1.0
    """Divides the log-probabilities; below 1 sharpens, 0 takes the most probable token and makes the filters idle."""
    top_k: int | None = None
    """Only the k most probable tokens; null for all."""
    top_p: float | None = None
    """Only the fewest most probable tokens that together have this probability; null for all."""
    min_p: float | None = None
    """Only tokens with at least this share of the most probable token's probability; null for all."""
    typical_p: float | None = None
    """Only the fewest tokens of surprisal nearest the mean one that together have this probability; null for all."""

    def __post_init__(self) -> None:
        """Check every value."""
        share = "above 0 and at most 1"
        rules = [
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0; 1 does nothing"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "a finite number; 0 does nothing"),
            ("temperature", 0 <= self.temperature < math.inf, "at least 0; 0 takes the most probable token"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, share),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "0 to 1"),
            ("typical_p", self.typical_p is None or 0 < self.typical_p <= 1, share),
        ]
        wrong = [f"{name} is {getattr(self, name)}: must be {allowed}" for name, fine, allowed in rules if not fine]
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn: the most probable token is taken."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether the tokens seen recently matter."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0


def choose(log_probs: Tensor, sampling: Sampling, recent: Tensor, uniforms: Tensor) -> Tensor:
    """The next id of each row, int64 B on the CPU.

    log_probs: B×V, normalised. recent: int64 B×R, ids seen recently, -1 for none. uniforms: float64 B in [0, 1), one
    number a row. Drawing is done in float64 on the CPU, so that the same numbers give the same ids on every device.
    Raises FloatingPointError if a row's log-probabilities are not numbers.
    """
    if sampling.greedy and not sampling.penalises:
        best, ids = log_probs.max(dim=-1)
        _check_numbers(best)
        return ids.cpu()
    adjusted = adjust(log_probs.to(device="cpu", dtype=torch.float64), sampling, recent.cpu())
    best, ids = adjusted.max(dim=-1)
    _check_numbers(best)
    return ids if sampling.greedy else draw(adjusted, uniforms)


def adjust(log_probs: Tensor, sampling: Sampling, recent: Tensor) -> Tensor:
    """Log-probabilities after all rules, B×V, each rule on the result of the last, in the order of `Sampling`."""
    if sampling.repetition_penalty != 1:
        log_probs = penalise_repetition(log_probs, recent, sampling.repetition_penalty)
    if sampling.frequency_penalty != 0:
        log_probs = penalise_frequency(log_probs, recent, sampling.frequency_penalty)
    if sampling.greedy:
        return log_probs
    if sampling.temperature != 1:
        log_probs = with_temperature(log_probs, sampling.temperature)
    if sampling.top_k is not None:
        log_probs = keep_top_k(log_probs, sampling.top_k)
    if sampling.top_p is not None:
        log_probs = keep_top_p(log_probs, sampling.top_p)
    if sampling.min_p is not None:
        log_probs = keep_min_p(log_probs, sampling.min_p)
    if sampling.typical_p is not None:
        log_probs = keep_typical(log_probs, sampling.typical_p)
    return log_probs


def with_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """p^(1/temperature), normalised; finite for the smallest temperature because the best token is moved to 0 first."""
    best = log_probs.amax(dim=-1, keepdim=True)
    return ((log_probs - best) / temperature).log_softmax(dim=-1)


def keep_top_k(log_probs: Tensor, k: int) -> Tensor:
    """The k most probable tokens (all if k exceeds V) and those just as probable as the last (Fan et al. 2018)."""
    kth = log_probs.topk(min(k, log_probs.shape[-1]), dim=-1).values[:, -1:]
    return _keep(log_probs, log_probs >= kth)


def keep_top_p(log_probs: Tensor, p: float) -> Tensor:
    """The fewest most probable tokens whose probabilities sum to at least p (Holtzman et al. 2020)."""
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    return _keep(log_probs, _first_mass(log_probs, order, p))


def keep_min_p(log_probs: Tensor, min_p: float) -> Tensor:
    """Tokens of probability at least min_p times that of the most probable one (Nguyen et al. 2024)."""
    best = log_probs.amax(dim=-1, keepdim=True)
    return _keep(log_probs, (log_probs - best).exp() >= min_p)


def keep_typical(log_probs: Tensor, p: float) -> Tensor:
    """The fewest tokens that sum to at least p, those of surprisal nearest the entropy first (Meister et al. 2023)."""
    entropy = torch.special.entr(log_probs.exp()).sum(dim=-1, keepdim=True)
    order = (-log_probs - entropy).abs().argsort(dim=-1, stable=True)
    return _keep(log_probs, _first_mass(log_probs, order, p))


def penalise_repetition(log_probs: Tensor, recent: Tensor, penalty: float) -> Tensor:
    """p^penalty for each token in `recent`, normalised.

    Keskar et al. 2019 divide or multiply the logit by its sign, which depends on a constant that means nothing; the
    power of the probability does not.
    """
    seen = count(recent, log_probs.shape[-1]) > 0
    return torch.where(seen, log_probs * penalty, log_probs).log_softmax(dim=-1)


def penalise_frequency(log_probs: Tensor, recent: Tensor, penalty: float) -> Tensor:
    """log p - penalty · (times the token is in `recent`), normalised."""
    times = count(recent, log_probs.shape[-1]).to(log_probs.dtype)
    return (log_probs - penalty * times).log_softmax(dim=-1)


def count(recent: Tensor, vocab_size: int) -> Tensor:
    """int64 B×V: how often each id is in its row of `recent`, int64 B×R, where -1 is no id."""
    slots = torch.zeros(recent.shape[0], vocab_size + 1, dtype=torch.int64)
    slots.scatter_add_(1, torch.where(recent < 0, vocab_size, recent), torch.ones_like(recent))
    return slots[:, :vocab_size]


def draw(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """One id a row by inverting the distribution function, int64 B; a token of probability 0 never comes.

    log_probs: float64 B×V. uniforms: float64 B in [0, 1). A float64 below 1 times the total stays below the total, so
    an id is always found.
    """
    cumulative = log_probs.exp().cumsum(dim=-1)
    point = uniforms * cumulative[:, -1]
    return torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]


def _keep(log_probs: Tensor, kept: Tensor) -> Tensor:
    """The kept tokens alone, normalised."""
    return log_probs.masked_fill(~kept, -math.inf).log_softmax(dim=-1)


def _first_mass(log_probs: Tensor, order: Tensor, mass: float) -> Tensor:
    """bool B×V: the tokens that come first in `order` until their probabilities sum to `mass`; the first one always."""
    cumulative = log_probs.exp().gather(-1, order).cumsum(dim=-1)
    before = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative[:, :-1]], dim=-1)
    return torch.zeros_like(log_probs, dtype=torch.bool).scatter_(-1, order, before < mass)


def _check_numbers(best: Tensor) -> None:
    """Raise FloatingPointError for rows whose best log-probability is not a number."""
    if not math.isfinite(float(best.sum())):
        rows = (~torch.isfinite(best)).nonzero()[:, 0].tolist()
        raise FloatingPointError(
            f"the log-probabilities of rows {rows} are not numbers: are the model's weights finite?"
        )
