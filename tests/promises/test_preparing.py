"""Preparing text survives what training survives: killed at any instant it goes on, and leaves the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import ROOT, config_file
from tests.conftest import words
from tests.runs import tiny
from txl.data import making, prepare


def test_a_preparation_killed_at_many_touches_of_the_disk_goes_on_and_leaves_the_same_bytes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_prepare.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    whole, *kills = [json.loads(line) for line in done.stdout.splitlines()]
    splits = [f"{name}.{kind}" for name in ("test", "train", "valid") for kind in ("ids", "starts")]
    assert whole["files"] == sorted(["manifest.json", "tokenizer.json", *splits])
    assert "byte order mark" in whole["notes"][0]
    assert (whole["read"], whole["trained"]) == (4, 1)
    assert whole["encoded"] > 9
    assert [line["killed"] for line in kills] == [True] * (len(kills) - 1) + [False]
    assert len(kills) > 30
    assert all(line["same"] for line in kills)
    # Nothing that was noted is done again: neither a source read, nor the vocabulary counted, nor a group encoded.
    for what in ("read", "trained", "encoded"):
        left = [line[what] for line in kills]
        assert left == sorted(left, reverse=True)
        assert left[-1] == 0
    assert all(line["encoded"] in (whole["encoded"] - line["groups"], 0) for line in kills)


def test_text_that_changed_since_the_kill_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "BATCH", 700)
    config = tiny(tmp_path, train_bytes=9000)
    encoded, encode = [0], making.SplitWriter.add

    def stopped(self: making.SplitWriter, *args: object, **kwargs: object) -> None:
        encode(self, *args, **kwargs)  # type: ignore[arg-type]
        encoded[0] += 1
        if encoded[0] == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(making.SplitWriter, "add", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare(config)
    assert list((tmp_path / "cache").glob("*.new/train.kept"))
    Path(config.data.train, "1.txt").write_bytes(b"another text altogether\n" * 90)
    made = prepare(config)
    fresh = prepare(replace(config, data=replace(config.data, cache_dir=str(tmp_path / "fresh"))))
    assert made.fingerprint == fresh.fingerprint
    assert b"another text altogether" in made.train.ids.tobytes()


PROGRAM = """
import sys
from txl.config import load_config
from txl.data import making
told = []
def report(what, done, total):
    told.append(what)
    if told.count("encoding train") == 8:
        print("there", flush=True)
        sys.stdin.read()
making.BATCH = 700
from txl.data.corpus import prepare
prepare(load_config(sys.argv[1], ["data.workers=2"]), report=report)
"""


def children(pid: int) -> list[int]:
    """The processes that a process started, where the system says so."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_a_killed_preparation_leaves_no_worker_behind_and_what_they_encoded_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "BATCH", 700)
    config = tiny(tmp_path)
    for number in range(12):
        Path(config.data.train, f"more{number}.txt").write_text(words(150, seed=number), encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, config_file(tmp_path, config)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        workers = children(process.pid)
        assert len(workers) >= 2 or not Path("/proc/self/task").exists()
        process.kill()
    until = time.monotonic() + 100
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.05)
    told: list[str] = []
    made = prepare(config, report=lambda what, done, total: told.append(what))
    assert not [what for what in told if what.startswith(("reading", "counting"))]
    fresh_told: list[str] = []
    fresh = replace(config, data=replace(config.data, cache_dir=str(tmp_path / "fresh")))
    other = prepare(fresh, report=lambda what, done, total: fresh_told.append(what))
    assert told.count("encoding train") <= fresh_told.count("encoding train") - 3
    for name in ("train.ids", "train.starts", "manifest.json"):
        assert (made.folder / name).read_bytes() == (other.folder / name).read_bytes()
