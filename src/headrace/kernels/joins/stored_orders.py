"""Further orders of a block of state: its row numbers by the hash of another key than the one it is sorted by.

    column "__h(part int64)"  the hashes of the key `part`, in ascending order
    column "__r(part int64)"  the row of the block at each place of this order

Invariant: the two columns describe the whole block. A slice of the block has a part of them, which means nothing, so slots
read them of the whole block and leave out the rows of other slots (`BlockPieces`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.columnar import numba_loops
from headrace.columnar.arrow import Numbers
from headrace.routing.hashing import Hashes, hash_rows

_HASHES, _ROWS = "__h(", "__r("


@dataclass(frozen=True)
class KeyColumns:
    """Columns of an alias, in order, and the types as which their values are hashed."""

    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in zip(self.columns, self.types, strict=True))


def order_by_key(tuples: pa.Table, key: KeyColumns) -> tuple[Hashes, Numbers]:
    """Return the hashes of a key in ascending order, and the rows in this order."""
    hashes = hash_rows(tuples, key.columns, key.types)
    rows = numba_loops.order_by_hash(hashes)
    return hashes[rows], rows


def with_orders(tuples: pa.Table, keys: Sequence[KeyColumns], arrangement: Numbers) -> pa.Table:
    """Return tuples with the orders that a block has after `take(arrangement)`, at the places from which it takes them."""
    placed = np.empty(len(arrangement), np.int64)
    placed[arrangement] = np.arange(len(arrangement))  # the row that each tuple will have
    for key in keys:
        hashes, rows = order_by_key(tuples, key)
        for name, values in ((_HASHES, hashes), (_ROWS, placed[rows].astype(np.int32))):
            column = np.empty_like(values)
            column[arrangement] = values
            tuples = tuples.append_column(f"{name}{key.text})", pa.array(column))
    return tuples


def without_orders(tuples: pa.Table) -> pa.Table:
    names = [name for name in tuples.column_names if not name.startswith((_HASHES, _ROWS))]
    return tuples if len(names) == tuples.num_columns else tuples.select(names)


def stored_order(block: pa.Table, key: KeyColumns) -> tuple[Hashes, Numbers] | None:
    """Return the order of a whole block by a key as it is stored; None if the block has no such order."""
    names = [f"{_HASHES}{key.text})", f"{_ROWS}{key.text})"]
    if not set(names) <= set(block.column_names):
        return None
    hashes, rows = (np.asarray(block.column(name).combine_chunks()) for name in names)
    return hashes, rows


@dataclass(frozen=True)
class BlockPieces:
    """A whole block, and the intervals of its rows that a slot reads, ascending."""

    block: pa.Table
    pieces: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        return sum(stop - start for start, stop in self.pieces)

    @property
    def table(self) -> pa.Table:
        """Return the rows that the slot reads, without a copy."""
        plain = without_orders(self.block)
        return pa.concat_tables([plain.slice(start, stop - start) for start, stop in self.pieces])

    def places(self, rows: Numbers) -> Numbers:
        """Return the places in `table` of rows of the block; -1 for rows that the slot does not read."""
        if self.pieces == ((0, self.block.num_rows),):
            return rows.astype(np.int64)
        starts, stops = (np.array([piece[end] for piece in self.pieces]) for end in (0, 1))
        before = np.cumsum([0, *(stops - starts)])
        piece = np.maximum(np.searchsorted(starts, rows, side="right") - 1, 0)
        found: Numbers = np.where(
            (rows >= starts[piece]) & (rows < stops[piece]), before[piece] + rows - starts[piece], -1
        )
        return found
