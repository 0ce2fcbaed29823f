"""A checkpoint is written whole or not at all, believed only when no byte changed, and pruned after others are safe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

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
    (path / "model.safetensors").write_bytes(b"damaged")
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
