"""Progress where there is no terminal, tables, and text that cannot harm a terminal."""

from __future__ import annotations

import pytest

from txl import terminal


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    with terminal.progress() as report:
        report("scoring", 0, 9000)
        report("scoring", 2000, 9000)
        report("scoring", 3000, 9000)
        report("reading", 5, None, "perplexity 3.2")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "scoring: 2,000 of 9,000, 35 s left\nreading: 5, perplexity 3.2\n"


def test_a_terminal_gets_a_bar_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress() as report:
        report("reading", 10, None)
        report("scoring", 1, 4)
        report("scoring", 4, 4)
    shown = capsys.readouterr().err
    assert "scoring" in shown
    assert "4 of 4" in shown


def test_a_table_is_as_wide_as_it_needs_and_takes_any_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show_table(("run", "what [it] says"), [("a", "x" * 150), ("b", "[/] 2")])
    shown = capsys.readouterr().out
    assert "x" * 150 in shown
    assert "what [it] says" in shown
    assert "[/] 2" in shown


def test_control_characters_cannot_reach_a_terminal() -> None:
    assert terminal.printable("a\tb\nc\x1b[31m\x9b\r\x00é世") == "a\tb\nc\ufffd[31m\ufffd\ufffd\ufffdé世"
