"""Where streaming stopped, as one file: a session's tensors and a JSON record <-> a path, whole or not there at all.

safetensors with the record and a SHA-256 in its header, for safetensors itself accepts a flipped byte. Knows nothing of
what tensors and record mean.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from txl.checkpoint.snapshot import CheckpointError

FORMAT = "1"
"""Version of the layout; raised when an older txl could no longer read it."""


def save_stream(path: str | Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write the file, flushed to disk, then put it in place of the one before with one rename.

    Raises CheckpointError where the disk refuses; the file before is then untouched.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(record, ensure_ascii=False, sort_keys=True)
    header = {"txl_stream": FORMAT, "record": text, "sha256": _digest(plain, text)}
    try:
        with partial.open("wb") as file:
            file.write(save(plain, header))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path}: the state cannot be written ({error.strerror}); what was there before is untouched"
        ) from error


def read_stream(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors, on the CPU, and record of a file; CheckpointError where it is none or a byte of it has changed."""
    try:
        with safe_open(str(path), "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        version = header.get("txl_stream", "")
        if version.isdecimal() and int(version) > int(FORMAT):
            raise CheckpointError(f"{path}: a state of format {version}, this txl reads {FORMAT}: install a newer txl")
        if version != FORMAT or header.get("sha256") != _digest(tensors, header.get("record", "")):
            raise CheckpointError(f"{path}: not a state that txl wrote, or some of its bytes have changed since")
        return tensors, json.loads(header["record"])
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        found = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{path}: cannot be read as a state ({found}); allowed: a file that txl score --state wrote, whole"
        ) from error


def _digest(tensors: Mapping[str, Tensor], record: str) -> str:
    """SHA-256 over the record and every name, dtype, shape and byte."""
    digest = hashlib.sha256(record.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
