"""Checkpoints: atomic and verified on the disk (`snapshot`), and trained models read back from them (`load`).

Knows nothing of optimizers, streams or loops.
"""

from txl.checkpoint.load import (
    AVERAGE,
    OVERRIDABLE,
    Bundle,
    chosen_checkpoint,
    evaluated_weights,
    load_run,
    load_weights,
    weights,
)
from txl.checkpoint.snapshot import (
    CheckpointError,
    Snapshot,
    check_space,
    checkpoint_path,
    checkpoints,
    newest_valid,
    problem,
    prune,
    read,
    save,
)

__all__ = [
    "AVERAGE",
    "OVERRIDABLE",
    "Bundle",
    "CheckpointError",
    "Snapshot",
    "check_space",
    "checkpoint_path",
    "checkpoints",
    "chosen_checkpoint",
    "evaluated_weights",
    "load_run",
    "load_weights",
    "newest_valid",
    "problem",
    "prune",
    "read",
    "save",
    "weights",
]
