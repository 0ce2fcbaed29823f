"""Checkpoints that survive a crash at any instant: whole or not there at all, verified to the byte when read.

A `Snapshot` (tensors, JSON, config, tokenizer) <-> a folder `checkpoints/step-000200` of safetensors, JSON and YAML
with the SHA-256 of each file. Nothing is ever unpickled. Knows nothing of models, tokenizers, optimizers or what a
state means.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from txl.config import Config, load_config, to_yaml

FORMAT = 1
"""Version of the layout; raised when an older txl could no longer read it."""
TENSORS = ("model", "optimizer", "memory")
DOCUMENTS = ("state", "rng")
MANIFEST = "manifest.json"
FILES = tuple(
    sorted([f"{n}.safetensors" for n in TENSORS] + [f"{n}.json" for n in DOCUMENTS] + ["config.yaml", "tokenizer.json"])
)
_FOLDER = re.compile(r"step-(\d+)")
_SPARE_BYTES = 4_000_000
"""What everything but tensors may take."""
_LARGEST_MANIFEST_BYTES = 1_000_000


class CheckpointError(ValueError):
    """A run or checkpoint that cannot be written, read or gone on from; str() says where, why and what to do."""


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds.

    step: optimizer steps done.  config, tokenizer (its JSON): what makes the folder usable by itself. model, optimizer,
    memory: tensors by name (memory: of all global streams in their order; empty before the first step). state: the
    training loop's numbers, JSON.  rng: random generators of each process, JSON.
    """

    step: int
    config: Config
    tokenizer: str
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    memory: Mapping[str, Tensor]
    state: Mapping[str, Any]
    rng: list[Any]


def save(run_dir: str | Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint: a temporary folder, every file flushed to disk, the manifest last, then one rename.

    Killed at any instant it leaves either the whole checkpoint or none, and all older ones untouched.
    Raises CheckpointError, the temporary folder removed, where the disk is too small or fails.
    """
    final = checkpoint_path(run_dir, snapshot.step)
    parent = final.parent
    work = parent / f".{final.name}.partial"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent)
        check_space(parent, sum(t.nbytes for name in TENSORS for t in getattr(snapshot, name).values()))
        work.mkdir()
        _write_files(work, snapshot)
        if final.exists():  # a damaged one of the same step, passed over when this run began
            os.rename(final, parent / f".{final.name}.replaced")
        os.rename(work, final)
        _flush_folder(parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{final}: could not be written ({reason}); older checkpoints are untouched. Make room or mend the disk, "
            "then give the same command again: the run goes on from the newest checkpoint"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _sweep(parent)
    return final


def read(path: str | Path) -> Snapshot:
    """Everything a checkpoint holds, tensors on the CPU.

    Raises CheckpointError naming the file and the reason if anything is not as it was written.
    """
    folder = Path(path)
    reason = problem(folder)
    if reason is not None:
        raise CheckpointError(f"{folder}: {reason}; choose another checkpoint of the run")
    try:
        model, optimizer, memory = (load_file(folder / f"{name}.safetensors") for name in TENSORS)
        state, rng = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in DOCUMENTS)
        tokenizer = (folder / "tokenizer.json").read_text("utf-8")
        step = int(state["step"])
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{folder}: cannot be read: {error}") from error
    return Snapshot(step, load_config(folder / "config.yaml"), tokenizer, model, optimizer, memory, state, rng)


def problem(path: Path) -> str | None:
    """Why this folder is no whole checkpoint, the file first; None where every byte is as it was written.

    Raises CheckpointError for a format newer than this txl knows: that is no damage.
    """
    try:
        if (path / MANIFEST).stat().st_size > _LARGEST_MANIFEST_BYTES:
            return f"{MANIFEST}: more than {_LARGEST_MANIFEST_BYTES:,} bytes, which no manifest has"
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        version, files = manifest["format"], manifest["files"]
        described = {name: (int(files[name]["bytes"]), str(files[name]["sha256"])) for name in files}
    except FileNotFoundError:
        return f"{MANIFEST}: missing, so the checkpoint was never finished"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return f"{MANIFEST}: cannot be read ({error})"
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"{path}: written in format {version}, this txl reads up to {FORMAT}: install a newer txl"
        )
    if version != FORMAT or set(described) != set(FILES):
        return (
            f"{MANIFEST}: found format {version} with {sorted(described)}; expected format {FORMAT} with {list(FILES)}"
        )
    for name, (size, digest) in described.items():
        try:
            if (path / name).is_symlink():
                return f"{name}: is a link; a checkpoint holds its own files"
            found = (path / name).stat().st_size
            if found != size:
                return f"{name}: {found:,} bytes where {size:,} were written"
            if _sha256(path / name) != digest:
                return f"{name}: some of its {size:,} bytes changed since they were written (SHA-256 differs)"
        except FileNotFoundError:
            return f"{name}: missing"
        except OSError as error:
            return f"{name}: cannot be read ({error.strerror or error})"
    return None


def checkpoint_path(run_dir: str | Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return Path(run_dir) / "checkpoints" / f"step-{step:06d}"


def checkpoints(run_dir: str | Path) -> list[Path]:
    """The run's checkpoint folders, newest step first (by number: 100 is newer than 9), whole or not."""
    parent = Path(run_dir) / "checkpoints"
    found = [path for path in parent.glob("step-*") if path.is_dir() and _FOLDER.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def is_checkpoint(path: Path) -> bool:
    """Whether this is a checkpoint's folder rather than a run's."""
    return bool(_FOLDER.fullmatch(path.name)) or (path / MANIFEST).exists()


def step_of(path: Path) -> int:
    """The step in a checkpoint folder's name."""
    matched = _FOLDER.fullmatch(path.name)
    return -1 if matched is None else int(matched[1])


def newest_valid(
    run_dir: str | Path, *, strict: bool = False, warn: Callable[[str], None] = lambda text: None
) -> Path | None:
    """The newest checkpoint that is whole; None where the run has none at all.

    A damaged one is named through `warn` and passed over. Raises CheckpointError with `strict`, or where none is whole.
    """
    damaged = []
    for path in checkpoints(run_dir):
        reason = problem(path)
        if reason is None:
            return path
        damaged.append(f"{path}: {reason}")
        if strict:
            raise CheckpointError(
                f"{damaged[0]}. Remove that folder, or use run.resume=auto, to go on from the one before it"
            )
        warn(f"damaged checkpoint passed over: {damaged[-1]}")
    if damaged:
        raise CheckpointError(
            "no checkpoint of this run is whole:\n"
            + "\n".join(damaged)
            + "\nRemove the folder to start anew, or choose another run.dir"
        )
    return None


def prune(
    run_dir: str | Path,
    *,
    keep_last: int,
    best_step: int | None,
    keep_every: int = 0,
    warn: Callable[[str], None] = lambda text: None,
) -> None:
    """Remove what is older than the `keep_last` newest whole checkpoints; call it after a save.

    Never the best one, and with `keep_every` M above 0 never one whose step is a multiple of M. A folder that cannot be
    removed is named through `warn`, and the run goes on.
    """
    whole = 0
    for path in checkpoints(run_dir):
        step = step_of(path)
        if whole >= keep_last:
            if step != best_step and not (keep_every and step % keep_every == 0):
                _remove(path, warn)
        elif problem(path) is None:
            whole += 1


def check_space(folder: Path, needed_bytes: int) -> int:
    """The disk's free bytes; raises CheckpointError where they are fewer than `needed_bytes` and a little more."""
    free, needed = shutil.disk_usage(folder).free, needed_bytes + _SPARE_BYTES
    if free < needed:
        raise CheckpointError(
            f"{folder}: {free / 1e6:,.0f} MB are free on the disk, {needed / 1e6:,.0f} MB are needed for checkpoints; "
            "make room, choose another run.dir, or lower train.keep_last. Checkpoints written before are untouched"
        )
    return free


def _write_files(work: Path, snapshot: Snapshot) -> None:
    """All files of a checkpoint, each flushed; the manifest last, when everything it vouches for is on the disk."""
    for name in TENSORS:
        save_file({key: _plain(t) for key, t in getattr(snapshot, name).items()}, work / f"{name}.safetensors")
    texts = {f"{name}.json": json.dumps(getattr(snapshot, name), allow_nan=False) for name in DOCUMENTS}
    texts |= {"config.yaml": to_yaml(snapshot.config), "tokenizer.json": snapshot.tokenizer}
    for name, text in texts.items():
        (work / name).write_text(text, encoding="utf-8", newline="")
    mode = (work / "config.yaml").stat().st_mode  # safetensors makes files that nobody else may read
    for name in FILES:
        (work / name).chmod(mode)
        _flush(work / name)
    files = {name: {"bytes": (work / name).stat().st_size, "sha256": _sha256(work / name)} for name in FILES}
    (work / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1), encoding="utf-8")
    _flush(work / MANIFEST)
    _flush_folder(work)


def _plain(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous, in a storage of its own."""
    tensor = tensor.detach().to("cpu").contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Bytes that stand on the disk, not only in its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """The names in a folder, likewise."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove what saves that were killed, and removals, left behind."""
    for path in parent.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove(path: Path, warn: Callable[[str], None]) -> None:
    """Remove a checkpoint; renamed first, so that a half-removed one is never taken for a damaged one."""
    aside = path.parent / f".{path.name}.removed"
    try:
        os.rename(path, aside)
        shutil.rmtree(aside)
    except OSError as error:
        warn(f"{path}: could not be removed ({error.strerror or error}); the run goes on")
