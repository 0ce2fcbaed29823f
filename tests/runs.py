"""Tiny training runs for tests: over text made on the spot, stopped at chosen steps, compared by all they leave behind.

A folder and overrides -> a `Config`, a run folder -> a comparable record. Shared by laws, integration and distributed
tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from txl.config import Config, apply_overrides
from txl.train import loop

TIMES = ("tokens_per_second", "mfu", "elapsed_seconds", "peak_bytes")
TINY = (
    *("model.n_layer=2", "model.d_model=12", "model.n_head=3", "model.d_head=4", "model.d_inner=20"),
    *("model.tgt_len=7", "model.mem_len=9", "model.dropout=0.1", "model.dropatt=0.1", "data.batch_size=4"),
    *("train.max_steps=12", "train.eval_every=6", "train.eval_tokens=60", "train.save_every=4", "train.sample_every=4"),
    *("train.sample_tokens=6", "train.log_every=1", "optim.lr=0.01", "optim.warmup_steps=3", "optim.schedule=constant"),
    *("runtime.device=cpu", "runtime.precision=fp32", "run.seed=5"),
)

NO_DROPOUT = ("model.dropout=0", "model.dropatt=0")
UNUSUAL = ("model.cutoffs=[60,120]", "model.div_val=2", "model.activation_checkpointing=true", "train.accumulate=2")


def text(count: int, *, seed: int = 0) -> bytes:
    """`count` bytes of lower-case words and spaces, the last one a line end."""
    letters = b"abcdefgh   "
    numbers = hashlib.shake_128(str(seed).encode()).digest(count - 1)
    return bytes(letters[number % len(letters)] for number in numbers) + b"\n"


def tiny(folder: Path, *overrides: str, run: str = "run", train_bytes: int = 700, documents: int = 3) -> Config:
    """A run of twelve steps on `documents` files of random letters, about `train_bytes` in all."""
    corpus = folder / f"corpus-{train_bytes}-{documents}"
    if not corpus.exists():
        (corpus / "train").mkdir(parents=True)
        for number in range(documents):
            share = train_bytes // documents + (train_bytes % documents if number == 0 else 0)
            (corpus / "train" / f"{number}.txt").write_bytes(text(share, seed=number))
        (corpus / "valid.txt").write_bytes(text(150, seed=100))
        (corpus / "test.txt").write_bytes(text(90, seed=101))
    paths = (f"data.train={corpus}/train", f"data.valid={corpus}/valid.txt", f"data.test={corpus}/test.txt")
    places = (f"run.dir={folder / run}", f"data.cache_dir={folder / 'cache'}")
    return apply_overrides(Config(), [*TINY, *paths, *places, *overrides])


def in_clusters(folder: Path, *, run: str) -> Config:
    """A run of four steps with an adaptive softmax: the ids of rows 0 and 1 are in the first cluster, those of rows 2
    and 3 in the second."""
    corpus = folder / "clusters.txt"
    corpus.write_bytes(bytes(48 + byte % 10 for byte in text(200)) + text(200, seed=1).replace(b" ", b"h"))
    clusters = ("model.cutoffs=[60,120]", "model.div_val=2", "train.max_steps=4", "train.eval_every=100")
    return tiny(folder, *NO_DROPOUT, *clusters, f"data.train={corpus}", run=run)


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, signum: int = signal.SIGTERM) -> None:
    """From now on a signal comes while step `step` is taken."""
    rate = loop.learning_rate

    def interrupted(number: int, *rest: Any) -> float:
        if number == step:
            os.kill(os.getpid(), signum)
        return rate(number, *rest)

    monkeypatch.setattr(loop, "learning_rate", interrupted)


def train_in_parts(config: Config, stops: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole run, stopped by a signal and begun again after each of the steps in `stops`."""
    for step in stops:
        with monkeypatch.context() as patch:
            stop_at(patch, step)
            with pytest.raises(loop.Preempted):
                loop.train(config)
    loop.train(config)


def metrics(run_dir: str | Path, *, without: Sequence[str] = TIMES) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, times left out."""
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in without} for line in lines]


def tensors(run_dir: str | Path, step: int, name: str) -> dict[str, torch.Tensor]:
    """The tensors of one file of a checkpoint."""
    return load_file(Path(run_dir) / "checkpoints" / f"step-{step:06d}" / f"{name}.safetensors")


def remains(run_dir: str | Path, step: int) -> dict[str, Any]:
    """All that a run leaves at a step, comparable: SHA-256 of every tensor, generators, numbers, log and samples."""
    checkpoint = Path(run_dir) / "checkpoints" / f"step-{step:06d}"
    record: dict[str, Any] = {}
    for name in ("model", "optimizer", "memory"):
        for key, tensor in tensors(run_dir, step, name).items():
            record[f"{name} {key}"] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    record["rng"] = json.loads((checkpoint / "rng.json").read_text())
    state = json.loads((checkpoint / "state.json").read_text())
    record |= {key: value for key, value in state.items() if key not in ("elapsed_seconds", "journal")}
    record["metrics"] = metrics(run_dir)
    record["samples"] = (Path(run_dir) / "samples.txt").read_text()
    return record


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not equal."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
