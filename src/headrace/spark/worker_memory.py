"""Memory of a Python worker that was given back is kept for its next task.

What a task works on is hundreds of megabytes in every epoch, and the same again in the next. The C library returns pieces of
that size to the system at once; to get them again, page by page and emptied, took as long as the work itself. With a process
that lives from task to task the library can keep them: what is free at the end of its heap, up to `KEPT`.
"""

from __future__ import annotations

import ctypes
import functools

KEPT_BYTES = 1 << 30  # bytes
AHEAD = 64 << 20  # asked for at a time

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # numbers of glibc


@functools.cache
def keep_freed_memory() -> bool:
    """Once for a process; whether there is a library that can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    said = [mallopt(name, value) for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, AHEAD))]
    return all(said)
