"""Sorting of rows by several columns, reading only as many columns as needed.

The leading bits of the first columns and the row's number are packed into one 64-bit number per row, which sorts fast.
Only rows that are still equal take part in the next round, which sorts them by the remaining bits and columns within
their run of equal rows. Columns that have no short integer code (text, decimals) are sorted by Arrow when they are
needed.

Invariant: codes have the order of their values: nulls last, NaN above all numbers and equal to itself, -0.0 equal to
0.0. Rows that are equal in all columns keep their order. Text is never put into one chunk, which holds at most 2 GiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import arrow, numba_loops

Numbers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint64]
Column: TypeAlias = pa.Array | pa.ChunkedArray

WORD_BITS = 64
FEW_ROWS = 1_000  # Arrow sorts fewer rows faster than codes are computed
CACHED_ROWS = 1 << 16  # rows whose codes are computed at once, so that they stay in the CPU's cache
SPARE_BITS = 12  # extra bits beyond the row number's that make most rows distinct
UNITS = (1_000_000, 1_000)  # many times are whole seconds or milliseconds, which need 20 or 10 bits less
CODED = (pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_integer)
NO_OVERFLOW = 1 << 62  # sums below this do not overflow
SIGN, LAST = np.uint64(1 << 63), np.uint64((1 << 64) - 1)


def sort_order(columns: Sequence[Column]) -> Numbers:
    """Return the row numbers in the order of these columns, which must not be nested: nulls last, NaN above all
    numbers, text by bytes.
    """
    if len(columns[0]) < FEW_ROWS:
        return _by_arrow(columns)
    found: Numbers = np.arange(len(columns[0]))
    given: Numbers | None = None  # None: all rows in their original order
    alike: slice | Numbers = slice(None)  # positions in `found` of rows that are still equal
    runs, rest, left = _KeyBits(np.zeros(len(found), np.uint64), 0), None, list(columns)
    while len(rows := found[alike]) > 1 and (left or rest):
        own = (len(rows) - 1).bit_length()
        parts, rest = _fitting(rest, left, given, WORD_BITS - own - runs.bits, own + SPARE_BITS)
        if not parts:
            others = left if given is None else arrow.take_rows(_table(left), given).columns
            found[alike] = rows[_by_arrow([pa.array(runs.codes), *others])]
            break
        parts = [runs, *parts]
        by, same = _sorted(_packed(parts), sum(part.bits for part in parts), own)
        found[alike] = rows[by]
        more = np.flatnonzero(np.append(same, False) | np.append(False, same))
        alike = more if isinstance(alike, slice) else alike[more]
        given = found[alike]
        runs = _numbered(~np.append(False, same)[more])
        rest = rest and _KeyBits(rest.codes[by[more]], rest.bits)
    return found


@dataclass(frozen=True)
class _KeyBits:
    """Integers below 2 ** bits, one per row."""

    codes: npt.NDArray[Any]
    bits: int
    least: int = 0  # offset that is subtracted from the codes, which then have any integer type

    def cut(self, bits: int) -> tuple[_KeyBits, _KeyBits]:
        """Split into the highest bits and the remaining bits."""
        low, codes = self.bits - bits, _packed([self])
        return _KeyBits(codes >> np.uint64(low), bits), _KeyBits(codes & np.uint64((1 << low) - 1), low)


def _fitting(
    rest: _KeyBits | None, left: list[Column], rows: Numbers | None, room: int, enough: int
) -> tuple[list[_KeyBits], _KeyBits | None]:
    """Return the next key parts, most important first, that fit into `room` bits, and the unused bits of the last
    column.

    Columns that were used are removed from `left`.
    """
    parts: list[_KeyBits] = []
    last = max(room - enough, 0)
    while room > last and (rest or left):
        part = rest or _coded(left[0], rows)
        if part is None:
            break
        if rest is None:
            del left[0]
        part, rest = (part, None) if part.bits <= room else part.cut(room)
        parts.append(part)
        room -= part.bits
    return parts, rest


def _packed(parts: Sequence[_KeyBits]) -> Codes:
    """Pack the parts into one number per row, the first part in the highest bits."""
    key = np.zeros(len(parts[0].codes), np.uint64)
    for start in range(0, len(key), CACHED_ROWS):
        piece = key[start : start + CACHED_ROWS]
        for part in parts:
            if part.bits:
                piece <<= np.uint64(part.bits % WORD_BITS)  # a part of 64 bits is alone, so nothing is above it
                piece |= part.codes[start : start + CACHED_ROWS].astype(np.uint64) - np.uint64(
                    part.least % (1 << WORD_BITS)
                )
    return key


def _sorted(key: Codes, bits: int, own: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Sort by the key's `bits` bits, keeping the order of equal rows. Return the row numbers, and for each row after
    the first whether its key equals the previous one.
    """
    key <<= np.uint64(own)
    key |= np.arange(len(key), dtype=np.uint64)
    key = numba_loops.order_by_bits(key, own, bits)
    by = (key & np.uint64((1 << own) - 1)).view(np.int64)
    key >>= np.uint64(own)
    return by, key[1:] == key[:-1]


def _numbered(begins: npt.NDArray[np.bool_]) -> _KeyBits:
    """Number the runs of equal rows."""
    runs = np.cumsum(begins)
    return _KeyBits((runs - 1).astype(np.uint64), (int(runs[-1]) - 1).bit_length() if len(runs) else 0)


def _table(columns: Sequence[Column]) -> pa.Table:
    return pa.Table.from_arrays(list(columns), names=[str(place) for place in range(len(columns))])


def _by_arrow(columns: Sequence[Column]) -> Numbers:
    table = _table([_sortable(column) for column in columns])
    keys = [(name, "ascending") for name in table.column_names]  # column names could be parsed as paths
    found: Numbers = pc.sort_indices(table, sort_keys=keys).to_numpy()
    return found


def _sortable(values: Column) -> Column:
    """Return a column that Arrow can sort. It cannot sort 32-bit and 64-bit decimals."""
    small = pa.types.is_decimal32(values.type) or pa.types.is_decimal64(values.type)
    return values.cast(pa.decimal128(38, values.type.scale)) if small else values


# --- codes -----------------------------------------------------------------------------------------------------------


def _coded(column: Column, rows: Numbers | None) -> _KeyBits | None:
    """Return rows of a column as integers of the fewest bits, or None if the column has no integer code."""
    if column.null_count == len(column):
        return _KeyBits(np.zeros(len(column) if rows is None else len(rows), np.uint64), 0)
    if not any(has(column.type) for has in CODED):
        return None
    if rows is not None:
        return _coded(column.take(pa.array(rows)), None)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_floating(column.type):
        return _of_doubles(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int64() if column.type.bit_width == WORD_BITS else pa.int32())
        return _of_numbers(column, UNITS)
    return _of_numbers(column, ())


def _of_numbers(column: pa.Array, units: Sequence[int]) -> _KeyBits | None:
    """Code integers as their distance from the smallest. A null is one more than the largest."""
    extremes = pc.min_max(column)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if column.null_count:
        if high - low + 1 > int(LAST):
            return None
        given = np.asarray(column.fill_null(low))
        codes = given.astype(np.uint64) - np.uint64(low % (1 << WORD_BITS))
        codes[np.asarray(column.is_null())] = high - low + 1
        return _KeyBits(codes, (high - low + 1).bit_length())
    values = np.asarray(column)
    for unit in units:
        if 0 < high - low < NO_OVERFLOW and (high - low) % unit == 0:
            whole = numba_loops.whole_units(values, low, unit)
            if whole is not None:
                return _KeyBits(whole, ((high - low) // unit).bit_length())
    return _KeyBits(values, (high - low).bit_length(), low)


def _of_doubles(column: pa.Array) -> _KeyBits:
    """Code doubles by their bits. With the sign adjusted, the bits have the order of the numbers."""
    values = np.asarray(column.cast(pa.float64()).fill_null(np.nan)) + 0.0  # turns -0.0 into 0.0
    values[np.isnan(values)] = np.nan  # gives all NaNs the same bits
    bits = values.view(np.uint64)
    codes = np.where(bits & SIGN, ~bits, bits | SIGN)
    if column.null_count:
        codes[np.asarray(column.is_null())] = LAST
    low, high = int(codes.min()), int(codes.max())
    return _KeyBits(codes, (high - low).bit_length(), low)
