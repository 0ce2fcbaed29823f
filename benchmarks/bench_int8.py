"""Weights in 8 bits against full ones: speed, bytes, and bits per byte of a trained run (row S3).

python -m benchmarks.bench_int8 [RUN] [--threads N] [--rounds N] [--tokens N] -> a table, one JSON line. RUN, by default
the quickstart's, says what the rounding costs on its own test text; without one only speed and bytes are told.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

import txl
from benchmarks import peers
from benchmarks.timing import Row, finish, options, set_up, take_turns
from txl.data import prepare
from txl.model import to_int8

WINDOW = 512


def main() -> None:
    """Time, weigh, and score where there is a run."""
    parser = options(__doc__, rounds=7)
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/quickstart/xl"))
    parser.add_argument("--tokens", type=int, default=50_000, help="tokens of the run's test text that are scored")
    asked = set_up(parser)
    rows = [row for batch in (1, 8) for row in timed(batch, asked.rounds)]
    full, small = peers.Ours(peers.shape(64, WINDOW)), peers.Ours(peers.shape(64, WINDOW))
    to_int8(small.model)
    sizes = {"full": layer_bytes(full.model), "int8": layer_bytes(small.model)}
    print(f"\nbytes of the layers' weights: {sizes['full']:,} full, {sizes['int8']:,} in 8 bits")
    quality = scored(asked.run, asked.tokens) if asked.run.exists() else None
    if quality is not None:
        both = f"{quality['full']:.5f} full, {quality['int8']:.5f} in 8 bits"
        print(f"bits per byte of {asked.run} on {quality['tokens']:,} tokens of its test text: {both}")
    finish("bench_int8", rows, layer_bytes=sizes, quality=quality)


def timed(batch: int, rounds: int) -> list[Row]:
    """One token a row, full and in 8 bits."""
    contenders = {"full weights": peers.Ours(peers.shape(64, WINDOW)), "int8": peers.Ours(peers.shape(64, WINDOW))}
    text = peers.random_ids(batch, WINDOW + 64)
    to_int8(contenders["int8"].model)
    for contender in contenders.values():
        contender.token(text)
    calls = {key: lambda contender=contender: contender.token(text[:, :1]) for key, contender in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, warm_up=3, at_least_seconds=0.3)
    return [
        Row(
            f"S3: one token, batch {batch}, window {WINDOW}",
            "token of each row",
            seconds,
            "int8",
            {"full weights": 2.0},
        )
    ]


def layer_bytes(model: nn.Module) -> int:
    """Bytes of all that the layers keep."""
    return sum(tensor.nbytes for name, tensor in model.state_dict().items() if ".layers." in name)


def scored(run: Path, tokens: int) -> dict[str, Any]:
    """Bits per byte of a byte-level run's best checkpoint with either weights."""
    bundle = txl.load(run, "best")
    ids = torch.from_numpy(prepare(bundle.config).test.ids[: tokens + 1].astype("int64"))
    found: dict[str, Any] = {"tokens": tokens, "run": str(run)}
    for name in ("full", "int8"):
        if name == "int8":
            to_int8(bundle.model)
        result = txl.evaluate(bundle.model, ids, batch_size=8)
        found[name] = result.nats / math.log(2) / result.tokens
    return found


if __name__ == "__main__":
    main()
