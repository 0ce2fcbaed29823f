"""Sentences about runs: every number in them computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.unit.evaluation.fakes import measurement, point
from tests.unit.evaluation.test_summary import HARD, bits, vanilla, xl
from txl.evaluation import answer as answers
from txl.evaluation.answer import answer
from txl.evaluation.measure import Measurement
from txl.evaluation.summary import same_text

KINDS_OF_TWO = (("xl", "window"), ("vanilla", "block"))


def said(measurements: Sequence[Measurement]) -> str:
    return str(answer(measurements))


def test_the_answer_says_who_needs_less_by_how_much_and_how_fast() -> None:
    text = said([xl(), vanilla()])
    assert text == (
        f"On the same 160 tokens of test text xl (keys and values cached, context 64) needs {bits(1)} bits per byte "
        f"and vanilla (window slid by one token, context 64) needs {bits(1.25)}: 20.0 % less "
        "(95 % interval −20.0 to −20.0 %). "
        "On all 1,600 tokens xl with 4 times its own context (256 tokens) needs 5 % less (interval −5.0 to −5.0 %). "
        "From its cache xl scores 100 times as many tokens as vanilla with its window slid by one token (64 tokens) "
        "and 0.5 times as many tokens as vanilla with disjoint blocks (64 tokens), in the same time."
    )
    assert said([vanilla(), xl()]) == text


def test_the_answer_names_a_better_baseline() -> None:
    assert said([xl(), vanilla(factor=0.8)]).startswith("On the same 160 tokens of test text vanilla")


def test_the_answer_sees_no_difference_where_there_is_none() -> None:
    draw = np.random.default_rng(9)
    points = [
        point("block", 64, "all", 10 * HARD, each=100),
        point("block", 64, "sample", HARD * draw.normal(1, 0.05, 16)),
    ]
    assert "no difference beyond chance" in said([xl(), measurement("vanilla", points)])


def test_the_answer_gives_no_interval_between_different_texts() -> None:
    text = said([xl(), vanilla(text_hash="ef" * 32)])
    assert text.startswith("On their own test tokens xl")
    assert "the tokens differ, so no interval is given" in text
    assert not same_text([xl(), vanilla(text_hash="ef" * 32)])


def test_one_run_is_simply_described() -> None:
    assert (
        said([vanilla()])
        == f"vanilla needs {bits(1.3)} bits per byte on 1,600 tokens of test text (disjoint blocks, context 64)."
    )


def test_of_many_runs_the_best_is_named_once_and_each_other_has_a_line_best_first() -> None:
    near = HARD * np.random.default_rng(9).normal(1.01, 0.05, 16)
    points = [point("window", 64, "all", 10 * near, each=100), point("window", 64, "sample", near)]
    runs = [vanilla(), measurement("near", points), measurement("xl", xl().points)]
    found = answer(runs)
    assert found.found == (
        f"On the same 160 tokens of test text xl needs least: {bits(1)} bits per byte (keys and values cached, "
        "context 64). Against the others, best first, that is:"
    )
    assert len(found.runs) == 2
    assert found.runs[0].startswith("near, ")
    assert "(keys and values cached, context 64): no difference beyond chance (95 % interval −" in found.runs[0]
    assert found.runs[1] == (
        f"vanilla, {bits(1.25)} (window slid by one token, context 64): 20.0 % less (95 % interval −20.0 to −20.0 %)"
    )
    assert (
        found.more
        == "On all 1,600 tokens xl with 4 times its own context (256 tokens) needs 5 % less (interval −5.0 to −5.0 %)."
    )
    assert str(found) == f"{found.found}\n\n- {found.runs[0]}\n- {found.runs[1]}\n\n{found.more}"
    assert str(answer(runs[::-1])) == str(found)


def test_many_runs_of_different_texts_are_listed_without_intervals() -> None:
    other = measurement("other", vanilla().points, text_hash="ef" * 32)
    found = answer([xl(), vanilla(1.28), other])
    assert found.found.startswith("Each on its own tokens of test text xl needs least")
    assert [line.split(",")[0] for line in found.runs] == ["other", "vanilla"]
    assert all(line.endswith(": the tokens differ, so no interval is given") for line in found.runs)


def test_it_is_said_why_the_same_tokens_give_no_interval() -> None:
    broken = [point("block", 64, "all", [math.nan] * 16, each=100), point("block", 64, "sample", [math.nan] * 16)]
    few = [measurement(name, [point(kind, 64, t, [9.0]) for t in ("all", "sample")]) for name, kind in KINDS_OF_TWO]
    assert "a loss is not finite, so no interval is given" in said([xl(), measurement("vanilla", broken)])
    assert "too few tokens for an interval" in said(few)
    assert not any("tokens differ" in said(runs) for runs in ([xl(), measurement("vanilla", broken)], few))


def test_perplexities_of_different_tokenizers_name_no_winner() -> None:
    runs = [xl(), vanilla(tokenizer_hash="aa" * 32, incomparable="the tokenizer does not keep all of the text")]
    found = answer(runs)
    assert found.found.startswith("These runs cannot be ranked")
    assert [line.split(" needs ")[0] for line in found.runs] == ["xl", "vanilla"]
    assert " less" not in str(found).partition("Each alone:")[2]


def test_a_difference_of_nothing_is_no_finding() -> None:
    points = [point("window", c, "all", 10 * HARD * f, each=100) for c, f in ((64, 1), (256, 1.000002))]
    assert "On all 1,600 tokens xl with 4 times its own context (256 tokens) needs no more and no less" in said(
        [measurement("xl", points)]
    )


def test_of_many_runs_the_best_cache_is_compared_in_speed_with_the_best_fixed_context() -> None:
    worse = {"run": {"dir": "runs/q/worse"}, "model": {"arch": "transformer_xl"}}
    text = said([vanilla(1.3), vanilla(1.25), xl(), xl(config=worse)])
    assert text.count("From its cache") == 1
    assert text.count("On the same") == 1


def test_the_same_speed_is_said_as_such() -> None:
    assert [answers._times(ratio) for ratio in (0.5, 0.96, 1.04, 2.46, 52.4, 1234.5)] == [
        "0.5 times as many tokens",
        "0.96 times as many tokens",
        "as many tokens",
        "2.5 times as many tokens",
        "52 times as many tokens",
        "1,234 times as many tokens",
    ]
