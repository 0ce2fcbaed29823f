"""One writer a run folder, whatever became of the writer before; records are replaced whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from txl.checkpoint import CheckpointError
from txl.config import Config, load_config
from txl.train.folder import locked, read_result, write_records, write_result, write_text


def test_one_process_cannot_run_twice_in_one_folder_either(tmp_path: Path) -> None:
    with locked(tmp_path, active=True):
        with pytest.raises(CheckpointError, match=f"process {os.getpid()}"), locked(tmp_path, active=True):
            pass
        with locked(tmp_path, active=False):  # other processes of the same run
            pass


def test_the_lock_is_released_when_a_run_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "new" / "run", active=True):
        raise ZeroDivisionError
    with locked(tmp_path / "new" / "run", active=True):
        pass


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refusal = r"file.run: cannot be written in \(Not a directory\); choose another run.dir"
    with pytest.raises(CheckpointError, match=refusal), locked(tmp_path / "file" / "run", active=True):
        pass


def test_records_say_what_ran(tmp_path: Path) -> None:
    write_records(tmp_path, Config())
    assert load_config(tmp_path / "config.yaml") == Config()
    assert "torch" in json.loads((tmp_path / "environment.json").read_text())["packages"]


def test_a_result_is_read_back_and_anything_else_is_none(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    write_result(tmp_path, {"step": 3, "valid_nll": None})
    assert read_result(tmp_path) == {"step": 3, "valid_nll": None}
    for text in ("", "[1]", "{"):
        (tmp_path / "result.json").write_text(text)
        assert read_result(tmp_path) is None


def test_text_takes_the_place_of_text_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a", "old é")

    def fails(source: object, target: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(CheckpointError, match=r"a: could not be written \(full\); checkpoints are untouched"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "old é"
