"""An honest record of the machine, and a commit only where files are part of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch

from txl import environment as module
from txl.environment import environment


def test_the_environment_is_json_and_names_versions_and_processor() -> None:
    record = json.loads(json.dumps(environment()))
    assert record["packages"]["torch"] == torch.__version__
    assert record["threads"] == torch.get_num_threads()
    assert record["cpu"]


def test_a_commit_is_recorded_only_for_files_that_are_part_of_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", str(tmp_path), *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    assert module._git_commit(package) is None
    git("init", "-q")
    (tmp_path / "other.py").write_text("1\n")
    git("add", "other.py")
    git("commit", "-qm", "one")
    (package / "code.py").write_text("1\n")
    assert module._git_commit(package) is None
    git("add", "package")
    git("commit", "-qm", "two")
    assert module._git_commit(package) == git("rev-parse", "HEAD")
    (package / "code.py").write_text("2\n")
    assert module._git_commit(package) == git("rev-parse", "HEAD") + "+changes"
