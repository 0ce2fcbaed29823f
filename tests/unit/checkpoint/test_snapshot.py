"""A checkpoint is written whole or not at all, believed only when no byte changed, and pruned after others are safe."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txl.checkpoint import CheckpointError, Snapshot, check_space, checkpoints, newest_valid, problem, prune, read, save
from txl.checkpoint import snapshot as module
from txl.checkpoint.snapshot import FILES, FORMAT
from txl.config import Config, ModelConfig

CONFIG = Config(model=ModelConfig(n_layer=3, d_model=10))


def snapshot(step: int, **changes: Any) -> Snapshot:
    base = torch.arange(24, dtype=torch.float32).view(4, 6)
    parts = {
        "model": {"weight": base + step, "slice": base[1:3, ::2]},
        "optimizer": {"exp_avg.weight": base * step, "step.weight": torch.tensor(float(step))},
        "memory": {"length": torch.tensor([2, 5])},
        "state": {"step": step, "best_step": None, "nll": 0.1 + 0.2},
        "rng": [{"python": [3, [1, 2], None]}],
    }
    return Snapshot(step=step, config=CONFIG, tokenizer='{"kind": "é"}', **{**parts, **changes})


def test_what_is_read_is_what_was_saved(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(7))
    assert path == tmp_path / "checkpoints" / "step-000007"
    assert {file.name for file in path.iterdir()} == {*FILES, "manifest.json"}
    back, wanted = read(path), snapshot(7)
    assert (back.step, back.config, back.tokenizer, back.state, back.rng) == (
        wanted.step,
        wanted.config,
        wanted.tokenizer,
        wanted.state,
        wanted.rng,
    )
    for name in ("model", "optimizer", "memory"):
        found, expected = getattr(back, name), getattr(wanted, name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)


def test_bf16_int_bool_scalar_and_no_tensors_survive(tmp_path: Path) -> None:
    memory = {
        "a": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        "b": torch.tensor([True, False, True]),
        "c": torch.tensor(7),
        "d": torch.zeros(3, 0, 5),
    }
    found = read(save(tmp_path, snapshot(1, memory=memory, optimizer={})))
    assert {key: (t.dtype, t.shape) for key, t in found.memory.items()} == {
        key: (t.dtype, t.shape) for key, t in memory.items()
    }
    assert all(torch.equal(found.memory[key], memory[key]) for key in memory)
    assert found.optimizer == {}


def test_checkpoints_are_sorted_by_number_not_by_text(tmp_path: Path) -> None:
    for step in (100, 9, 10, 1_000_000, 2):
        save(tmp_path, snapshot(step))
    (tmp_path / "checkpoints" / "step-5.backup").mkdir()
    (tmp_path / "checkpoints" / "notes").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [
        "step-1000000",
        "step-000100",
        "step-000010",
        "step-000009",
        "step-000002",
    ]
    prune(tmp_path, keep_last=2, best_step=9)
    assert [module.step_of(path) for path in checkpoints(tmp_path)] == [1_000_000, 100, 9]


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
def test_every_damage_to_every_file_is_named_and_passed_over(kind: str, name: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "files": {"../x": {"bytes": 1, "sha256": "0"}}}',
        "[" * 100_000,
        "7",
    ],
)
def test_a_manifest_that_is_not_ours_is_no_checkpoint(text: str, tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(3))
    (path / "manifest.json").write_text(text)
    assert (problem(path) or "").startswith("manifest.json: ")


def test_a_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(3))
    shutil.move(path / "rng.json", tmp_path / "rng.json")
    (path / "rng.json").symlink_to(tmp_path / "rng.json")
    assert problem(path) == "rng.json: is a link; a checkpoint holds its own files"


def test_a_newer_format_is_no_damage_but_asks_for_a_newer_txl(tmp_path: Path) -> None:
    save(tmp_path, snapshot(3))
    path = save(tmp_path, snapshot(4))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": FORMAT + 1}))
    with pytest.raises(CheckpointError, match=r"format 2, this txl reads up to 1: install a newer txl"):
        newest_valid(tmp_path)


def test_where_none_is_whole_all_are_named(tmp_path: Path) -> None:
    assert newest_valid(tmp_path) is None
    for step in (3, 4):
        (save(tmp_path, snapshot(step)) / "rng.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"(?s)no checkpoint .* whole:.*step-000004: rng.*step-000003: rng.*missing"
    ):
        newest_valid(tmp_path)


def test_a_file_whose_bytes_are_vouched_for_but_are_no_tensors_gives_a_clean_error(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(3))
    for content in (b"\x80\x04\x95\x00", b"\x00\x00\x00\x00\x00\x00\x00\x10" + b" " * 40):  # a pickle; a header of 2^60
        (path / "model.safetensors").write_bytes(content)
        manifest = json.loads((path / "manifest.json").read_text())
        digest = module._sha256(path / "model.safetensors")
        manifest["files"]["model.safetensors"] = {"bytes": len(content), "sha256": digest}
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(path)


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


def test_a_full_disk_at_any_write_leaves_the_older_checkpoint_and_no_rubbish(tmp_path: Path) -> None:
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


def test_too_little_room_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, snapshot(3))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4_000_000))
    with pytest.raises(CheckpointError, match=r"4 MB are free on the disk, 4 MB are needed for checkpoints"):
        save(tmp_path, snapshot(4))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]
    with pytest.raises(CheckpointError, match=r"1,004 MB are needed.*lower train.keep_last"):
        check_space(tmp_path, 1_000_000_000)


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(4))
    flip(path / "model.safetensors")
    assert save(tmp_path, snapshot(4)) == path
    assert problem(path) is None
    assert [entry.name for entry in path.parent.iterdir()] == ["step-000004"]


def test_what_a_killed_save_left_is_swept_by_the_next_one(tmp_path: Path) -> None:
    save(tmp_path, snapshot(3))
    left = tmp_path / "checkpoints" / ".step-000004.partial"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert newest_valid(tmp_path) == tmp_path / "checkpoints" / "step-000003"
    save(tmp_path, snapshot(5))
    assert not left.exists()


def test_a_checkpoint_that_cannot_be_removed_is_named_and_no_error(
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


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(st.sampled_from(["save", "fail", "damage", "best"]), max_size=9),
    keep=st.integers(1, 3),
    data=st.data(),
)
def test_there_are_never_fewer_whole_checkpoints_than_promised(
    events: list[str], keep: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
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
            prune(folder, keep_last=keep, best_step=best)
            whole.append(step)
            whole = sorted({*whole[-keep:], *(step for step in whole if step == best)})
        found = {module.step_of(path) for path in checkpoints(folder) if problem(path) is None}
        assert found == set(whole)
