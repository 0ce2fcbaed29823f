"""Freed memory that is kept: the pages of a tensor stay with the process when it goes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

CODE = """
import torch
from txl.allocator import keep_freed_memory
def resident():
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])
kept = keep_freed_memory() if {asked} else False
before = resident()
tensor = torch.ones(6 << 20)
held = resident() - before
del tensor
print(kept, held, resident() - before)
"""
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
MEGABYTES = 1 << 20
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")


def run(*, asked: bool, environment: dict[str, str]) -> tuple[str, int, int]:
    """Whether memory was kept, and what a tensor of 24 MB added to the process while it lived and when it was gone."""
    code = CODE.format(asked=asked)
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    kept, held, left = out.stdout.split()
    return kept, int(held), int(left)


def test_the_pages_of_a_tensor_stay_for_the_next_one() -> None:
    kept, held, left = run(asked=True, environment=PLAIN)
    assert kept == "True"
    assert min(held, left) > 23 * MEGABYTES
    _, held, left = run(asked=False, environment=PLAIN)
    assert held > 23 * MEGABYTES
    assert left < 5 * MEGABYTES


def test_what_the_environment_says_of_the_allocator_stays() -> None:
    kept, _, left = run(asked=True, environment={**PLAIN, "MALLOC_ARENA_MAX": "2"})
    assert kept == "False"
    assert left < 5 * MEGABYTES
