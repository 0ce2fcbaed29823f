"""Run by a test: saves killed with SIGKILL at every touch of the disk, one after the other, each in a forked process.

FOLDER -> a line of JSON for each kill: what the run had before, and what is found after it. A process of its own, so
that it can fork before any thread exists.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from txl.checkpoint import Snapshot, checkpoints, newest_valid, problem, prune, read, save
from txl.checkpoint import snapshot as module
from txl.config import Config


def snapshot(step: int) -> Snapshot:
    numbers = torch.full((50, 7), float(step))
    return Snapshot(step, Config(), "{}", {"w": numbers}, {"m.w": numbers}, {"length": numbers}, {"step": step}, [])


def kill_at(number: int) -> None:
    """This process dies by SIGKILL before its `number`-th touch of the disk, or halfway through a write."""
    count = [0]

    def mortal(function: Callable[..., Any], *, writes: bool = False) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                if writes:
                    path = next(Path(arg) for arg in reversed(args) if isinstance(arg, Path))
                    path.write_bytes(b'\x08\0\0\0\0\0\0\0{"w"')
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    module.save_file = mortal(module.save_file, writes=True)
    Path.write_text = mortal(Path.write_text, writes=True)  # type: ignore[method-assign]
    for name in ("fsync", "rename", "mkdir", "unlink", "rmdir"):
        setattr(os, name, mortal(getattr(os, name)))


def main(folder: Path) -> None:
    begun, number = folder / "begun", 0
    for step in (1, 2):
        save(begun, snapshot(step))
    while True:
        number += 1
        run = folder / f"run-{number}"
        shutil.copytree(begun, run)
        child = os.fork()
        if child == 0:
            kill_at(number)
            save(run, snapshot(3))
            prune(run, keep_last=1, best_step=None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        newest = newest_valid(run)
        assert newest is not None
        found = read(newest)
        print(
            json.dumps(
                {
                    "number": number,
                    "killed": os.WIFSIGNALED(status),
                    "newest": found.step,
                    "value": float(found.model["w"].mean()),
                    "whole": all(problem(path) is None for path in checkpoints(run)),
                }
            )
        )
        save(run, snapshot(4))  # and the next save goes through
        prune(run, keep_last=1, best_step=None)
        print(json.dumps({"left": sorted(path.name for path in (run / "checkpoints").iterdir())}))
        shutil.rmtree(run)
        if not os.WIFSIGNALED(status):
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
