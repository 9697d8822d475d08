"""Row selection and slicing of Arrow tables of any size.

Invariant: a column of text or bytes has at most 2 GiB in one chunk, because its offsets are 32-bit numbers. pyarrow's
`take` produces one chunk and fails beyond 2 GiB; the functions here produce as many chunks as needed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import numba_loops

Numbers = npt.NDArray[np.int64]

MOST_TABLE_BYTES = 256 << 20  # size of a slice that is processed at once
FEW, SHORT = 1_000, 1 << 32  # rows
SPARSE = 16  # of this many rows of several chunks at most one is taken: joining the chunks would cost more
ALIGNED = 64  # bytes; alignment that Arrow recommends for buffers
SAFE = 1 << 30  # bytes of a table in which no column can reach the limit


def row_bytes(table: pa.Table) -> int:
    """Return the average size of a row in bytes."""
    return max(1, int(table.nbytes) // max(int(table.num_rows), 1))


def slice_table(table: pa.Table, most: int = MOST_TABLE_BYTES) -> Iterator[pa.Table]:
    """Yield zero-copy slices of at most about `most` bytes, in order. A small table is yielded whole."""
    if table.nbytes <= most:
        yield table
        return
    for start, stop in pairwise(_bounds(table.num_rows, most // row_bytes(table))):
        yield table.slice(start, stop - start)


def _bounds(rows: int, most: int) -> list[int]:
    return [*range(0, rows, max(most, 1)), rows]


def take_rows(table: pa.Table, rows: Numbers) -> pa.Table:
    """Return the rows with these numbers, in this order."""
    plain = [place for place, column in enumerate(table.columns) if len(rows) > FEW and _is_plain(column)]
    if not plain or (table.column(plain[0]).num_chunks > 1 and SPARSE * len(rows) < table.num_rows):
        return _take(table, rows)
    others = [place for place in range(table.num_columns) if place not in plain]
    found = dict(zip(plain, _gathered_numbers([table.column(place) for place in plain], rows), strict=True))
    if others:
        found.update(zip(others, _take(table.select(others), rows).columns, strict=True))
    return pa.Table.from_arrays([found[place] for place in range(table.num_columns)], schema=table.schema)


def _is_plain(column: pa.ChunkedArray) -> bool:
    """Return whether a column has fixed-width values of whole bytes and no nulls."""
    kind = column.type
    fixed = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    return bool(fixed) and not column.null_count


def _gathered_numbers(columns: Sequence[pa.ChunkedArray], rows: Numbers) -> list[Any]:
    """Gather rows of numeric columns into one allocation: new pages cost more than the copy, and a large allocation
    gets large pages.
    """
    if rows.min() < 0 or rows.max() >= len(columns[0]):
        raise IndexError(f"rows {rows.min()} to {rows.max()} of a table of {len(columns[0])}")
    if len(columns[0]) <= SHORT:
        rows = rows.astype(np.uint32)  # half to read, for every column
    kinds = [np.dtype(f"u{column.type.bit_width // 8}") for column in columns]
    starts = np.cumsum([0, *(-(-len(rows) * kind.itemsize // ALIGNED) * ALIGNED for kind in kinds)])
    memory, joined = np.empty(starts[-1], np.uint8), dict[np.dtype[Any], npt.NDArray[Any]]()
    found = []
    for column, kind, start in zip(columns, kinds, starts.tolist(), strict=False):
        pieces = [_numbers(chunk, kind) for chunk in column.chunks]
        if len(pieces) > 1:
            if kind not in joined:
                joined[kind] = np.empty(len(column), kind)  # the buffer is used again for the next column of this type
            pieces = [np.concatenate(pieces, out=joined[kind])]
        target = memory[start : start + len(rows) * kind.itemsize].view(kind)
        numba_loops.gather(pieces[0], rows, target)
        found.append(pa.Array.from_buffers(column.type, len(rows), [None, pa.py_buffer(target)]))
    return found


def _numbers(chunk: pa.Array, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if not len(chunk):
        return np.empty(0, kind)
    return np.frombuffer(chunk.buffers()[1], kind, len(chunk), chunk.offset * kind.itemsize)


def _take(table: pa.Table, rows: Numbers) -> pa.Table:
    few = table.num_rows <= FEW and len(rows) <= FEW  # rarely long, so computing their size is not worthwhile
    if few or not any(map(_has_text, table.schema.types)) or _is_safe(table, len(rows)):
        try:
            return table.take(pa.array(rows))
        except pa.ArrowInvalid:  # the result exceeds the limit of one chunk
            pass
    batches = table.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    pieces = pairwise(_bounds(len(rows), MOST_TABLE_BYTES // row_bytes(table)))
    found = [part for start, stop in pieces for part in _gathered(batches, starts, rows[start:stop])]
    return pa.concat_tables(found).cast(table.schema) if found else table.slice(0, 0)


def _is_safe(table: pa.Table, rows: int) -> bool:
    size = int(table.nbytes)
    return size <= SAFE and rows * size <= SAFE * max(int(table.num_rows), 1)


def _gathered(batches: Sequence[pa.RecordBatch], starts: Numbers, rows: Numbers) -> Iterator[pa.Table]:
    """Yield the rows, taken from each batch and put back in order. If the result is too large, split it in half and
    retry.
    """
    try:
        of = np.searchsorted(starts, rows, side="right") - 1
        order = np.argsort(of, kind="stable")
        used, first = np.unique(of[order], return_index=True)
        cuts = pairwise([*first.tolist(), len(rows)])
        parts = [
            batches[batch].take(pa.array(rows[order[start:stop]] - starts[batch]))
            for batch, (start, stop) in zip(used.tolist(), cuts, strict=True)
        ]
        yield pa.Table.from_batches(parts).take(pa.array(np.argsort(order)))
    except pa.ArrowInvalid:
        if len(rows) < 2:
            raise
        for half in np.array_split(rows, 2):
            yield from _gathered(batches, starts, half)


@functools.lru_cache(maxsize=1024)
def _has_text(kind: pa.DataType) -> bool:
    """Return whether values of this type have variable length."""
    if pa.types.is_nested(kind):
        return True
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
