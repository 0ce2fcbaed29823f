"""Checkpoints: atomic and verified on the disk (`snapshot`), trained models read back from them (`load`), and where
streaming stopped (`stream`).

Knows nothing of optimizers, streams or loops.
"""

from txl.checkpoint.load import (
    AVERAGE,
    OVERRIDABLE,
    Bundle,
    chosen_checkpoint,
    evaluated_weights,
    facts_of,
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
from txl.checkpoint.stream import read_stream, save_stream

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
    "facts_of",
    "load_run",
    "load_weights",
    "newest_valid",
    "problem",
    "prune",
    "read",
    "read_stream",
    "save",
    "save_stream",
    "weights",
]
