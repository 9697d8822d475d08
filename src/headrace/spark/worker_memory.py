"""Retention of freed memory in a Python worker for its next task.

A task works on hundreds of megabytes in every epoch. The C library returns allocations of that size to the system at
once, and getting them again, as cleared pages, took as long as the work itself. In a process that runs many tasks the
library can keep free memory at the end of its heap, up to `KEPT_BYTES`.
"""

from __future__ import annotations

import ctypes
import functools

KEPT_BYTES = 1 << 30  # bytes
AHEAD = 64 << 20  # bytes requested from the system at a time

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # constants of glibc


@functools.cache
def keep_freed_memory() -> bool:
    """Configure the allocator once per process. Return whether the C library supports it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # the C library is not glibc
        return False
    said = [mallopt(name, value) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, AHEAD))]
    return all(said)
