"""Allocators of the bytes of a state table: in memory, or elsewhere, such as in a mapped file.

Invariant: beyond the end of an epoch, a table keeps nothing outside its areas. A process that has the areas has the
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.columnar.buffers import Area, zeroed_areas


class DamagedTable(Exception):
    """The content of the areas cannot be what a table wrote there. The message names the place."""


class BufferAllocator(Protocol):
    """An allocator of the areas of one table."""

    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        """Return new areas of these sizes in bytes, zeroed and aligned to 64 bytes. A call always names all areas of
        the table.

        Earlier areas stay readable until the next call returns and the caller has copied them.
        """


class MemoryAllocator:
    """An allocator in plain memory."""

    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        return zeroed_areas(sizes)


MEMORY = MemoryAllocator()
