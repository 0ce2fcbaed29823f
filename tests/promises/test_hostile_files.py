"""Promise 12: no file that txl reads can run code, leave its folder or eat the memory; each gives an error, code 2.

A hostile file of every kind -> the verb that reads it -> an error that names the file, and a canary that never sang.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import make_model
from tests.runs import tiny
from tests.unit.interop.published_files import PAPER, write_paper_checkpoint
from txl import cli
from txl.checkpoint import checkpoints
from txl.train.loop import train

DEEP = "[" * 1_000_000
GROWTH_BYTES = 700_000_000
"""What refusing a file may cost in memory: reading 200 MB of text twice, never more."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny(folder, "train.max_steps=2", "optim.warmup_steps=0", "train.sample_tokens=1"))
    return folder / "run"


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file that code in a hostile file would write."""
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()


class Sings:
    """What a pickle of this runs when it is read."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


def pickled(path: Path, canary: Path) -> None:
    torch.save({"weight": Sings(canary)}, path)


def vouch(checkpoint: Path, name: str) -> None:
    """Let the manifest say that this file is as it was written."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    content = (checkpoint / name).read_bytes()
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def safetensors(header: dict[str, Any], length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(16)


HOSTILE: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "a pickle under another name": ("model.safetensors", pickled),
    "a header of 2^60 bytes": ("model.safetensors", lambda path, _: path.write_bytes(safetensors({}, 2**60))),
    "a tensor that ends outside the file": (
        "model.safetensors",
        lambda path, _: path.write_bytes(safetensors({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})),
    ),
    "a tensor of 2^62 numbers": (
        "memory.safetensors",
        lambda path, _: path.write_bytes(
            safetensors({"w": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 16]}})
        ),
    ),
    "JSON a million deep": ("state.json", lambda path, _: path.write_text(DEEP)),
    "JSON a million deep for generators": ("rng.json", lambda path, _: path.write_text(DEEP)),
    "JSON that is no state": ("state.json", lambda path, _: path.write_text('{"step": {"a": 1}}')),
    "a tokenizer of 200 MB": ("tokenizer.json", lambda path, _: path.write_bytes(b'"' + b"x" * 200_000_000 + b'"')),
    "a tokenizer a million deep": ("tokenizer.json", lambda path, _: path.write_text(DEEP)),
    "a config that names a class": (
        "config.yaml",
        lambda path, canary: path.write_text(f"!!python/object/apply:os.system ['touch {canary}']\n"),
    ),
    "a config that asks for a resolver": (
        "config.yaml",
        lambda path, _: path.write_text("run: {dir: '${oc.env:HOME}/x'}\n"),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_p12_a_hostile_file_in_a_checkpoint_gives_a_clean_error_and_runs_nothing(
    name: str, trained: Path, tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    checkpoint = checkpoints(run)[0]
    file, write = HOSTILE[name]
    write(checkpoint / file, canary)
    vouch(checkpoint, file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cli.main(["eval", str(run)]) == 2
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH_BYTES
    assert str(checkpoint) in capsys.readouterr().err


@pytest.mark.parametrize("listed", ["../outside", "/etc/hostname", "sub/model.safetensors"])
def test_p12_a_manifest_that_points_out_of_its_folder_is_refused(
    listed: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    manifest = checkpoints(run)[0] / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"][listed] = content["files"].pop("model.safetensors")
    manifest.write_text(json.dumps(content))
    assert cli.main(["eval", str(run)]) == 2
    assert "manifest.json: found format 1 with" in capsys.readouterr().err


@pytest.mark.parametrize("content", [DEEP, "x" * 20_000_000])
def test_p12_a_manifest_without_end_is_refused(
    content: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (checkpoints(run)[0] / "manifest.json").write_text(content)
    assert cli.main(["eval", str(run)]) == 2
    assert "manifest.json: " in capsys.readouterr().err


def test_p12_a_link_out_of_a_checkpoint_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    weights = checkpoints(run)[0] / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    assert cli.main(["eval", str(run)]) == 2
    assert "model.safetensors: is a link; a checkpoint holds its own files" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "run: !!python/object/apply:os.system ['touch {canary}']",
        "run: &a [*a, *a]",
        "a: &a [1]\nb: {{<<: *a}}",
        "[" * 9999,
    ],
)
def test_p12_a_hostile_config_is_refused(text: str, tmp_path: Path, canary: Path) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text.format(canary=canary))
    assert cli.main(["config", str(path)]) == 2


def test_p12_weights_to_import_that_are_a_program_are_refused(
    tmp_path: Path, canary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = write_paper_checkpoint(tmp_path, make_model(PAPER))
    pickled(weights, canary)
    assert cli.main(["import", str(weights), "--out", str(tmp_path / "out")]) == 2
    assert str(weights) in capsys.readouterr().err


@pytest.mark.parametrize("size", [200_000_000, None])
def test_p12_a_hostile_tokenizer_of_a_config_is_refused(
    size: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(DEEP)
    if size is not None:
        os.truncate(path, size)
    config = tiny(tmp_path)
    words = [f"data.train={config.data.train}", "tokenizer.kind=file", f"tokenizer.path={path}", "run.dir=nowhere"]
    empty = tmp_path / "empty.yaml"
    empty.write_text("run: {seed: 1}\n")
    assert cli.main(["prepare", str(empty), *words]) == 2
    assert f"tokenizer.path: {path}: " in capsys.readouterr().err
