"""Where the bytes of a table are: in memory, or wherever a `BufferAllocator` puts them, such as a file that is mapped.

Invariant: a table keeps nothing beyond the end of an epoch but what lies in its areas, so whoever has the areas has the
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.columnar.buffers import Area, zeroed_areas


class DamagedTable(Exception):
    """What is in the areas cannot be what a table wrote there; says where."""


class BufferAllocator(Protocol):
    """Where the bytes of a table are."""

    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        """New areas of so many bytes, all zero, multiple-of-64 aligned: always all areas of the table, at any later time too.

        Earlier ones stay readable until the next call returns and the caller has copied.
        """


class MemoryAllocator:
    """Plain memory."""

    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        return zeroed_areas(sizes)


MEMORY = MemoryAllocator()
