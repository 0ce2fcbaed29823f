"""Beam search against every possible continuation of a model small enough to try them all."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.models import BASE, make_model
from tests.unit.infer.fake import TEXT, FakeModel
from txl import ModelConfig, Session
from txl.infer.beam import beam_search

VOCAB, LONGEST = 4, 4
KINDS: dict[str, ModelConfig] = {
    "relative": replace(BASE, mem_len=3),
    "sinusoidal": replace(BASE, position="sinusoidal", mem_len=0),
    "lstm": ModelConfig(arch="lstm", n_layer=2, d_model=6, position="none", tgt_len=5, mem_len=0, init_std=0.5),
}


def every_continuation(session: Session, stops: list[list[int]]) -> dict[tuple[int, ...], float]:
    """Log-probability of every text of LONGEST tokens and of every shorter one that ends with its first stop."""
    found = {}
    for text in itertools.product(range(VOCAB), repeat=LONGEST):
        ends = [n for n in range(1, LONGEST) if any(list(text[:n][-len(one) :]) == one for one in stops)]
        ids = text[: min(ends, default=LONGEST)]
        twin = session.fork()
        nats = twin.feed(torch.tensor([ids]))
        found[ids] = -float(nats.sum())
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length_penalty", "stops"), [(0.0, [[2]]), (1.0, [[2], [1, 3]]), (0.6, [])])
def test_with_beams_for_all_it_finds_the_best_of_every_continuation(
    kind: str, length_penalty: float, stops: list[list[int]]
) -> None:
    session = Session(make_model(KINDS[kind], vocab=VOCAB))
    session.feed(torch.tensor([[0, 3, 1, 2, 2, 0, 1]]))
    before = session.state_dict()
    everything = every_continuation(session, stops)
    best = sorted(everything, key=lambda ids: everything[ids] / len(ids) ** length_penalty, reverse=True)
    options: dict[str, Any] = {"length_penalty": length_penalty, "stop": stops}
    found = beam_search(session, LONGEST, beams=VOCAB ** (LONGEST - 1), **options)
    assert [text.ids for text in found] == best[: len(found)]
    assert len(found) == min(len(best), VOCAB ** (LONGEST - 1))
    for text in found:
        assert text.log_prob == pytest.approx(everything[text.ids], abs=1e-9)
        assert text.score(length_penalty) == pytest.approx(text.log_prob / len(text.ids) ** length_penalty)
    assert all(torch.equal(tensor, before[name]) for name, tensor in session.state_dict().items())


def test_one_beam_is_greedy_and_more_never_find_less() -> None:
    model: Any = FakeModel().eval()
    session = Session(model)
    session.feed(torch.tensor([TEXT]))
    greedy = [int(ids) for ids in session.fork().generate(6, temperature=0)]
    found = [beam_search(session, 6, beams=beams)[0] for beams in (1, 2, 5)]
    assert list(found[0].ids) == greedy
    for text in found:
        assert text.log_prob == pytest.approx(-sum(model.nats_of([*TEXT, *text.ids])[-6:]), abs=1e-9)
    assert found[0].log_prob <= found[2].log_prob


def test_a_stop_that_began_in_the_prompt_does_not_count() -> None:
    model: Any = FakeModel().eval()
    session = Session(model)
    session.feed(torch.tensor([TEXT]))
    first = int(next(session.fork().generate(1, temperature=0)))
    assert len(beam_search(session, 3, beams=1, stop=[[TEXT[-1], first]])[0].ids) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beams": 0}, "beams is 0: must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0: must be at least 1"),
        ({"length_penalty": -1}, "length_penalty is -1: must be at least 0"),
        ({"stop": [[]]}, "at least one id"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    model: Any = FakeModel().eval()
    session = Session(model)
    with pytest.raises(ValueError, match="the session has read nothing"):
        beam_search(session, 3)
    session.feed(torch.tensor([TEXT]))
    with pytest.raises(ValueError, match=message):
        beam_search(session, **{"max_new_tokens": 3, **arguments})
    with pytest.raises(ValueError, match="the session has 2 rows"):
        beam_search(session.fork([0, 0]), 3)
