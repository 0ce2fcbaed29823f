"""What several measurements say together: which points to compare, by which number, and one short table.

Measurements -> numbers already compared and formatted. Knows nothing of sentences, files, HTML or pictures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from txl.evaluation.context import Point
from txl.evaluation.interval import ratio_interval
from txl.evaluation.measure import Measurement
from txl.evaluation.perplexity import perplexity
from txl.evaluation.speed import Speed

KINDS = {
    "window": "keys and values cached",
    "slide": "window slid by one token",
    "block": "disjoint blocks",
    "state": "recurrent state",
    "truncated": "fresh pass over exactly so many tokens",
    "at-least": "fresh passes with at least so many tokens",
    "stride": "window moved by a stride",
}
"""How each kind reads the text, in words."""
SPEED_KINDS = KINDS | {
    "token": "a token at a time, cached",
    "kv": "decoder with cached keys and values",
    "kv-token": "the same, a token at a time",
}
"""The same for what is timed."""
HEADER = (
    "run",
    "reads by",
    "context",
    "tokens",
    "{metric}",
    "{sample}",
    "95 % interval",
    "tokens/s",
    "fed per token",
)
"""Columns of the short table."""


@dataclass(frozen=True)
class Metric:
    """The number to show: bits per byte where all runs can be compared by it, else perplexity."""

    name: str

    def of(self, point: Point, nll: float | None = None) -> float:
        """The metric of a point, or of another loss (nats a token) on the same tokens."""
        nats = point.nll if nll is None else nll
        if self.name == "perplexity":
            return perplexity(nats, 1)
        return nats * point.tokens / math.log(2) / point.text_bytes if point.text_bytes else math.nan

    def show(self, value: float) -> str:
        """Digits that a test text of usual size supports."""
        return f"{value:.4f}" if self.name == "bits per byte" else f"{value:,.2f}"


def metric_of(measurements: Sequence[Measurement]) -> Metric:
    """bits per byte, unless the tokenizer of one run loses text or unknown symbols were scored."""
    return Metric("perplexity" if any(m.incomparable for m in measurements) else "bits per byte")


def labels(measurements: Sequence[Measurement]) -> list[str]:
    """A name for each run: that of its folder, with the folder above it or a number where two are alike."""
    names = [m.name for m in measurements]
    if len(set(names)) < len(names):
        names = [
            "/".join(str(m.config["run"]["dir"]).replace("\\", "/").rstrip("/").split("/")[-2:]) for m in measurements
        ]
    seen: Counter[str] = Counter()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def same_text(measurements: Sequence[Measurement]) -> bool:
    """Whether all points are about the same tokens, so that losses may be compared token by token."""
    return len({m.text for m in measurements}) == 1


def find(m: Measurement, kind: str, context: int | None, targets: str) -> Point | None:
    """A point of a measurement, None where it was not scored."""
    found = (p for p in m.points if (p.settings.kind, p.context, p.targets) == (kind, context, targets))
    return next(found, None)


def at_best_use(m: Measurement) -> Point:
    """The sampled point a run is judged by.

    Its own context; where positions are absolute the best of all readings up to it: a doubt favours the baseline.
    """
    own = m.headline
    kinds = ("slide", "block") if own.settings.kind == "block" else (own.settings.kind,)
    sampled = [p for p in m.points if p.targets == "sample" and p.settings.kind in kinds]
    fitting = [
        p for p in sampled if p.context == own.context or (len(kinds) > 1 and (p.context or 0) < (own.context or 0))
    ]
    return min(fitting, key=lambda p: p.nll, default=own)


def ranked(measurements: Sequence[Measurement]) -> list[tuple[str, Measurement]]:
    """Names and runs by the loss each is judged by, the least first, one that is not a number last."""
    metric = metric_of(measurements)

    def loss(pair: tuple[str, Measurement]) -> float:
        value = metric.of(at_best_use(pair[1]))
        return math.inf if math.isnan(value) else value

    return sorted(zip(labels(measurements), measurements, strict=True), key=loss)


def speed_at(m: Measurement, point: Point) -> Speed | None:
    """How fast a point's kind and context are, None where it was not timed."""
    return next((s for s in m.speeds if (s.kind, s.context) == (point.settings.kind, point.context)), None)


def groups_of(m: Measurement, by: str, targets: str) -> dict[str, Point]:
    """The points of one question by the label of their class, each at the run's best use."""
    found = dict.fromkeys(g.label for g in m.groups if g.by.startswith(by) and g.point.targets == targets)
    points = {label: group_at_best_use(m, by, label, targets) for label in found}
    return {label: point for label, point in points.items() if point is not None}


def group_at_best_use(m: Measurement, by: str, label: str, targets: str = "sample") -> Point | None:
    """The point of one class: of the kind of reading the run is judged by where it was split, else of the headline."""
    points = [g.point for g in m.groups if (g.label, g.point.targets) == (label, targets) and g.by.startswith(by)]
    wanted = at_best_use(m).settings.kind
    return next((p for p in points if p.settings.kind == wanted), points[0] if points else None)


def change(a: Point, b: Point, metric: Metric) -> tuple[float, float, float] | None:
    """By which share a is above b (negative: below), with its paired 95 % interval.

    None for other tokens, too few of them, or a loss that is not finite.
    """
    sums = (a.stretch_nats, b.stretch_nats)
    if a.stretch_tokens != b.stretch_tokens or len(a.stretch_tokens) < 2 or not b.nats > 0 or not math.isfinite(a.nats):
        return None
    if metric.name == "bits per byte":
        low, high = ratio_interval(*sums)
        return a.nats / b.nats - 1, low - 1, high - 1
    low, high = ratio_interval([x - y for x, y in zip(*sums, strict=True)], a.stretch_tokens)
    return math.expm1(a.nll - b.nll), math.expm1(low), math.expm1(high)


def table(
    measurements: Sequence[Measurement], *, every_point: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows, all text: of one or two runs their own context by every reading and their best point.

    Of more runs a row each, the point it is judged by, best first. Or every point. A column without any entry, such as
    the speeds of what was not timed, is left out.
    """
    metric = metric_of(measurements)
    named = list(zip(labels(measurements), measurements, strict=True))
    if ranking := len(named) > 2 and not every_point:
        named = ranked(measurements)
    sample = f"same {at_best_use(measurements[0]).tokens:,} tokens" if same_text(measurements) else "own sample"
    header = tuple(title.format(metric=metric.name, sample=sample) for title in HEADER)
    rows = []
    for label, m in named:
        keys = sorted({(p.settings.kind, p.context) for p in m.points}, key=lambda key: (key[0], key[1] or 0))
        if ranking:
            keys = [(at_best_use(m).settings.kind, at_best_use(m).context)]
        elif not every_point:
            best = min((p for p in m.points if p.targets == "sample"), key=lambda p: p.nll, default=m.headline)
            chosen = (best, at_best_use(m), *(p for p in m.points if p.context == m.headline.context))
            kept = {(p.settings.kind, p.context) for p in chosen}
            keys = [key for key in keys if key in kept]
        rows += [_row(label, m, kind, context, metric) for kind, context in keys]
    told = [column for column in range(len(header)) if any(row[column] != "–" for row in rows)]
    return tuple(header[column] for column in told), [tuple(row[column] for column in told) for row in rows]


def _row(label: str, m: Measurement, kind: str, context: int | None, metric: Metric) -> tuple[str, ...]:
    """One line of the table."""
    whole, sample = (find(m, kind, context, targets) for targets in ("all", "sample"))
    some = sample or whole
    assert some is not None
    low, high = (metric.show(metric.of(some, nll)) for nll in some.interval)
    speed = speed_at(m, some)
    return (
        label,
        KINDS[kind],
        "unbounded" if context is None else f"{context:,}",
        "–" if whole is None else f"{whole.tokens:,}",
        "–" if whole is None else metric.show(metric.of(whole)),
        "–" if sample is None else metric.show(metric.of(sample)),
        f"{low} – {high}",
        "–" if speed is None else f"{speed.median:,.0f}",
        "–" if speed is None else f"{speed.fed_per_scored:,.0f}",
    )
