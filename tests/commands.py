"""`txl` as a user starts it: a command in a process of its own, read line by line, and how it ended.

Words -> a process, its output, its exit code. Shared by tests of promises.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from txl.config import Config, to_yaml

ROOT = Path(__file__).resolve().parents[1]


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
