"""STAND-IN: where a keyed table has its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

Area = npt.NDArray[np.uint8]


class Damaged(Exception):
    """Bytes of a table are not those that were written."""


class Room(Protocol):
    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        """New areas of so many bytes, all zero, 64-aligned. Earlier ones stay readable until the next call returns."""


class Memory:
    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        return {name: np.zeros(size, np.uint8) for name, size in sizes.items()}


MEMORY = Memory()
