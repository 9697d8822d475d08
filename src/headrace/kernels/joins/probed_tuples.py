"""The tuples of one alias of an n-way join, as a slot probes them: by the hash of a key, or by time.

A block is stored in one order: by the hash of its key, or by time. A block that is probed in another way gets another
order, row numbers by that hash or by time, when it is first probed that way.

Invariant: the ranges of a probe contain every tuple with an equal key, or within the times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.columnar import arrow, numba_loops
from headrace.columnar.arrow import Numbers
from headrace.kernels.joins.equijoin import equal_ranges
from headrace.kernels.joins.pairs import expand_ranges
from headrace.kernels.windows.aggregate import times
from headrace.routing.hashing import HASH, Hashes, hash_column_of, hash_rows


@dataclass(frozen=True)
class KeyColumns:
    """Columns of an alias, in order, and the types as which their values are hashed."""

    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]


@dataclass(frozen=True)
class RowOrder:
    """The rows of a block in another order: the row at each place, or None if that is the order of the block."""

    rows: Numbers | None

    def at(self, places: Numbers) -> Numbers:
        return places if self.rows is None else self.rows[places]


class ProbedBlock:
    """One block of an alias. key: the columns by whose hash the block is sorted; None: it has no hash."""

    def __init__(self, table: pa.Table, key: KeyColumns | None) -> None:
        self.table, self.key = table, key
        self.times = times(table)
        self._by_time: tuple[Numbers, RowOrder] | None = None
        self._by_key: dict[KeyColumns, tuple[Hashes, RowOrder]] = {}

    def by_time(self) -> tuple[Numbers, RowOrder]:
        """Return the times in ascending order, and the rows in this order."""
        if self._by_time is None:
            if np.all(self.times[:-1] <= self.times[1:]):
                self._by_time = self.times, RowOrder(None)
            else:
                order = np.argsort(self.times, kind="stable")
                self._by_time = self.times[order], RowOrder(order)
        return self._by_time

    def by_key(self, key: KeyColumns) -> tuple[Hashes, RowOrder]:
        """Return the hashes of a key in ascending order, and the rows in this order."""
        if key not in self._by_key:
            if key == self.key:
                self._by_key[key] = hash_column_of(self.table), RowOrder(None)
            else:
                hashes = hash_rows(self.table, key.columns, key.types)
                order = numba_loops.order_by_hash(hashes)
                self._by_key[key] = hashes[order], RowOrder(order)
        return self._by_key[key]


class ProbedTuples:
    """The tuples of several blocks of one alias, numbered from one block to the next."""

    def __init__(self, blocks: Sequence[ProbedBlock]) -> None:
        self.blocks = [block for block in blocks if block.table.num_rows]
        self.starts = np.cumsum([0, *(block.table.num_rows for block in self.blocks)])
        self.table = pa.concat_tables([block.table for block in self.blocks]) if self.blocks else None

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def taken(self, names: Sequence[str], rows: Numbers) -> pa.Table:
        """Return some columns of the tuples with these numbers."""
        assert self.table is not None
        return arrow.take_rows(self.table.select(names), rows)

    def hashes(self, key: KeyColumns, rows: Numbers) -> Hashes:
        """Return the hashes of a key of the tuples with these numbers."""
        if self.blocks[0].key == key:
            return hash_column_of(self.taken([HASH], rows))
        return hash_rows(self.taken(list(dict.fromkeys(key.columns)), rows), key.columns, key.types)

    def with_hashes(self, key: KeyColumns, hashes: Hashes) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield (i, rows, their times) for tuples whose key has the hash number i, in batches."""
        order = numba_loops.order_by_hash(hashes)
        wanted = hashes[order]
        for start, block in zip(self.starts.tolist(), self.blocks, strict=False):
            stored, rows_of = block.by_key(key)
            found, first, last = equal_ranges(wanted, stored)
            for i, places in expand_ranges(first, last):
                rows = rows_of.at(places)
                yield order[found[i]], rows + start, block.times[rows]

    def between(self, low: Numbers, high: Numbers) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield (i, rows, their times) for tuples from the time `low[i]` to the time `high[i]`, in batches."""
        for start, block in zip(self.starts.tolist(), self.blocks, strict=False):
            ascending, rows_of = block.by_time()
            first = np.searchsorted(ascending, low, side="left")
            last = np.searchsorted(ascending, high, side="right")
            for i, places in expand_ranges(first, np.maximum(first, last)):
                rows = rows_of.at(places)
                yield i, rows + start, block.times[rows]
