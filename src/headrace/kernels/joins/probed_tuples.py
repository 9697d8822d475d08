"""The tuples of one alias of an n-way join, as a slot probes them: by the hash of a key, by a number, or by time.

A block is stored in one order: by the hash of its key, or by time. A block that is probed by another key stores a second
order, row numbers by that hash (`headrace.kernels.joins.stored_orders`). Any other order is made when it is first used.

Invariant: the ranges of a probe contain every tuple with an equal key, near the numbers, or within the times. Numbers are
compared as doubles, so their ranges are widened by more than rounding can lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow, numba_loops
from headrace.columnar.arrow import Numbers
from headrace.kernels.joins.equijoin import equal_ranges
from headrace.kernels.joins.pairs import expand_ranges
from headrace.kernels.joins.stored_orders import BlockPieces, KeyColumns, order_by_key, stored_order
from headrace.kernels.windows.aggregate import times
from headrace.routing.hashing import HASH, Hashes, hash_column_of, hash_rows

Doubles = npt.NDArray[np.float64]

SLACK = 1e-12  # relative; a conversion or subtraction of doubles loses about 1e-16


@dataclass(frozen=True)
class RowOrder:
    """The rows of a block in another order: the row at each place, or None if that is the order of the block.

    pieces: if the rows are those of a whole block, of which a slot reads these pieces.
    """

    rows: Numbers | None
    pieces: BlockPieces | None = None

    def at(self, places: Numbers) -> Numbers:
        """Return the rows at these places; -1 for rows that the slot does not read."""
        rows = places if self.rows is None else self.rows[places]
        return rows if self.pieces is None else self.pieces.places(rows)


class ProbedBlock:
    """The rows of one block of an alias that a slot reads.

    key: the columns by whose hash the rows are sorted; None: they have no hash. whole: the block, which may have further
    orders.
    """

    def __init__(self, table: pa.Table, key: KeyColumns | None, whole: BlockPieces | None = None) -> None:
        self.table, self.key, self.whole = table, key, whole
        self.times = times(table)
        self._by_time: tuple[Numbers, RowOrder] | None = None
        self._by_key: dict[KeyColumns, tuple[Hashes, RowOrder]] = {}
        self._by_number: dict[str, tuple[Doubles, RowOrder] | None] = {}

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
            self._by_key[key] = self._ordered(key)
        return self._by_key[key]

    def _ordered(self, key: KeyColumns) -> tuple[Hashes, RowOrder]:
        if key == self.key:
            return hash_column_of(self.table), RowOrder(None)
        if self.whole is not None and (stored := stored_order(self.whole.block, key)) is not None:
            return stored[0], RowOrder(stored[1], self.whole)
        hashes, rows = order_by_key(self.table, key)
        return hashes, RowOrder(rows)

    def by_number(self, column: str) -> tuple[Doubles, RowOrder] | None:
        """Return the numbers of a column in ascending order, and the rows in this order, without those that are null.

        None: a number is not finite, so that its place in DuckDB's order is not its place among doubles.
        """
        if column not in self._by_number:
            numbers, valid = as_doubles(self.table.column(column))
            rows = np.flatnonzero(valid)
            numbers = numbers[rows]
            order = np.argsort(numbers, kind="stable")
            finite = bool(np.isfinite(numbers).all())
            self._by_number[column] = (numbers[order], RowOrder(rows[order])) if finite else None
        return self._by_number[column]


def as_doubles(column: pa.ChunkedArray) -> tuple[Doubles, npt.NDArray[np.bool_]]:
    """Return the numbers or times of a column as doubles, and which of them are not null."""
    valid = np.asarray(column.is_valid())
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return np.asarray(column.fill_null(0)).astype(np.float64), valid


@dataclass(frozen=True)
class BlockRanges:
    """The tuples of one block that belong to each of some combinations: a range of places in an order of its rows."""

    start: int  # number of the first tuple of the block
    block: ProbedBlock
    order: RowOrder
    first: Numbers
    last: Numbers
    combinations: Numbers | None = None  # the number of each combination; None: they are numbered as the ranges are

    @property
    def candidates(self) -> int:
        return int((self.last - self.first).sum())

    def __iter__(self) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield (number of a combination, number of a tuple, its time) in batches."""
        for i, places in expand_ranges(self.first, self.last):
            rows = self.order.at(places)
            if self.order.pieces is not None:
                mine = rows >= 0
                i, rows = i[mine], rows[mine]
            numbers = i if self.combinations is None else self.combinations[i]
            yield numbers, rows + self.start, self.block.times[rows]


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

    def times(self, begin: int, end: int) -> Numbers:
        """Return the times of the tuples with the numbers begin .. end - 1."""
        found: Numbers = np.concatenate(
            [
                block.times[max(begin - start, 0) : max(end - start, 0)]
                for start, block in zip(self.starts.tolist(), self.blocks, strict=False)
            ]
        )
        return found

    def hashes(self, key: KeyColumns, rows: Numbers) -> Hashes:
        """Return the hashes of a key of the tuples with these numbers."""
        if self.blocks[0].key == key:
            return hash_column_of(self.taken([HASH], rows))
        return hash_rows(self.taken(list(dict.fromkeys(key.columns)), rows), key.columns, key.types)

    # --- probes ----------------------------------------------------------------------------------------------------------

    def with_hashes(self, key: KeyColumns, hashes: Hashes) -> Iterator[BlockRanges]:
        """Yield the tuples whose key has the hash number i, for each block."""
        order = numba_loops.order_by_hash(hashes)
        wanted = hashes[order]
        for start, block in self._numbered():
            stored, rows = block.by_key(key)
            found, first, last = equal_ranges(wanted, stored)
            yield BlockRanges(start, block, rows, first, last, order[found])

    def with_numbers(self, column: str, low: Doubles, high: Doubles) -> list[BlockRanges] | None:
        """Return the tuples with a number from `low[i]` to `high[i]`, for each block; None: numbers are not finite."""
        found = []
        for start, block in self._numbered():
            ordered = block.by_number(column)
            if ordered is None:
                return None
            first = np.searchsorted(ordered[0], low, side="left")
            last = np.searchsorted(ordered[0], high, side="right")
            found.append(BlockRanges(start, block, ordered[1], first, np.maximum(first, last)))
        return found

    def between(self, low: Numbers, high: Numbers) -> list[BlockRanges]:
        """Return the tuples from the time `low[i]` to the time `high[i]`, for each block."""
        found = []
        for start, block in self._numbered():
            ascending, rows = block.by_time()
            first = np.searchsorted(ascending, low, side="left")
            last = np.searchsorted(ascending, high, side="right")
            found.append(BlockRanges(start, block, rows, first, np.maximum(first, last)))
        return found

    def _numbered(self) -> Iterator[tuple[int, ProbedBlock]]:
        return zip(self.starts.tolist(), self.blocks, strict=False)
