"""Verbs that score text with a trained run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from txl.config import ConfigError
from txl.verbs.checked import arguments_checked, options_named, overrides_of


def evaluate(
    run: Path,
    checkpoint: str,
    window: int | None,
    context: str | None,
    kind: str | None,
    stride: int | None,
    split: str,
    batch_size: int | None,
    json: Path | None,
    overrides: Sequence[str],
) -> None:
    """Score a split of a run's text, or of other text, and print loss, perplexity and bits per byte."""
    from txl.evaluation.measure import measure
    from txl.evaluation.summary import table
    from txl.terminal import progress, show_table
    from txl.train.compare import corpus_for, kept_losses, loaded

    if kind is not None and context is None:
        raise ConfigError([f"--kind: found {kind} without --context; allowed: with the contexts to score, N,N,..."])
    if stride is not None and kind not in ("at-least", "stride"):
        raise ConfigError([f"--stride: found {stride} with kind {kind}; allowed: with --kind at-least or stride"])
    options = {
        "eval.contexts": ("--context", context),
        "eval.window": ("--window", window),
        "eval.batch_size": ("--batch-size", batch_size),
    }
    with options_named(options):
        bundle = loaded(run, checkpoint, [*overrides, *overrides_of(options)])
    settings = replace(bundle.config.eval, recl_step=None)  # a length is relative to a group: `txl compare`
    settings = settings if context else replace(settings, contexts=())
    own_text = not any(word.startswith("data.") for word in overrides)
    with progress() as report, arguments_checked("window", "stride", "kind"):
        corpus = corpus_for(bundle, own_text=own_text, report=report)
        kept = kept_losses(bundle, corpus, split)
        measured = measure(
            bundle, corpus, settings, report, split=split, kind=kind, stride=stride, kept=kept, timed=False
        )
    point = measured.headline
    if math.isnan(point.nll):
        raise FloatingPointError(
            f"{run}, step {measured.step}: the model's loss is not a number; its weights are broken"
        )
    print(
        f"{run}, step {measured.step}: {point.nll:.4f} nats a token, perplexity {point.perplexity:.3f}, "
        f"{point.bits_per_byte:.4f} bits per byte on {point.tokens:,} tokens of {measured.split}"
        + (f" (bits not comparable: {measured.incomparable})" if measured.incomparable else "")
    )
    show_table(*table([measured], every_point=True))
    where = f"not kept: {kept.problem}" if kept.problem else f"in {kept.folder}"
    print(f"the loss of every single token is {where}")
    if json is not None:
        json.write_text(measured.to_json(), encoding="utf-8")
        print(f"everything measured is in {json}")
