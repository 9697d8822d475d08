"""Several areas of bytes in one buffer, such as those of a table in a file that is mapped.

Invariant: where an area is follows from the sizes alone, in their order, so whoever has buffer and sizes has the areas; each
begins at a multiple of `ALIGNED` bytes from the beginning of the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Area = npt.NDArray[np.uint8]

ALIGNED = 64


def rounded(size: int) -> int:
    """Up to where the next area may begin."""
    return size + -size % ALIGNED


def span(sizes: Mapping[str, int]) -> int:
    """Bytes that areas of these sizes take together."""
    return sum(map(rounded, sizes.values()))


def laid_out(buffer: Area, sizes: Mapping[str, int]) -> dict[str, Area]:
    """The areas, from the beginning of the buffer on."""
    found, start = {}, 0
    for name, size in sizes.items():
        found[name] = buffer[start : start + size]
        start += rounded(size)
    return found


def in_memory(sizes: Mapping[str, int]) -> dict[str, Area]:
    """Areas of plain memory, all zero."""
    whole = np.zeros(span(sizes) + ALIGNED, np.uint8)
    return laid_out(whole[-whole.ctypes.data % ALIGNED :], sizes)
