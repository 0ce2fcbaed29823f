"""Promises of streaming, each named by its sentence: split anywhere, endless, isolated, and text without half
characters.

The fixture is a model of two layers and width 32 with a vocabulary of 97.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests import reference
from tests.conftest import words
from tests.models import make_model, random_ids, weights_of
from tests.streaming import anonymous_bytes
from txl import ModelConfig, Session, TokenizerConfig
from txl.data import train_tokenizer
from txl.infer import generate_text
from txl.infer.drawing import Drawn
from txl.model import Model

VOCAB = 97
FIXTURE = ModelConfig(n_layer=2, d_model=32, n_head=2, d_head=16, d_inner=64, tgt_len=16, mem_len=24, init_std=0.2)
KINDS = {
    "relative": FIXTURE,
    "relative without memory": replace(FIXTURE, mem_len=0),
    "shaw": replace(FIXTURE, position="shaw"),
    "rotary": replace(FIXTURE, position="rotary"),
    "alibi": replace(FIXTURE, position="alibi"),
    "vanilla sinusoidal": replace(FIXTURE, arch="transformer", position="sinusoidal", mem_len=0),
    "vanilla learned": replace(FIXTURE, arch="transformer", position="learned", mem_len=0),
    "lstm": ModelConfig(arch="lstm", n_layer=2, d_model=32, position="none", tgt_len=16, mem_len=0, init_std=0.2),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
linux_only = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to measure memory")


def fixture(kind: str = "relative", dtype: torch.dtype = torch.float32) -> Model:
    return make_model(KINDS[kind], dtype=dtype, vocab=VOCAB)


def texts(batch_size: int, n_tokens: int, seed: int = 1) -> Tensor:
    return random_ids(batch_size, n_tokens, seed=seed, vocab=VOCAB)


# P9


def splits(n_tokens: int) -> list[list[int]]:
    """One token at a time, primes, the whole, and a drawn one."""
    draw, drawn = random.Random(n_tokens), []
    while sum(drawn) < n_tokens:
        drawn.append(draw.randint(1, min(30, n_tokens - sum(drawn))))
    primes = [7] * (n_tokens // 7) + [n_tokens % 7] * (n_tokens % 7 > 0)
    return [[1] * n_tokens, primes, [n_tokens], drawn]


def one_shot(model: Model, text: list[int], window: int | None) -> Tensor:
    """Nats of each token but the first from one forward over all that it may see, by the paper's loops."""
    if model.config.arch == "lstm":
        logits = model(torch.tensor([text[:-1]])).logits[0].detach()
    elif model.config.position in ("sinusoidal", "learned"):
        assert window is not None
        seen = [text[max(0, t - window) : t + 1] for t in range(len(text) - 1)]
        rows = [reference.decode(model.config, weights_of(model), one).logits[-1] for one in seen]
        logits = torch.stack([torch.from_numpy(row) for row in rows])
    else:
        logits = torch.from_numpy(reference.decode(model.config, weights_of(model), text[:-1], window=window).logits)
    return -logits.log_softmax(-1)[range(len(text) - 1), text[1:]]


@every_kind
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_p9_streaming_equals_one_shot_for_any_split(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    model, ids = fixture(kind, dtype), texts(1, 45)
    session = Session(model)
    expected = one_shot(model, ids[0].tolist(), session.window)
    for sizes in splits(45):
        session.reset()
        nats = torch.cat([session.feed(part) for part in ids.split(sizes, dim=1)], dim=1)[0, 1:]
        assert float((nats.double() - expected).abs().max()) <= tolerance


@pytest.mark.parametrize("kind", ["relative", "rotary", "alibi", "lstm"])
def test_p9_in_bf16_the_mean_gap_is_at_most_a_hundredth_of_a_nat(kind: str) -> None:
    ids = texts(1, 400)
    exact = Session(fixture(kind, torch.float64)).feed(ids)[0, 1:]
    half = Session(fixture(kind).to(torch.bfloat16))
    nats = torch.cat([half.feed(part) for part in ids.split(37, dim=1)], dim=1)[0, 1:]
    assert abs(float(nats.double().mean() - exact.mean())) <= 0.01


@every_kind
def test_p9_rows_of_different_ages_and_single_tokens_equal_each_text_alone(kind: str) -> None:
    model, ids = fixture(kind, torch.float64), texts(3, 50)
    session, alone = Session(model, 3), [Session(model).feed(ids[row : row + 1])[0] for row in range(3)]
    ages = [0, 17, 41]
    session.feed(ids, lengths=ages)
    for _ in range(8):
        token = torch.stack([ids[row, age] for row, age in enumerate(ages)])[:, None]
        nats = session.feed(token)[:, 0]
        for row, age in enumerate(ages):
            if age:
                assert abs(float(nats[row] - alone[row][age])) <= 1e-9
        ages = [age + 1 for age in ages]
    drawn = torch.stack(list(session.generate(5, seed=3)), dim=1)
    twin = Session(model, 3)
    twin.feed(ids, lengths=ages)
    assert torch.stack(list(twin.generate(5, seed=3)), dim=1).tolist() == drawn.tolist()


# P10


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def endless(session: Session, n_tokens: int, portion: int) -> tuple[list[int], list[int], set[int]]:
    """Feed that many tokens; anonymous bytes, live tensors and state bytes at every twentieth of the way."""
    ids, sizes, counts, states, told = texts(1, 6000), [], [], set(), 0
    for done in range(0, n_tokens, portion):
        start = done % (6000 - portion)
        session.feed(ids[:, start : start + portion])
        if done * 20 // n_tokens >= told:
            told += 1
            counts.append(live_tensors())
            sizes.append(anonymous_bytes())
            states.add(session.nbytes)
    return sizes, counts, states


@linux_only
@pytest.mark.parametrize(
    "n_tokens", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_p10_memory_is_constant_over_endless_text(n_tokens: int) -> None:
    session = Session(fixture())
    session.feed(texts(1, 600))
    # Portions of 60: the allocator gives larger temporary blocks back to the system at its own whim, 15 MB up and down.
    sizes, counts, states = endless(session, n_tokens, 60)
    fifth = len(sizes) // 5
    assert sizes[-1] - sizes[fifth] < 2_000_000, sizes
    assert len(set(counts[1:])) == 1
    assert len(states) == 1
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in session.state_dict().values())


@every_kind
def test_p10_the_state_of_every_architecture_keeps_no_graph_and_no_more_bytes(kind: str) -> None:
    model = fixture(kind).train()
    session, states = Session(model, 2), set()
    for start in range(0, 300, 30):
        session.feed(texts(2, 30, seed=start), lengths=[30, 11])
        list(session.generate(3, seed=start))
        states.add((session.nbytes, sum(t.nbytes for t in session.state_dict().values())))
    assert len(states) == 1
    assert all(tensor.grad_fn is None for tensor in session.state_dict().values())


# P11


@every_kind
@pytest.mark.parametrize("seed", [3])
def test_p11_no_session_is_changed_by_what_others_read(kind: str, seed: int) -> None:
    """Eight sessions of one model in random order, some given up midway; one of them reads a canary."""
    model = fixture(kind)
    canary = VOCAB - 1

    def life(number: int) -> Iterator[Any]:
        session, draw = Session(model), random.Random(100 * seed + number)
        for turn in range(3):
            ids = torch.full((1, 9), canary) if number == 0 else texts(1, draw.randint(1, 9), draw.randint(0, 99)) % 90
            yield session.feed(ids).nan_to_num(-1.0)[0].tolist()
            fork = session.fork()
            fork.feed(torch.full((1, 5), canary))
            for step in zip(range(draw.randint(1, 4)), session.draw(9, seed=turn), strict=False):
                yield step[1].ids.tolist(), step[1].log_probs[0].tolist()
        session.reset()
        fresh = Session(model).state_dict()
        yield all(torch.equal(tensor, fresh[name]) for name, tensor in session.state_dict().items())

    alone = [list(life(number)) for number in range(8)]
    lives, together = {number: life(number) for number in range(8)}, [[] for _ in range(8)]  # type: ignore[var-annotated]
    draw, given_up = random.Random(seed), {2, 5}
    while lives:
        number = draw.choice(list(lives))
        if number in given_up and len(together[number]) == 4:
            lives.pop(number).close()  # type: ignore[attr-defined]
            continue
        try:
            together[number].append(next(lives[number]))
        except StopIteration:
            del lives[number]
    for number in range(8):
        assert together[number] == alone[number][: len(together[number])]
        assert number in given_up or together[number][-1] is True


@every_kind
def test_p11_a_row_of_a_batch_does_not_know_its_neighbours(kind: str) -> None:
    model = fixture(kind)
    alone = Session(model).feed(texts(1, 40))
    for others in (1, 2):
        session = Session(model, 3)
        ids = torch.cat([texts(1, 40, seed=10 + others), texts(1, 40), torch.full((1, 40), VOCAB - others)])
        nats = session.feed(ids, lengths=[25, 40, 3 * others])[1:2]
        torch.testing.assert_close(nats, alone, rtol=0, atol=1e-5, equal_nan=True)


@every_kind
def test_p11_after_a_reset_the_canary_is_in_no_tensor(kind: str) -> None:
    model, canary = fixture(kind), VOCAB - 1
    session, other = Session(model, 2), Session(model, 2)
    session.feed(torch.full((2, 60), canary))
    other.feed(texts(2, 60) % 90)
    session.reset(rows=[0])
    fresh, state = Session(model, 2).state_dict(), session.state_dict()
    for name, tensor in state.items():
        if tensor.dim() and len(tensor) == 2:
            assert torch.equal(tensor[0], fresh[name][0]), name
    assert canary not in other.state_dict()["recent"].tolist()[0]


# P28


class Scripted:
    """A session of one row that draws the ids it was given."""

    def __init__(self, ids: list[int], vocab_size: int) -> None:
        self.ids, self.batch_size, self.ages = ids, 1, torch.tensor([1])
        self.model: Any = type("Sized", (), {"vocab_size": vocab_size})()

    def read(self, ids: Tensor, lengths: object) -> None:
        assert ids.shape[1] == 0

    def draw(self, *_: object, **__: object) -> Iterator[Drawn]:
        return (Drawn(torch.tensor([one]), torch.zeros(1, self.model.vocab_size)) for one in self.ids)


@pytest.mark.parametrize("kind", ["byte", "char", "word", "bpe"])
def test_p28_streamed_text_is_the_decoded_whole_and_never_half_a_character(kind: Any) -> None:
    text = "naïve café — π ≈ 3.14159 🙂🙂 世界, e\u0301!\n" * 30 + words(300)
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=280), [text], separator=None)
    for seed in range(40):
        draw = random.Random(seed)
        if seed % 2:
            ids = [draw.randrange(tokenizer.vocab_size) for _ in range(60)]
        else:
            start = draw.randrange(500)
            ids = tokenizer.encode(text[start : start + 60])
        session: Any = Scripted(ids, tokenizer.vocab_size)
        pieces = list(generate_text(session, tokenizer))
        assert "".join(pieces) == tokenizer.decode(ids)
        if seed % 2 == 0 and kind in ("byte", "bpe"):
            assert "".join(pieces) == text[start : start + 60]
            assert not any("\ufffd" in piece or not piece for piece in pieces)


# Another process


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relative", "vanilla sinusoidal", "lstm"])
def test_a_state_saved_to_disk_goes_on_in_another_process_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    script = """
import json, sys, torch
from safetensors.torch import load_file, save_file
from tests.promises.test_streaming_promises import Session, fixture, texts
session = Session(fixture(sys.argv[1]), batch_size=2)
session.load_state_dict(load_file(sys.argv[2]))
nats = session.feed(texts(2, 45, seed=8), lengths=[45, 21])
drawn = torch.stack(list(session.generate(20, seed=3)))
save_file({"nats": nats, "drawn": drawn, **session.state_dict()}, sys.argv[3])
print(json.dumps({"ages": session.ages.tolist()}))
"""
    session = Session(fixture(kind), batch_size=2)
    session.feed(texts(2, 70), lengths=[70, 33])
    save_file(session.state_dict(), tmp_path / "here")
    command = [sys.executable, "-c", script, kind, str(tmp_path / "here"), str(tmp_path / "there")]
    done = subprocess.run(command, check=True, timeout=110, capture_output=True, text=True)
    found = load_file(tmp_path / "there")
    expected = {"nats": session.feed(texts(2, 45, seed=8), lengths=[45, 21])}
    expected["drawn"] = torch.stack(list(session.generate(20, seed=3)))
    expected |= session.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(
            found[name].nan_to_num(-1) if name == "nats" else found[name],
            tensor.nan_to_num(-1) if name == "nats" else tensor,
        ), name
    assert json.loads(done.stdout)["ages"] == session.ages.tolist()
