"""The run folder beside its checkpoints: who may write in it, what made the run, and how it ended.

run.dir -> a lock, config.yaml, environment.json, result.json. Knows nothing of models, steps or metrics.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txl.checkpoint import CheckpointError
from txl.config import Config, to_yaml
from txl.data.store import write_file
from txl.environment import environment

LOCK = ".lock"


@contextmanager
def locked(run_dir: Path, *, active: bool) -> Iterator[None]:
    """The run folder, made if it is not there, for this process alone; `active` is False in all but the main one.

    The kernel holds the lock and drops it when its owner dies: a killed run blocks nobody, whoever has its number now.
    Raises CheckpointError naming the process that has the folder, or the reason why it cannot be made.
    """
    if not active:
        yield
        return
    path = run_dir / LOCK
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path)
    except BlockingIOError:
        raise CheckpointError(
            f"{run_dir}: another run is writing there ({_owner(path)}); wait until it ends, stop it, "
            "or choose another run.dir"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{run_dir}: cannot be written in ({error.strerror}); choose another run.dir") from error
    try:
        with written(path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """An open, locked descriptor of the file that has this name now. Raises BlockingIOError where another holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it between our open and our lock


def _owner(path: Path) -> str:
    """The process that holds the lock, as far as the file says."""
    try:
        owner = json.loads(path.read_text("utf-8"))
        return f"process {int(owner['pid'])} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just begun"


def write_records(run_dir: Path, config: Config) -> None:
    """config.yaml, from which `txl train` goes on, and environment.json."""
    write_text(run_dir / "config.yaml", to_yaml(config))
    write_text(run_dir / "environment.json", json.dumps(environment(), indent=1))


def write_result(run_dir: Path, result: dict[str, Any]) -> None:
    """result.json: the run is done, and this is how well."""
    write_text(run_dir / "result.json", json.dumps(result, indent=1))


def read_result(run_dir: Path) -> dict[str, Any] | None:
    """What `write_result` wrote; None where it did not, or where it is no JSON."""
    try:
        result = json.loads((run_dir / "result.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def write_text(path: Path, text: str) -> None:
    """The text in place of what was there, whole or not at all."""
    with written(path):
        write_file(path, text.encode())


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turns what the system says of a full or broken disk into a CheckpointError that names the file and the way on."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path}: could not be written ({error.strerror or error}); checkpoints are untouched. Make room or mend "
            "the disk, then give the same command again: the run goes on from the newest checkpoint"
        ) from error
