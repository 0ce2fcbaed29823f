"""Verbs about a config and its text: what it resolves to, what its corpus holds, what its run would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txl.config import ConfigError, load_config, to_yaml

if TYPE_CHECKING:
    from txl.data import Corpus


def config(config: Path, overrides: Sequence[str]) -> None:
    """Print the resolved YAML of a config."""
    print(to_yaml(load_config(config, overrides)), end="")


def prepare(config: Path, overrides: Sequence[str]) -> None:
    """Turn text into ids once, and say what was found."""
    settings = load_config(config, overrides)
    from txl.data import prepare
    from txl.terminal import progress

    with progress() as report:
        corpus = prepare(settings, report=report)
    show_corpus(corpus)


def validate(config: Path, overrides: Sequence[str], world: int | None) -> None:
    """Do everything but the training, and say what the run would be."""
    if world is not None and world < 1:
        raise ConfigError([f"--world: found {world}; allowed: a number of processes, at least 1"])
    settings = load_config(config, overrides)
    from txl.terminal import progress, show_table
    from txl.train.validate import validate

    with progress() as report:
        found = validate(settings, world=world, report=report)
    show_corpus(found.corpus)
    show_table(("", ""), found.facts())
    for warning in found.warnings:
        print(f"warning: {warning}")
    print(f"{config} is valid; nothing but the prepared text was kept")


def show_corpus(corpus: Corpus) -> None:
    """What each split of a prepared corpus holds, and where it is."""
    from txl.terminal import show_table

    rows = [
        (part.name, f"{part.documents:,}", f"{part.bytes:,}", f"{part.tokens:,}", f"{part.unknowns:,}")
        for part in (corpus.train, corpus.valid, corpus.test)
    ]
    show_table(("split", "documents", "bytes", "tokens", "unknown"), rows)
    print(f"vocabulary of {corpus.tokenizer.vocab_size:,}; corpus {corpus.fingerprint[:12]} in {corpus.folder}")
