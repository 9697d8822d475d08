"""The order of rows by several columns, most of which need not be looked at.

The bits of the first columns, as many as fit above the row's own number, make one 64-bit number per row; to sort those is
fast. Only rows that are alike so far go on to the next round, with the run of alike rows that each is in and with the bits
and columns that are left. Values whose order is not that of a few bits (text, decimals) are left to Arrow when they decide.

Invariant: the codes of a column stand to each other as its values do: nulls last, NaN above the numbers and equal to
itself, -0.0 equal to 0.0. Rows that are equal in all columns stay as they stand. Text is never put into one chunk,
which holds no more than 2 GiB.
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
FEW_ROWS = 1_000  # rows: Arrow has sorted them before the codes are made
CACHED_ROWS = 1 << 16  # rows whose codes are made together: they stay in the processor's cache
SPARE_BITS = 12  # bits more than the number of rows has tell most of them apart
UNITS = (1_000_000, 1_000)  # times are often whole seconds or milliseconds, which take 20 or 10 bits less
CODED = (pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_integer)
NO_OVERFLOW = 1 << 62  # no sum below it is out of range
SIGN, LAST = np.uint64(1 << 63), np.uint64((1 << 64) - 1)


def sort_order(columns: Sequence[Column]) -> Numbers:
    """Row numbers by these columns, none of them nested: nulls last, NaN above the numbers, text by its bytes."""
    if len(columns[0]) < FEW_ROWS:
        return _by_arrow(columns)
    found: Numbers = np.arange(len(columns[0]))
    given: Numbers | None = None  # all, as they stand
    alike: slice | Numbers = slice(None)  # places in `found`: their rows are not told apart yet
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
    """Numbers below 2 ** bits, one per row."""

    codes: npt.NDArray[Any]
    bits: int
    least: int = 0  # to be subtracted from the codes, which are numbers of any kind then

    def cut(self, bits: int) -> tuple[_KeyBits, _KeyBits]:
        """The highest bits, and the others."""
        low, codes = self.bits - bits, _packed([self])
        return _KeyBits(codes >> np.uint64(low), bits), _KeyBits(codes & np.uint64((1 << low) - 1), low)


def _fitting(
    rest: _KeyBits | None, left: list[Column], rows: Numbers | None, room: int, enough: int
) -> tuple[list[_KeyBits], _KeyBits | None]:
    """(what tells rows apart, most important first: enough bits if there is room; what had none of a column's bits).

    Columns that were used are taken out of `left`.
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
    """The parts beside each other in one number per row, the first on top."""
    key = np.zeros(len(parts[0].codes), np.uint64)
    for start in range(0, len(key), CACHED_ROWS):
        piece = key[start : start + CACHED_ROWS]
        for part in parts:
            if part.bits:
                piece <<= np.uint64(part.bits % WORD_BITS)  # of 64 bits: it stands alone, above nothing
                piece |= part.codes[start : start + CACHED_ROWS].astype(np.uint64) - np.uint64(
                    part.least % (1 << WORD_BITS)
                )
    return key


def _sorted(key: Codes, bits: int, own: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """(row numbers by the key, which has so many bits, equal ones as they stand; whether each row after the first is like the one before it)."""
    key <<= np.uint64(own)
    key |= np.arange(len(key), dtype=np.uint64)
    key = numba_loops.order_by_bits(key, own, bits)
    by = (key & np.uint64((1 << own) - 1)).view(np.int64)
    key >>= np.uint64(own)
    return by, key[1:] == key[:-1]


def _numbered(begins: npt.NDArray[np.bool_]) -> _KeyBits:
    """The run that each row is in."""
    runs = np.cumsum(begins)
    return _KeyBits((runs - 1).astype(np.uint64), (int(runs[-1]) - 1).bit_length() if len(runs) else 0)


def _table(columns: Sequence[Column]) -> pa.Table:
    return pa.Table.from_arrays(list(columns), names=[str(place) for place in range(len(columns))])


def _by_arrow(columns: Sequence[Column]) -> Numbers:
    table = _table([_sortable(column) for column in columns])
    keys = [(name, "ascending") for name in table.column_names]  # those of the columns may look like paths
    found: Numbers = pc.sort_indices(table, sort_keys=keys).to_numpy()
    return found


def _sortable(values: Column) -> Column:
    """Arrow does not sort the small decimals."""
    small = pa.types.is_decimal32(values.type) or pa.types.is_decimal64(values.type)
    return values.cast(pa.decimal128(38, values.type.scale)) if small else values


# --- codes -----------------------------------------------------------------------------------------------------------


def _coded(column: Column, rows: Numbers | None) -> _KeyBits | None:
    """Some rows of a column as numbers of as few bits as hold them; None: its order is not that of numbers."""
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
    """Less the smallest; a null is one more than the largest."""
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
    """The bits of a double as they are stored, but for the sign, stand to each other as the numbers do."""
    values = np.asarray(column.cast(pa.float64()).fill_null(np.nan)) + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan  # there are many
    bits = values.view(np.uint64)
    codes = np.where(bits & SIGN, ~bits, bits | SIGN)
    if column.null_count:
        codes[np.asarray(column.is_null())] = LAST
    low, high = int(codes.min()), int(codes.max())
    return _KeyBits(codes, (high - low).bit_length(), low)
