"""What a reader must know before comparing runs: measurements -> sentences.

Knows nothing of tables, pages or pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

from txl.evaluation.measure import Measurement
from txl.evaluation.summary import at_best_use, labels, metric_of, same_text


def caveats(measurements: Sequence[Measurement]) -> list[str]:
    """What a reader must know before comparing, each one sentence."""
    named = list(zip(labels(measurements), measurements, strict=True))
    notes = [
        f"{label}: bits per byte are not comparable with other tokenizers', because {m.incomparable}."
        for label, m in named
        if m.incomparable
    ]
    if len({m.tokenizer_hash for m in measurements}) > 1 and metric_of(measurements).name == "perplexity":
        notes.append(
            "The runs use different tokenizers: their perplexities are about different tokens and must not be compared."
        )
    elif not same_text(measurements):
        notes.append(f"The runs were not scored on the same tokens{_what_to_set(measurements)}.")
    counts = [m.parameters for m in measurements]
    if max(counts) > 1.05 * min(counts):
        notes.append(
            "The runs have different numbers of parameters: "
            + ", ".join(f"{label} {m.parameters:,}" for label, m in named)
            + "."
        )
    trained = [m.trained_tokens for m in measurements]
    if all(trained) and max(trained) > 1.01 * min(trained):
        notes.append(
            "The runs saw different amounts of text: "
            + ", ".join(f"{label} {m.trained_tokens:,} tokens" for label, m in named)
            + "."
        )
    if len(measurements) > 2:
        notes.append(
            "The short table has a row for each run, best first: its own context (what it was trained with, or "
            "eval.window), with absolute positions the best way of reading up to it; the report's full table has "
            "every point."
        )
    else:
        notes.append(
            "The short table has, of each run, its own context (what it was trained with, or eval.window) by every "
            "way of reading, the context it is judged by, and the one with its lowest loss; the report's full table "
            "has every point."
        )
    sample = at_best_use(measurements[0])
    sizes = " or ".join(dict.fromkeys(f"{at_best_use(m).tokens:,}" for m in measurements))
    notes.append(
        f"The sample holds {sizes} targets, one from each of as many equal parts of the text, "
        f"the same for every {'run and context' if same_text(measurements) else 'context of a run'}; a window slid by "
        "one token needs a pass of its own for each of them."
    )
    notes.append(
        f"Intervals are 95 % bootstrap intervals over {len(sample.stretch_tokens)} stretches of text (whole documents "
        "where there are twenty or more, else pieces of them); those of differences are paired, run against run on the "
        "same stretches. They say how far other text of that kind could move a number, not another seed: each run is "
        "one seed."
    )
    return notes


def _what_to_set(measurements: Sequence[Measurement]) -> str:
    """What would make them the same tokens, where the text is the same already."""
    if len({(m.split, m.text_hash, m.tokenizer_hash) for m in measurements}) > 1:
        return ""
    return ", though of the same text: give all of them the same eval.sample_targets and eval.max_tokens"
