"""Laws of inference, each named by its sentence, against the paper written as loops (tests/reference.py)."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from torch import Tensor

import txl
from tests import reference
from tests.models import BASE, LSTM, VOCAB, assert_close, make_model, random_ids, weights_of
from tests.options import both_dtypes, drawn, every_option, splits
from txl.config import ModelConfig
from txl.model import Model
from txl.model.positions import ABSOLUTE

KINDS = {position: replace(BASE, position=position) for position in ("relative", "shaw", "rotary", "alibi")}  # type: ignore[arg-type]
KINDS |= {position: replace(BASE, position=position, mem_len=0) for position in ("none", *ABSOLUTE)}  # type: ignore[arg-type]
KINDS["clusters"] = replace(BASE, cutoffs=(4, 9), div_val=2)
KINDS["lstm"] = LSTM
every_kind = pytest.mark.parametrize("kind", KINDS)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
T = BASE.tgt_len


def recomputed_log_probs(model: Model, text: list[int], window: int | None) -> Tensor:
    """N×V: after each token of a text, all computed anew under the window's mask, or in the window alone."""
    weights = weights_of(model)
    if model.config.position in ABSOLUTE:
        assert window is not None
        windows = [text[max(0, t - window) : t + 1] for t in range(len(text))]
        logits = torch.stack([torch.from_numpy(reference.decode(model.config, weights, w).logits[-1]) for w in windows])
    else:
        logits = torch.from_numpy(reference.decode(model.config, weights, text, window=window).logits)
    return logits.log_softmax(-1)


def recomputed_nats(model: Model, text: list[int], window: int | None) -> Tensor:
    """N: NaN for the first token, and the nats of each other token from those before it."""
    log_probs = recomputed_log_probs(model, text[:-1], window)
    return torch.cat([torch.tensor([torch.nan]), -log_probs[range(len(text) - 1), text[1:]]])


# Law 21


@every_option
@both_dtypes
def test_law_21_feeding_a_text_in_any_chunking_gives_the_same_nats(config: ModelConfig, dtype: torch.dtype) -> None:
    model = make_model(config, dtype=dtype)
    ids = random_ids(2, 17)
    window = config.mem_len or T - 1
    expected = torch.stack([recomputed_nats(model, row, window) for row in ids.tolist()])

    @drawn
    @given(splits(17))
    @example([17])
    @example([1] * 17)
    def check(sizes: list[int]) -> None:
        session, fed = txl.Session(model, batch_size=2), ids[:, : sum(sizes)]
        nats = torch.cat([session.feed(piece) for piece in fed.split(sizes, dim=1)], dim=1)
        assert nats.dtype == dtype
        assert nats[:, 0].isnan().all()
        assert_close(nats[:, 1:], expected[:, 1 : sum(sizes)], tolerance=TOLERANCE[dtype])

    check()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lstm"])
@pytest.mark.parametrize("window", [0, 1, 3, 4])
def test_law_21_any_window_gives_the_nats_of_its_mask(kind: str, window: int) -> None:
    model = make_model(KINDS[kind])
    ids = random_ids(1, 13)
    session = txl.Session(model, window=window)
    nats = torch.cat([session.feed(piece) for piece in ids.split([2, 9, 2], dim=1)], dim=1)
    assert_close(nats[0, 1:], recomputed_nats(model, ids[0].tolist(), window)[1:], tolerance=1e-9)


@every_kind
def test_law_21_rows_of_any_age_and_raggedness_score_as_alone(kind: str) -> None:
    model = make_model(KINDS[kind])
    texts = random_ids(3, 40)
    session, draw = txl.Session(model, batch_size=3), random.Random(4)
    documents: list[list[int]] = [[], [], []]
    expected: list[list[float]] = [[], [], []]
    found: list[list[float]] = [[], [], []]

    def nats_after(document: list[int], token: int) -> float:
        if not document:
            return torch.nan
        return float(-recomputed_log_probs(model, document, session.window)[-1, token])

    used = [0, 0, 0]
    for call in range(6):
        lengths = [draw.randint(0, 6) for _ in range(3)]
        ids, resets = torch.full((3, 6), -7), torch.rand(3, 6) < 0.15
        for row, length in enumerate(lengths):
            for t in range(length):
                token = int(texts[row, used[row]])
                ids[row, t], used[row] = token, used[row] + 1
                expected[row].append(nats_after(documents[row], token))
                documents[row] = [token] if resets[row, t] else [*documents[row], token]
        nats = session.feed(ids, lengths, resets)
        for row, length in enumerate(lengths):
            found[row] += nats[row, :length].tolist()
            assert nats[row, length:].isnan().all()
        if call == 3:
            session.reset(rows=[2])
            documents[2] = []
    assert session.ages.tolist() == [len(document) for document in documents]
    for row in range(3):
        assert found[row] == pytest.approx(expected[row], abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("kind", "window"), [(kind, w) for kind in KINDS for w in (None, 3) if (kind, w) != ("lstm", 3)]
)
def test_law_21_evaluation_gives_the_sessions_nats(kind: str, window: int | None) -> None:
    model = make_model(KINDS[kind])
    ids, resets = random_ids(1, 60), torch.zeros(1, 60, dtype=torch.bool)
    resets[0, [22, 41, 43]] = True
    nats = txl.Session(model, window=window).feed(ids, resets=resets)
    for batch_size in (1, 3):
        result = txl.evaluate(model, ids[0], window=window, batch_size=batch_size, resets=resets[0])
        assert_close(result.nll, nats[0, 1:], tolerance=1e-9)
        assert result.tokens == 59
        assert result.nats == pytest.approx(float(nats.nansum()), abs=1e-8)


# Law 22

PROMPTS = [1, T - 1, T, T + 1, 2 * T]


def prompts(seed: int) -> list[list[int]]:
    return [random_ids(1, n, seed=seed + n)[0].tolist() for n in PROMPTS]


def feed_ragged(session: txl.Session, texts: list[list[int]]) -> None:
    longest = max(map(len, texts))
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    session.feed(padded, lengths=[len(text) for text in texts])


@every_option
def test_law_22_cached_generation_equals_full_recomputation_for_any_batch_of_unequal_prompts(
    config: ModelConfig,
) -> None:
    model = make_model(config)
    texts, window = prompts(20), config.mem_len or T - 1
    session = txl.Session(model, batch_size=len(texts))
    feed_ragged(session, texts)
    drawn = torch.stack(list(session.generate(9, temperature=0)), dim=1)
    for prompt, row in zip(texts, drawn.tolist(), strict=True):
        log_probs = recomputed_log_probs(model, prompt + row[:-1], window)
        assert row == log_probs[len(prompt) - 1 :].argmax(-1).tolist()


@every_kind
def test_law_22_sampled_generation_equals_drawing_from_full_recomputation(kind: str) -> None:
    model = make_model(KINDS[kind])
    texts = prompts(40)
    session = txl.Session(model, batch_size=len(texts))
    feed_ragged(session, texts)
    drawn = torch.stack(list(session.generate(9, temperature=0.7, seed=100)), dim=1)
    for b, (prompt, row) in enumerate(zip(texts, drawn.tolist(), strict=True)):
        numbers = torch.Generator().manual_seed(100 + b)
        log_probs = recomputed_log_probs(model, prompt + row[:-1], session.window)[len(prompt) - 1 :]
        for token, after in zip(row, (log_probs / 0.7).softmax(-1).cumsum(-1), strict=True):
            assert token == int((after <= torch.rand(1, dtype=torch.float64, generator=numbers)).sum())


@every_kind
def test_law_22_a_row_generates_the_same_text_alone_and_in_any_batch(kind: str) -> None:
    model = make_model(KINDS[kind], dtype=torch.float32)
    texts = prompts(60)
    alone = []
    for b, prompt in enumerate(texts):
        session = txl.Session(model)
        session.feed(torch.tensor([prompt]))
        alone.append([int(ids) for ids in session.generate(12, seed=7 + b)])
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 3]):
        session = txl.Session(model, batch_size=len(order))
        feed_ragged(session, [texts[b] for b in order])
        drawn = torch.stack(list(session.generate(12, seed=[7 + b for b in order])), dim=1)
        assert drawn.tolist() == [alone[b] for b in order]


# Law 23


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@every_kind
def test_law_23_a_sessions_bytes_and_tensors_are_constant_after_warm_up(kind: str) -> None:
    model = make_model(KINDS[kind], dtype=torch.float32).train()
    session, ids = txl.Session(model, batch_size=2), random_ids(2, 600)
    seen = set()
    for start in range(0, 600, 40):
        session.feed(ids[:, start : start + 33])
        session.feed(ids[:, start + 33 : start + 40], lengths=[7, 3], resets=ids[:, start + 33 : start + 40] == 5)
        list(session.generate(5, seed=start))
        if start in (80, 320, 560):
            seen.add((session.nbytes, live_tensors()))
    assert len(seen) == 1
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in session.state_dict().values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_law_23_anonymous_memory_is_constant_over_200_000_tokens() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs Linux's /proc to measure anonymous memory")

    def anonymous_kib() -> int:
        gc.collect()
        return int(next(line for line in status.read_text().splitlines() if line.startswith("RssAnon")).split()[1])

    # Chunks of 60: the allocator gives larger temporary blocks back to the system at its own whim, 15 MB up and down.
    model = make_model(BASE, dtype=torch.float32)
    session, ids = txl.Session(model), random_ids(1, 2000)
    sizes = []
    for _ in range(100):
        for chunk in ids.split(60, dim=1):
            session.feed(chunk)
        sizes.append(anonymous_kib())
    assert sizes[-1] - sizes[20] < 2048, sizes[::20]


@every_kind
@pytest.mark.parametrize("seed", [1, 2])
def test_law_23_what_one_session_is_fed_never_changes_another(kind: str, seed: int) -> None:
    """Eight sessions in random order, generations given up midway, against each one alone: equal to the bit."""
    model = make_model(KINDS[kind], dtype=torch.float32)

    def life(number: int) -> Iterator[list[float]]:
        """Feed, generate and break off, one step at each `next`."""
        session, draw = txl.Session(model), random.Random(100 * seed + number)
        for turn in range(4):
            ids = random_ids(1, draw.randint(1, 9), seed=draw.randint(0, 99))
            yield session.feed(ids).nan_to_num(-1.0)[0].tolist()
            for _ in zip(range(draw.randint(1, 4)), session.generate(9, seed=turn), strict=False):
                yield session.log_probs()[0].tolist()
        yield [value for tensor in session.state_dict().values() for value in tensor.double().flatten().tolist()]

    alone = [list(life(number)) for number in range(8)]
    together: list[list[list[float]]] = [[] for _ in range(8)]
    lives, draw = {number: life(number) for number in range(8)}, random.Random(seed)
    while lives:
        number = draw.choice(list(lives))
        try:
            together[number].append(next(lives[number]))
        except StopIteration:
            del lives[number]
    assert together == alone


@every_kind
def test_law_23_a_reset_leaves_nothing_of_the_old_text(kind: str) -> None:
    model = make_model(KINDS[kind])
    session, fresh = txl.Session(model, batch_size=2), txl.Session(model, batch_size=2)
    session.feed(torch.full((2, 30), VOCAB - 1))
    list(session.generate(4))
    session.reset()
    state, expected = session.state_dict(), fresh.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in state)
