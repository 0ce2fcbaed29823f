"""What a comparison found, in words: measurements -> a few sentences, and of many runs a line each, with intervals.

Numbers are compared by `summary`. Knows nothing of tables, pages or pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from txl.evaluation.context import Point
from txl.evaluation.measure import Measurement
from txl.evaluation.summary import KINDS, Metric, at_best_use, change, metric_of, ranked, same_text, speed_at

UNRANKED = (
    "These runs cannot be ranked: a tokenizer loses text, so their bits per byte do not compare, and their "
    "perplexities are about different tokens. Each alone:"
)
LEAST_SHARE = 1e-4
"""The smallest difference worth a number: a hundredth of a percent."""


@dataclass(frozen=True)
class Answer:
    """found: the main sentences.  runs: of three runs or more a line for each but the best, best first.  more: what
    else is worth a sentence. `str` gives all of it as plain text that is Markdown too."""

    found: str
    runs: tuple[str, ...]
    more: str

    def __str__(self) -> str:
        if not self.runs:
            return " ".join(filter(None, (self.found, self.more)))
        lines = "\n".join(f"- {line}" for line in self.runs)
        return "\n\n".join(filter(None, (self.found, lines, self.more)))


def answer(measurements: Sequence[Measurement]) -> Answer:
    """Which run needs least, how much less than each other one, what longer context brings, and how speeds compare."""
    metric = metric_of(measurements)
    named = ranked(measurements)
    paired = same_text(measurements)
    cached = [pair for pair in named if pair[1].headline.settings.kind == "window"]
    fixed = [pair for pair in named if pair[1].headline.settings.kind == "block"]
    speeds = [_faster(a, b) for a in cached[:1] for b in fixed[:1]]  # the best of each kind; the table has the rest
    if metric.name == "perplexity" and len({m.tokenizer_hash for m in measurements}) > 1:
        alone = tuple(_own_loss(label, m, metric) for label, m in named)
        return Answer(UNRANKED, alone, " ".join(filter(None, speeds)))
    if len(named) > 2:
        found = f"{_least(named[0], metric, paired=paired)} Against the others, best first, that is:"
        beyond = [_beyond(label, m, metric) for label, m in cached[:1]]
        lines = tuple(_line(named[0], other, metric, paired=paired) for other in named[1:])
        return Answer(found, lines, " ".join(filter(None, [*beyond, *speeds])))
    if len(named) == 1:
        found = f"{_own_loss(*named[0], metric)}."
    else:
        found = _against(named[0], named[1], metric, paired=paired)
    return Answer(found, (), " ".join(filter(None, [*(_beyond(label, m, metric) for label, m in cached), *speeds])))


def _own_loss(label: str, m: Measurement, metric: Metric) -> str:
    """What one run needs, compared with nothing."""
    loss = f"{metric.show(metric.of(m.headline))} {metric.name}"
    return f"{label} needs {loss} on {m.headline.tokens:,} tokens of {m.split} text ({reading(m.headline)})"


def reading(point: Point) -> str:
    """How a point read the text, in words."""
    return KINDS[point.settings.kind] + ("" if point.context is None else f", context {point.context:,}")


def _least(best: tuple[str, Measurement], metric: Metric, *, paired: bool) -> str:
    """The best of many runs."""
    label, m = best
    point = at_best_use(m)
    loss = f"{metric.show(metric.of(point))} {metric.name} ({reading(point)})"
    where = f"On the same {point.tokens:,} tokens" if paired else "Each on its own tokens"
    return f"{where} of {m.split} text {label} needs least: {loss}."


def _line(best: tuple[str, Measurement], other: tuple[str, Measurement], metric: Metric, *, paired: bool) -> str:
    """One of many runs, and how much less than it the best one needs."""
    label, m = other
    least, point = at_best_use(best[1]), at_best_use(m)
    difference = change(least, point, metric) if paired else None
    verdict = _why_no_interval(least, point, paired=paired) if difference is None else _verdict(difference)
    return f"{label}, {metric.show(metric.of(point))} ({reading(point)}): {verdict}"


def _against(best: tuple[str, Measurement], other: tuple[str, Measurement], metric: Metric, *, paired: bool) -> str:
    """The better of two runs against the other one."""
    points = [at_best_use(m) for _, m in (best, other)]
    losses = [
        f"{label} ({reading(point)}) needs {metric.show(metric.of(point))}"
        for (label, _), point in zip((best, other), points, strict=True)
    ]
    values = f"{losses[0]} {metric.name} and {losses[1]}"
    split = best[1].split
    where = f"On the same {points[0].tokens:,} tokens of {split} text" if paired else f"On their own {split} tokens"
    difference = change(points[0], points[1], metric) if paired else None
    if difference is None:
        return f"{where} {values}; {_why_no_interval(*points, paired=paired)}."
    return f"{where} {values}: {_verdict(difference)}."


def _why_no_interval(a: Point, b: Point, *, paired: bool) -> str:
    """Why two losses are given without the interval of their difference."""
    if not paired:
        return "the tokens differ, so no interval is given"
    if not (isfinite(a.nats) and isfinite(b.nats)):
        return "a loss is not finite, so no interval is given"
    return "too few tokens for an interval"


def _verdict(difference: tuple[float, float, float]) -> str:
    """How much less the better run needs, with the interval of it."""
    value, low, high = difference
    verdict = f"{_share(value)} less" if high < 0 else "no difference beyond chance"
    return f"{verdict} (95 % interval {_percent(low, high)})"


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
    told = low * high > 0 and abs(value) >= LEAST_SHARE
    verdict = f"{_share(value)} {'less' if value < 0 else 'more'}" if told else "no more and no less"
    times = f"{longest.context / own.context:.3g} times its own context ({longest.context:,} tokens)"
    return f"On all {own.tokens:,} tokens {label} with {times} needs {verdict} (interval {_percent(low, high)})."


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
    shown = f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
    return "as many tokens" if shown == "1" else f"{shown} times as many tokens"


def _share(value: float) -> str:
    """A share without its sign, with the digits it needs."""
    return f"{100 * abs(value):.2g} %" if abs(value) < 0.1 else f"{100 * abs(value):.1f} %"


def _percent(low: float, high: float) -> str:
    """An interval of shares as signed percentages."""
    digits = 1 if max(abs(low), abs(high)) >= 0.01 else 2
    return f"{100 * low:+.{digits}f} to {100 * high:+.{digits}f} %".replace("-", "−")
