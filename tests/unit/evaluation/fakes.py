"""Models whose losses are known without a network, and measurements made by hand: what evaluation is tested against.

A `Reader` sees exactly the ids it is allowed to see and turns them into a number by plain Python; `reader_nll` gives
the same number from a text and a position, without caches, batches or segments.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl.config import Config, ModelConfig, RunConfig
from txl.evaluation.context import Point
from txl.evaluation.learning import Learning
from txl.evaluation.measure import Measurement
from txl.evaluation.perplexity import Settings
from txl.evaluation.speed import Speed

POSITION = {"window": "relative", "slide": "sinusoidal", "state": "relative"}


class Fake(nn.Module):
    """A model that keeps what it may see as lists of ids, one a row, and lets `read` say what the ids mean."""

    def __init__(self, vocab_size: int, kind: str = "window", *, n_layer: int = 3, tgt_len: int = 8) -> None:
        super().__init__()
        absolute = kind == "slide"
        self.config = ModelConfig(
            arch="transformer" if absolute else "transformer_xl",
            position=POSITION[kind],  # type: ignore[arg-type]
            n_layer=n_layer,
            tgt_len=tgt_len,
            mem_len=0 if absolute else tgt_len,
        )
        self.vocab_size = vocab_size
        self.kind = kind
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.fed = 0
        self.calls = 0

    @property
    def default_window(self) -> int:
        return self.config.tgt_len - 1 if self.kind == "slide" else self.config.mem_len

    def reach(self, window: int) -> int | None:
        return {"window": self.config.n_layer * window, "slide": window, "state": None}[self.kind]

    def new_cache(self, batch_size: int, window: int | None = None) -> FakeCache:
        return FakeCache([[] for _ in range(batch_size)], None if self.kind == "state" else window)

    def advance(
        self, ids: Tensor, cache: FakeCache, *, resets: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        assert ids.dtype == torch.int64
        assert len(cache.rows) == len(ids)
        self.calls += 1
        hidden = torch.full((*ids.shape, 1), math.nan, dtype=torch.float64)
        for b, seen in enumerate(cache.rows):
            for t in range(ids.shape[1] if lengths is None else int(lengths[b])):
                if resets is not None and resets[b, t]:
                    seen.clear()
                seen.append(int(ids[b, t]))
                if cache.window is not None:
                    del seen[: max(0, len(seen) - cache.window - 1)]
                hidden[b, t, 0] = self.read(seen)
                self.fed += 1
        return hidden

    def forward(
        self, ids: Tensor, memory: None = None, targets: Tensor | None = None, resets: Tensor | None = None
    ) -> SimpleNamespace:
        hidden = self.advance(ids, self.new_cache(len(ids), window=ids.shape[1]), resets=resets)
        assert targets is not None
        return SimpleNamespace(hidden=hidden, nll=self.nll(hidden, targets))

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        assert targets.shape == hidden.shape[:-1]
        values = [self.loss(h, t) for h, t in zip(hidden.flatten().tolist(), targets.flatten().tolist(), strict=True)]
        return torch.tensor(values, dtype=torch.float64).view(targets.shape)

    def read(self, seen: Sequence[int]) -> float:
        raise AssertionError

    def loss(self, hidden: float, target: int) -> float:
        raise AssertionError


class FakeCache:
    """Lists of ids."""

    def __init__(self, rows: list[list[int]], window: int | None) -> None:
        self.rows = rows
        self.window = window
        self.nbytes = 123

    def select(self, rows: Sequence[int]) -> FakeCache:
        return FakeCache([list(self.rows[row]) for row in rows], self.window)


class Uniform(Fake):
    """Every token has probability 1 / V."""

    def read(self, seen: Sequence[int]) -> float:
        return 0.0

    def loss(self, hidden: float, target: int) -> float:
        return 0.0 if target == -100 else math.log(self.vocab_size)


class Counting(Fake):
    """Certain that each token is one more than the last, modulo V; infinitely surprised by any other."""

    def read(self, seen: Sequence[int]) -> float:
        return float((seen[-1] + 1) % self.vocab_size)

    def loss(self, hidden: float, target: int) -> float:
        return 0.0 if target in (-100, hidden) else math.inf


class Reader(Fake):
    """A loss that any change of any visible id changes."""

    def read(self, seen: Sequence[int]) -> float:
        return reading(seen)

    def loss(self, hidden: float, target: int) -> float:
        return 0.0 if target == -100 else reader_loss(hidden, target)


def reading(seen: Sequence[int]) -> float:
    """A number in [0, 1) that every id and every position in `seen` changes."""
    value = 7
    for token in seen:
        value = (value * 131 + token + 1) % 1_000_003
    return value / 1_000_003


def reader_loss(hidden: float, target: int) -> float:
    return 2.0 * hidden + (target * 0.618) % 1.0


def reader_nll(
    ids: Sequence[int], *, window: int | None, resets: Sequence[int] = (), first: int = 0, stop: int | None = None
) -> list[float]:
    """What a Reader gives for each target, from slices of the text alone."""
    losses = []
    for t in range(first, len(ids) - 1 if stop is None else stop):
        start = max([0, *(r for r in resets if r <= t)])
        start = start if window is None else max(start, t - window)
        losses.append(reader_loss(reading(list(ids[start : t + 1])), ids[t + 1]))
    return losses


class FakeTokenizer:
    """Byte-like: `vocab_size` ids of `lengths` bytes each."""

    def __init__(self, vocab_size: int, *, lengths: Sequence[int] | None = None, unknown: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.lossless = unknown is None
        self.unknown_id = unknown
        self.lengths = np.array(lengths if lengths is not None else [1] * vocab_size, dtype=np.int64)
        self.hash = hashlib.sha256(repr((vocab_size, lengths, unknown)).encode()).hexdigest()

    def byte_lengths(self) -> np.ndarray:
        return self.lengths


def fake_split(name: str, ids: np.ndarray, tokenizer: FakeTokenizer, starts: Sequence[int] = (0,)) -> SimpleNamespace:
    n_bytes = int(tokenizer.lengths[ids].sum()) if tokenizer.lossless else 3 * len(ids)
    starts_array = np.array(starts, dtype=np.int64)
    return SimpleNamespace(name=name, ids=ids, tokens=len(ids), bytes=n_bytes, document_starts=starts_array)


def fake_corpus(tokenizer: FakeTokenizer, *, train: int = 50, valid: int = 40, test: int = 300, **starts: Any) -> Any:
    """A corpus of seeded random ids."""
    draw = np.random.default_rng(5)
    splits = {
        name: fake_split(name, draw.integers(0, tokenizer.vocab_size, n).astype(np.uint16), tokenizer, **starts)
        for name, n in (("train", train), ("valid", valid), ("test", test))
    }
    hashes = {"fingerprint": "c0ffee" * 10, "text_hash": lambda split: f"{split} text"}
    return SimpleNamespace(tokenizer=tokenizer, **hashes, **splits)


def fake_bundle(model: Fake, tokenizer: FakeTokenizer, *, run_dir: str = "runs/some/xl", **sections: Any) -> Any:
    config = Config(model=model.config, run=RunConfig(dir=run_dir), **sections)
    return SimpleNamespace(model=model, tokenizer=tokenizer, config=config, step=77)


def point(
    kind: str, context: int, targets: str, sums: Sequence[float], *, each: int = 10, n_bytes: float = 0.0
) -> Point:
    """A point made of the nats of each stretch, `each` tokens long."""
    tokens = each * len(sums)
    window = context if kind == "window" else context - 1
    return Point(
        context=context,
        targets=targets,
        tokens=tokens,
        nats=float(sum(sums)),
        text_bytes=n_bytes or tokens,
        stretch_nats=tuple(float(value) for value in sums),
        stretch_tokens=(float(each),) * len(sums),
        settings=Settings(kind, window, window, 0, "float32", "cpu", 8, 256),
    )


def speed(kind: str, context: int, rate: float) -> Speed:
    fed = float(context) if kind == "slide" else 1.0
    return Speed(kind, context, rate, 0.8 * rate, 1.1 * rate, 5, fed, 8, 256, 1, "float32", "cpu")


def measurement(name: str, points: Sequence[Point], speeds: Sequence[Speed] = (), **changes: Any) -> Measurement:
    """A measurement around points made up by hand."""
    arch = "transformer" if points[0].settings.kind == "block" else "transformer_xl"
    learning = (
        Learning("train", (10, 20, 30), (1000, 2000, 3000), (1.0, 2.0, 3.0), (5.0, 3.0, 2.5), 1.0),
        Learning("valid", (15, 30), (1500, 3000), (1.5, 3.0), (4.0, 2.6), 1.0),
    )
    values: dict[str, Any] = {
        "name": name,
        "arch": arch,
        "parameters": 1000,
        "step": 30,
        "config": {"run": {"dir": f"runs/q/{name}"}, "model": {"arch": arch, "tgt_len": 64}},
        "split": "test",
        "corpus_hash": "ab" * 32,
        "text_hash": "12" * 32,
        "tokenizer_hash": "cd" * 32,
        "vocab_size": 256,
        "text_tokens": 10_001,
        "unknowns": 0,
        "incomparable": "",
        "points": tuple(points),
        "groups": (),
        "speeds": tuple(speeds),
        "learning": learning,
        "step_seconds": (0.25, 0.2, 0.4),
        "sample": "It was a <b>dark</b> & stormy | night",
        "environment": {"python": "3.11.4", "cpu": "some cpu", "threads": 2, "packages": {"torch": "2.13.0"}},
    }
    return Measurement(**{**values, **changes})
