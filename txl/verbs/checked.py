"""What a user's wrong argument looks like to every verb."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl.config import ConfigError

if TYPE_CHECKING:
    from txl.infer import Session


@contextmanager
def arguments_checked(*parameters: str) -> Iterator[None]:
    """A plain ValueError inside is about what the user asked for, and no fault of txl.

    parameters: names in its message that the user knows as options, `top_k` as `--top-k`.
    """
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:  # a named error of a room says more
            raise
        message = str(error)
        for name in parameters:
            message = re.sub(rf"(?<![\w.-]){name}(?= is |: found)", f"--{name.replace('_', '-')}", message)
        raise ConfigError([message]) from error


def go_on_from(session: Session, tensors: dict[str, Any], path: Path) -> None:
    """Put a session where the state of a file stands; ConfigError naming the file where it is another session's."""
    try:
        session.load_state_dict(tensors)
    except ValueError as error:
        raise ConfigError([f"--state {path}: {error}"]) from error


def overrides_of(options: Mapping[str, tuple[str, object]]) -> list[str]:
    """The options that were given (not None) as overrides of the config: key -> (option, value)."""
    return [f"{key}={value}" for key, (_, value) in options.items() if value is not None]


@contextmanager
def options_named(options: Mapping[str, tuple[str, object]]) -> Iterator[None]:
    """A problem inside with an override that `overrides_of` made names the option that the user gave."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([_renamed(problem, options) for problem in error.problems]) from error


def _renamed(problem: str, options: Mapping[str, tuple[str, object]]) -> str:
    """A problem in the user's words."""
    for key, (option, value) in options.items():
        if value is not None:
            problem = re.sub(
                rf"^override {re.escape(f'{key}={value}')}: (?:{re.escape(key)}: )?", f"{option}: ", problem
            )
    return problem


def files_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words that name files, and those of the form section.field=value."""
    settings = [word for word in words if re.match(r"[a-z]+\.[a-z_]+=", word)]
    return [word for word in words if word not in settings], settings
