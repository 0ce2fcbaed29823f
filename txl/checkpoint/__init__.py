"""Checkpoints: atomic and verified on the disk (`snapshot`), and trained models read back from them (`load`).

Knows nothing of optimizers, streams or loops.
"""

from txl.checkpoint.load import AVERAGE, Bundle, load_run, load_weights, weights
from txl.checkpoint.snapshot import (
    CheckpointError,
    Snapshot,
    check_space,
    checkpoints,
    newest_valid,
    problem,
    prune,
    read,
    save,
)

__all__ = [
    "AVERAGE",
    "Bundle",
    "CheckpointError",
    "Snapshot",
    "check_space",
    "checkpoints",
    "load_run",
    "load_weights",
    "newest_valid",
    "problem",
    "prune",
    "read",
    "save",
    "weights",
]
