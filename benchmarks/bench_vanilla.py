"""Ours against our own vanilla baselines: what state reuse is worth (V1), what relative positions cost (V2).

python -m benchmarks.bench_vanilla [--threads N] [--rounds N] -> tables, one JSON line.

V1 is the paper's Table 9: a window slid by one token and computed anew for each, at 800 to 3,800 keys, against cached
evaluation. The baseline stands twice: as the paper's, with every position of its last layer, and at its best, with the
last token alone. It says nothing of a decoder with a KV cache; V2 does: the same decoder with rotary positions, which
is what people use today, a training step and a token at the same window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.timing import Row, finish, options, set_up, take_turns

AIMS = {800: 363.0, 1800: 773.0, 2800: 1409.0, 3800: 1874.0}
SEGMENT = 256


def main() -> None:
    """Time every length of V1, then V2."""
    asked = set_up(options(__doc__))
    rows = [slid(n_keys, asked.rounds) for n_keys in AIMS]
    rows += [trained(asked.rounds), streamed(512, asked.rounds), streamed(2048, asked.rounds)]
    finish("bench_vanilla", rows)


def slid(n_keys: int, rounds: int) -> Row:
    """V1 at one attention length: seconds a scored token."""
    ours = peers.Ours(peers.shape(SEGMENT, n_keys))
    plain = peers.Ours(peers.shape(n_keys, 0, arch="transformer", position="sinusoidal")).model.eval()
    text = peers.random_ids(1, n_keys + 2 * SEGMENT + 1)
    for start in range(0, n_keys + SEGMENT, SEGMENT):
        ours.evaluate(text[:, start : start + SEGMENT], text[:, start + 1 : start + SEGMENT + 1])
    window, target, position = text[:, :n_keys], text[:, n_keys : n_keys + 1], torch.arange(n_keys)[None]

    @torch.no_grad()
    def recomputed(*, newest_alone: bool) -> Tensor:
        hidden = plain.stack(window, position, (), None, newest_alone=newest_alone)[0]
        return plain.nll(hidden[:, -1:], target)

    seconds = take_turns(
        {
            "txl": lambda: ours.evaluate(text[:, :SEGMENT], text[:, 1 : SEGMENT + 1]),
            "vanilla, every position": lambda: recomputed(newest_alone=False),
            "vanilla, last token alone": lambda: recomputed(newest_alone=True),
        },
        rounds=rounds,
    )
    seconds["txl"] = [s / SEGMENT for s in seconds["txl"]]
    aims = {"vanilla, every position": AIMS[n_keys]}
    return Row(f"V1: a token scored with {n_keys:,} keys", "token", seconds, "txl", aims)


def trained(rounds: int) -> Row:
    """V2, training: one step over the same 1,024 tokens; segments of T, and of T + M without memory."""
    length = 512
    ids = {n: peers.random_ids(2 * length // n, n + 1) for n in (length, 2 * length)}
    rotary = {n: peers.Ours(peers.shape(n, 0, position="rotary")) for n in ids}
    ours = peers.Ours(peers.shape(length, length))

    def step(contender: peers.Ours, n: int) -> None:
        contender.train(ids[n][:, :-1], ids[n][:, 1:])

    seconds = take_turns(
        {
            "txl": lambda: step(ours, length),
            "rotary, segments of T + M": lambda: step(rotary[2 * length], 2 * length),
            "rotary, segments of T": lambda: step(rotary[length], length),
        },
        rounds=rounds,
        warm_up=3,
    )
    aims = {"rotary, segments of T + M": 0.8}
    return Row("V2: train 1,024 tokens, T = M = 512", "step", seconds, "txl", aims, "aim 0.8: costs at most 1.25 times")


def streamed(memory: int, rounds: int) -> Row:
    """V2, streaming: one token with a full window, both with keys and values cached."""
    contenders = {
        "txl": peers.Ours(peers.shape(64, memory)),
        "rotary, KV cache": peers.Ours(peers.shape(64, memory, position="rotary")),
    }
    text = peers.random_ids(1, memory + 64)
    for contender in contenders.values():
        contender.token(text)
    calls = {key: lambda contender=contender: contender.token(text[:, :1]) for key, contender in contenders.items()}
    seconds = take_turns(calls, rounds=rounds, warm_up=3, at_least_seconds=0.3)
    aims = {"rotary, KV cache": 0.8}
    return Row(f"V2: one token, window {memory}", "token", seconds, "txl", aims, "aim 0.8: costs at most 1.25 times")


if __name__ == "__main__":
    main()
