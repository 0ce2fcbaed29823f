"""Training: forward, loss and backward of one segment with full memory, ours against the peers (rows T1, T2).

python -m benchmarks.bench_train [--threads N] [--rounds N] [--dtype fp32|bf16] [--only T2] [--compile] -> a table, one
JSON line.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from benchmarks import peers
from benchmarks.timing import Row, finish, options, set_up, take_turns

SIZES = {"T1": (2, 512), "T2": (4, 128)}
AIMS = {
    ("T1", "fp32"): {"hugging face": 4.0, "x-transformers": 1.8},
    ("T2", "fp32"): {"hugging face": 2.3, "x-transformers": 1.7},
    ("T1", "bf16"): {"hugging face": 1.5, "x-transformers": 1.5},
    ("T2", "bf16"): {"hugging face": 1.3, "x-transformers": 1.3},
}


def main() -> None:
    """Time every size for one dtype and number of threads."""
    parser = options(__doc__, rounds=7)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--only", choices=list(SIZES), nargs="+", default=list(SIZES), help="these rows alone")
    parser.add_argument("--compile", action="store_true", help="also the peers under torch.compile: minutes more")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the first timed; one fills a memory (2)")
    asked = set_up(parser)
    peers.add_to_path()
    rows = [measure(name, asked.dtype, asked.rounds, asked.warm_up, compiled=asked.compile) for name in asked.only]
    finish("bench_train", rows, dtype=asked.dtype)


def measure(name: str, dtype: str, rounds: int, warm_up: int, *, compiled: bool) -> Row:
    """One row: the same tokens through every contender, `warm_up` steps first so that memories are full."""
    n_rows, length = SIZES[name]
    config = peers.shape(length, length)
    ours = peers.Ours(config)
    hugging_face = peers.HuggingFace(ours)
    difference = peers.largest_difference(ours, hugging_face, peers.random_ids(n_rows, 2 * length))
    contenders: dict[str, Any] = {
        "txl": ours,
        "hugging face": hugging_face,
        "x-transformers": peers.XTransformers(config),
        "x-transformers, plain attention": peers.XTransformers(config, flash=False),
    }
    if compiled:
        contenders["hugging face, compiled"] = peers.HuggingFace(ours, compiled=True)
        contenders["x-transformers, compiled"] = peers.XTransformers(config, compiled=True)
    ids = peers.random_ids(n_rows, length + 1, seed=1)
    autocast = torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else nullcontext()

    def step(contender: Any) -> None:
        with autocast:
            contender.train(ids[:, :-1], ids[:, 1:])

    calls = {key: lambda contender=contender: step(contender) for key, contender in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, warm_up=warm_up)
    workload = f"{name}: train {dtype}, B {n_rows}, T = M = {length}"
    notes = f"{rounds} rounds, log-probabilities differ from Hugging Face's by at most {difference:.1e}"
    return Row(workload, "step", seconds, "txl", AIMS[name, dtype], notes)


if __name__ == "__main__":
    main()
