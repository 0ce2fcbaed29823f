"""A model and a tokenizer small enough to be computed by hand, with the contract that a session needs.

The model's hidden state is a weighted sum of the embeddings of the last `window` + 1 tokens since the reset, added in a
Python loop: exact, independent of chunks, and sharing nothing with the package.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl import Session
from txl.infer.drawing import Drawn
from txl.infer.sampling import Sampling

VOCAB, WIDTH, DECAY = 11, 6, 0.7


class FakeCache:
    """The last `window` ids of each row since its reset, oldest first, as Python lists."""

    def __init__(self, texts: list[list[int]], ages: list[int], window: int) -> None:
        self.texts, self.window, self.batch_size = texts, window, len(texts)
        self.age = torch.tensor(ages)

    @property
    def nbytes(self) -> int:
        return 8 * self.batch_size * (self.window + 1)

    def reset(self, rows: Sequence[int] | None = None) -> None:
        for row in range(self.batch_size) if rows is None else rows:
            self.texts[row], self.age[row] = [], 0

    def select(self, rows: Sequence[int]) -> FakeCache:
        return FakeCache([list(self.texts[r]) for r in rows], self.age[list(rows)].tolist(), self.window)

    def state_dict(self) -> dict[str, Tensor]:
        padded = [[-1] * (self.window - len(text)) + text for text in self.texts]
        return {"ids": torch.tensor(padded, dtype=torch.int64).view(self.batch_size, self.window), "age": self.age}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.texts = [[token for token in text if token >= 0] for text in state["ids"].tolist()]
        self.age = state["age"].clone()


class FakeModel(nn.Module):
    """hidden[t] = Σ_k DECAY^k · embedding(id[t-k]), k = 0 … min(age, window); logits = hidden · matrixᵀ + bias."""

    def __init__(
        self, *, window: int = 3, dtype: torch.dtype = torch.float64, vocab: int = VOCAB, unbounded: bool = False
    ) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.embedding = nn.Parameter(torch.randn(vocab, WIDTH, generator=draw, dtype=torch.float64).to(dtype))
        self.matrix = nn.Parameter(torch.randn(vocab, WIDTH, generator=draw, dtype=torch.float64).to(dtype))
        self.bias = nn.Parameter(torch.randn(vocab, generator=draw, dtype=torch.float64).to(dtype))
        self.dropout = nn.Dropout(0.5)
        self.config = SimpleNamespace(d_model=WIDTH, arch="transformer_xl", position="relative")
        self.vocab_size, self.default_window = vocab, window
        self.unbounded = unbounded
        self.positions = 0
        self.widest = 0

    def reach(self, window: int) -> int | None:
        return None if self.unbounded else window

    def new_cache(self, batch_size: int, window: int | None = None) -> FakeCache:
        return FakeCache(
            [[] for _ in range(batch_size)], [0] * batch_size, self.default_window if window is None else window
        )

    def advance(
        self, ids: Tensor, cache: FakeCache, *, resets: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        assert not self.training
        self.positions += ids.numel()
        self.widest = max(self.widest, ids.shape[1])
        hidden = torch.full((*ids.shape, WIDTH), 99.0, dtype=self.embedding.dtype)
        for row, tokens in enumerate(ids.tolist()):
            for t in range(len(tokens) if lengths is None else int(lengths[row])):
                if resets is not None and resets[row, t]:
                    cache.reset([row])
                text = [*cache.texts[row], tokens[t]]
                hidden[row, t] = self.state(text)
                cache.texts[row] = text[len(text) - cache.window :] if len(text) > cache.window else text
                cache.age[row] += 1
        return self.dropout(hidden)

    def state(self, text: list[int]) -> Tensor:
        """The hidden state after a text already cut to its window."""
        return sum((DECAY**k * self.embedding[token] for k, token in enumerate(reversed(text))), torch.zeros(WIDTH))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.matrix.T + self.bias

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        flat = F.cross_entropy(self.logits(hidden).flatten(0, 1), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def log_probs_after(self, text: list[int], *, window: int | None = None) -> Tensor:
        """What the model thinks comes after a text, V, from the text alone."""
        window = self.default_window if window is None else window
        with torch.no_grad():
            return self.logits(self.state(text[max(0, len(text) - window - 1) :])).log_softmax(-1)

    def nats_of(self, text: list[int], *, window: int | None = None) -> list[float]:
        """Nats of every token but the first, each from the text before it."""
        return [-float(self.log_probs_after(text[:t], window=window)[text[t]]) for t in range(1, len(text))]


class ByteText:
    """256 byte values, and a separator of id 256 if asked for."""

    def __init__(self, *, separator: bool = False) -> None:
        self.vocab_size = 256 + separator
        self.separator_id = 256 if separator else None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def stream_decoder(self) -> Any:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return SimpleNamespace(
            push=lambda i: decoder.decode(bytes([i]) if i < 256 else b""), flush=lambda: decoder.decode(b"", True)
        )


class WordText:
    """Words joined by single spaces: the text of a word depends on whether another came before it."""

    separator_id = None

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.vocab_size = list(words), len(words)

    def encode(self, text: str) -> list[int]:
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[i] for i in ids)

    def stream_decoder(self) -> Any:
        seen: list[int] = []

        def push(i: int) -> str:
            seen.append(i)
            return self.decode(seen)[len(self.decode(seen[:-1])) :]

        return SimpleNamespace(push=push, flush=lambda: "")


class ScriptedSession:
    """Yields the ids it was given, whatever it is asked: text handling alone is under test."""

    batch_size = 1

    def __init__(self, ids: Sequence[int], vocab_size: int, *, age: int = 0) -> None:
        self.ids, self.model = list(ids), SimpleNamespace(vocab_size=vocab_size)
        self.fed: list[int] = []
        self.taken = 0
        self.ages = torch.tensor([age])
        self.options: dict[str, Any] = {}

    def read(self, ids: Tensor, lengths: object = None) -> None:
        assert lengths is None
        self.fed += ids[0].tolist()

    def draw(self, max_new_tokens: int | None, sampling: Sampling, *, stop: Any, seed: Any) -> Any:
        self.options = {"max_new_tokens": max_new_tokens, **vars(sampling), "seed": seed}
        return self._drawn()

    def _drawn(self) -> Any:
        for token in self.ids:
            self.taken += 1
            yield Drawn(torch.tensor([token]), torch.zeros(1, self.model.vocab_size))


TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
OTHER = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4]


def start(batch_size: int = 1, **options: Any) -> tuple[FakeModel, Session]:
    model = FakeModel(**options).eval()
    return model, Session(model, batch_size)  # type: ignore[arg-type]


def feed(session: Session, *rows: list[int], **options: Any) -> list[list[float]]:
    return session.feed(torch.tensor(rows), **options).tolist()


def close(found: list[float], expected: list[float]) -> bool:
    return found == pytest.approx(expected, abs=1e-12, nan_ok=True)
