"""The first signal is noted, the second ends the process, and afterwards all is as before."""

from __future__ import annotations

import signal
import threading

from txl.train.signals import STOPPING, Signals


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
