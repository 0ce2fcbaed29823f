"""What a user's wrong argument looks like to every verb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txl.config import ConfigError


@contextmanager
def arguments_checked() -> Iterator[None]:
    """A plain ValueError inside is about what the user asked for, and no fault of txl."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:  # a named error of a room says more
            raise
        raise ConfigError([str(error)]) from error
