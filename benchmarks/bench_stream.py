"""Streaming: one token at a time with a full memory, ours against the peers (rows S1, S2).

python -m benchmarks.bench_stream [--threads N] [--rounds N] -> a table, one JSON line.
"""

from __future__ import annotations

from typing import Any

from benchmarks import peers
from benchmarks.timing import Row, finish, options, set_up, take_turns

SIZES = (("S1", 1, 512), ("S1", 1, 2048), ("S2", 8, 512), ("S2", 32, 512))
AIMS = {
    ("S1", 512): {"hugging face": 11.0, "x-transformers": 7.0},
    ("S1", 2048): {"hugging face": 27.0, "x-transformers": 16.0},
    ("S2", 512): {"hugging face": 8.0, "x-transformers": 5.0},
}
SECONDS = 0.3
"""How long each contender goes on in a round."""


def main() -> None:
    """Time every batch and memory length."""
    asked = set_up(options(__doc__, rounds=7))
    peers.add_to_path()
    finish("bench_stream", [measure(name, batch, memory, asked.rounds) for name, batch, memory in SIZES])


def measure(name: str, batch: int, memory: int, rounds: int) -> Row:
    """One row; memories are filled before, and then every call is one token a row."""
    config = peers.shape(64, memory)
    ours = peers.Ours(config)
    contenders: dict[str, Any] = {
        "txl": ours,
        "txl.Session": peers.Streaming(ours),
        "hugging face": peers.HuggingFace(ours),
        "x-transformers": peers.XTransformers(config),
    }
    text = peers.random_ids(batch, memory + 64)
    contenders["hugging face"].start_empty(batch)
    for contender in contenders.values():
        contender.model.eval()
        for part in text.split(64, dim=1):
            contender.token(part)
    difference = float(
        (ours.token(text[:, :1]).log_softmax(-1) - contenders["hugging face"].token(text[:, :1])).abs().max()
    )
    calls = {key: lambda contender=contender: contender.token(text[:, 1:2]) for key, contender in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, warm_up=3, at_least_seconds=SECONDS)
    notes = f"log-probabilities differ from Hugging Face's by at most {difference:.1e}"
    return Row(
        f"{name}: one token, batch {batch}, memory {memory}",
        "token of each row",
        seconds,
        "txl",
        AIMS[name, memory],
        notes,
    )


if __name__ == "__main__":
    main()
