"""What a number may depend on besides config and data: a record of the machine and of what is installed on it.

Nothing -> a dict for JSON. Knows nothing of runs.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

RECORDED_PACKAGES = ("torch", "accelerate", "datasets", "einops", "numpy", "safetensors", "tokenizers", "txl")


def environment() -> dict[str, Any]:
    """What a number may depend on besides config and data: versions, processor, threads, GPUs, the source's commit."""
    versions = {}
    for package in RECORDED_PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "cpu": torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "git_commit": _git_commit(Path(__file__).parent),
    }


def _git_commit(folder: Path) -> str | None:
    """The commit the package was run from, with `+changes` where files differ from it; None if it is part of none."""
    questions = (["ls-files", "--error-unmatch", "."], ["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
    try:
        _, head, status = (
            subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True)
            for words in questions
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+changes" if status.stdout.strip() else "")
