"""What several measurements say together: a few sentences, one short table, and what forbids to read more into them.

Measurements -> numbers already compared and formatted. Knows nothing of files, HTML or pictures.
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
    "kv-token": "such a decoder, a token at a time",
}
"""The same for what is timed."""
HEADER = (
    "run",
    "reads by",
    "context",
    "tokens",
    "{metric}",
    "same {sample} tokens",
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
    """By which share a is above b (negative: below), with its paired 95 % interval; None for other tokens."""
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
    """Header and rows, all text: of each run its own context by every reading and its best point; or every point.

    A column without any entry, such as the speeds of what was not timed, is left out.
    """
    metric = metric_of(measurements)
    sampled = at_best_use(measurements[0]).tokens
    header = tuple(title.format(metric=metric.name, sample=f"{sampled:,}") for title in HEADER)
    rows = []
    for label, m in zip(labels(measurements), measurements, strict=True):
        keys = sorted({(p.settings.kind, p.context) for p in m.points}, key=lambda key: (key[0], key[1] or 0))
        if not every_point:
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


def answer(measurements: Sequence[Measurement]) -> str:
    """What was found, in a few sentences, with intervals."""
    metric = metric_of(measurements)
    named = list(zip(labels(measurements), measurements, strict=True))
    named.sort(key=lambda pair: metric.of(at_best_use(pair[1])))
    paired = same_text(measurements)
    if len(named) == 1:
        label, m = named[0]
        loss = f"{metric.show(metric.of(m.headline))} {metric.name}"
        sentences = [f"{label} needs {loss} on {m.headline.tokens:,} tokens of {m.split} text ({reading(m.headline)})."]
    else:
        sentences = [_against(named[0], other, metric, paired=paired) for other in named[1:]]
    cached = [pair for pair in named if pair[1].headline.settings.kind == "window"]
    sentences += [_beyond(label, m, metric) for label, m in cached]
    fixed = [pair for pair in named if pair[1].headline.settings.kind == "block"]
    sentences += [_faster(a, b) for a in cached[:1] for b in fixed[:1]]  # the best of each kind; the table has the rest
    return " ".join(filter(None, sentences))


def reading(point: Point) -> str:
    """How a point read the text, in words."""
    return KINDS[point.settings.kind] + ("" if point.context is None else f", context {point.context:,}")


def _against(best: tuple[str, Measurement], other: tuple[str, Measurement], metric: Metric, *, paired: bool) -> str:
    """The best run against another one."""
    points = [at_best_use(m) for _, m in (best, other)]
    losses = [
        f"{label} ({reading(point)}) needs {metric.show(metric.of(point))}"
        for (label, _), point in zip((best, other), points, strict=True)
    ]
    values = f"{losses[0]} {metric.name} and {losses[1]}"
    difference = change(points[0], points[1], metric) if paired else None
    if difference is None:
        return f"On their own {best[1].split} tokens {values}; the tokens differ, so no interval is given."
    value, low, high = difference
    verdict = f"{_share(value)} less" if high < 0 else "no difference beyond chance"
    interval = f"95 % interval {_percent(low, high)}"
    return f"On the same {points[0].tokens:,} tokens of {best[1].split} text {values}: {verdict} ({interval})."


def _beyond(label: str, m: Measurement, metric: Metric) -> str:
    """What the longest context brings over the run's own; nothing where its own is the longest."""
    own = m.headline
    longer = [p for p in m.points if p.targets == "all" and (p.context or 0) > (own.context or 0)]
    if not longer or not own.context:
        return ""
    longest = max(longer, key=lambda p: p.context or 0)
    difference = change(longest, own, metric)
    if difference is None or not longest.context:
        return ""
    value, low, high = difference
    verdict = f"{_share(value)} {'less' if value < 0 else 'more'}" if low * high > 0 else "no more and no less"
    times = f"{longest.context / own.context:g} times its own context ({longest.context:,} tokens)"
    return f"With {times} {label} needs {verdict} (interval {_percent(low, high)})."


def _faster(cached: tuple[str, Measurement], fixed: tuple[str, Measurement]) -> str:
    """How a cache compares with computing the window anew, and with blocks, at their own contexts."""
    (a_name, a), (b_name, b) = cached, fixed
    ours = speed_at(a, a.headline)
    theirs = [
        next((s for s in b.speeds if (s.kind, s.context) == (kind, b.headline.context)), None)
        for kind in ("slide", "block")
    ]
    ratios = [
        f"{_times(ours.median / speed.median)} as {b_name} with {words} ({speed.context:,} tokens)"
        for speed, words in zip(theirs, ("its window slid by one token", "disjoint blocks"), strict=True)
        if ours is not None and speed is not None
    ]
    return f"From its cache {a_name} scores {' and '.join(ratios)}, in the same time." if ratios else ""


def _times(ratio: float) -> str:
    """A ratio of speeds in words."""
    return f"{ratio:,.0f} times as many tokens" if ratio >= 10 else f"{ratio:.2g} times as many tokens"


def _share(value: float) -> str:
    """A share without its sign, with the digits it needs."""
    return f"{100 * abs(value):.2g} %" if abs(value) < 0.1 else f"{100 * abs(value):.1f} %"


def _percent(low: float, high: float) -> str:
    """An interval of shares as signed percentages."""
    digits = 1 if max(abs(low), abs(high)) >= 0.01 else 2
    return f"{100 * low:+.{digits}f} to {100 * high:+.{digits}f} %".replace("-", "−")
