"""The first signal is noted, the second ends the process, and afterwards all is as before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from txl.train.signals import STOPPING, Preempted, Signals


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_a_signal_is_noted_and_a_second_ends_the_process_with_the_code(
    signum: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Signals() as signals:
        signals.arm()
        assert signals.received == 0
        os.kill(os.getpid(), signum)
        assert (signals.received, ended) == (signum, [])
        os.kill(os.getpid(), signum)
        assert ended == [code]
    assert Preempted(signum, "why").exit_code == code
    assert str(Preempted(signum, "why")) == "why"


def test_before_it_is_armed_and_afterwards_handlers_are_those_from_before() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    with Signals() as signals:
        assert [signal.getsignal(number) for number in STOPPING] == before
        signals.arm()
        assert [signal.getsignal(number) for number in STOPPING] != before
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_outside_the_main_thread_arming_does_nothing() -> None:
    def arm() -> None:
        with Signals() as signals:
            signals.arm()
            found.append(signals.received)

    found: list[int] = []
    thread = threading.Thread(target=arm)
    thread.start()
    thread.join()
    assert found == [0]
