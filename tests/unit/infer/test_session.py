"""A session against a model small enough to be computed by hand: scores, batches, chunks and states."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.models import BASE, make_model, random_ids
from tests.unit.infer.fake import OTHER, TEXT, VOCAB, FakeModel, close, feed, start
from txl import Session
from txl.infer import session as session_module

NAN = math.nan


# Scores


def test_feed_gives_the_nats_of_every_token_but_the_first() -> None:
    model, session = start()
    (nats,) = feed(session, TEXT)
    assert close(nats, [NAN, *model.nats_of(TEXT)])


def test_rows_of_different_ages_are_scored_as_if_alone() -> None:
    model, session = start(2)
    nats = session.feed(torch.tensor([TEXT[:5], [*OTHER[:2], 0, 0, 0]]), lengths=[5, 2])
    more = session.feed(torch.tensor([[*TEXT[5:6], 0, 0], OTHER[2:5]]), lengths=torch.tensor([1, 3]))
    assert close(nats[0].tolist() + more[0, :1].tolist(), [NAN, *model.nats_of(TEXT[:6])])
    assert close(nats[1, :2].tolist() + more[1].tolist(), [NAN, *model.nats_of(OTHER[:5])])
    assert nats[1, 2:].isnan().all()
    assert more[0, 1:].isnan().all()
    assert session.ages.tolist() == [6, 5]


def test_a_row_may_get_nothing() -> None:
    model, session = start(2)
    feed(session, TEXT[:3], OTHER[:3])
    feed(session, [0, 0], OTHER[3:5], lengths=[0, 2])
    assert feed(session, TEXT[3:4], OTHER[5:6]) == [
        [pytest.approx(model.nats_of(TEXT[:4])[-1], abs=1e-12)],
        [pytest.approx(model.nats_of(OTHER[:6])[-1], abs=1e-12)],
    ]


def test_feeding_no_tokens_gives_no_nats() -> None:
    _, session = start(2)
    assert session.feed(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0)
    assert session.ages.tolist() == [0, 0]


def test_a_reset_token_is_scored_by_the_old_context_and_starts_the_new_one() -> None:
    model, session = start(2)
    resets = torch.zeros(2, 15, dtype=torch.bool)
    resets[1, 6] = True
    nats = feed(session, TEXT, OTHER, resets=resets)
    assert close(nats[0], [NAN, *model.nats_of(TEXT)])
    assert close(nats[1], [NAN, *model.nats_of(OTHER[:7]), *model.nats_of(OTHER[6:])])
    assert session.ages.tolist() == [15, 9]


def test_a_reset_at_the_first_token_of_a_call_is_scored_by_the_call_before() -> None:
    model, session = start()
    feed(session, TEXT[:4])
    (nats,) = feed(session, TEXT[4:7], resets=torch.tensor([[True, False, False]]))
    assert close(nats, [model.nats_of(TEXT[:5])[-1], *model.nats_of(TEXT[4:7])])


def test_session_reset_makes_the_next_token_of_its_rows_a_first_one() -> None:
    model, session = start(2)
    feed(session, TEXT[:4], OTHER[:4])
    session.reset(rows=[1])
    nats = feed(session, TEXT[4:7], OTHER[4:7])
    assert close(nats[0], model.nats_of(TEXT[:7])[3:])
    assert close(nats[1], [NAN, *model.nats_of(OTHER[4:7])])
    session.reset()
    assert session.ages.tolist() == [0, 0]
    assert session.feed(torch.tensor([[1], [2]])).isnan().all()


def test_another_window_is_used_and_reported() -> None:
    model = FakeModel(window=3).eval()
    session = Session(model, window=1)  # type: ignore[arg-type]
    assert session.window == 1
    assert Session(model).window == 3  # type: ignore[arg-type]
    assert close(feed(session, TEXT)[0], [NAN, *model.nats_of(TEXT, window=1)])


@pytest.mark.parametrize("sizes", [[1] * 15, [7, 8], [2, 3, 5, 5], [15]])
def test_chunks_change_nothing(sizes: list[int]) -> None:
    model, session = start(2)
    pieces = torch.tensor([TEXT, OTHER]).split(sizes, dim=1)
    nats = torch.cat([session.feed(piece) for piece in pieces], dim=1).tolist()
    assert close(nats[0], [NAN, *model.nats_of(TEXT)])
    assert close(nats[1], [NAN, *model.nats_of(OTHER)])


def test_long_chunks_are_split_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_CHUNK_TOKENS", 40)
    model, session = start(2)
    ids = torch.randint(0, VOCAB, (2, 130))
    resets = torch.rand(2, 130) < 0.05
    lengths = [130, 45]
    whole = session.feed(ids, lengths, resets)
    assert model.widest == 40
    alone = [FakeModel().eval() for _ in range(2)]
    for row, single in enumerate(alone):
        one = Session(single)  # type: ignore[arg-type]
        for t in range(lengths[row]):
            nats = one.feed(ids[row : row + 1, t : t + 1], resets=resets[row : row + 1, t : t + 1])
            torch.testing.assert_close(nats[0, 0], whole[row, t], rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("logits", "widest"), [(1000, 1000 // (2 * VOCAB)), (10, 16)])
def test_many_logits_make_small_chunks(monkeypatch: pytest.MonkeyPatch, logits: int, widest: int) -> None:
    monkeypatch.setattr(session_module, "_CHUNK_LOGITS", logits)
    model, session = start(2)
    session.feed(torch.randint(0, VOCAB, (2, 100)))
    assert model.widest == widest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nats_have_the_models_dtype(dtype: torch.dtype) -> None:
    _, session = start(dtype=dtype)
    assert session.feed(torch.tensor([TEXT])).dtype == dtype


def test_nats_of_a_half_precision_model_are_float32() -> None:
    _, session = start(dtype=torch.bfloat16)
    assert session.feed(torch.tensor([TEXT[:1]])).dtype == torch.float32


def test_nothing_is_read_when_an_argument_is_wrong() -> None:
    model, session = start()
    feed(session, TEXT[:5])
    for bad, lengths in [([[1, VOCAB]], None), ([[1, 2]], [3])]:
        with pytest.raises(ValueError, match=r"vocabulary|lengths"):
            session.feed(torch.tensor(bad), lengths)
    assert close(feed(session, TEXT[5:6])[0], model.nats_of(TEXT[:6])[-1:])


def test_broken_weights_are_not_taken_for_missing_scores() -> None:
    model, session = start()
    feed(session, TEXT[:3])
    with torch.no_grad():
        model.matrix[0] = NAN
    with pytest.raises(FloatingPointError, match="are its weights finite"):
        feed(session, TEXT[3:5])
    with pytest.raises(FloatingPointError, match="are the model's weights finite"):
        next(session.generate(1))


def test_impossible_sessions_are_refused() -> None:
    model = FakeModel()
    with pytest.raises(ValueError, match="batch_size is 0: a session has at least 1 row"):
        Session(model, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"window is -2: must be at least 0, or None for the model's own \(3\)"):
        Session(model, 1, -2)  # type: ignore[arg-type]


def test_a_model_whose_state_reaches_back_without_bound_has_no_window() -> None:
    model = FakeModel(unbounded=True)
    assert Session(model).window is None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window is 4: must be None, for the model's state reaches back without bound"):
        Session(model, window=4)  # type: ignore[arg-type]


def test_training_flags_and_gradients_are_left_alone() -> None:
    model = FakeModel().train()
    model.dropout.eval()
    session = Session(model)  # type: ignore[arg-type]
    nats = session.feed(torch.tensor([TEXT]))
    drawn = session.generate(3)
    next(drawn)
    assert (model.training, model.dropout.training) == (True, False)
    assert torch.is_grad_enabled()
    assert not nats.requires_grad
    assert not any(tensor.requires_grad for tensor in session.state_dict().values())


def test_training_flags_come_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel().train()
    session = Session(model)  # type: ignore[arg-type]

    def fail(*_: object) -> Tensor:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(model, "nll", fail)
    with pytest.raises(RuntimeError, match="no memory left"):
        session.feed(torch.tensor([TEXT]))
    assert model.training
    assert model.dropout.training


# States


def test_log_probs_are_those_of_the_next_token() -> None:
    model, session = start(2)
    assert torch.allclose(session.log_probs(), torch.full((2, VOCAB), -math.log(VOCAB), dtype=torch.float64))
    feed(session, TEXT[:5], [0] * 5, lengths=[5, 0])
    torch.testing.assert_close(session.log_probs()[0], model.log_probs_after(TEXT[:5]), rtol=0, atol=1e-12)
    assert torch.allclose(session.log_probs()[1], torch.full((VOCAB,), -math.log(VOCAB), dtype=torch.float64))


def test_a_fork_goes_its_own_way() -> None:
    model, session = start(2)
    feed(session, TEXT[:5], OTHER[:5])
    twin = session.fork()
    feed(twin, [0, 0, 0], [1, 1, 1])
    twin.reset()
    nats = feed(session, TEXT[5:8], OTHER[5:8])
    assert close(nats[0], model.nats_of(TEXT[:8])[4:])
    assert close(nats[1], model.nats_of(OTHER[:8])[4:])


def test_a_fork_of_rows_may_repeat_them() -> None:
    model, session = start(2)
    feed(session, TEXT[:5], OTHER[:5])
    trio = session.fork(rows=[1, 0, 1])
    assert trio.batch_size == 3
    nats = feed(trio, [7], [8], [6])
    assert close(
        [n[0] for n in nats], [model.nats_of([*t, i])[-1] for t, i in ((OTHER[:5], 7), (TEXT[:5], 8), (OTHER[:5], 6))]
    )


def test_a_state_saved_and_loaded_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    _, session = start(2)
    feed(session, TEXT[:5], OTHER[:5], lengths=[5, 3])
    safetensors.torch.save_file(session.state_dict(), tmp_path / "state.safetensors")
    expected = session.feed(torch.tensor([TEXT[5:], OTHER[5:]]))
    text = list(session.generate(9, repetition_penalty=1.5, seed=3))

    _, other = start(2)
    feed(other, OTHER, TEXT)
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "state.safetensors"))
    assert torch.equal(other.feed(torch.tensor([TEXT[5:], OTHER[5:]])), expected)
    assert torch.equal(torch.stack(list(other.generate(9, repetition_penalty=1.5, seed=3))), torch.stack(text))


@pytest.mark.slow
def test_a_state_goes_on_in_another_process_to_the_last_bit(tmp_path: Path) -> None:
    script = """
import sys, torch, safetensors.torch
from tests.models import BASE, make_model
from txl import Session
session = Session(make_model(BASE, dtype=torch.float32), batch_size=2)
session.load_state_dict(safetensors.torch.load_file(sys.argv[1]))
nats = session.feed(torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]))
drawn = torch.stack(list(session.generate(20, seed=3)))
safetensors.torch.save_file({"nats": nats, "drawn": drawn, **session.state_dict()}, sys.argv[2])
"""
    session = Session(make_model(BASE, dtype=torch.float32), batch_size=2)
    session.feed(random_ids(2, 40), lengths=[40, 23])
    safetensors.torch.save_file(session.state_dict(), tmp_path / "here")
    subprocess.run([sys.executable, "-c", script, tmp_path / "here", tmp_path / "there"], check=True, timeout=100)
    found = safetensors.torch.load_file(tmp_path / "there")
    expected = {"nats": session.feed(torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]]))}
    expected["drawn"] = torch.stack(list(session.generate(20, seed=3)))
    expected |= session.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_state_is_a_copy() -> None:
    _, session = start()
    feed(session, TEXT[:5])
    state = session.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    feed(session, TEXT[5:8])
    assert all(torch.equal(state[name], before[name]) for name in before)
    session.load_state_dict(state)
    feed(session, TEXT[5:8])
    session.reset()
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_a_foreign_state_is_refused_and_changes_nothing() -> None:
    model, session = start()
    feed(session, TEXT[:5])
    with pytest.raises(ValueError, match="not of a session like this one"):
        session.load_state_dict(Session(model, 2).state_dict())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"window is 2 instead of 3|cache\.ids is int64 of shape 1×2"):
        session.load_state_dict(Session(model, window=2).state_dict())  # type: ignore[arg-type]
    assert close(feed(session, TEXT[5:6])[0], model.nats_of(TEXT[:6])[-1:])


def test_a_state_of_another_model_is_refused_by_its_fingerprint() -> None:
    config = replace(BASE, n_layer=1)
    session = Session(make_model(config))
    state = session.state_dict()
    Session(make_model(replace(config, dropout=0.3, tgt_len=9))).load_state_dict(
        state
    )  # the same model, other training
    others = {
        "other weights": make_model(config, seed=1),
        "other meaning": make_model(replace(config, activation="gelu")),
    }
    for model in others.values():
        other = Session(model)
        with pytest.raises(ValueError, match=r"model is [0-9a-f]{8} instead of [0-9a-f]{8}\. Make the session with"):
            other.load_state_dict(state)


def test_reading_is_feeding_without_the_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    model, session = start(2)
    twin = session.fork()
    resets = torch.zeros(2, 15, dtype=torch.bool)
    resets[0, 7] = True
    feed(twin, TEXT, OTHER, lengths=[15, 9], resets=resets)
    with monkeypatch.context() as patch:
        patch.setattr(model, "nll", None)
        session.read(torch.tensor([TEXT, OTHER]), lengths=[15, 9], resets=resets)
    state, expected = session.state_dict(), twin.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    with torch.no_grad():
        model.embedding[1] = NAN
    with pytest.raises(FloatingPointError, match="are its weights finite"):
        session.read(torch.tensor([[1], [1]]))


@pytest.mark.parametrize(
    ("position", "arch", "recomputes"),
    [("sinusoidal", "transformer_xl", True), ("learned", "transformer", True), ("rotary", "transformer_xl", False)],
)
def test_absolute_positions_say_that_windows_are_computed_anew(position: Any, arch: Any, recomputes: bool) -> None:
    model = make_model(replace(BASE, arch=arch, position=position, mem_len=0, n_layer=1))
    assert Session(model).recomputes is recomputes


def test_a_row_put_back_to_its_beginning_is_not_scored_at_first() -> None:
    model, session = start(2)
    beginning, twin = session.state_dict(), session.fork()
    feed(session, TEXT[:4], OTHER[:4])
    session.load_state_dict(beginning)
    for one in (session, twin):
        assert one.feed(torch.tensor([TEXT[:2], OTHER[:2]]))[:, 0].isnan().all()
        one.reset(rows=[1])
        nats = one.feed(torch.tensor([TEXT[2:3], OTHER[:1]]))[:, 0]
        assert close(nats[:1].tolist(), model.nats_of(TEXT[:3])[-1:])
        assert nats[1].isnan()


def test_what_callers_are_given_is_theirs_to_change() -> None:
    model = make_model(BASE, dtype=torch.float32)
    session = Session(model)
    step = next(session.draw(1))
    given = [session.feed(random_ids(1, 4)), session.log_probs(), session.ages, step.ids, step.log_probs]
    given += session.state_dict().values()
    assert not any(tensor.is_inference() or tensor.requires_grad for tensor in given)
    before = session.log_probs()
    for tensor in given:
        tensor.zero_()
    assert torch.equal(session.log_probs(), before)


def test_bytes_are_those_of_the_state() -> None:
    _, session = start(2)
    empty = session.nbytes
    feed(session, TEXT, OTHER)
    list(session.generate(5))
    assert (
        session.nbytes
        == empty
        == sum(t.nbytes for n, t in session.state_dict().items() if n not in ("window", "model"))
    )


@pytest.mark.parametrize("call", [lambda s: s.reset([1]), lambda s: s.fork([1])])
def test_rows_that_are_not_there_are_refused(call: Callable[[Session], Any]) -> None:
    _, session = start()
    with pytest.raises(ValueError, match=r"rows is \[1\]: the session has rows 0 to 0"):
        call(session)
