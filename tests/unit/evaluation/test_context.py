"""Context curves: which points there are, on which tokens, and that a sampled slid window is exact evaluation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.evaluation.fakes import Reader, point, reader_nll
from txl.evaluation import fresh
from txl.evaluation.context import compared, curve, readings
from txl.evaluation.fresh import Text, sample_of, slid_contexts, slide, stride
from txl.evaluation.interval import ratio_interval
from txl.evaluation.kept import Kept
from txl.evaluation.perplexity import evaluate

IDS = np.random.default_rng(6).integers(0, 13, 90).astype(np.uint8)
TEXT = Text(IDS, np.arange(13) / 4)


def test_one_target_is_drawn_from_each_equal_part() -> None:
    sample = sample_of(1000, 50)
    assert len(sample) == 50
    assert (sample // 20).tolist() == list(range(50))
    assert len({int(value) % 20 for value in sample}) > 10  # not the same place in each part
    assert np.array_equal(sample, sample_of(1000, 50))
    assert not np.array_equal(sample, sample_of(1000, 50, seed=1))


@pytest.mark.parametrize("targets", [1, 7, 50])
def test_a_short_text_is_sampled_whole(targets: int) -> None:
    assert sample_of(targets, 50).tolist() == list(range(targets))


def test_uneven_parts_stay_in_range_and_differ() -> None:
    for targets in (51, 99, 1234):
        sample = sample_of(targets, 50)
        assert len(set(sample.tolist())) == 50
        assert sample.min() >= 0
        assert sample.max() < targets


@pytest.mark.parametrize("length", [1, 4, 30, 200])
@pytest.mark.parametrize("resets", [[], [11, 40]])
def test_a_sampled_slid_window_is_exact_evaluation_at_those_targets(length: int, resets: list[int]) -> None:
    flags = np.isin(np.arange(90), resets) if resets else None
    targets = sample_of(89, 25)
    nll = slide(Reader(13, "slide"), Text(IDS, TEXT.bytes_per_id, flags), targets, length)
    whole = evaluate(Reader(13, "slide"), IDS, length - 1, 2, flags).nll
    assert nll.tolist() == whole[targets].tolist()
    assert nll.tolist() == np.array(reader_nll(IDS.tolist(), window=length - 1, resets=resets))[targets].tolist()


def test_slid_windows_are_read_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, targets = Reader(13, "slide"), sample_of(89, 25)
    whole = slide(model, TEXT, targets, 10)
    assert model.calls <= 10 + 1  # the windows cut short by the beginning, and the others together
    monkeypatch.setattr(fresh, "WINDOW_TOKENS", 32)
    told: list[tuple[int, int]] = []
    assert slide(model, TEXT, targets, 10, progress=lambda *now: told.append(now)).tolist() == whole.tolist()
    assert told[-1] == (25, 25)


def test_a_context_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="context: found 0; expected at least 1"):
        slide(Reader(13, "slide"), TEXT, np.arange(3), 0)


@pytest.mark.parametrize(
    ("contexts", "own", "learned", "expected"),
    [
        ((4, 8, 16, 32), 8, False, [4, 8, 16]),
        ((4, 8, 16, 32), 8, True, [4, 8]),
        ((32, 4), 10, False, [4, 10, 32]),
        ((), 10, False, [10]),
        ((64,), 10, True, [10]),
    ],
)
def test_contexts_of_absolute_positions(
    contexts: tuple[int, ...], own: int, learned: bool, expected: list[int]
) -> None:
    assert slid_contexts(contexts, own=own, learned=learned) == expected


def test_a_curve_through_the_cache_scores_all_tokens_and_the_sample_among_them() -> None:
    points = curve(Reader(13), TEXT, (2, 20), window=5, sample_targets=25, batch_size=3)
    assert [(p.settings.kind, p.context, p.targets) for p in points] == [
        ("window", 5, "all"),
        ("window", 5, "sample"),
        ("window", 2, "all"),
        ("window", 2, "sample"),
        ("window", 20, "all"),
        ("window", 20, "sample"),
        ("truncated", 2, "sample"),
        ("truncated", 20, "sample"),
    ]
    sample = sample_of(89, 25)
    for p in points[6:]:
        assert p.context is not None
        wanted = np.array(reader_nll(IDS.tolist(), window=p.context - 1))[sample]
        assert p.nats == pytest.approx(wanted.sum())
        assert p.settings.window == p.settings.reach == p.context - 1
    for p in points[:6]:
        wanted = np.array(reader_nll(IDS.tolist(), window=p.context))
        wanted = wanted if p.targets == "all" else wanted[sample]
        assert p.tokens == len(wanted)
        assert p.nats == pytest.approx(wanted.sum())
        assert p.settings.window == p.context
        assert p.settings.reach == 3 * p.settings.window
        assert sum(p.stretch_tokens) == p.tokens
        assert sum(p.stretch_nats) == pytest.approx(p.nats)
    assert points[0].text_bytes == pytest.approx((IDS[1:] / 4).sum())
    assert points[1].text_bytes == pytest.approx((IDS[sample + 1] / 4).sum())


def test_a_curve_of_absolute_positions_has_blocks_of_all_and_slid_windows_of_the_sample() -> None:
    told: list[tuple[int, int]] = []
    model = Reader(13, "slide", tgt_len=8)
    points = curve(model, TEXT, (4, 16, 32), sample_targets=25, batch_size=3, progress=lambda *now: told.append(now))
    assert [(p.settings.kind, p.context, p.targets) for p in points] == [
        ("block", 8, "all"),
        ("block", 8, "sample"),
        ("slide", 4, "sample"),
        ("slide", 8, "sample"),
        ("slide", 16, "sample"),
    ]
    sample = sample_of(89, 25)
    for p in points[2:]:
        assert p.context is not None
        wanted = np.array(reader_nll(IDS.tolist(), window=p.context - 1))[sample]
        assert p.nats == pytest.approx(wanted.sum())
        assert p.settings.window == p.settings.reach == p.context - 1
    assert told == sorted(told)
    assert told[-1] == (89 + 25 * (4 + 8 + 16),) * 2


def test_every_model_is_scored_on_the_same_sample() -> None:
    one = curve(Reader(13), TEXT, (2, 60), sample_targets=25, batch_size=3)
    other = curve(Reader(13, "slide", tgt_len=5), TEXT, (2, 60), sample_targets=25, batch_size=1)
    sampled = {p.text_bytes for p in (*one, *other) if p.targets == "sample"}
    assert len(sampled) == 1


def test_a_recurrent_state_has_one_unbounded_context() -> None:
    points = curve(Reader(13, "state"), TEXT, (4, 16), sample_targets=25, batch_size=3)
    assert [(p.settings.kind, p.context, p.targets) for p in points] == [
        ("state", None, "all"),
        ("state", None, "sample"),
        ("truncated", 4, "sample"),
        ("truncated", 16, "sample"),
    ]
    assert points[0].nats == pytest.approx(sum(reader_nll(IDS.tolist(), window=None)))


def test_resets_reach_every_kind_of_point() -> None:
    flags = np.isin(np.arange(90), [30, 31, 88])
    resets = [30, 31, 88]
    text = Text(IDS, TEXT.bytes_per_id, flags)
    for model in (Reader(13), Reader(13, "slide", tgt_len=8)):
        for p in curve(model, text, (4,), sample_targets=1000, batch_size=2):
            at = [*range(0, 90, 8), *resets] if p.settings.kind == "block" else resets
            window = None if p.settings.kind == "block" else p.settings.window
            assert p.nats == pytest.approx(sum(reader_nll(IDS.tolist(), window=window, resets=at)))
            assert p.settings.resets == 3


def test_bits_per_byte_by_hand() -> None:
    p = point("window", 4, "all", [30.0, 50.0], each=20, n_bytes=100)
    assert p.nll == 2.0
    assert p.perplexity == pytest.approx(math.exp(2.0))
    assert p.bits_per_byte == pytest.approx(80 / math.log(2) / 100)
    assert p.interval == ratio_interval([30.0, 50.0], [20.0, 20.0])


def test_a_point_without_text_or_with_one_stretch_says_that_it_knows_nothing() -> None:
    p = point("window", 4, "all", [3.0])
    assert all(math.isnan(end) for end in p.interval)
    silent = Text(IDS, np.zeros(13))
    assert math.isnan(curve(Reader(13), silent, (), window=2, sample_targets=5, batch_size=1)[0].bits_per_byte)


def test_points_about_the_same_tokens_are_compared_and_others_are_not() -> None:
    hard = [10.0, 90.0, 40.0, 60.0]
    same = [point("window", 4, "sample", hard), point("window", 8, "sample", [value - 1 for value in hard])]
    assert [high - low for low, high in compared(same, one_text=True)] == pytest.approx([0.0, 0.0])
    other = [same[0], point("window", 8, "sample", hard, each=20)]
    assert compared(other, one_text=True) == [p.interval for p in other]
    broken = [same[0], point("window", 8, "sample", [*hard[:3], math.nan])]
    assert compared(broken, one_text=True)[0] == same[0].interval
    assert compared(same, one_text=False) == [p.interval for p in same]


def test_a_kind_that_was_asked_for_comes_after_the_headline() -> None:
    def found(kind: str, model: Reader, step: int | None = None) -> list[tuple[str, int | None, str]]:
        read = readings(model, TEXT, (6, 9), kind=kind, stride=step, window=5, sample_targets=25, batch_size=3)
        return [(r.settings.kind, r.context, r.targets) for r in read][2:]

    for kind in ("at-least", "stride", "block"):
        wanted = [(kind, c, targets) for c in (6, 9) for targets in ("all", "sample")]
        assert found(kind, Reader(13), 4) == wanted
    assert found("truncated", Reader(13)) == [("truncated", 6, "sample"), ("truncated", 9, "sample")]
    assert found("truncated", Reader(13, "state")) == [("truncated", 6, "sample"), ("truncated", 9, "sample")]
    assert found("truncated", Reader(13, "slide")) == [("slide", 6, "sample"), ("slide", 9, "sample")]
    assert found("window", Reader(13)) == [("window", c, t) for c in (6, 9) for t in ("all", "sample")]
    assert found("block", Reader(13, "slide")) == [("block", 9, "all"), ("block", 9, "sample")]  # 6 is the headline


@pytest.mark.parametrize("kind", ["window", "slide", "state"])
def test_fresh_passes_give_every_token_what_their_name_says(kind: str) -> None:
    model = Reader(13, kind)
    for name, context, step, least in (("at-least", 6, 4, 6), ("stride", 9, 4, 6), ("block", 9, None, 1)):
        read = list(
            readings(model, TEXT, (context,), kind=name, stride=step, window=5, sample_targets=25, batch_size=3)
        )
        *_, whole, sampled = read
        step = step or context
        wanted = []
        for t in range(89):
            seen = t % step + min(t - t % step, least - 1)  # tokens before the input in its pass
            wanted += reader_nll(IDS.tolist(), window=seen, first=t, stop=t + 1)
        assert whole.nll.tolist() == wanted
        assert sampled.nll.tolist() == np.array(wanted)[sample_of(89, 25)].tolist()
        assert whole.settings.reach == least + step - 2
        assert whole.settings.stride == (None if name == "block" else step)


def test_resets_cut_fresh_passes_too() -> None:
    flags = np.isin(np.arange(90), [11, 40])
    nll = stride(Reader(13), Text(IDS, TEXT.bytes_per_id, flags), 5, 5)
    for t in range(89):
        seen = t % 5 + min(t - t % 5, 4)
        assert nll[t] == reader_nll(IDS.tolist(), window=seen, resets=[11, 40], first=t, stop=t + 1)[0]


@pytest.mark.parametrize(
    ("model", "kind", "step", "message"),
    [
        (Reader(13, "slide"), "window", None, "kind: found window for transformer, but it reads every window anew"),
        (Reader(13, "state"), "window", None, "its state has no window; allowed: truncated"),
        (Reader(13), "stride", None, "stride: found None with kind stride; allowed: a whole number of at least 1"),
        (Reader(13), "stride", 7, "stride: found 7 with kind stride; .* at most the least context 6"),
        (Reader(13), "sliding", None, "kind: found sliding; allowed: window, truncated, at-least, stride, block"),
    ],
)
def test_a_kind_that_does_not_fit_is_refused(model: Reader, kind: str, step: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(readings(model, TEXT, (6, 9), kind=kind, stride=step, sample_targets=25, batch_size=3))


def test_learned_positions_are_not_asked_for_more_than_they_have() -> None:
    model = Reader(13, "slide", tgt_len=8)
    model.config = replace(model.config, position="learned")
    with pytest.raises(ValueError, match="contexts: found 9; allowed: at most 8, for learned positions end there"):
        list(readings(model, TEXT, (6, 9), kind="truncated", sample_targets=25, batch_size=3))
    with pytest.raises(ValueError, match=r"contexts: found 9 \(a context with the 3 targets after it\); allowed: at m"):
        list(readings(model, TEXT, (4, 6), kind="at-least", stride=4, sample_targets=25, batch_size=3))


def test_what_was_kept_is_not_scored_again_and_gives_the_same_points(tmp_path: Path) -> None:
    options = {"window": 5, "sample_targets": 25, "batch_size": 3}
    facts = {"corpus": "c0ffee", "checkpoint": "abc"}
    first = Reader(13)
    read = list(readings(first, TEXT, (2, 20), **options, kept=Kept(tmp_path, facts)))
    second = Reader(13)
    told: list[tuple[int, int]] = []
    again = list(
        readings(second, TEXT, (2, 20), **options, kept=Kept(tmp_path, facts), progress=lambda *now: told.append(now))
    )
    assert (first.calls > 0, second.calls) == (True, 0)
    assert [r.point(TEXT) for r in again] == [r.point(TEXT) for r in read]
    assert told[-1] == (3 * 90 - 3 + 25 * 22, 3 * 90 - 3 + 25 * 22)
    assert sorted(path.name for path in tmp_path.glob("*.npy")) == [
        *("truncated-2.npy", "truncated-20.npy", "window-2.npy", "window-20.npy", "window-5.npy")
    ]
    manifest = json.loads((tmp_path / "truncated-20.json").read_text("utf-8"))
    assert manifest["facts"] == facts
    assert manifest["reading"]["positions"] == {"sample": 25, "of": 89, "seed": 0}
    kept = np.load(tmp_path / "truncated-20.npy", allow_pickle=False)
    assert kept.dtype == np.float32
    np.testing.assert_allclose(kept, np.array(reader_nll(IDS.tolist(), window=19))[sample_of(89, 25)], rtol=1e-6)


def test_what_was_kept_of_other_weights_or_another_sample_is_scored_anew(tmp_path: Path) -> None:
    options = {"window": 5, "batch_size": 3, "kind": "truncated"}
    list(readings(Reader(13), TEXT, (4,), sample_targets=25, **options, kept=Kept(tmp_path, {"checkpoint": "a"})))
    for facts, count, fed in (({"checkpoint": "a"}, 25, False), ({"checkpoint": "a"}, 24, True), ({}, 24, True)):
        model = Reader(13)
        list(readings(model, TEXT, (4,), sample_targets=count, **options, kept=Kept(tmp_path, facts)))
        assert (model.calls > 0) is fed
    (tmp_path / "window-5.npy").write_bytes(b"broken")
    model = Reader(13)
    list(readings(model, TEXT, (4,), sample_targets=24, **options, kept=Kept(tmp_path, {})))
    assert model.calls > 0
