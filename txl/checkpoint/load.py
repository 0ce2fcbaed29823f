"""Trained models read back: a run folder or a checkpoint in, a model with its tokenizer and config out.

Also how weights go in and out of a model. Knows nothing of optimizers, streams or loops.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from txl.checkpoint.snapshot import CheckpointError, Snapshot, checkpoints, is_checkpoint, newest_valid, read
from txl.config import Config, ConfigError, ModelConfig
from txl.data.errors import DataError
from txl.data.tokenizer import Tokenizer, tokenizer_from_json
from txl.model import Model, build_model, fit_tables

OVERRIDABLE = (
    *("mem_len", "tgt_len", "clamp_len", "same_length", "dropout", "dropatt"),
    *("initial_memory", "window_includes_self"),
)
"""Fields of ModelConfig that a trained model may be loaded with otherwise: its weights keep their meaning."""
AVERAGE = "average"
"""What a weight's running average is called among the optimizer's tensors (optim.ema_decay)."""


@dataclass(frozen=True)
class Bundle:
    """A trained model with all that is needed to use it: in eval mode on the CPU, with the config it was loaded by."""

    model: Model
    tokenizer: Tokenizer
    config: Config
    step: int
    path: Path


def load_run(path: str | Path, checkpoint: str = "newest", **model_overrides: Any) -> Bundle:
    """A trained model from a run folder or from one of its checkpoints; its averaged weights where it keeps them.

    checkpoint: newest, or best (by validation), for a run folder; both mean the newest that is whole. model_overrides:
    other values for fields of ModelConfig in `OVERRIDABLE`, such as mem_len=64, clamp_len=32, tgt_len=16. Raises
    CheckpointError where there is no usable checkpoint or an override would change the weights or what they mean, and
    ConfigError where an override is no field of ModelConfig or no possible value.
    """
    folder = chosen_checkpoint(Path(path), checkpoint)
    snapshot = read(folder)
    model_config = _overridden(snapshot.config.model, model_overrides)
    try:
        tokenizer = tokenizer_from_json(snapshot.tokenizer)
    except DataError as error:
        raise CheckpointError(f"{folder}/tokenizer.json: {error}") from None
    with torch.random.fork_rng(devices=[]):  # loading is no reason for the caller's numbers to change
        model = build_model(model_config, tokenizer.vocab_size)
    try:
        load_weights(model, fit_tables(model, evaluated_weights(snapshot)))
    except CheckpointError as error:
        changed = ", ".join(f"{name}={value}" for name, value in model_overrides.items())
        raise CheckpointError(f"{folder}: {error}" + (f" (loaded with {changed})" if changed else "")) from None
    config = dataclasses.replace(snapshot.config, model=model_config)
    return Bundle(model.eval(), tokenizer, config, snapshot.step, folder)


def evaluated_weights(snapshot: Snapshot) -> dict[str, Tensor]:
    """The weights a run was validated with: running averages where it keeps them (optim.ema_decay), else its own."""
    prefix = f"{AVERAGE}."
    averages = {name.removeprefix(prefix): t for name, t in snapshot.optimizer.items() if name.startswith(prefix)}
    return {**snapshot.model, **averages}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tensor with two names (tied weights) comes once, under the first."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        unique.setdefault(id(tensor), (name, tensor.detach()))
    return dict(unique.values())


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into a model in place, so that what was tied stays tied.

    Raises CheckpointError naming what is missing, what is too much and which shapes differ.
    """
    own = weights(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    differing = [
        f"{name} is {found.get(name, 'missing')} in the checkpoint and {shapes.get(name, 'absent')} in the model"
        for name in sorted(shapes.keys() | found.keys())
        if shapes.get(name) != found.get(name)
    ]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise CheckpointError(
            f"the weights do not fit this model: {'; '.join(differing[:3])}{more}. Only settings that leave every "
            f"parameter's shape alone may differ from training: {', '.join(OVERRIDABLE)}, where they do"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def chosen_checkpoint(path: Path, checkpoint: str) -> Path:
    """The checkpoint folder that a run folder, or one of its checkpoints, stands for.

    checkpoint: newest, or best by validation. Raises CheckpointError where there is none.
    """
    if checkpoint not in ("newest", "best"):
        raise CheckpointError(f"checkpoint: found {checkpoint!r}; allowed: newest or best")
    if is_checkpoint(path):
        return path
    newest = newest_valid(path)
    if newest is None:
        runs = sorted(str(found) for found in path.glob("*/") if checkpoints(found))
        hint = f"; did you mean {' or '.join(runs[:4])}?" if runs else ""
        raise CheckpointError(
            f"{path}: no checkpoint here; give a run folder (run.dir of a config) or one of its checkpoints/step-…"
            + hint
        )
    if checkpoint == "newest":
        return newest
    best = facts_of(newest).get("best_step")
    if best is None:
        raise CheckpointError(f"{path}: no validation has given a number yet, so none is best; use checkpoint='newest'")
    return newest.parent / f"step-{best:06d}"


def facts_of(path: Path) -> dict[str, Any]:
    """What a checkpoint says of its run besides settings and tensors: how far it was, which text it was trained on.

    Raises CheckpointError where it cannot be read.
    """
    try:
        return dict(json.loads((path / "state.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}/state.json: cannot be read: {error}") from error


def _overridden(config: ModelConfig, overrides: Mapping[str, Any]) -> ModelConfig:
    """The model's config with other values. Raises for a field that does not exist or that the weights depend on."""
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for name, value in overrides.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError([f"model.{name}: unknown key; did you mean {(near or OVERRIDABLE)[0]}?"])
        if name not in OVERRIDABLE and value != getattr(config, name):
            raise CheckpointError(
                f"model.{name}: found {value!r}, trained with {getattr(config, name)!r}, which changes the "
                f"weights' shapes or meaning; a trained model can be loaded with another {', '.join(OVERRIDABLE)}"
            )
    return dataclasses.replace(config, **overrides)
