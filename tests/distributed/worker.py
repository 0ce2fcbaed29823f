"""One of several processes that train together; run by the tests of this folder, which compare what it leaves behind.

FOLDER, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment -> run folders and FOLDER/rank-R.json.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.runs import NO_DROPOUT, UNUSUAL, in_clusters, stop_at, tiny
from txl.cli import end_process
from txl.runtime import Runtime, leave_processes
from txl.train import loop
from txl.train.loop import Preempted, train

RANK = int(os.environ["RANK"])


def gradients(folder: Path, *overrides: str, run: str) -> list[list[float]]:
    """The norms of each parameter's gradient, step by step, while a run is trained."""
    taken = []
    clip = Runtime.clip

    def noted(self: Runtime, model: torch.nn.Module, max_norm: float) -> float:
        taken.append([float(parameter.grad.norm()) for parameter in model.parameters() if parameter.grad is not None])
        return clip(self, model, max_norm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "clip", noted)
        train(tiny(folder, *NO_DROPOUT, *overrides, run=run, train_bytes=110))
    return taken


def preempted(folder: Path, *overrides: str, run: str, step: int, ranks: tuple[int, ...]) -> tuple[int, str]:
    """Train until only these ranks get a signal; the signal every rank stopped for, and what it said."""
    with pytest.MonkeyPatch.context() as patch:
        if RANK in ranks:
            stop_at(patch, step, signal.SIGUSR1)
        try:
            train(tiny(folder, *overrides, run=run))
        except Preempted as stopped:
            return stopped.signum, str(stopped)
    return 0, ""


def poisoned(folder: Path, *overrides: str, run: str) -> str:
    """Train with a loss on rank 1 that is not a number at step 3."""
    step, rate, backward = [0], loop.learning_rate, Runtime.backward

    def noted(number: int, *rest: Any) -> float:
        step[0] = number
        return rate(number, *rest)

    def bad(self: Runtime, value: torch.Tensor) -> None:
        backward(self, value * math.nan if RANK == 1 and step[0] == 3 else value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", noted)
        patch.setattr(Runtime, "backward", bad)
        try:
            train(tiny(folder, *overrides, run=run))
        except loop.NonFiniteError as error:
            return str(error)
    return ""


def saves(folder: Path, *overrides: str, run: str) -> list[int]:
    """The steps at which this process takes part in a save: all must, or those that do wait for ever."""
    steps, save = [], loop.save_state

    def noted(run: Any, state: Any) -> Path:
        steps.append(state.step)
        return save(run, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_state", noted)
        train(tiny(folder, *overrides, run=run))
    return steps


def sharded(folder: Path) -> list[int]:
    """Runs whose weights are in parts; for each of them the parameters that are DTensors with a part here alone."""
    counts, prepare = [], Runtime.prepare

    def noted(self: Runtime, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        parts = [p for p in model.parameters() if isinstance(p, DTensor) and p.to_local().numel() < p.numel()]
        counts.append(len(parts) if len(parts) == len(list(model.parameters())) else -1)
        return prepare(self, model, optimizer)

    full = ("runtime.shard=full", "train.max_steps=4", "train.eval_every=100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "prepare", noted)
        train(tiny(folder, *NO_DROPOUT, *full, "train.max_steps=6", "train.eval_every=6", run="sharded"))
        train(tiny(folder, *NO_DROPOUT, *full, *UNUSUAL, run="sharded-unusual"))
        train(tiny(folder, *full, run="sharded-whole"))
        preempted(folder, *full, run="sharded-parts", step=2, ranks=(1,))
        train(tiny(folder, *full, run="sharded-parts"))
        preempted(folder, *NO_DROPOUT, *full, "train.max_steps=12", run="sharded-moved", step=3, ranks=(0,))
        skip = ("train.non_finite=skip", "train.save_every=1", "train.keep_last=9")
        assert poisoned(folder, *full, *skip, run="sharded-skipped") == ""
    return counts


def clusters(folder: Path) -> float:
    """Train where the rows of rank 0 have targets in the first cluster alone, those of rank 1 in the second alone and
    none has any in the third; the sum of all weights' absolute values here."""
    sums, save = [], loop.save_state

    def noted(run: Any, state: Any) -> Path:
        sums.append(sum(float(parameter.detach().double().abs().sum()) for parameter in run.bare.parameters()))
        return save(run, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "save_state", noted)
        train(in_clusters(folder, run="clusters"))
    return sums[-1]


def main(folder: Path) -> None:
    """Every scenario, one after the other in the same group of processes."""
    five = ("train.max_steps=5",)
    record: dict[str, Any] = {"gradients": gradients(folder, *five, run="two")}
    record["accumulated"] = gradients(folder, *five, "train.accumulate=2", run="two-accumulated")
    train(tiny(folder, "train.max_steps=6", run="whole"))
    record["stopped"] = preempted(folder, "train.max_steps=6", run="parts", step=3, ranks=(1,))
    train(tiny(folder, "train.max_steps=6", run="parts"))
    preempted(folder, *NO_DROPOUT, run="moved", step=4, ranks=(0, 1))
    preempted(folder, run="moved-with-dropout", step=3, ranks=(0,))
    train(tiny(folder, *NO_DROPOUT, run="begun-alone"))
    skip = ("train.non_finite=skip", "train.max_steps=4", "train.save_every=1", "train.keep_last=9")
    record["skipped"] = poisoned(folder, *skip, run="skipped")
    record["raised"] = poisoned(folder, run="raised")
    record["saves"] = saves(folder, run="saved-by-all")
    record["clusters"] = clusters(folder)
    record["sharded"] = sharded(folder)
    (folder / f"rank-{RANK}.json").write_text(json.dumps(record))


def moved(folder: Path) -> None:
    """Go on with a run that other numbers of processes began."""
    train(tiny(folder, *NO_DROPOUT, run="moved-to-4"))


def failing(folder: Path) -> None:
    """Rank 1 fails at step 3, while the others wait for its gradients."""
    backward, step = Runtime.backward, [0]

    def bad(self: Runtime, value: torch.Tensor) -> None:
        step[0] += 1
        if RANK == 1 and step[0] == 3:
            raise ValueError("rank 1 is broken")
        backward(self, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "backward", bad)
        train(tiny(folder, *NO_DROPOUT, run="failing"))


def unfinished(folder: Path) -> None:
    """Train with weights in parts, and end while gloo's threads still drop tensors."""
    train(tiny(folder, "runtime.shard=full", "train.max_steps=4", run="unfinished"))
    for _ in range(2000):
        torch.distributed.all_reduce(torch.ones(10_000), async_op=True)
    end_process(0)


if __name__ == "__main__":
    parts = {"all": main, "moved": moved, "failing": failing, "unfinished": unfinished}
    parts[sys.argv[2]](Path(sys.argv[1]))
    leave_processes()
    end_process(0)
