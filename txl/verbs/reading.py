"""Bytes of files and endless pipes as they come, until the end or a signal: a source in, portions of bytes out.

Knows nothing of what the bytes are.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from txl.config import ConfigError

if TYPE_CHECKING:
    from txl.train.signals import Signals

READ_BYTES = 65_536
COMPARED_BYTES = 1 << 20
"""Of a text before the place where work goes on, to see that it is the same text."""
WAIT_SECONDS = 0.2
"""Between two looks whether a signal came, while a pipe has nothing."""


class Source:
    """An open file, or standard input for the name `-`; `endless` where it is no regular file and cannot be gone back
    in."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.endless = not stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.size = 0 if self.endless else os.fstat(descriptor).st_size

    def portions(self, signals: Signals) -> Iterator[bytes]:
        """What comes, until the end or until a signal is noted."""
        while not signals.received:
            if self.endless and not select.select([self.descriptor], [], [], WAIT_SECONDS)[0]:
                continue
            raw = os.read(self.descriptor, READ_BYTES)
            if not raw:
                return
            yield raw

    def digest_before(self, offset: int) -> str | None:
        """SHA-256 of the last `COMPARED_BYTES` before a byte of a regular file; None of what cannot be gone back in."""
        if self.endless:
            return None
        first = max(0, offset - COMPARED_BYTES)
        return hashlib.sha256(os.pread(self.descriptor, offset - first, first)).hexdigest()

    def go_to(self, offset: int) -> None:
        """Go to a byte of a regular file; what comes through a pipe goes on by itself."""
        if not self.endless:
            os.lseek(self.descriptor, offset, os.SEEK_SET)


@contextmanager
def opened(name: str) -> Iterator[Source]:
    """A source by its name. Raises ConfigError where it cannot be read."""
    if name == "-":
        yield Source(name, sys.stdin.fileno())
        return
    try:
        descriptor = os.open(name, os.O_RDONLY)
    except OSError as error:
        raise ConfigError([f"{name}: cannot be read ({error.strerror}); allowed: files, or - "]) from None
    try:
        yield Source(name, descriptor)
    finally:
        os.close(descriptor)


def check_readable(names: Sequence[str]) -> int:
    """Bytes of all regular files; ConfigError naming every source that cannot be read, before anything is loaded."""
    problems, total = [], 0
    for name in names:
        path = Path(name)
        if name == "-":
            continue
        if not path.exists() or path.is_dir() or not os.access(path, os.R_OK):
            found = "is a folder" if path.is_dir() else "cannot be read" if path.exists() else "no such file"
            problems.append(f"{name}: {found}; allowed: files, or - for standard input")
        elif path.is_file():
            total += path.stat().st_size
    if problems:
        raise ConfigError(problems)
    return total
