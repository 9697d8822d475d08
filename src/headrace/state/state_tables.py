"""State tables as rows in blocks: which rows an epoch writes, and which rows count.

A row is `__substream`, `__at` (the epoch that wrote it), `__gone` (the key was deleted) and the table's columns; the
row of a deleted key has nulls in all columns but the key. Rows are sorted by the groups of their operator: the rows of
group g are offsets[g] .. offsets[g + 1] - 1 of a block. `low` and `high` of a block are the extremes of `__at`. A block
stores `__at` as its difference from `low`, in as few bytes as possible, and omits the column if all differences are 0.
`__substream` also has as few bytes as possible.

    renewed[g]      the epoch whose rows of group g are all that the group holds: its base (-1: there is none)
    a row of group g counts     iff   __at >= renewed[g], and no row of its (substream, key) has a larger __at
    the table after an epoch     =    the rows that count and are not tombstones

Invariants, from which it follows that no deleted row comes back and none is lost:

1. In an epoch, one slot writes the rows of a group, at most one row for each (substream, key). So `__at` orders the rows of
   a key strictly, across all blocks. Two rows of a key in one epoch raise an error when they are read (`newest_rows`).
2. renewed[g] only rises, and becomes n only in the epoch n that wrote the group's whole table, without tombstones. So
   rows with __at < renewed[g] never count again, whether they are dropped or kept.
3. A merge (`newest_rows` of some blocks, without rows that have __at < renewed[g]) drops a row only if it is dead by 2 or
   if the same merge keeps a newer row of its key, tombstone or not. A tombstone is dropped in no other way: the row that it
   hides may be in a block that is not merged, and that row dies by 2 no later than the tombstone. `__at` is unchanged, so
   any blocks may be merged, and low and high of the result may span epochs whose rows are in other blocks.
4. A block is dropped when its high < renewed[g] of every group that has rows. All of its rows are then dead by 2, or belong
   to a group without rows. Such a group got an empty base in the epoch n that deleted its last row: its older rows are dead
   by 2, and it has no rows of epoch n.
5. For every epoch, the number of its live rows (the newest of their key, no tombstones) and of its tombstones is known
   (`EpochRange`). A block is also dropped when no epoch from its low to its high has a live row, and either none has a
   tombstone or no other block has a low before its high. Each of its rows is then hidden by a newer live row, or by a
   tombstone that stays while any block may have an older row. Rows that are rewritten regularly therefore disappear
   without a base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import arrow
from headrace.errors import CorruptState, StateError
from headrace.state.blocks import REPAIR, Block, BlockReader, OpenBlock

SUBSTREAM_COLUMN, EPOCH_COLUMN, DELETED_COLUMN = "__substream", "__at", "__gone"
GROUP = "__group"  # the group of rows that were read; never stored
STORED_COLUMNS = (
    pa.field(SUBSTREAM_COLUMN, pa.int32()),
    pa.field(EPOCH_COLUMN, pa.int64()),
    pa.field(DELETED_COLUMN, pa.bool_()),
)

NARROW = {
    SUBSTREAM_COLUMN: (pa.uint8(), pa.uint16()),
    EPOCH_COLUMN: (pa.uint8(), pa.uint16(), pa.uint32()),
}  # the types in which they may be stored

Numbers = npt.NDArray[np.int64]
_WIDEST = 1 << 62  # the largest number packed from several columns


class TableColumns(Protocol):
    """The columns of a table, and which of them are the key within a substream."""

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def columns(self) -> pa.Schema: ...


def stored_schema(declared: TableColumns) -> pa.Schema:
    return pa.schema([*STORED_COLUMNS, *declared.columns])


def handed_schema(declared: TableColumns) -> pa.Schema:
    """Return the schema of rows as an operator has them."""
    return pa.schema([STORED_COLUMNS[0], *declared.columns])


# --- writing ---------------------------------------------------------------------------------------------------------


def changed_rows(declared: TableColumns, put: pa.Table, gone: pa.Table, epoch: int) -> pa.Table:
    """Return the rows that describe the changes of an epoch. A key may occur once, either in `put` or in `gone`."""
    whole = handed_schema(declared)
    keys = pa.schema([whole.field(SUBSTREAM_COLUMN), *(whole.field(name) for name in declared.key)])
    rows = [
        with_stored_columns(_as(put, whole, "the rows to put"), epoch),
        with_stored_columns(_as(gone, keys, "the keys to delete"), epoch, gone=True),
    ]
    found = pa.concat_tables([_widened(part, stored_schema(declared)) for part in rows])
    try:
        newest_rows(declared, [found])
    except CorruptState:
        raise StateError("a change names a key twice; put or delete each key once") from None
    return found


def with_stored_columns(rows: pa.Table, epoch: int, *, gone: bool = False) -> pa.Table:
    """Return rows of an operator with the columns that only the stored form has."""
    marks = (np.full(rows.num_rows, epoch, np.int64), np.full(rows.num_rows, gone, np.bool_))
    for place, (field, values) in enumerate(zip(STORED_COLUMNS[1:], marks, strict=True), start=1):
        rows = rows.add_column(place, field, pa.array(values))
    return rows


def _as(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    if set(table.column_names) != set(schema.names):
        raise StateError(f"{what} must have the columns {schema.names}; found {table.column_names}")
    return table.select(schema.names).replace_schema_metadata(None).cast(schema)


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the missing columns as nulls."""
    nothing = {f.name: pa.nulls(rows.num_rows, f.type) for f in schema if f.name not in rows.column_names}
    return pa.table([nothing[name] if name in nothing else rows.column(name) for name in schema.names], schema)


def narrow_columns(rows: pa.Table) -> pa.Table:
    """Return rows as a block stores them; `widen_columns` is the inverse."""
    if not rows.num_rows:
        return rows
    at = np.asarray(rows.column(EPOCH_COLUMN))
    more = at - at.min()
    rows = _narrow(rows, SUBSTREAM_COLUMN, np.asarray(rows.column(SUBSTREAM_COLUMN)))
    return _narrow(rows, EPOCH_COLUMN, more) if more.any() else rows.drop_columns([EPOCH_COLUMN])


def _narrow(rows: pa.Table, name: str, values: npt.NDArray[Any]) -> pa.Table:
    kind = pa.from_numpy_dtype(np.min_scalar_type(int(values.max())))
    if kind not in NARROW[name] or values.min() < 0:
        return rows
    return rows.set_column(rows.column_names.index(name), name, pa.array(values, kind))


def widen_columns(rows: pa.Table, low: int) -> pa.Table:
    """Return rows of a block in the form that `newest_rows` reads. low: the smallest `__at` of the block."""
    place, field = 1, STORED_COLUMNS[1]
    if EPOCH_COLUMN not in rows.column_names:
        rows = rows.add_column(place, field, pa.array(np.full(rows.num_rows, low, np.int64)))
    elif rows.schema.field(EPOCH_COLUMN).type != field.type:
        at = np.asarray(rows.column(EPOCH_COLUMN)).astype(np.int64) + low
        rows = rows.set_column(place, field, pa.array(at))
    if rows.schema.field(SUBSTREAM_COLUMN).type != STORED_COLUMNS[0].type:
        rows = rows.set_column(0, STORED_COLUMNS[0], rows.column(SUBSTREAM_COLUMN).cast(STORED_COLUMNS[0].type))
    return rows


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableBlock:
    """A verified block of a state table."""

    block: OpenBlock
    low: int


def open_table_block(reader: BlockReader, declared: TableColumns, block: Block, groups: int, what: str) -> TableBlock:
    """Open a block of a state table; raise if it is intact but belongs to something else."""
    found, low = reader.open(block), block.low or 0
    wanted = (what, stored_schema(declared).to_string(), groups, block.low, block.high)
    if wanted in found.known:
        return TableBlock(found, low)
    if not _is_of(found.table.schema.remove_metadata(), stored_schema(declared)):
        raise CorruptState(
            f"block {block.name} does not belong to {what}: its columns are {found.table.column_names}. {REPAIR}"
        )
    if found.offsets is None or len(found.offsets) != groups + 1:
        raise CorruptState(
            f"block {block.name} does not belong to {what}: it is not divided into {groups} groups. {REPAIR}"
        )
    if any(found.table.column(f.name).null_count for f in STORED_COLUMNS if f.name in found.table.column_names):
        raise CorruptState(
            f"block {block.name} does not belong to {what}: it has rows without epoch or substream. {REPAIR}"
        )
    extremes = _epochs(found.table, low)
    if extremes != (block.low, block.high):
        msg = (
            f"block {block.name} should have rows of the epochs {block.low} to {block.high}, found {extremes}. {REPAIR}"
        )
        raise CorruptState(msg)
    found.known.add(wanted)
    return TableBlock(found, low)


def _is_of(found: pa.Schema, stored: pa.Schema) -> bool:
    """Return whether these are the columns of a table, narrowed or not."""
    there = [f for f in stored if f.name != EPOCH_COLUMN or EPOCH_COLUMN in found.names]
    return found.names == [f.name for f in there] and all(
        found.field(f.name) == f or found.field(f.name).type in NARROW.get(f.name, ()) for f in there
    )


def _epochs(rows: pa.Table, low: int) -> tuple[int | None, int | None]:
    """Return the first and the last epoch of all rows."""
    if EPOCH_COLUMN not in rows.column_names:
        return (low, low) if rows.num_rows else (None, None)
    found = pc.min_max(rows.column(EPOCH_COLUMN))
    first, last = found["min"].as_py(), found["max"].as_py()
    begin = low if rows.schema.field(EPOCH_COLUMN).type != STORED_COLUMNS[1].type else 0
    return (None, None) if first is None else (begin + first, begin + last)


def live_candidates(part: TableBlock, groups: Numbers, renewed: Sequence[int]) -> pa.Table:
    """Return the rows of some groups (ascending) that are not older than the base, and the group of each row."""
    assert part.block.offsets is not None
    rows = widen_columns(part.block.slice(groups).replace_schema_metadata(None), part.low)
    of = np.repeat(groups, np.diff(part.block.offsets)[groups])
    alive = np.asarray(rows.column(EPOCH_COLUMN)) >= np.asarray(renewed, np.int64)[of]
    if not alive.all():
        rows, of = rows.filter(pa.array(alive)), of[alive]
    return rows.append_column(pa.field(GROUP, pa.int64()), pa.array(of, pa.int64()))


def newest_rows(declared: TableColumns, parts: Sequence[pa.Table]) -> pa.Table:
    """Return the newest row of every (substream, key), tombstones included, in the order of the parts (at least one).

    Null is a value of a key like any other, NaN equals NaN and -0.0 equals 0.0.
    """
    rows = pa.concat_tables(parts)
    if rows.num_rows < 2:
        return rows
    words, width = _words([rows.column(name) for name in (SUBSTREAM_COLUMN, *declared.key)])
    times, span = _from_zero(np.asarray(rows.column(EPOCH_COLUMN)))
    if width > _WIDEST // span:
        words, width = _dense(pa.chunked_array([words]))
    packed = words * span + times
    order = np.argsort(packed)
    packed = packed[order]
    if (packed[1:] == packed[:-1]).any():
        raise CorruptState(f"a key of {', '.join(declared.key)} occurs twice in the rows of one epoch. {REPAIR}")
    of = packed // span
    last = np.append(of[1:] != of[:-1], True)
    return rows if last.all() else arrow.take_rows(rows, np.sort(order[last]))


def live_rows(declared: TableColumns, parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of a table as an operator has them, with `__group` if the parts have it."""
    return _live_dated(declared, parts).drop_columns([EPOCH_COLUMN])


def _live_dated(declared: TableColumns, parts: Sequence[pa.Table]) -> pa.Table:
    """Return the live rows with `__at`."""
    if not parts:
        return pa.schema([*STORED_COLUMNS[:2], *declared.columns]).empty_table()
    found = newest_rows(declared, parts)
    return found.filter(pc.invert(found.column(DELETED_COLUMN))).drop_columns([DELETED_COLUMN])


class StoredTable(TableColumns, Protocol):
    """A state table as a manifest describes it."""

    @property
    def blocks(self) -> tuple[Block, ...]: ...

    @property
    def renewed(self) -> tuple[int, ...]: ...

    @property
    def rows(self) -> tuple[int, ...]: ...


def read_rows(reader: BlockReader, stored: StoredTable, groups: Sequence[int] | Numbers | None, what: str) -> pa.Table:
    """Return the live rows of some groups (ascending; None: all), and raise if their number differs from the manifest."""
    return read_rows_with_epochs(reader, stored, groups, what).drop_columns([EPOCH_COLUMN])


def read_rows_with_epochs(
    reader: BlockReader, stored: StoredTable, groups: Sequence[int] | Numbers | None, what: str
) -> pa.Table:
    """Return the same rows as `read_rows`, with `__at` after the substream."""
    total = len(stored.rows)
    chosen = np.arange(total) if groups is None else np.asarray(groups, np.int64)
    wanted = np.asarray(stored.rows, np.int64)[chosen]
    oldest = min((stored.renewed[group] for group in chosen[wanted > 0]), default=None)
    blocks = [b for b in stored.blocks if oldest is not None and b.high is not None and b.high >= oldest]
    found = [
        open_table_block(reader, stored, block, total, what) for block in blocks
    ]  # opens all of them before any can be deleted
    rows = _live_dated(stored, [live_candidates(block, chosen, stored.renewed) for block in found])
    of = np.asarray(rows.column(GROUP)) if found else np.zeros(0, np.int64)
    have = np.bincount(of, minlength=total)[chosen]
    for group, many, should in zip(chosen[have != wanted], have[have != wanted], wanted[have != wanted], strict=True):
        raise CorruptState(f"{what} should have {should} rows in group {group}, found {many}. {REPAIR}")
    return rows.select([SUBSTREAM_COLUMN, EPOCH_COLUMN, *stored.columns.names])


# --- keys as numbers -------------------------------------------------------------------------------------------------


def _words(columns: Sequence[pa.ChunkedArray]) -> tuple[Numbers, int]:
    """Return a number for every row, equal iff its values are equal, and a bound above all numbers."""
    words, width = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        codes, span = _codes(column)
        if width > _WIDEST // span:
            words, width = _dense(pa.chunked_array([words]))
        if width > _WIDEST // span:
            codes, span = _dense(column)
        words, width = words * span + codes, width * span
    return words, width


def _codes(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """Return whole numbers as distances from the smallest, unless these are too large; the last code means null."""
    if pa.types.is_floating(column.type):
        return _dense(_canonical(column))
    if not _is_whole(column.type):
        return _dense(column)
    numbers = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    values, span = _from_zero(np.asarray(numbers.cast(pa.int64()).fill_null(0)))
    if span > _WIDEST:
        return _dense(column)
    return (np.where(np.asarray(column.is_null()), span, values), span + 1) if column.null_count else (values, span)


def _is_whole(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_boolean(kind) or t.is_temporal(kind) or (t.is_integer(kind) and not t.is_uint64(kind)))


def _from_zero(values: Numbers) -> tuple[Numbers, int]:
    """Return the values less the smallest, and a bound above them; if the bound is too large, the values are wrong."""
    smallest = int(values.min())
    return values - smallest, int(values.max()) - smallest + 1


def _dense(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """Return the different values numbered from 0."""
    kind = column.type
    if column.nbytes > arrow.SAFE and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        column = column.cast(pa.large_binary())  # one dictionary cannot hold that much text
    found = column.dictionary_encode(null_encoding="encode").combine_chunks()
    return np.asarray(found.indices).astype(np.int64), max(len(found.dictionary), 1)


def _canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the bit patterns of floats, with one pattern for equal values: -0.0 becomes 0.0, and there is one NaN."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = np.array(column.cast(pa.float64()).fill_null(0.0), np.float64) + 0.0
    values[np.isnan(values)] = np.nan
    return pa.chunked_array([pa.array(values.view(np.int64), mask=np.asarray(column.is_null()))])
