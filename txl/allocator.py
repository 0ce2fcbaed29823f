"""What becomes of memory that was freed: kept for the next tensor, or given back to the system, as glibc is told.

Keeping is a setting of the whole process, for programs that compute on a CPU: otherwise every page of a tensor is
faulted in anew. Knows nothing of torch.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of the two settings in glibc's malloc.h."""
LARGEST_KEPT = 32 << 20
"""Bytes of a block up to which it is kept, the most glibc allows; larger ones are mapped, and given back."""
MOST_KEPT = 2**31 - 1
"""Free bytes at the end of the heap beyond which it shrinks."""


def keep_freed_memory() -> bool:
    """Ask the allocator to keep freed blocks; returns whether it was asked.

    It is not where the environment says how it shall be (any MALLOC_ variable), nor without glibc.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = _of_glibc("mallopt")
    return mallopt is not None and bool(mallopt(MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(TRIM_THRESHOLD, MOST_KEPT))


def give_back_freed_memory() -> bool:
    """Give what is kept back to the system, once; returns whether that could be asked for (not without glibc)."""
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)
    return malloc_trim is not None


def _of_glibc(name: str) -> Any:
    """A function that glibc alone has, None with any other library."""
    return getattr(ctypes.CDLL(None), name, None)
