"""Several byte areas in one buffer, such as the areas of a table in a memory-mapped file.

Invariant: the position of an area follows from the sizes and their order alone. Each area begins at a multiple of
`ALIGNED` bytes from the start of the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Area = npt.NDArray[np.uint8]

ALIGNED = 64


def round_up(size: int) -> int:
    """Round a size up to the start of the next area."""
    return size + -size % ALIGNED


def total_bytes(sizes: Mapping[str, int]) -> int:
    """Return the size of a buffer for areas of these sizes."""
    return sum(map(round_up, sizes.values()))


def split_buffer(buffer: Area, sizes: Mapping[str, int]) -> dict[str, Area]:
    """Return the areas of a buffer, in the order of `sizes`."""
    found, start = {}, 0
    for name, size in sizes.items():
        found[name] = buffer[start : start + size]
        start += round_up(size)
    return found


def zeroed_areas(sizes: Mapping[str, int]) -> dict[str, Area]:
    """Return zeroed areas in newly allocated memory."""
    whole = np.zeros(total_bytes(sizes) + ALIGNED, np.uint8)
    return split_buffer(whole[-whole.ctypes.data % ALIGNED :], sizes)
