"""What a step is trained with, as pure functions of its number: rate, decay of averaged weights, length of segments.

step, config -> a number. Nothing keeps a count of its own, so a run that goes on has what it would have had. Knows
nothing of models, optimizers or data.
"""

from __future__ import annotations

import math

from txl.config import Config, OptimConfig


def learning_rate(step: int, config: OptimConfig, max_steps: int) -> float:
    """The rate of step k of N, steps counted from 1: lr/w first, the peak at step w, and then as the schedule says.

    With w warm-up steps: lr · k/w while k <= w, and after that
        constant      lr
        linear        lr - (lr - min_lr) · (k - w)/(N - w)
        cosine        min_lr + (lr - min_lr)/2 · (1 + cos(π (k - w)/(N - w)))
        inverse_sqrt  lr · sqrt(w/k), at least min_lr (w = 0 counts as 1)
        wsd           lr up to step N - d, then lr - (lr - min_lr) · (k - (N - d))/d for the last d = decay_steps
    Beyond N it stays what it was at N.
    """
    peak, floor, warmup = config.lr, config.min_lr, config.warmup_steps
    step = min(step, max_steps)
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return max(floor, peak * math.sqrt(max(warmup, 1) / max(step, 1)))
    falls_from = max_steps - config.decay_steps if config.schedule == "wsd" else warmup
    progress = max(0.0, (step - falls_from) / (max_steps - falls_from))
    if config.schedule == "cosine":
        return floor + (peak - floor) / 2 * (1 + math.cos(math.pi * progress))
    return peak - (peak - floor) * progress


def average_decay(step: int, config: OptimConfig) -> float:
    """Share of the old average in the new one at step k: (1 + k)/(10 + k), at most `ema_decay`.

    The average of a young run is over its last few steps, so that the first weights, which know nothing, are forgotten
    in time.
    """
    return min(config.ema_decay, (1 + step) / (10 + step))


def segment_length(step: int, config: Config) -> int:
    """Tokens of a segment at step k: those of the newest stage [steps, tokens] with k - 1 >= steps, else tgt_len."""
    lengths = [length for begins, length in config.train.tgt_len_schedule if begins < step]
    return lengths[-1] if lengths else config.model.tgt_len


def mean_segment_length(config: Config) -> float:
    """Tokens of a segment on average over the steps of the run."""
    stages, steps = config.train.tgt_len_schedule or ((0, config.model.tgt_len),), config.train.max_steps
    ends = [*(begins for begins, _ in stages[1:]), steps]
    return sum((end - begins) * length for (begins, length), end in zip(stages, ends, strict=True)) / steps
