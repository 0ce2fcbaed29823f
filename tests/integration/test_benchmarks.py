"""Benchmarks of sessions run and end in one JSON line; a grid of rates is searched until its best is inside."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import bench_quality
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


@pytest.mark.parametrize("optimum", [0.01, 0.5, 4.0])
def test_a_grid_of_rates_goes_on_until_its_best_is_inside(optimum: float) -> None:
    class Contender:
        name = "made up"

        def train(self, rate: float, minutes: float) -> bench_quality.Trained:
            bits = math.nan if rate > 8 else minutes + abs(math.log2(rate / optimum))
            return bench_quality.Trained(bits, tokens=1, seconds=1.0)

        def test_bits(self, texts: object) -> float:
            return 2.0

    grid = (0.25, 0.5, 1.0)
    found = bench_quality.search(Contender(), None, grid, 1.5, beyond=True)  # type: ignore[arg-type]
    best, rates = bench_quality.best_of(found), [run["lr"] for run in found]
    assert abs(math.log2(best["lr"] / optimum)) <= 0.5
    assert min(rates) < best["lr"] < max(rates)
    assert len(set(rates)) == len(rates), "each rate once"
    assert best["bits"] == 2.0
    named = bench_quality.search(Contender(), None, grid, 1.5, beyond=False)  # type: ignore[arg-type]
    assert [run["lr"] for run in named] == [*grid]


def test_peers_train_as_long_as_ours_came_to_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[str, float]] = []

    class Contender:
        optimizer, parameters = "muon", 7

        def __init__(self, name: str, *_: object) -> None:
            self.name = name

        def train(self, rate: float, minutes: float) -> bench_quality.Trained:
            given.append((self.name, minutes))
            slow = 1.25 if rate == 2.0 else 0.75
            return bench_quality.Trained(rate, tokens=1, seconds=60 * minutes * slow)

        def test_bits(self, texts: object) -> float:
            return 2.0

    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.txt").write_bytes(b"abc")
    (tmp_path / "x_transformers").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(bench_quality.torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(bench_quality, "PLACE", tmp_path)
    monkeypatch.setattr(bench_quality, "Ours", Contender)
    monkeypatch.setattr(bench_quality, "Theirs", Contender)
    monkeypatch.setattr(bench_quality, "version", lambda name: "0")
    words = [str(tmp_path), "--minutes", "4", "--threads", "1", "--only", "Muon", "--rates", "1", "2"]
    monkeypatch.setattr(sys, "argv", ["bench_quality", *words])
    bench_quality.main()
    assert {minutes for name, minutes in given if name in bench_quality.OURS} == {4.0}
    assert {minutes for name, minutes in given if name in bench_quality.PEERS} == {5.0}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["minutes"] == 4.0
