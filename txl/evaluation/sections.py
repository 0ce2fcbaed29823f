"""The tables of a report besides the first: effective context lengths, what memory pays for, speeds beside the paper's.

Measurements -> titled tables of text. Knows nothing of Markdown, HTML or pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from txl.evaluation import summary
from txl.evaluation.measure import Measurement
from txl.evaluation.recl import Recl
from txl.evaluation.speed import PAPER


@dataclass(frozen=True)
class Section:
    """A table with its title and what a reader must know of it."""

    title: str
    caption: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def sections(measurements: Sequence[Measurement], lengths: Sequence[Recl]) -> list[Section]:
    """The tables that there is something for."""
    made = [_lengths(lengths), _memory(measurements), _speeds(measurements)]
    return [section for section in made if section is not None and section.rows]


def _lengths(lengths: Sequence[Recl]) -> Section | None:
    """A row a model, a column a share."""
    if not lengths:
        return None
    shares = list(dict.fromkeys(found.share for found in lengths))
    models = list(dict.fromkeys(found.model for found in lengths))
    by = {(found.model, found.share): found for found in lengths}
    positions = ", ".join(f"{by[models[0], share].positions:,}" for share in shares)
    caption = (
        f"The shortest context beyond which Δ = {lengths[0].step:,} more tokens lower the perplexity by less than "
        f"{lengths[0].threshold:.0%} on the share r of the targets that are hardest for the whole group at that "
        f"context ({positions} targets). Each loss is that of a fresh pass over exactly so many tokens; the runs are "
        "one group (Dai et al. 2019, appendix C). ≤: so it was at the shortest context tried already. ≥: the longest "
        "one tried still brought that much. A model with absolute positions has at most its segment. Lengths are read "
        "off in steps of Δ and carry no interval: few targets make them coarse."
    )
    rows: list[tuple[str, ...]] = []
    for model in models:
        rows.append((model, *(_length(by[model, share]) for share in shares)))
    return Section("Relative effective context length", caption, ("run", *(f"r = {share:g}" for share in shares)), rows)


def _length(found: Recl) -> str:
    """A length, with the sign of a bound where it is no more than one."""
    sign = "≤ " if found.at_most else "" if found.settled else "≥ "
    return f"{sign}{found.length:,}"


def _memory(measurements: Sequence[Measurement]) -> Section | None:
    """Loss by class of target, a column a run; in the last one what the best run saves against the worst."""
    metric = summary.metric_of(measurements)
    labels = summary.labels(measurements)
    tables = [{(g.by, g.label): g.point for g in m.groups if g.point.targets == "sample"} for m in measurements]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows: list[tuple[str, ...]] = []
    for by, label in keys:
        points = [summary.group_at_best_use(m, by, label) for m in measurements]
        held = [p for p in points if p is not None]
        shown = ("–" if p is None else metric.show(metric.of(p)) for p in points)
        gain = "–"
        if len(held) == len(points) > 1 and summary.same_text(measurements):
            best, worst = min(held, key=metric.of), max(held, key=metric.of)
            difference = summary.change(best, worst, metric)
            if difference is not None and math.isfinite(sum(difference)):
                value, high, low = (f"{-100 * share:.1f}".replace("-", "−") for share in difference)
                gain = f"{labels[points.index(best)]} {value} % ({low} to {high})"
        rows.append((f"{by}: {label}", f"{held[0].tokens:,}" if held else "–", *shown, gain))
    caption = (
        f"{metric.name.capitalize()} of the sampled targets by what they are, each run at its own context. A target "
        "counts as copied where it completes a run of tokens, about 8 bytes of text, that came before; the distance is "
        "to its latest occurrence. Last column: which run needs least, and how much less than the one that needs most, "
        "with its paired 95 % interval."
    )
    header = ("targets", "how many", *labels, "best against worst")
    return Section("Where memory pays", caption, header, rows)


def _speeds(measurements: Sequence[Measurement]) -> Section | None:
    """Tokens a second by kind and context, a row each."""
    rows: list[tuple[str, ...]] = []
    cached = next((pair for pair in summary.ranked(measurements) if pair[1].headline.settings.kind == "window"), None)
    from_cache = {s.context: s.median for s in cached[1].speeds if s.kind == "window"} if cached else {}
    for label, m in zip(summary.labels(measurements), measurements, strict=True):
        for speed in sorted(m.speeds, key=lambda s: (s.kind, s.context or 0)):
            ratio = from_cache.get(speed.context) if speed.kind == "slide" else None
            rows.append(
                (
                    label,
                    summary.SPEED_KINDS[speed.kind],
                    "–" if speed.context is None else f"{speed.context:,}",
                    f"{speed.median:,.0f}",
                    f"{speed.low:,.0f} – {speed.high:,.0f}",
                    f"{speed.rows} × {speed.segment_tokens}",
                    _megabytes(speed.state_bytes or None),
                    _megabytes(speed.peak_bytes),
                    "–" if ratio is None else f"{ratio / speed.median:,.0f}",
                )
            )
    paper = ", ".join(f"{ratio:,} at {length:,}" for length, ratio in PAPER.items())
    caption = (
        "Tokens a second, median and range of the timed runs; rows × tokens fed at once; MB of the cache, and the most "
        "taken while scoring beyond what was in use before. Last column: how many times slower a window computed anew "
        f"for each token scores than {cached[0] if cached else 'Transformer-XL'} from a cache of that length. The "
        f"paper reports, for its model on its GPU, {paper} tokens (Table 9); it does not compare with a decoder that "
        "caches keys and values, which here is timed with rotary positions and weights drawn anew."
    )
    header = ("run", "reads", "context", "tokens/s", "range", "rows × tokens", "cache MB", "peak MB", "times slower")
    return Section("Speed and memory against attention length", caption, header, rows)


def _megabytes(size: int | None) -> str:
    """A size in MB; a dash where nobody knows it or there is none."""
    return "–" if size is None else f"{size / 1e6:,.2f}"
