"""Promises 1, 2, 16, 17, 18, 21 and 25: a run that was stopped or killed, wherever, ends as the run that never was."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import config_file, finish, start, wait_for
from tests.runs import differences, metrics, remains, stop_at, tiny, train_in_parts
from txl.checkpoint import CheckpointError, checkpoints
from txl.config import Config
from txl.model.kernels import linear
from txl.runtime import Runtime
from txl.train import loop
from txl.train.loop import Preempted, is_finished, train

ROOT = Path(__file__).resolve().parents[2]
# An epoch of 109 pairs is four segments of seven for four streams, the last one with three targets fewer.
STOPS = {
    "7 + 6 + 7 steps": ((7, 13), 700, ()),
    "at the end of two epochs": ((4, 8), 110, ()),
    "after step 1 and before the last": ((1, 19), 700, ()),
    "with micro-batches": ((7, 13), 700, ("train.accumulate=2",)),
    "in bf16": ((7, 13), 700, ("runtime.precision=bf16",)),
}


@pytest.mark.parametrize("name", STOPS)
def test_p1_a_run_stopped_and_resumed_twice_equals_the_run_that_never_stopped_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops, train_bytes, overrides = STOPS[name]
    settings = ("train.max_steps=20", "train.sample_every=0", *overrides)
    whole, parts = (tiny(tmp_path, *settings, run=run, train_bytes=train_bytes) for run in ("whole", "parts"))
    train(whole)
    train_in_parts(parts, stops, monkeypatch)
    one, other = remains(whole.run.dir, 20), remains(parts.run.dir, 20)
    assert [line["step"] for line in one["metrics"]] == list(range(1, 21))
    assert len(one) > 100
    assert differences(one, other) == []


def test_p1_a_run_goes_on_with_the_products_that_were_faster_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = (tiny(tmp_path, "train.max_steps=8", run=run) for run in ("whole", "parts"))
    try:
        monkeypatch.setattr(linear, "probe", lambda: 2.0)
        train(whole)
        with monkeypatch.context() as patch:
            stop_at(patch, 3)
            with pytest.raises(Preempted):
                train(parts)
        monkeypatch.setattr(linear, "probe", lambda: 0.5)
        train(parts)
    finally:
        linear.use_products("auto")
    assert differences(remains(whole.run.dir, 8), remains(parts.run.dir, 8)) == []


def test_p1_a_run_on_a_mixture_that_is_stopped_and_resumed_equals_the_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = Path(tiny(tmp_path).data.train)
    mixed = (f"data.mixture=[2 {texts}/0.txt, 1 {texts}/1.txt, 1 {texts}/2.txt]", "data.shuffle_documents=true")
    few = ("train.sample_every=0", "train.eval_every=100", "train.max_steps=44")  # more than an epoch
    whole, parts = (tiny(tmp_path, *mixed, *few, run=run) for run in ("whole", "parts"))
    train(whole)
    train_in_parts(parts, (11, 42), monkeypatch)
    assert remains(whole.run.dir, 44)["position"]["epoch"] > 0
    assert differences(remains(whole.run.dir, 44), remains(parts.run.dir, 44)) == []


def in_the_second_micro_batch(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> None:
    """From now on something happens between the two backward passes of a step."""
    at, backward, rate = [0, 0], Runtime.backward, loop.learning_rate

    def noted(number: int, *rest: Any) -> float:
        at[:] = [number, 0]
        return rate(number, *rest)

    def acting(self: Runtime, value: torch.Tensor) -> None:
        at[1] += 1
        if at == [step, 2]:
            act()
        backward(self, value)

    monkeypatch.setattr(loop, "learning_rate", noted)
    monkeypatch.setattr(Runtime, "backward", acting)


def crash() -> None:
    raise RuntimeError("pulled the plug")


def stopped_in_the_middle_of_accumulation(config: Config) -> None:
    with pytest.MonkeyPatch.context() as patch:
        in_the_second_micro_batch(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Preempted):
            train(config)
    with pytest.MonkeyPatch.context() as patch:
        in_the_second_micro_batch(patch, 7, crash)
        with pytest.raises(RuntimeError, match="pulled the plug"):
            train(config)


def test_p1_a_run_stopped_and_one_crashed_in_the_middle_of_accumulation_go_on_bit_for_bit(tmp_path: Path) -> None:
    settings = ("train.accumulate=2", "train.max_steps=9", "train.sample_every=0")
    whole, parts = (tiny(tmp_path, *settings, run=run) for run in ("whole", "parts"))
    train(whole)
    stopped_in_the_middle_of_accumulation(parts)
    assert [path.name for path in checkpoints(parts.run.dir)] == ["step-000006", "step-000004"]
    train(parts)
    assert differences(remains(whole.run.dir, 9), remains(parts.run.dir, 9)) == []


FORGOTTEN: dict[str, tuple[str, Callable[..., Any]]] = {
    "memory": ("txl.train.state.own_memory", lambda tensors, runtime, accumulate: (None,) * accumulate),
    "generators": ("txl.train.state.set_rng_state", lambda saved: None),
    "moments": ("txl.train.state.load_optimizer_state", lambda model, optimizer, tensors: None),
    "data position": ("txl.data.streams.Streams.seek", lambda self, position: None),
}


def test_p1_fails_when_memory_generators_moments_or_data_position_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("train.max_steps=6", "train.eval_every=100", "train.sample_every=0")
    train(tiny(tmp_path, *few, run="whole"))
    whole = remains(tmp_path / "whole", 6)
    for part, (place, replacement) in FORGOTTEN.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, replacement)
            train_in_parts(tiny(tmp_path, *few, run=part), (4,), monkeypatch)
        assert "model head.biases.0" in differences(whole, remains(tmp_path / part, 6)), part


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


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])])
def test_p1_a_run_killed_at_random_instants_ends_like_one_that_was_not(kills: int, tmp_path: Path) -> None:
    steps = 30 * kills
    settings = (f"train.max_steps={steps}", "train.save_every=1", "train.eval_every=7", "train.sample_every=20")
    killed, whole = (tiny(tmp_path, *settings, run=run) for run in ("killed", "whole"))
    assert kill_at_random(killed, tmp_path, kills=kills) == kills
    train(killed)
    train(whole)
    assert remains(killed.run.dir, steps) == remains(whole.run.dir, steps)


@contextmanager
def files_no_larger_than(n_bytes: int) -> Iterator[None]:
    """Inside, no file grows beyond so many bytes: the system refuses, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_p2_a_disk_that_fills_up_where_records_or_the_log_are_written_is_named_and_the_run_goes_on_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, never = (tiny(tmp_path, "train.save_every=4", "train.eval_every=100", run=run) for run in ("full", "never"))
    train(never)
    config, log = (Path(never.run.dir, name).stat().st_size for name in ("config.yaml", "metrics.jsonl"))
    for name, n_bytes in (("config.yaml", config // 2), ("metrics.jsonl", max(config, log * 3 // 4))):
        message = rf"full/{name}: could not be written \(File too large\); checkpoints are untouched\. Make room"
        late = replace(full, train=replace(full.train, save_every=100))
        with files_no_larger_than(n_bytes), pytest.raises(CheckpointError, match=message):
            train(late)
    assert not checkpoints(full.run.dir)
    assert "step 8/12" in capsys.readouterr().out.rpartition("steps 0 to 12")[2]  # so far did the log go
    train(full)
    assert differences(remains(full.run.dir, 12), remains(never.run.dir, 12)) == []


def test_p16_the_last_checkpoint_is_saved_before_the_last_evaluation_also_after_resuming_one_step_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, "train.save_every=100", "train.eval_every=100", "train.max_steps=5")
    with monkeypatch.context() as patch:
        stop_at(patch, 4)
        with pytest.raises(Preempted):
            train(config)
    watch = loop.watch

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "watch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    assert checkpoints(config.run.dir)[0].name == "step-000005"
    assert not is_finished(config)
    monkeypatch.setattr(loop, "watch", watch)
    assert train(config).step == 5
    assert is_finished(config)


MEMORY = """
import sys, threading, time
from pathlib import Path
from txl.config import load_config
from txl.train.loop import train
peak = [0]
def watch():
    while True:
        lines = Path("/proc/self/status").read_text().splitlines()
        peak[0] = max(peak[0], *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
train(load_config(Path(sys.argv[1]), sys.argv[2:]))
print("peak", peak[0] * 1024)
"""
"""Anonymous memory alone: pages of a mapped checkpoint go when others need the room."""


@pytest.mark.slow
def test_p17_going_on_needs_no_more_memory_than_beginning(tmp_path: Path) -> None:
    wide = ("model.n_layer=3", "model.d_model=512", "model.d_inner=2048", "model.n_head=8", "model.d_head=64")
    few = ("train.sample_every=0", "train.eval_every=100", "train.save_every=1", "train.keep_last=1")
    path = config_file(tmp_path, tiny(tmp_path, *wide, *few, "train.max_steps=5"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    peaks = []
    for steps in (4, 5):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, path, f"train.max_steps={steps}"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        peaks.append(int(done.stdout.split()[-1]))
    size = sum(file.stat().st_size for file in checkpoints(tmp_path / "run")[0].iterdir())
    assert size > 100e6
    assert peaks[1] < peaks[0] + 0.1 * size


def test_p18_the_first_save_after_going_on_needs_no_validation_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(tmp_path, "train.eval_every=100", "train.save_every=2", "train.keep_last=9", "train.max_steps=9")
    train_in_parts(config, (3, 5), monkeypatch)
    assert [path.name[-1] for path in checkpoints(config.run.dir)] == list("9865432")
    saved = json.loads((checkpoints(config.run.dir)[2] / "state.json").read_text())
    assert (saved["step"], saved["best_nll"], saved["best_step"]) == (6, None, None)


def test_p21_the_log_of_a_run_that_crashed_and_went_on_has_each_step_once_in_order(tmp_path: Path) -> None:
    crashed, whole = tiny(tmp_path, run="crashed"), tiny(tmp_path, run="whole")
    with pytest.MonkeyPatch.context() as patch:
        save = loop.save_state

        def crashing(run: Any, state: Any) -> Any:
            return save(run, state) if state.step < 8 else crash()

        patch.setattr(loop, "save_state", crashing)
        with pytest.raises(RuntimeError, match="pulled the plug"):
            train(crashed)
    log = Path(crashed.run.dir) / "metrics.jsonl"
    assert [line["step"] for line in metrics(crashed.run.dir)] == list(range(1, 9))
    with log.open("ab") as file:  # half a line, as a machine that lost its power leaves it
        file.write(b'{"step": 9, "nll": 3.')
    train(crashed)
    train(whole)
    assert [line["step"] for line in metrics(crashed.run.dir)] == list(range(1, 13))
    assert metrics(crashed.run.dir) == metrics(whole.run.dir)
    one, other = ((Path(config.run.dir) / "samples.txt").read_text() for config in (crashed, whole))
    assert one == other


def test_p25_the_same_command_run_twice_leaves_the_same_bytes(tmp_path: Path) -> None:
    path = config_file(tmp_path, tiny(tmp_path, "train.max_steps=6"))
    runs = [start("train", path, f"run.dir={tmp_path / name}") for name in ("one", "other")]
    assert [finish(run)[0] for run in runs] == [0, 0]
    one, other = remains(tmp_path / "one", 6), remains(tmp_path / "other", 6)
    assert len(one) > 100
    assert one == other
    for name in ("model", "optimizer", "memory"):
        files = [tmp_path / run / "checkpoints/step-000006" / f"{name}.safetensors" for run in ("one", "other")]
        assert files[0].read_bytes() == files[1].read_bytes()
