"""The file of a stopped stream: what was written comes back, what was damaged does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from txl.checkpoint import CheckpointError
from txl.checkpoint.stream import read_stream, save_stream

TENSORS = {
    "keys": torch.randn(2, 3, 5),
    "age": torch.tensor([7, 2**40]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "one": torch.tensor(4),
}
RECORD = {"file": "café.log", "offset": 2**50, "nats": 0.1 + 0.2, "open": None}


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    save_stream(path, {"age": torch.zeros(1)}, {})
    save_stream(path, TENSORS, RECORD)
    tensors, record = read_stream(path)
    assert record == RECORD
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    save_stream(path, TENSORS, RECORD)
    raw = path.read_bytes()
    for place in [*range(0, len(raw), 7), len(raw) - 1]:
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(CheckpointError, match=r"a\.state"):
            read_stream(path)
    path.write_bytes(raw[:-3])
    with pytest.raises(CheckpointError, match="cannot be read as a state"):
        read_stream(path)


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not a state that txl wrote"):
        read_stream(tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read as a state"):
        read_stream(tmp_path / "nowhere")
    save_file({"x": torch.zeros(2)}, tmp_path / "newer", metadata={"txl_stream": "2"})
    with pytest.raises(CheckpointError, match="a state of format 2, this txl reads 1"):
        read_stream(tmp_path / "newer")


def test_a_failed_write_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.state"
    save_stream(path, TENSORS, RECORD)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
        save_stream(path, {}, {})
    monkeypatch.undo()
    assert read_stream(path)[1] == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"]
