"""Benchmarks of sessions run and end in one JSON line; what they measure is not looked at."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.streaming import make_run

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def last_line(name: str, words: list[str], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict:  # type: ignore[type-arg]
    patch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to measure memory")
def test_the_soak_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "a.txt").write_bytes("naïve\n".encode() * 200)
    words = [str(run), "--bytes", "6000", "--source", str(tmp_path / "a.txt")]
    record = last_line("soak.py", words, monkeypatch, capsys)
    assert record["tokens"] == 6000 // 480 * 480
    assert record["start"]["state_bytes"] == record["end"]["state_bytes"]
    assert record["start"]["anonymous_bytes"] > 1_000_000


def test_the_speed_of_sessions_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(make_run(tmp_path / "run")), "--rows", "1,3", "--tokens", "20", "--steps", "4", "--repeats", "1"]
    record = last_line("bench_session.py", words, monkeypatch, capsys)
    assert [one["rows"] for one in record["results"]] == [1, 3]
    assert all(value > 0 for one in record["results"] for value in one.values())
