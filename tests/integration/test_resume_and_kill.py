"""Runs as a user starts and stops them: the command line in processes of its own, stopped by signals and by SIGKILL."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs import metrics, remains, tiny
from txl.checkpoint import CheckpointError, checkpoints
from txl.config import Config, to_yaml
from txl.train.loop import train

ROOT = Path(__file__).resolve().parents[2]


def start(*words: str) -> subprocess.Popen[str]:
    """`txl WORDS` in a process of its own, standard error joined to its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "txl", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def config_file(folder: Path, config: Config) -> str:
    path = folder / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    return str(path)


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    """Read lines until one matches."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"no line like {pattern!r} in:\n{''.join(lines)}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=100)
    return process.returncode, out


def long_run(folder: Path, *overrides: str) -> Config:
    return tiny(folder, "train.max_steps=100000", "train.eval_every=1000", "train.sample_every=0", *overrides)


def test_a_stopped_command_saves_prints_the_command_that_goes_on_and_ends_with_its_code(tmp_path: Path) -> None:
    config = long_run(tmp_path, "train.save_every=100000")
    words = ["train", config_file(tmp_path, config)]
    before = 0
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(*words)
        assert wait_for(process, "steps").rstrip().endswith(f"steps {before} to 100000")
        wait_for(process, rf"^step {before + 3}/")
        with pytest.raises(CheckpointError, match=rf"another run is writing there \(process {process.pid} on "):
            train(config)
        process.send_signal(signum)
        returned, out = finish(process)
        assert returned == code
        assert f"stopped by {signal.Signals(signum).name} and saved" in out
        assert "Traceback" not in out
        (command,) = re.findall(r"so does: txl (.*)$", out, re.MULTILINE)
        words = shlex.split(command)
        before = int(checkpoints(config.run.dir)[0].name.removeprefix("step-"))
        assert [line["step"] for line in metrics(config.run.dir)] == list(range(1, before + 1))


def test_a_save_killed_at_any_touch_of_the_disk_loses_nothing(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    kills, after = lines[::2], lines[1::2]
    assert [line["killed"] for line in kills] == [True] * (len(kills) - 1) + [False]
    assert len(kills) > 30
    newest = [line["newest"] for line in kills]
    assert newest == sorted(newest)  # the older one until the rename, the new one from then on
    assert set(newest) == {2, 3}
    assert newest.count(3) > 5  # killed while the old ones were removed
    assert all(line["value"] == line["newest"] and line["whole"] for line in kills)
    assert all(line["left"] == ["step-000004"] for line in after)


def kill_at_random(config: Config, folder: Path, *, kills: int) -> int:
    """Start the run and kill it after a random part of a second of training, so many times; how often it was alive."""
    draw, path, killed = random.Random(kills), config_file(folder, config), 0
    for _ in range(kills):
        process = start("train", path)
        wait_for(process, r"^step \d+/")
        time.sleep(draw.uniform(0, 0.4))
        process.kill()
        killed += finish(process)[0] == -signal.SIGKILL
    return killed


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
def test_a_run_killed_at_random_instants_ends_like_one_that_was_not(kills: int, tmp_path: Path) -> None:
    steps = 30 * kills
    settings = (f"train.max_steps={steps}", "train.save_every=1", "train.eval_every=7", "train.sample_every=20")
    killed, whole = (tiny(tmp_path, *settings, run=run) for run in ("killed", "whole"))
    assert kill_at_random(killed, tmp_path, kills=kills) == kills
    train(killed)
    train(whole)
    assert remains(killed.run.dir, steps) == remains(whole.run.dir, steps)
