"""What is installed: pins that fit what pyproject.toml asks for, and scripts that the oldest bash can read."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
SCRIPTS = [".ci/run", *(f"scripts/{name}" for name in ("install", "quickstart", "test", "check", "reproduce_books.sh"))]


def pins(name: str) -> dict[str, Version]:
    """Package -> version of a lock file, every line of which is `name==version` or a comment."""
    found = {}
    for line in (REPOSITORY / name).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            matched = re.fullmatch(r"([a-z0-9-]+)==([0-9a-z.]+)", line)
            assert matched, f"{name}: {line!r}"
            found[matched[1]] = Version(matched[2])
    return found


CORE, DEV = pins("requirements.lock"), pins("requirements-dev.lock")


def test_the_lock_has_every_core_dependency_within_its_bounds() -> None:
    for line in PROJECT["dependencies"]:
        wanted = Requirement(line)
        assert CORE[canonicalize_name(wanted.name)] in wanted.specifier
    assert CORE["torch"] == Version("2.13.0")


def test_the_dev_lock_has_every_dev_tool_and_repeats_nothing() -> None:
    for line in PROJECT["optional-dependencies"]["dev"]:
        assert canonicalize_name(Requirement(line).name) in DEV
    assert not CORE.keys() & DEV.keys()


def test_nothing_optional_is_in_the_core() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) == {"serve", "hf", "eval", "tensorboard", "wandb", "trackio", "dev"}
    optional = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines}
    assert not optional & CORE.keys()


@pytest.mark.parametrize("name", sorted(CORE))
def test_the_lock_has_all_that_a_pinned_package_needs(name: str) -> None:
    for line in metadata.requires(name) or []:
        wanted = Requirement(line)
        for python in ("3.11", "3.12", "3.13"):
            for system, platform in (("Linux", "linux"), ("Darwin", "darwin")):
                where = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
                where |= {"sys_platform": platform, "platform_system": system}
                if wanted.marker is None or wanted.marker.evaluate(where):
                    assert CORE[canonicalize_name(wanted.name)] in wanted.specifier, line


def test_scripts_can_be_run_and_read() -> None:
    for name in SCRIPTS:
        text = (REPOSITORY / name).read_text("utf-8")
        assert os.access(REPOSITORY / name, os.X_OK), name
        assert text.startswith("#!/usr/bin/env bash\n# "), name
        assert "\nset -euo pipefail\n" in text, name
        assert subprocess.run(["bash", "-n", str(REPOSITORY / name)], check=False).returncode == 0
        # words that bash 3.2, the bash of macOS, does not have
        assert not re.search(r"mapfile|readarray|declare -A|\$\{\w+(,,|\^\^)|&>>|\|&", text), name


def test_a_python_that_does_not_fit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "install"
    script.write_bytes((REPOSITORY / "scripts/install").read_bytes())
    environment = {**os.environ, "PYTHON": "/nowhere/python3.12"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "found no Python 3.11, 3.12 or 3.13 (tried /nowhere/python3.12)" in done.stderr
    assert "PYTHON=/path/to/python3.12" in done.stderr


def test_an_install_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    for name in ("scripts/install", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((REPOSITORY / name).read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # A python that fits and says what pip was asked for.
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "pip: $*"\n', encoding="utf-8")
    python.chmod(0o755)

    def install(*words: str) -> list[str]:
        done = subprocess.run(
            ["bash", str(tmp_path / "scripts/install"), *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [line for line in done.stdout.splitlines() if line.startswith("pip: ")]

    pip = "pip: -m pip --disable-pip-version-check install"
    first = [f"{pip} -r requirements.lock", f"{pip} --quiet --no-deps --no-build-isolation --editable ."]
    assert install() == first
    assert install() == []
    assert install("dev") == [f"{pip} -r requirements.lock -r requirements-dev.lock", first[1]]
    assert install("dev") == []
    (tmp_path / "requirements.lock").write_text("torch==2.13.1\n", encoding="utf-8")
    assert install() == first
