"""What Arrow's own operations do not do: rows by number, and pieces of a table, whatever the length of their text.

Invariant: a column of text or bytes has at most 2 GiB in one chunk, because its offsets are 32-bit numbers. `take` of
pyarrow makes one chunk and fails beyond that; what is here makes as many as it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]

PIECE = 256 << 20  # bytes that are worked on together
SAFE = 1 << 30  # bytes of a table in which no column comes near the limit


def row_bytes(table: pa.Table) -> int:
    """About what one row takes."""
    return max(1, int(table.nbytes) // max(int(table.num_rows), 1))


def cut(table: pa.Table, most: int = PIECE) -> Iterator[pa.Table]:
    """The table in pieces of at most about so many bytes, in order, without a copy; itself when it is small."""
    if table.nbytes <= most:
        yield table
        return
    for start, stop in pairwise(_bounds(table.num_rows, most // row_bytes(table))):
        yield table.slice(start, stop - start)


def _bounds(rows: int, most: int) -> list[int]:
    return [*range(0, rows, max(most, 1)), rows]


def take(table: pa.Table, rows: Numbers) -> pa.Table:
    """Rows by number, in that order."""
    if table.nbytes <= SAFE and len(rows) * row_bytes(table) <= SAFE:
        try:
            return table.take(pa.array(rows))
        except pa.ArrowInvalid:  # the rows that are asked for are far longer than most
            pass
    wide = table.cast(pa.schema([field.with_type(_wide(field.type)) for field in table.schema])).combine_chunks()
    size = min(len(rows), max(1, PIECE // row_bytes(table)))
    pieces = (rows[start:stop] for start, stop in pairwise(_bounds(len(rows), size)))
    found = [part for piece in pieces for part in _taken(wide, piece, table.schema)]
    return pa.concat_tables(found) if found else table.slice(0, 0)


def _taken(wide: pa.Table, rows: Numbers, schema: pa.Schema) -> Iterator[pa.Table]:
    """These rows of a table with 64-bit offsets in the narrow types, halved until every half fits."""
    try:
        yield wide.take(pa.array(rows)).cast(schema)
    except pa.ArrowInvalid:
        if len(rows) < 2:
            raise
        for half in np.array_split(rows, 2):
            yield from _taken(wide, half, schema)


def _wide(kind: pa.DataType) -> pa.DataType:
    """The same type with 64-bit offsets."""
    t = pa.types
    if t.is_string(kind):
        return pa.large_string()
    if t.is_binary(kind):
        return pa.large_binary()
    if t.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_wide(kind.value_type)))
    if t.is_struct(kind):
        return pa.struct([field.with_type(_wide(field.type)) for field in kind])
    if t.is_map(kind):
        return pa.map_(_wide(kind.key_type), _wide(kind.item_type))
    return kind
