"""Promises 2, 3, 4, 19, 22 and 23: what a run has on the disk survives kills, full disks, damage and other runs."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import txl
from tests.runs import differences, remains, tiny
from txl.checkpoint import (
    CheckpointError,
    Snapshot,
    checkpoints,
    load_weights,
    newest_valid,
    problem,
    prune,
    read,
    save,
    weights,
)
from txl.checkpoint import snapshot as module
from txl.checkpoint.snapshot import FILES
from txl.config import Config
from txl.train.folder import locked
from txl.train.loop import train

ROOT = Path(__file__).resolve().parents[2]


def snapshot(step: int) -> Snapshot:
    """A checkpoint of a few numbers."""
    numbers = torch.arange(24, dtype=torch.float32).view(4, 6) + step
    parts = {"model": {"weight": numbers}, "optimizer": {"exp_avg.weight": numbers}, "memory": {"length": numbers[0]}}
    return Snapshot(step=step, config=Config(), tokenizer="{}", state={"step": step}, rng=[], **parts)


def test_p2_a_save_killed_at_any_touch_of_the_disk_loses_nothing(tmp_path: Path) -> None:
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


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let the `number`-th touch of the disk fail with ENOSPC; the list counts them."""
    count = [0]

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(module, "save_file", failing(module.save_file))
    monkeypatch.setattr(Path, "write_text", failing(Path.write_text))
    monkeypatch.setattr(Path, "mkdir", failing(Path.mkdir))
    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(os, "rename", failing(os.rename))
    return count


def test_p2_a_full_disk_at_any_write_leaves_the_older_checkpoint_and_no_rubbish(tmp_path: Path) -> None:
    save(tmp_path, snapshot(3))
    finished = 0
    for number in range(1, 60):
        with pytest.MonkeyPatch.context() as patch:
            count = fail_at(patch, number)
            try:
                save(tmp_path, snapshot(4))
            except CheckpointError as error:
                assert "step-000004: could not be written (No space left on device); older" in str(error)  # noqa: PT017
        newest = newest_valid(tmp_path)
        assert newest is not None
        assert not list((tmp_path / "checkpoints").glob(".*"))
        if module.step_of(newest) == 4:  # at the last rename or after it
            finished += 1
            shutil.rmtree(newest)
        if count[0] < number:
            break
    assert count[0] > 20  # the injector met every file, flush and rename
    assert finished >= 1


def test_p2_a_run_whose_disk_is_full_ends_with_its_older_checkpoint_and_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    full, never = tiny(tmp_path, run="full"), tiny(tmp_path, run="never")
    with pytest.MonkeyPatch.context() as patch:

        def refuse(source: Any, target: Any) -> None:
            if "step-000008" in str(target):
                raise OSError(errno.ENOSPC, "No space left on device")
            os.replace(source, target)

        patch.setattr(module.os, "rename", refuse)
        with pytest.raises(CheckpointError, match=r"step-000008: could not be written \(No space left on device\)"):
            train(full)
    assert [path.name for path in checkpoints(full.run.dir)] == ["step-000006", "step-000004"]
    train(full)
    train(never)
    assert differences(remains(full.run.dir, 12), remains(never.run.dir, 12)) == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "flipped": (flip, "SHA-256 differs"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), "bytes where"),
    "emptied": (lambda path: path.write_bytes(b""), "0 bytes where"),
    "zeroed": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "SHA-256 differs"),
    "deleted": (lambda path: path.unlink(), "missing"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGE)
def test_p3_every_damage_to_every_file_is_named_and_passed_over(kind: str, name: str, tmp_path: Path) -> None:
    damage, reason = DAMAGE[kind]
    older, newer = save(tmp_path, snapshot(3)), save(tmp_path, snapshot(20))
    damage(newer / name)
    told: list[str] = []
    assert newest_valid(tmp_path, warn=told.append) == older
    assert len(told) == 1
    assert str(newer) in told[0]
    assert f"{name}: " in told[0]
    assert reason in told[0]
    with pytest.raises(CheckpointError, match=f"step-000020: {name}.*run.resume=auto"):
        newest_valid(tmp_path, strict=True)
    with pytest.raises(CheckpointError, match=f"step-000020: {name}: .*choose another checkpoint"):
        read(newer)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of four steps, saved at 2 and 4, that can go on to 6."""
    folder = tmp_path_factory.mktemp("begun")
    train(tiny(folder, *SHORT, "train.max_steps=4"))
    return folder


SHORT = ("train.save_every=2", "train.eval_every=100", "train.sample_every=0", "optim.warmup_steps=0")


@pytest.mark.parametrize("name", FILES)
def test_p3_a_run_with_a_damaged_newest_checkpoint_goes_on_from_the_one_before_it_or_refuses(
    name: str, begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    config = tiny(tmp_path, *SHORT, "train.max_steps=4", f"data.train={begun}/corpus-700-3/train")
    config = replace(config, data=read(checkpoints(begun / "run")[0]).config.data)
    flip(checkpoints(config.run.dir)[0] / name)
    with pytest.raises(CheckpointError, match=rf"step-000004: {name}: "):
        train(replace(config, run=replace(config.run, resume="strict")))
    train(config)
    said = capsys.readouterr().out
    assert "steps 2 to 4" in said
    assert f"damaged checkpoint passed over: {config.run.dir}/checkpoints/step-000004: {name}: " in said
    whole, mended = remains(begun / "run", 4), remains(config.run.dir, 4)
    assert differences(whole, mended) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(st.sampled_from(["save", "fail", "damage", "best"]), max_size=9),
    keep=st.integers(1, 3),
    every=st.sampled_from([0, 2, 3]),
    data=st.data(),
)
def test_p4_there_are_never_fewer_whole_checkpoints_than_promised(
    events: list[str], keep: int, every: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    whole: list[int] = []
    best: int | None = None
    for step, event in enumerate(events, start=1):
        if event == "damage" and whole:
            chosen = data.draw(st.sampled_from(whole))
            flip(folder / "checkpoints" / f"step-{chosen:06d}" / "model.safetensors")
            whole.remove(chosen)
        elif event == "fail":
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, data.draw(st.integers(1, 15)))
                with pytest.raises(CheckpointError):
                    save(folder, snapshot(step))
        elif event != "damage":
            save(folder, snapshot(step))
            best = step if event == "best" else best
            prune(folder, keep_last=keep, keep_every=every, best_step=best)
            whole.append(step)
            for_good = {step for step in whole if step == best or (every and step % every == 0)}
            whole = sorted({*whole[-keep:], *for_good})
        found = {module.step_of(path) for path in checkpoints(folder) if problem(path) is None}
        assert found == set(whole)


def test_p4_a_checkpoint_that_cannot_be_removed_is_named_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        save(tmp_path, snapshot(step))

    def refused(source: Any, target: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refused)
    told: list[str] = []
    prune(tmp_path, keep_last=1, best_step=None, warn=told.append)
    assert [text.split("/")[-1] for text in told] == [
        "step-000002: could not be removed (Permission denied); the run goes on",
        "step-000001: could not be removed (Permission denied); the run goes on",
    ]
    assert len(checkpoints(tmp_path)) == 3


def test_p4_the_newest_every_mth_and_the_best_checkpoint_of_a_run_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.6, 2.4, 2.7, 9.9])

    def validate(*args: Any, **rest: Any) -> dict[str, Any]:
        nll = next(losses)
        return {"valid_nll": nll, "valid_bits_per_byte": nll, "valid_bits": nll, "valid_tokens": 60}

    monkeypatch.setattr("txl.train.loop.validate", validate)
    kept = ("train.save_every=1", "train.keep_last=2", "train.keep_every=5", "train.eval_every=2")
    config = tiny(tmp_path, *kept, "train.max_steps=12")
    train(config)
    assert [module.step_of(path) for path in checkpoints(config.run.dir)] == [12, 11, 10, 5, 4]  # 4 was the best


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_p19_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    one, other = Tied(), Tied()
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
    assert list(weights(one)) == ["embedding.weight"]
    found = read(save(tmp_path, replace(snapshot(1), model=weights(one)))).model
    load_weights(other, found)
    assert torch.equal(other.head.weight, one.head.weight)
    assert other.head.weight is other.embedding.weight
    config = tiny(tmp_path, "train.max_steps=4", "model.cutoffs=[60,120]", "model.div_val=2")
    train(config)
    model = txl.load(config.run.dir).model
    ids = torch.arange(5)[None]
    before = model(ids).logits
    with torch.no_grad():
        model.stack.embedding.tables[0][40].normal_()  # a token that is not read, only scored
    assert not torch.equal(model(ids).logits[..., 40], before[..., 40])


def test_p22_the_disk_that_checkpoints_need_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny(tmp_path, "train.max_steps=6", "train.keep_last=3", "train.save_every=2", "train.keep_every=2")
    train(config)
    said = capsys.readouterr().out
    size = sum(path.stat().st_size for path in checkpoints(config.run.dir)[0].glob("*.safetensors"))
    # Three newest, the best, the one that is being written, and those of steps 2, 4 and 6.
    (told,) = re.findall(
        r"a checkpoint takes ([\d.]+) MB, and 8 at most ([\d.]+) MB of the [\d,]+ MB that are free", said
    )
    assert float(told[0]) == pytest.approx(size / 1e6, rel=0.3)
    assert float(told[1]) == pytest.approx(8 * size / 1e6, rel=0.3)


def test_p22_a_disk_too_small_for_the_checkpoints_is_found_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4_200_000))
    with pytest.raises(CheckpointError, match="4 MB are free on the disk, 4 MB are needed for checkpoints"):
        train(tiny(tmp_path))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


HOLDER = """
import sys, time
from pathlib import Path
from txl.train.folder import locked
with locked(Path(sys.argv[1]), active=True):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_p23_a_second_run_is_refused_by_name_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    try:
        refusal = rf"another run is writing there \(process {holder.pid} on "
        with pytest.raises(CheckpointError, match=refusal), locked(tmp_path, active=True):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == holder.pid
    with locked(tmp_path, active=True):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".lock").exists()


def test_p23_a_lock_left_by_a_process_whose_number_lives_again_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(json.dumps({"pid": os.getppid(), "host": "here"}))
    with locked(tmp_path, active=True):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
