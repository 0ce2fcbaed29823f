"""Evaluation: scoring a long text with a full memory, ours against the peers (rows E1, E2).

python -m benchmarks.bench_eval [--threads N] [--rounds N] -> a table, one JSON line. A window does not depend on the
segment, so ours may read longer segments than the published ones and give the same nats: `T free` is ours at 256
against the peers at the published length, and at their own best of 64 to 512.
"""

from __future__ import annotations

from typing import Any

from benchmarks import peers
from benchmarks.timing import Row, finish, options, set_up, take_turns

SIZES = (("E1", 640, 64), ("E2", 1600, 128))
AIMS = {"E1": {"hugging face": 4.5, "x-transformers": 3.0}, "E2": {"hugging face": 5.0, "x-transformers": 3.3}}
FREE_AIMS = {"E1": {"hugging face": 6.0, "x-transformers": 4.0}, "E2": {}}
OUR_SEGMENT = 256


def main() -> None:
    """Time every memory length."""
    asked = set_up(options(__doc__))
    peers.add_to_path()
    rows = [row for name, memory, length in SIZES for row in measure(name, memory, length, asked.rounds)]
    finish("bench_eval", rows)


def measure(name: str, memory: int, length: int, rounds: int) -> list[Row]:
    """One text of one row, memories filled first; seconds a token."""
    config = peers.shape(length, memory)
    ours, free = peers.Ours(config), peers.Ours(config)
    hugging_face = peers.HuggingFace(ours)
    hugging_face.start_empty(1)
    contenders: dict[str, tuple[Any, int]] = {
        "txl": (ours, length),
        "hugging face": (hugging_face, length),
        "x-transformers": (peers.XTransformers(config), length),
        f"txl, T {OUR_SEGMENT}": (free, OUR_SEGMENT),
        f"hugging face, T {OUR_SEGMENT}": (peers.HuggingFace(ours), OUR_SEGMENT),
        f"x-transformers, T {OUR_SEGMENT}": (peers.XTransformers(config), OUR_SEGMENT),
    }
    text = peers.random_ids(1, memory + 2 * OUR_SEGMENT + 1)
    for contender, segment in contenders.values():
        contender.model.eval()
        for start in range(0, memory + segment, segment):
            contender.evaluate(text[:, start : start + segment], text[:, start + 1 : start + segment + 1])

    def read(contender: Any, segment: int) -> None:
        contender.evaluate(text[:, :segment], text[:, 1 : segment + 1])

    calls = {key: lambda pair=pair: read(*pair) for key, pair in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, at_least_seconds=0.3)
    per_token = {key: [s / contenders[key][1] for s in found] for key, found in seconds.items()}
    same = {key: per_token[key] for key in ("txl", "hugging face", "x-transformers")}
    label = f"{name}: evaluate, batch 1, memory {memory}"
    return [
        Row(f"{label}, T {length} as published", "token", same, "txl", AIMS[name]),
        Row(f"{label}, T free", "token", per_token, f"txl, T {OUR_SEGMENT}", FREE_AIMS[name]),
    ]


if __name__ == "__main__":
    main()
