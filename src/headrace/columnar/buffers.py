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


def round_up(size: int) -> int:
    """Up to where the next area may begin."""
    return size + -size % ALIGNED


def total_bytes(sizes: Mapping[str, int]) -> int:
    """Bytes that areas of these sizes take together."""
    return sum(map(round_up, sizes.values()))


def split_buffer(buffer: Area, sizes: Mapping[str, int]) -> dict[str, Area]:
    """The areas, from the beginning of the buffer on."""
    found, start = {}, 0
    for name, size in sizes.items():
        found[name] = buffer[start : start + size]
        start += round_up(size)
    return found


def zeroed_areas(sizes: Mapping[str, int]) -> dict[str, Area]:
    """Areas of plain memory, all zero."""
    whole = np.zeros(total_bytes(sizes) + ALIGNED, np.uint8)
    return split_buffer(whole[-whole.ctypes.data % ALIGNED :], sizes)
