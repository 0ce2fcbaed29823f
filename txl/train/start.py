"""Where a run starts that does not start from scratch: `train.init_from`, another run's weights and tokenizer.

A config -> `Start` -> the config with what must be taken over, and a model with the weights; or the reasons why these
weights cannot be trained on under this config. Memory, optimizer and steps are always new. Knows nothing of streams or
loops.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from txl.checkpoint import (
    OVERRIDABLE,
    CheckpointError,
    Snapshot,
    chosen_checkpoint,
    evaluated_weights,
    load_weights,
    read,
)
from txl.config import Config, ConfigError, ModelConfig, TokenizerConfig
from txl.config.domains import show
from txl.data import Tokenizer, tokenizer_from_json
from txl.model import Model, fit_tables

MAY_DIFFER = (*OVERRIDABLE, "locked_dropout", "activation_checkpointing", "init_std", "proj_init_std")
"""Fields of ModelConfig that leave shapes and meaning of the weights alone."""


@dataclass(frozen=True)
class Start:
    """What a run starts from: a checkpoint, whole and read, and where it lies."""

    path: Path
    snapshot: Snapshot

    def __str__(self) -> str:
        return f"starts from the weights of {self.path}; memory, optimizer and steps are new"


def find_start(config: Config) -> Start | None:
    """The checkpoint that `train.init_from` names (of a run folder the newest); None where it names nothing.

    Raises ConfigError where there is none.
    """
    if config.train.init_from is None:
        return None
    path = Path(config.train.init_from).expanduser()
    try:
        chosen = chosen_checkpoint(path, "newest")
        return Start(chosen, read(chosen))
    except CheckpointError as error:
        foreign = path.is_file() or (path / "config.json").exists()
        way_out = f" (a published checkpoint becomes a run folder by: txl import {path})" if foreign else ""
        raise ConfigError([f"train.init_from: {error}{way_out}"]) from None


def taking_over(config: Config, start: Start | None) -> Config:
    """The config with the tokenizer of what it starts from, and its cutoffs where they are to be chosen.

    A tokenizer section that was left out, or is the one of the other run, means that run's own tokenizer, although its
    settings would make another one of other text. Raises ConfigError where it leaves no id for `data.separator`.
    """
    if start is None:
        return config
    theirs = start.snapshot.config
    if config.model.cutoffs is None:
        config = replace(config, model=replace(config.model, cutoffs=theirs.model.cutoffs))
    if config.tokenizer in (TokenizerConfig(), theirs.tokenizer) and theirs.tokenizer.kind != "byte":
        return replace(config, tokenizer=tokenizer_of(start.path))
    if config.tokenizer.kind == "byte" and config.data.separator is not None:
        found = f"{config.data.separator!r} with the tokenizer of {start.path}, whose ids are all bytes of text"
        raise ConfigError([f"data.separator: found {found}; allowed: null"])
    return config


def tokenizer_of(checkpoint: Path) -> TokenizerConfig:
    """The settings that mean a checkpoint's own tokenizer."""
    return TokenizerConfig(kind="file", path=str(checkpoint / "tokenizer.json"))


def take_weights(model: Model, start: Start, config: Config, tokenizer: Tokenizer) -> None:
    """Copy the weights, averaged ones where the other run kept them, into a model built by `config`.

    Raises ConfigError naming another tokenizer, and each field of the model that differs and may not.
    """
    theirs = start.snapshot
    problems = [
        f"model.{field.name}: found {show(getattr(config.model, field.name))}; allowed: "
        f"{show(getattr(theirs.config.model, field.name))}, with which the weights of {start.path} were trained"
        for field in fields(ModelConfig)
        if field.name not in MAY_DIFFER
        and getattr(config.model, field.name) != getattr(theirs.config.model, field.name)
    ]
    if vocabulary(tokenizer) != vocabulary(tokenizer_from_json(theirs.tokenizer)):
        mine, other = config.tokenizer.kind, theirs.config.tokenizer.kind
        problems.append(
            f"tokenizer.kind: found {mine}, another tokenizer of {tokenizer.vocab_size} symbols than that of "
            f"{start.path} (kind {other}); allowed: leave the section tokenizer out, which takes that one over "
            f"(the same: tokenizer.kind=file tokenizer.path={start.path / 'tokenizer.json'})"
        )
    if problems:
        raise ConfigError(problems)
    try:
        load_weights(model, fit_tables(model, evaluated_weights(theirs)))
    except CheckpointError as error:
        raise ConfigError([f"train.init_from: {start.path}: {error}"]) from None


def vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """All that decides which id a piece of text has.

    In the vocabulary of a library's tokenizer the separator is one token of many; it only says what stands between
    documents, which may differ.
    """
    found = tokenizer.fields()
    return {name: value for name, value in found.items() if not (name == "separator" and "library" in found)}
