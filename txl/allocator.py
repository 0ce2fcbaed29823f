"""Memory that was freed is kept for the next tensor: glibc otherwise gives it back, and every page is faulted in anew.

A setting of the whole process, for programs that compute on a CPU. Knows nothing of torch.
"""

from __future__ import annotations

import ctypes
import os

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
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(TRIM_THRESHOLD, MOST_KEPT))
