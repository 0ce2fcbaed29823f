"""Sentences, tables and warnings: every number in them computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.evaluation.fakes import measurement, point, speed
from txl.evaluation.caveats import caveats
from txl.evaluation.context import Point
from txl.evaluation.interval import ratio_interval
from txl.evaluation.measure import Measurement
from txl.evaluation.payoff import Group
from txl.evaluation.summary import (
    Metric,
    at_best_use,
    change,
    labels,
    metric_of,
    speed_at,
    table,
)

HARD = np.random.default_rng(8).uniform(15, 25, size=16)


NAN = point("window", 64, "sample", [*HARD[:-1], math.nan])


def groups(kind: str, factor: float) -> tuple[Group, ...]:
    """A question of two classes on the sample, and one on all tokens."""
    copied = "copied from (8 tokens come again)"
    near, new = (point(kind, 64, "sample", factor * share * HARD, each=5) for share in (0.25, 0.75))
    depth = [point("block" if kind == "slide" else kind, 64, "all", factor * HARD, each=50) for _ in range(2)]
    return (
        Group(copied, "1 – 64", near),
        Group(copied, "further or never", new),
        Group("position in segment", "1", depth[0]),
        Group("position in segment", "2 – 64", depth[1]),
    )


def xl(**changes: object) -> Measurement:
    points = [
        point("window", 64, "all", 10 * HARD, each=100),
        point("window", 64, "sample", HARD),
        point("window", 16, "all", 10.5 * HARD, each=100),
        point("window", 16, "sample", 1.05 * HARD),
        point("window", 256, "all", 9.5 * HARD, each=100),
        point("window", 256, "sample", 0.95 * HARD),
    ]
    speeds = [speed("window", c, 10_000.0) for c in (16, 64, 256)]
    return measurement("xl", points, speeds, **{"groups": groups("window", 1.0), **changes})


def vanilla(factor: float = 1.25, **changes: object) -> Measurement:
    points = [
        point("block", 64, "all", 13 * HARD, each=100),
        point("block", 64, "sample", 1.3 * HARD),
        point("slide", 16, "sample", 1.4 * HARD),
        point("slide", 64, "sample", factor * HARD),
        point("slide", 128, "sample", 1.1 * HARD),
    ]
    speeds = [speed("slide", 64, 100.0), speed("block", 64, 20_000.0)]
    return measurement("vanilla", points, speeds, **{"groups": groups("slide", factor), **changes})


def test_bits_per_byte_unless_a_tokenizer_forbids_it() -> None:
    assert metric_of([xl(), vanilla()]).name == "bits per byte"
    assert metric_of([xl(), vanilla(incomparable="because")]).name == "perplexity"
    p = point("window", 4, "all", [30.0, 50.0], each=20, n_bytes=100)
    assert Metric("bits per byte").of(p) == pytest.approx(80 / math.log(2) / 100)
    assert Metric("bits per byte").of(p, 1.0) == pytest.approx(40 / math.log(2) / 100)
    assert Metric("perplexity").of(p) == pytest.approx(math.exp(2))
    assert Metric("bits per byte").show(1.23456) == "1.2346"
    assert Metric("perplexity").show(1234.567) == "1,234.57"


def test_names_are_told_apart() -> None:
    assert labels([xl(), vanilla()]) == ["xl", "vanilla"]
    config = {"run": {"dir": "runs/other/xl"}, "model": {"arch": "transformer_xl"}}
    assert labels([xl(), xl(config=config)]) == ["q/xl", "other/xl"]
    assert labels([xl(), xl(), xl()]) == ["q/xl", "q/xl (2)", "q/xl (3)"]


def test_a_run_is_judged_at_its_own_context_and_a_baseline_at_its_best_up_to_it() -> None:
    assert (at_best_use(xl()).settings.kind, at_best_use(xl()).context) == ("window", 64)
    assert (at_best_use(vanilla()).settings.kind, at_best_use(vanilla()).context) == ("slide", 64)
    assert at_best_use(vanilla(factor=1.35)).settings.kind == "block"
    assert at_best_use(vanilla(factor=1.5)).nats == pytest.approx(1.3 * HARD.sum())
    whole = measurement("only", [point("window", 64, "all", HARD)])
    assert at_best_use(whole) is whole.headline


def test_a_change_is_paired_and_in_the_metric() -> None:
    a, b = point("window", 4, "sample", 0.9 * HARD), point("slide", 4, "sample", HARD)
    assert change(a, b, Metric("bits per byte")) == pytest.approx((-0.1, -0.1, -0.1))
    value, low, high = change(a, b, Metric("perplexity")) or (0, 0, 0)
    assert value == pytest.approx(math.exp(-0.1 * HARD.sum() / 160) - 1)
    assert low < value < high < 0
    noisy = point("slide", 4, "sample", HARD[::-1])
    low, high = ratio_interval(a.stretch_nats, noisy.stretch_nats)
    assert change(a, noisy, Metric("bits per byte")) == pytest.approx((-0.1, low - 1, high - 1))


@pytest.mark.parametrize(
    "other",
    [
        point("slide", 4, "sample", HARD, each=20),
        point("slide", 4, "sample", HARD[:3]),
        point("slide", 4, "sample", 0 * HARD),
    ],
)
def test_no_change_is_given_between_points_that_cannot_be_compared(other: Point) -> None:
    assert change(point("window", 4, "sample", HARD), other, Metric("bits per byte")) is None
    broken = point("window", 4, "sample", [*HARD[:-1], math.nan])
    assert change(broken, point("slide", 4, "sample", HARD), Metric("bits per byte")) is None


def bits(value: float) -> str:
    return f"{value * HARD.sum() / 160 / math.log(2):.4f}"


def test_the_table_has_each_runs_own_context_by_every_reading_and_its_best_point() -> None:
    header, rows = table([xl(), vanilla()])
    assert header == (
        "run",
        "reads by",
        "context",
        "tokens",
        "bits per byte",
        "same 160 tokens",
        "95 % interval",
        "tokens/s",
        "fed per token",
    )
    assert [row[:3] for row in rows] == [
        ("xl", "keys and values cached", "64"),
        ("xl", "keys and values cached", "256"),
        ("vanilla", "disjoint blocks", "64"),
        ("vanilla", "window slid by one token", "64"),
        ("vanilla", "window slid by one token", "128"),
    ]
    assert rows[0][3:6] == ("1,600", bits(1), bits(1))
    assert rows[0][7:] == ("10,000", "1")
    assert rows[3][3:6] == ("–", "–", bits(1.25))
    assert rows[3][7:] == ("100", "64")
    assert rows[4][7:] == ("–", "–")
    low, high = point("slide", 64, "sample", 1.25 * HARD).interval
    assert rows[3][6] == f"{low / math.log(2):.4f} – {high / math.log(2):.4f}"
    assert [row[2] for row in table([xl()], every_point=True)[1]] == ["16", "64", "256"]


def test_of_three_runs_the_table_has_a_row_each_best_first() -> None:
    worse, broken = (measurement(*run) for run in (("worse", vanilla().points[:2]), ("broken", [NAN])))
    header, rows = table([broken, vanilla(1.25), worse, xl()])
    assert header[5] == "same 160 tokens"
    assert [row[:3] for row in rows] == [
        ("xl", "keys and values cached", "64"),
        ("vanilla", "window slid by one token", "64"),
        ("worse", "disjoint blocks", "64"),
        ("broken", "keys and values cached", "64"),
    ]
    assert [row[5] for row in rows[:3]] == [bits(1), bits(1.25), bits(1.3)]
    assert len(table([broken, vanilla(), worse, xl()], every_point=True)[1]) == 1 + 4 + 1 + 3


def test_a_column_that_says_nothing_is_left_out() -> None:
    untimed = measurement("xl", xl().points)
    assert table([untimed])[0] == (
        "run",
        "reads by",
        "context",
        "tokens",
        "bits per byte",
        "same 160 tokens",
        "95 % interval",
    )
    sampled = measurement("xl", [p for p in vanilla().points if p.settings.kind == "slide"])
    assert "tokens" not in table([sampled])[0]


def test_speed_is_looked_up_by_kind_and_context() -> None:
    m = vanilla()
    assert speed_at(m, m.headline) == m.speeds[1]
    assert speed_at(m, m.points[2]) is None


def test_caveats_say_what_forbids_a_comparison() -> None:
    plain = caveats([xl(), vanilla()])
    assert len(plain) == 3
    assert plain[0].startswith("The short table has, of each run, its own context")
    assert caveats([xl(), xl(), vanilla()])[0].startswith("The short table has a row for each run, best first")
    assert "The sample holds 160 targets, one from each of as many equal parts" in plain[1]
    assert "16 stretches" in plain[2]
    text = " ".join(caveats([xl(), vanilla(incomparable="3 of the scored tokens are <unk>", tokenizer_hash="ff")]))
    assert (
        "vanilla: bits per byte are not comparable with other tokenizers', because 3 of the scored tokens are <unk>."
        in text
    )
    assert "their perplexities are about different tokens" in text
    text = " ".join(caveats([xl(), vanilla(text_tokens=5)]))
    assert "not scored on the same tokens, though of the same text: give all of them the same eval.sample" in text
    text = " ".join(caveats([xl(), vanilla(text_hash="ef" * 32)]))
    assert "not scored on the same tokens." in text
    few = measurement("few", [point("window", 64, "sample", HARD, each=5)])
    assert "The sample holds 160 or 80 targets" in " ".join(caveats([xl(), few]))
    text = " ".join(caveats([xl(parameters=1200), vanilla(learning=())]))
    assert "different numbers of parameters: xl 1,200, vanilla 1,000" in text
    assert "amounts of text" not in text
    curve = xl().learning[0]
    longer = (type(curve)("train", curve.steps, (1000, 2000, 9000), curve.seconds, curve.nll, 1.0),)
    assert "xl 9,000 tokens, vanilla 3,000 tokens" in " ".join(caveats([xl(learning=longer), vanilla()]))
