"""Drawing tokens in a session: seeds, stops, first tokens, penalties, each against a text drawn by hand."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch

from tests.unit.infer.fake import OTHER, TEXT, VOCAB, FakeModel, close, feed, start
from txl import Session
from txl.infer.recent import RECENT_TOKENS
from txl.infer.sampling import Sampling


def greedy(model: FakeModel, text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(int(model.log_probs_after(text).argmax()))
    return text[len(text) - count :]


def by_hand(model: FakeModel, text: list[int], seed: int, count: int) -> list[int]:
    """Draw by walking up the distribution, one number of the row's generator a token."""
    draws, text = torch.Generator().manual_seed(seed), list(text)
    for _ in range(count):
        left = float(torch.rand(1, dtype=torch.float64, generator=draws))
        probs = model.log_probs_after(text).exp().tolist()
        text.append(next(token for token in range(VOCAB) if sum(probs[: token + 1]) > left))
    return text[len(text) - count :]


def columns(drawn: Any) -> list[list[int]]:
    return torch.stack(list(drawn), dim=1).tolist()


def test_temperature_zero_takes_the_most_probable_token() -> None:
    model, session = start(2)
    feed(session, TEXT, OTHER)
    assert columns(session.generate(8, temperature=0)) == [greedy(model, TEXT, 8), greedy(model, OTHER, 8)]


def test_a_row_draws_from_its_own_context_and_seed_alone() -> None:
    model, session = start(3)
    feed(session, TEXT, OTHER, [5] * 15)
    twin = session.fork()
    assert columns(session.generate(12, seed=40)) == [
        by_hand(model, text, seed, 12) for text, seed in ((TEXT, 40), (OTHER, 41), ([5] * 15, 42))
    ]
    assert columns(twin.generate(12, seed=[7, 41, 7]))[1] == by_hand(model, OTHER, 41, 12)


def test_a_seed_gives_the_same_text_whatever_was_drawn_before() -> None:
    _, session = start()
    feed(session, TEXT)
    state = session.state_dict()
    first = columns(session.generate(20, seed=6))
    list(session.generate(7, seed=1))
    torch.rand(5)
    session.load_state_dict(state)
    assert columns(session.generate(20, seed=6)) == first
    session.load_state_dict(state)
    assert columns(session.generate(20, seed=7)) != first


def test_drawing_leaves_the_global_generator_alone() -> None:
    _, session = start()
    before = torch.get_rng_state()
    list(session.generate(5))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_yielded_token_is_already_fed() -> None:
    model, session = start()
    feed(session, TEXT[:4])
    text = list(TEXT[:4])
    for ids in session.generate(5, seed=2):
        text.append(int(ids[0]))
        torch.testing.assert_close(session.log_probs()[0], model.log_probs_after(text), rtol=0, atol=1e-12)
    assert session.ages.tolist() == [9]


def test_a_consumer_that_stops_early_leaves_the_session_after_the_last_token() -> None:
    model, session = start()
    feed(session, TEXT[:4])
    drawn = session.generate(seed=2)
    text = TEXT[:4] + [int(ids[0]) for ids in islice(drawn, 3)]
    drawn.close()  # type: ignore[attr-defined]
    assert session.ages.tolist() == [7]
    assert close(feed(session, [6])[0], model.nats_of([*text, 6])[-1:])


def test_each_token_is_forwarded_once() -> None:
    model, session = start()
    feed(session, TEXT)
    list(session.generate(10))
    assert model.positions == len(TEXT) + 10


def test_no_tokens_and_no_end() -> None:
    _, session = start()
    assert list(session.generate(0)) == []
    assert len(list(islice(session.generate(), 300))) == 300


def test_the_first_token_without_a_prompt_is_drawn_uniformly_even_where_greedy() -> None:
    _, session = start(4000)
    for options in ({"temperature": 0}, {"top_p": 0.2}, {}):
        ids = next(session.fork().generate(1, seed=0, **options))  # type: ignore[arg-type]
        counts = torch.bincount(ids, minlength=VOCAB)
        assert counts.min() > 280, counts.tolist()  # 364 expected, standard deviation 18
        assert counts.max() < 450, counts.tolist()


def test_a_row_ends_at_its_stop_and_the_others_go_on() -> None:
    model, session = start(3)
    texts = [TEXT, OTHER, [5] * 15]
    feed(session, *texts)
    expected = [by_hand(model, text, row, 40) for row, text in enumerate(texts)]
    stop = [expected[0][4:6], [VOCAB - 1, VOCAB - 1, VOCAB - 1], expected[1][10:12]]

    def length(text: list[int]) -> int:
        ends = [n for n in range(1, 41) if any(text[:n][-len(s) :] == s for s in stop)]
        return min(ends, default=40)

    lengths = [length(text) for text in expected]
    assert len(set(lengths)) > 1
    found = columns(session.generate(40, stop=stop, seed=0))
    for row, n in enumerate(lengths):
        assert found[row][:n] == expected[row][:n]
        assert set(found[row][n:]) <= {-1}
        torch.testing.assert_close(
            session.log_probs()[row], model.log_probs_after(texts[row] + expected[row][:n]), rtol=0, atol=1e-12
        )
    assert session.ages.tolist() == [15 + n for n in lengths]


def test_drawing_ends_when_every_row_has_stopped() -> None:
    model, session = start(2)
    feed(session, TEXT, OTHER)
    texts = [by_hand(model, TEXT, 0, 60), by_hand(model, OTHER, 1, 60)]
    ends = [text.index(4) + 1 for text in texts]
    assert len(list(session.generate(stop=[[4]], seed=0))) == max(ends)


def test_a_stop_that_began_in_the_prompt_does_not_count() -> None:
    model, session = start()
    feed(session, TEXT)
    first, second, *_ = greedy(model, TEXT, 2)
    drawn = session.generate(2, temperature=0, stop=[[TEXT[-1], first], [first, second]])
    assert columns(drawn) == [[first, second]]


@pytest.mark.parametrize(
    "arguments",
    [{"temperature": -1}, {"max_new_tokens": -1}, {"stop": [3]}, {"stop": [[]]}, {"seed": -1}, {"top_k": 0}],
)
def test_wrong_arguments_are_refused_at_the_call(arguments: dict[str, Any]) -> None:
    _, session = start()
    with pytest.raises(ValueError, match=next(iter(arguments))):
        session.generate(**arguments)


def test_endless_drawing_with_stops_keeps_nothing_of_what_was_drawn() -> None:
    _, session = start(2)
    drawn: Any = session.draw(None, Sampling(temperature=5.0), stop=[[0] * 40])

    def held() -> int:
        """Integers in the lists that the generator and its rows hold, whatever they are called."""
        own = drawn.gi_frame.f_locals
        return str([x for x in (*own.values(), *vars(own["rows"]).values()) if isinstance(x, list)]).count(",")

    sizes = []
    for _ in range(3):
        assert len(list(islice(drawn, 50))) == 50
        sizes.append(held())
    assert sizes[0] == sizes[1] == sizes[2] > 80


# What the penalties see


def recent(session: Session) -> list[list[int]]:
    return [[i for i in row if i >= 0] for row in session.state_dict()["recent"].tolist()]


def test_penalties_look_at_the_last_ids_of_the_document_prompt_included() -> None:
    _, session = start(2)
    feed(session, TEXT[:4], OTHER[:4], lengths=[4, 2])
    assert recent(session) == [TEXT[:4], OTHER[:2]]
    feed(session, TEXT[4:8], OTHER[2:6], resets=torch.tensor([[False, True, False, False], [False] * 4]))
    assert recent(session) == [TEXT[5:8], OTHER[:6]]
    feed(session, TEXT[8:10], OTHER[6:8], lengths=[1, 2], resets=torch.tensor([[False, True], [True, False]]))
    assert recent(session) == [TEXT[5:9], OTHER[6:8]]
    session.reset([0])
    assert recent(session) == [[], OTHER[6:8]]
    drawn = columns(session.generate(3))
    assert recent(session) == [drawn[0], OTHER[6:8] + drawn[1]]


@pytest.mark.parametrize("cut", [1, 100, 700])
def test_penalties_forget_what_is_too_far_back(cut: int) -> None:
    _, session = start()
    ids = torch.randint(0, VOCAB, (1, 700))
    for piece in ids.split(cut, dim=1):
        session.feed(piece, [piece.shape[1]])
    assert recent(session) == ids[:, -RECENT_TOKENS:].tolist()


def test_a_penalty_changes_the_text_as_by_hand() -> None:
    model, session = start()
    feed(session, TEXT)
    text = list(TEXT)
    for _ in range(10):
        log_probs = model.log_probs_after(text)
        text.append(max(range(VOCAB), key=lambda i: float(log_probs[i]) - 0.9 * text.count(i)))
    assert columns(session.generate(10, temperature=0, frequency_penalty=0.9)) == [text[15:]]
    assert text[15:] != greedy(model, TEXT, 10)
