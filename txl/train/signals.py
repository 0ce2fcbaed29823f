"""How a run is asked to stop: signals of the operating system -> a number the training loop looks at between steps.

Knows nothing of steps, checkpoints or processes other than its own.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, what schedulers send before they kill, and what some send some minutes earlier."""


class Preempted(Exception):  # noqa: N818 - no error: the run did as it was told
    """The run was asked to stop and has saved; str() says how to go on."""

    def __init__(self, signum: int, message: str) -> None:
        self.signum = signum
        super().__init__(message)

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM and SIGUSR1: never 0, so that no scheduler takes the job for done."""
        return exit_code(self.signum)


def exit_code(signum: int) -> int:
    """130 for SIGINT, else 143."""
    return 130 if signum == signal.SIGINT else 143


class Signals:
    """Inside `with Signals() as signals`, once armed: a signal is noted in `received`, the next ends the process."""

    def __init__(self) -> None:
        self.received = 0
        """Number of the first signal; 0 while none came."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arm(self) -> None:
        """From now on signals are noted; before there is something to save they end the process as ever."""
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._note) for number in STOPPING}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received:
            if os.isatty(1):
                os.write(1, b"\x1b[?25h\n")  # the cursor that the progress bar hid
            os._exit(exit_code(signum))
        self.received = signum
