"""Freed memory that is kept: the pages of a repeated tensor are faulted in once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from txl.allocator import keep_freed_memory
asked = {asked}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
kept = keep_freed_memory() if asked else False
for _ in range(3):
    [torch.ones(4 << 20) for _ in range(8)]
before = faults()
for _ in range(3):
    [torch.ones(4 << 20) for _ in range(8)]
print(kept, faults() - before)
"""
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}


def run(asked: bool, environment: dict[str, str]) -> tuple[str, int]:
    """Whether memory was kept, and the page faults of making eight tensors of 16 MB three times."""
    code = FAULTS.format(asked=asked)
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    kept, faults = out.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_the_pages_of_tensors_as_large_as_the_last_are_not_faulted_in_again() -> None:
    kept, faults = run(True, PLAIN)
    assert kept == "True"
    assert faults < 100
    assert run(False, PLAIN)[1] > 1_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_what_the_environment_says_of_the_allocator_stays() -> None:
    assert run(True, {**PLAIN, "MALLOC_ARENA_MAX": "2"})[0] == "False"
