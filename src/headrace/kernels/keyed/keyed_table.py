"""The state table of one substream: the implementation of `headrace.processor.ProcessorTable`.

Rows have numbers. They are stored in a few areas of bytes of a `BufferAllocator` (`row_store.py` has the operations,
`row_layout.py` the places within a row). An index maps a key to its number, and numbers of deleted rows are reused. Two
keys are equal iff their stored bits are: a null is a value, NaN equals NaN, and -0.0 is stored as 0.0.

Invariant: the loaded rows, with the `changes` of every call applied in turn, are the present rows. So the number of a
deleted row stays reserved, with its key, until `changes` has reported it. A call that fails changes nothing. After
`changes` the areas are the whole table: another process may `reopen` them. A call reads only the rows that it needs and
the entries that lead to them. If one does not match its checksum, the call raises `DamagedTable`, and so does every
further call.
"""

from __future__ import annotations

import datetime as dt
import functools
import gc
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.columnar.arrow import Numbers
from headrace.columnar.buffers import Area
from headrace.columnar.sorting import sort_order
from headrace.columnar.types import value_text
from headrace.errors import DataError
from headrace.kernels.keyed.buffer_allocator import MEMORY, BufferAllocator, DamagedTable
from headrace.kernels.keyed.row_layout import RowColumn, RowLayout, Words
from headrace.kernels.stateless.coerce_rows import coerce_rows
from headrace.processor import StateTable
from headrace.support.argument_errors import describe_argument
from headrace.support.event_time import to_micros

if TYPE_CHECKING:
    from headrace.kernels.keyed import row_store

MAGIC = 0x65636172_64616568
TABLE_FORMAT = 2
HEAD = 32  # in 64-bit words
SMALLEST = 64  # rows that a new table has space for
LOADED = 1 << 20  # rows that are loaded at a time
SPREAD = 64  # variants of a larger size to choose from
MOST_WORK = 1 << 12  # changed rows for which space is kept between epochs
_AS_IT_IS = -1


@dataclass(frozen=True)
class TableChanges:
    """The changes to a table since it was loaded, or since the last call of `changes`."""

    put: pa.Table  # whole rows, new or replaced
    gone: pa.Table  # keys that were deleted
    old: Numbers  # for each row of `put`, then of `gone`: the epoch that wrote the former row; -1: none


@dataclass(frozen=True)
class _Capacity:
    """The numbers of rows and of words of text for which a table has space."""

    rows: int
    text: int  # 64-bit words

    def areas(self, layout: RowLayout) -> dict[str, int]:
        heap = 2 * self.rows if layout.due is not None else 4
        sizes = {"head": 8 * HEAD, "rows": 8 * layout.words * self.rows, "index": 8 * self.slots}
        return {**sizes, "text": 8 * self.text, "heap": 16 * heap}

    @property
    def slots(self) -> int:
        """Return the number of index entries. At most four in seven are used."""
        return self.rows * 7 // 4 + 1


class KeyedTable:
    """The rows of one substream by key."""

    def __init__(
        self,
        declared: StateTable,
        name: str,
        rows: pa.Table | None = None,
        room: BufferAllocator = MEMORY,
        at: Numbers | None = None,
    ) -> None:
        """Create a table from rows. at: the epoch that wrote each of the rows."""
        self._declare(declared, name, room)
        rows = None if rows is None else self._fit_rows(rows, "what was loaded")
        count = 0 if rows is None else rows.num_rows
        words = sum(rows.column(c.name).nbytes // 8 + count for c in self._layout.texts()) if rows is not None else 0
        sizes = _Capacity(max(count + count // 8, SMALLEST), max(words + words // 8, SMALLEST))
        self._open(room.areas(sizes.areas(self._layout)), sizes, np.zeros(self._do.COUNTERS, np.int64))
        self._areas.entries[:] = self._do.EMPTY_ENTRY
        if rows is not None:
            self._load(rows, np.zeros(count, np.int64) if at is None else at)
        self._write_head()

    @classmethod
    def reopen(cls, declared: StateTable, name: str, areas: Mapping[str, Area], room: BufferAllocator) -> KeyedTable:
        """Open the table in these areas, as it was after `changes`."""
        table = cls.__new__(cls)
        table._declare(declared, name, room)
        table._open(areas, *table._read_head(areas))
        return table

    def _declare(self, declared: StateTable, name: str, room: BufferAllocator) -> None:
        from headrace.kernels.keyed import row_store  # loads the compiler, which takes a while

        self.declared, self.name = declared, name
        self.damaged: DamagedTable | None = None  # the first damage found
        self._do, self._room = row_store, room
        self._keys = pa.schema([declared.columns.field(key) for key in declared.key])
        self._layout, self._shape, self._fingerprint = _layout(declared)

    def _open(self, areas: Mapping[str, Area], sizes: _Capacity, counters: Numbers) -> None:
        self._areas = self._do.Areas(*self._arrays(areas), *_no_work(), counters)
        self._bytes, self._sizes = areas, sizes
        self._lent: Words | None = None  # base of the views of columns, once there are any
        self._stale: list[weakref.ref[Words]] = []  # earlier bases, from before the table moved

    def _arrays(self, areas: Mapping[str, Area]) -> tuple[Words, Words, Words, Numbers]:
        rows, index, text, heap = (np.asarray(areas[name]) for name in ("rows", "index", "text", "heap"))
        words = rows.view(np.uint64).reshape(-1, self._layout.words)
        return words, index.view(np.uint64), text.view(np.uint64), heap.view(np.int64).reshape(-1, 2)

    def _load(self, rows: pa.Table, at: Numbers) -> None:
        for start in range(0, rows.num_rows, LOADED):
            piece = rows.slice(start, LOADED)
            images, text = self._layout.images(piece, self._layout.words)
            found, hashes = self._find(images, text)
            if found.max(initial=-1) >= 0 or _has_twins(hashes):
                self._refuse_twins(rows, "what was loaded")
            self._write(images, text, found, hashes)
            self._at.rows[found, -1] = at[start : start + LOADED]
            self._seal(_AS_IT_IS)

    # --- what a processor calls --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._at.head[self._do.ROWS])

    def __repr__(self) -> str:
        return f"<table {self.name}: {len(self):,} rows>"

    def get(self, keys: pa.Table) -> pa.Table:
        """Return one row for each key, in the order of the keys. Where the table has no row, the other columns are null.

        Examples:
            >>> seen.get(pa.table({"user": ["bob", "eve"]}))["n"].to_pylist()
            [1, None]
        """
        keys = self._fit_keys(keys, "get")
        rows = self._numbers_of(keys)
        values = iter(self._columns_of(rows, self.declared.values))
        found = [
            keys.column(name) if name in self.declared.key else next(values) for name in self.declared.columns.names
        ]
        return pa.Table.from_arrays(found, schema=self.declared.columns)

    def has(self, keys: pa.Table) -> pa.BooleanArray:
        """Return for each key whether the table has a row.

        Examples:
            >>> seen.has(pa.table({"user": ["bob", "eve"]})).to_pylist()
            [True, False]
        """
        return pa.array(self._numbers_of(self._fit_keys(keys, "has")) >= 0)

    def put(self, rows: pa.Table) -> None:
        """Insert rows, or replace the rows with the same keys. A key that appears twice is an error.

        Examples:
            >>> seen.put(seen.get(pa.table({"user": ["eve"]})))
            >>> len(seen)
            3
        """
        rows = self._fit_rows(rows, "what was put")
        images, text = self._layout.images(rows, self._layout.words)
        found, hashes = self._find(images, text)
        if _has_twins(hashes):
            self._refuse_twins(rows, "what was put")
        self._write(images, text, found, hashes)

    def delete(self, keys: pa.Table) -> None:
        """Delete rows by their keys. A key without a row is no error.

        Examples:
            >>> seen.delete(pa.table({"user": ["bob", "eve"]}))
            >>> seen.rows()["user"].to_pylist()
            ['ann']
        """
        rows = self._numbers_of(self._fit_keys(keys, "delete"))
        self._make_work(len(rows))
        self._demand_whole(self._run(self._do.delete, rows))

    def rows(self) -> pa.Table:
        """Return all rows in order of the key, nulls last.

        Examples:
            >>> seen.rows()["user"].to_pylist()
            ['ann', 'bob']
        """
        top = self._at.head[self._do.TOP]
        self._demand_whole(self._run(self._do.unsound, np.arange(top)))
        live = np.flatnonzero(self._at.rows[:top, 0] & self._do.LIVE)
        return self._read(self._in_order(live, self.declared.key))

    def due(self, time: dt.datetime) -> pa.Table:
        """Return the rows whose `due` column is not after a time, in order of that column, then of the key.

        Examples:
            >>> import datetime as dt
            >>> seen.due(dt.datetime.fromtimestamp(15, dt.UTC))["user"].to_pylist()
            ['ann']
        """
        if self.declared.due is None:
            msg = f"table {self.name!r} has no due column; declare one: StateTable(key=..., columns=..., due='closes')"
            raise DataError(msg)
        rows = np.empty(self._at.head[self._do.HEAP], np.int64)
        damage, found = self._run(self._do.until, self._micros(time), rows)
        self._demand_whole(damage)
        by_due = [self.declared.due, *(key for key in self.declared.key if key != self.declared.due)]
        return self._read(self._in_order(rows[:found], by_due))

    # --- access by row number ----------------------------------------------------------------------------------------

    def numbers(self, keys: pa.Table | npt.NDArray[Any]) -> Numbers:
        """Return the row number of each key, which stays the same until the row is deleted. A key without a row gets
        one, with zeros and nulls.

        A NumPy array is accepted for a key of one column of whole numbers.

        Examples:
            >>> rows = seen.numbers(pa.table({"user": ["ann", "bob"]}))
            >>> seen.columns["n"][rows].tolist()
            [3, 1]
        """
        images, text = self._images(self._fit_keys(self._as_table(keys), "numbers"))
        self._make_work(len(images))
        rows, hashes = self._find(images, text, self._do.HOLD)
        self._make_missing(images, text, rows, hashes)
        return rows

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """NumPy views of the columns of numbers, booleans and times, by row number. Report what was written with
        `touched`.

        Key columns are read-only. A null reads as 0, NaN or NaT. Take the views after `numbers` and `put`, which move
        the table when it needs more room: `touched` raises an error while any object holds a view of the former place.

        Examples:
            >>> rows = seen.numbers(pa.table({"user": ["ann"]}))
            >>> seen.columns["n"][rows] += 1
            >>> seen.touched(rows)
            >>> seen.get(pa.table({"user": ["ann"]}))["n"].to_pylist()
            [4]
        """
        return _ColumnViews(self)

    def touched(self, rows: npt.NDArray[Any]) -> None:
        """Record that rows were written through `columns`. A null that still reads as a null stays null; a NaT becomes
        null.

        Examples:
            >>> rows = seen.numbers(pa.table({"user": ["ann"]}))
            >>> seen.columns["n"][rows] = 0
            >>> seen.touched(rows)
        """
        given = np.asarray(rows)
        if given.size and given.dtype.kind not in "iu":
            msg = f"table {self.name!r}: touched takes row numbers, as numbers(keys) gives them; found an array of {given.dtype}"
            raise DataError(f"{msg}; of a mask: touched(n[mask])" if given.dtype.kind == "b" else msg)
        rows = np.array(given, np.int64).ravel()
        self._demand_no_stale_views()
        self._thin_heap(len(rows))
        found = self._run(self._do.touch, rows)
        if found == self._do.NO_ROW:
            msg = f"table {self.name!r}: touched was given numbers without a row; get them from numbers(keys), after any delete, in every epoch"
            raise DataError(msg)
        self._demand_whole(found)

    def _views(self) -> Words:
        """Return the rows as an array that only views of columns refer to."""
        if self._lent is None:
            self._lent = np.frombuffer(self._at.rows.data, np.uint64)
        return self._lent.reshape(self._at.rows.shape)

    def _demand_no_stale_views(self) -> None:
        """Raise while views of a former place of the table exist, because reading or writing them would be wrong."""
        if not self._has_stale_views():
            return
        gc.collect()  # unreachable objects may hold one
        if self._has_stale_views():
            msg = (
                f"table {self.name!r}: columns that were taken before the table moved are still held: what is written there"
                " is lost, and what is read there is old; take them again after numbers and put, and delete every variable,"
                " attribute and list entry that holds an earlier one"
            )
            raise DataError(msg)

    def _has_stale_views(self) -> bool:
        self._stale = [lent for lent in self._stale if lent() is not None]
        return bool(self._stale)

    def _as_table(self, keys: pa.Table | npt.NDArray[Any]) -> pa.Table:
        if isinstance(keys, np.ndarray) and len(self._keys) == 1 and keys.ndim == 1 and keys.dtype.kind in "iu":
            return pa.Table.from_arrays([pa.array(keys)], names=self._keys.names)
        return keys

    # --- what the engine calls ---------------------------------------------------------------------------------------

    def changes(self, epoch: int = 0) -> TableChanges:
        """Return the rows put and the keys deleted since loading or the last call, in order of the key. They belong to
        `epoch`."""
        do = self._do
        work = self._at.work[: self._at.head[do.WORK]]
        flags = self._at.rows[work, 0]
        put = self._in_order(work[flags & (do.LIVE | do.CHANGED) == do.LIVE | do.CHANGED], self.declared.key)
        gone = self._in_order(work[flags & (do.LIVE | do.FREE) == 0], self.declared.key)
        new = self._at.rows[put, 0] & do.NEW != 0
        old = np.where(
            np.append(new, np.zeros(len(gone), bool)), -1, self._at.rows[np.append(put, gone), -1].view(np.int64)
        )
        found = TableChanges(self._read(put), self._read(gone, self._keys), old)
        self._seal(epoch)
        self._write_head()
        return found

    @property
    def nbytes(self) -> int:
        """Return the size of the areas in bytes."""
        return sum(area.nbytes for area in self._bytes.values())

    def _seal(self, epoch: int) -> None:
        damage, row = self._run(self._do.seal, epoch)
        if damage == self._do.UNTOLD:
            key = _words(self._read(np.array([row]), self._keys), 0)
            msg = f"table {self.name!r}: the row of ({key}) was written in place without a call of touched(numbers)"
            raise DataError(msg)
        self._demand_whole(damage)
        if len(self._at.work) > MOST_WORK:
            work, sums = _no_work()
            self._areas = self._at._replace(work=work, sums=sums)

    # --- rows by number ----------------------------------------------------------------------------------------------

    @property
    def _at(self) -> row_store.Areas:
        """Return the areas; raise if they are known to be damaged."""
        if self.damaged is not None:
            raise self.damaged
        return self._areas

    def _run(self, compiled: Callable[..., Any], *given: Any) -> Any:
        return compiled(tuple(self._at), self._shape, *given)

    def _demand_whole(self, damage: int) -> None:
        if damage != self._do.WHOLE:
            place, area = divmod(damage, self._do.AREAS)
            raise self._remember(
                f"{('row', 'index entry', 'heap entry')[area]} {place:,} is not what was written there"
            )

    def _remember(self, what: str) -> DamagedTable:
        self.damaged = DamagedTable(f"table {self.name!r} is damaged: {what}")
        return self.damaged

    def _images(self, keys: pa.Table) -> tuple[Words, Words]:
        return self._layout.images(keys, self._layout.key_words)

    def _numbers_of(self, keys: pa.Table) -> Numbers:
        """Return the row number of each key; -1 where there is no row."""
        return self._find(*self._images(keys))[0]

    def _find(self, images: Words, text: Words, does: int = 0) -> tuple[Numbers, Words]:
        """Return the row numbers (-1 where there is no row) and the hashes of the keys."""
        numbers, hashes = np.full(len(images), -1), np.zeros(len(images), np.uint64)
        self._demand_whole(self._run(self._do.find, images, text, hashes, numbers, does))
        return numbers, hashes

    def _write(self, images: Words, text: Words, numbers: Numbers, hashes: Words) -> None:
        """Put rows with different keys."""
        self._make_room(int(np.count_nonzero(numbers < 0)), len(text))
        self._make_work(len(numbers))
        self._make_missing(images, text, numbers, hashes)
        self._thin_heap(len(numbers))
        self._demand_whole(self._run(self._do.write, images, text, numbers))

    def _make_missing(self, images: Words, text: Words, numbers: Numbers, hashes: Words) -> None:
        """Create a row for each key that has none; a key may occur more than once."""
        missing = np.flatnonzero(numbers < 0)
        if not len(missing):
            return
        first = missing[_first(hashes[missing])]
        self._make_room(len(first), self._layout.key_text(images[first]))
        if self._make(images, text, numbers, hashes) == self._do.NO_SPACE:  # different keys have the same hash
            self._make_room(len(missing), len(text))
            self._make(images, text, numbers, hashes)

    def _make(self, images: Words, text: Words, numbers: Numbers, hashes: Words) -> int:
        self._thin_heap(len(images))
        found: int = self._run(self._do.find, images, text, hashes, numbers, self._do.MAKE)
        if found != self._do.NO_SPACE:
            self._demand_whole(found)
        return found

    def _columns_of(self, rows: Numbers, names: Sequence[str]) -> list[pa.Array | pa.ChunkedArray]:
        return self._layout.read(self._at.rows, self._at.text, rows, names)

    @functools.cached_property
    def _no_rows(self) -> pa.Table:
        return self.declared.columns.empty_table()

    def _read(self, rows: Numbers, schema: pa.Schema | None = None) -> pa.Table:
        if not len(rows) and schema is None:
            return self._no_rows  # due rows are rare, so this is the usual case
        schema = schema or self.declared.columns
        return pa.Table.from_arrays(self._columns_of(rows, schema.names), schema=schema)

    def _in_order(self, rows: Numbers, by: Sequence[str]) -> Numbers:
        """Return the rows in order: nulls last, NaN above the numbers, text by its bytes."""
        if len(rows) < 2:
            return rows
        ordered: Numbers = rows[sort_order(self._columns_of(rows, by))]
        return ordered

    def _face(self, name: str) -> RowColumn:
        found = self._layout.columns[name]
        if not found.is_face:
            kind = self.declared.columns.field(name).type
            msg = f"column {name!r} of table {self.name!r} is {kind}: no NumPy array holds it; use get and put"
            raise DataError(msg)
        return found

    # --- space -------------------------------------------------------------------------------------------------------

    def _make_work(self, rows: int) -> None:
        """Make space for `rows` further changed rows."""
        need = int(self._at.head[self._do.WORK]) + rows
        if need > len(self._at.work):
            work, sums = np.empty(2 * need, np.int64), np.empty(2 * need, np.uint64)
            work[: len(self._at.work)], sums[: len(self._at.sums)] = self._at.work, self._at.sums
            self._areas = self._at._replace(work=work, sums=sums)

    def _make_room(self, rows: int, text: int) -> None:
        """Make space for further rows and for further words of text."""
        do, head, now = self._do, self._at.head, self._sizes
        text += text // 8  # a value may have that much spare space
        need = int(head[do.TOP] + max(rows - head[do.FREES], 0))
        used = int(head[do.TEXT_USED])
        if need <= now.rows and used + text <= now.text:
            return
        sparse = used + text > now.text and 2 * head[do.TEXT_LIVE] < used
        words = int(head[do.TEXT_LIVE] if sparse else used) + text
        if need > do.MOST_ROWS or words > do.MOST_TEXT:
            msg = f"table {self.name!r} cannot have more than {do.MOST_ROWS:,} rows or 64 GiB of text; split the stream into more substreams"
            raise DataError(msg)
        spread = _sum(np.array([used, need])) % SPREAD
        sizes = (_enlarged(now.rows, need, do.MOST_ROWS, spread), _enlarged(now.text, words, do.MOST_TEXT, spread))
        self._move(_Capacity(*sizes), sparse)

    def _move(self, sizes: _Capacity, sparse: bool) -> None:
        """Move the table to new areas. sparse: leave out dead text."""
        do, old = self._do, self._at
        areas = self._room.areas(sizes.areas(self._layout))
        new = do.Areas(*self._arrays(areas), *old[4:])
        top, entries = old.head[do.TOP], old.head[do.HEAP]
        new.rows[:top], new.heap[:entries] = old.rows[:top], old.heap[:entries]
        self._demand_whole(do.reindex(old.entries, new.entries))
        if sparse:
            self._demand_whole(do.compact(tuple(new._replace(text=old.text)), self._shape, new.text))
        else:
            new.text[: old.head[do.TEXT_USED]] = old.text[: old.head[do.TEXT_USED]]
        self._areas, self._sizes, self._bytes = new, sizes, areas
        if self._lent is not None:
            self._stale.append(weakref.ref(self._lent))
            self._lent = None

    def _thin_heap(self, rows: int) -> None:
        """Make space in the heap for `rows` rows, by removing entries that no row has any more."""
        heap, head = self._at.heap, self._at.head
        if self.declared.due is None or head[self._do.HEAP] + min(rows, self._sizes.rows) <= len(heap):
            return
        self._demand_whole(self._run(self._do.thin))
        left = heap[: head[self._do.HEAP]]
        left = left[np.lexsort((left[:, 1], left[:, 0]))]  # a sorted array is a heap
        left = left[np.append(True, (left[1:] != left[:-1]).any(axis=1))[: len(left)]]
        heap[: len(left)], head[self._do.HEAP] = left, len(left)

    # --- the head ----------------------------------------------------------------------------------------------------

    def _write_head(self) -> None:
        head = self._bytes["head"].view(np.int64)
        said = [MAGIC, self._fingerprint, self._sizes.rows, self._sizes.text, *self._at.head]
        head[: len(said)] = said
        head[-1] = _sum(head[:-1])

    def _read_head(self, areas: Mapping[str, Area]) -> tuple[_Capacity, Numbers]:
        head = np.asarray(areas["head"]).view(np.int64) if len(areas.get("head", ())) == 8 * HEAD else None
        if head is None or head[0] != MAGIC or head[-1] != _sum(head[:-1]):
            raise self._remember("its head is not what was written there")
        if head[1] != self._fingerprint:
            raise self._remember("its head is that of a table with other columns, or of another version")
        sizes = _Capacity(int(head[2]), int(head[3]))
        if sizes.areas(self._layout) != (found := {name: len(area) for name, area in areas.items()}):
            raise self._remember(f"its areas have {found} bytes; expected {sizes.areas(self._layout)}")
        return sizes, head[4 : 4 + self._do.COUNTERS].copy()

    # --- checks of arguments -----------------------------------------------------------------------------------------

    def _fit_rows(self, rows: Any, what: str) -> pa.Table:
        return coerce_rows(rows, self.declared.columns, f"table {self.name!r}: {what}")

    def _fit_keys(self, keys: Any, verb: str) -> pa.Table:
        """Return the key columns alone, so that whole tuples and rows can be used as keys."""
        if isinstance(keys, pa.Table) and all(keys.column_names.count(name) == 1 for name in self._keys.names):
            keys = keys.select(self._keys.names)
        return coerce_rows(keys, self._keys, f"table {self.name!r}: what {verb} was asked for", "the key columns")

    def _refuse_twins(self, rows: pa.Table, what: str) -> None:
        seen: dict[Any, int] = {}
        keys = rows.select(self.declared.key)
        for row, key in enumerate(self._layout.keys(*self._images(keys))):
            first = seen.setdefault(key, row)
            if first < row:
                msg = f"table {self.name!r}: {what} has the key ({_words(keys, row)}) more than once, in rows {first} and {row}; a key has one row: decide which counts"
                raise DataError(msg)

    def _micros(self, time: Any) -> int:
        if not isinstance(time, dt.datetime) or time.tzinfo is None:
            msg = f"table {self.name!r}: due takes a datetime with a zone; found {describe_argument(time)}; such as the time of tick, or datetime(2026, 1, 1, tzinfo=UTC)"
            raise DataError(msg)
        return to_micros(time)


class _ColumnViews(Mapping[str, npt.NDArray[Any]]):
    """The columns of fixed width as NumPy arrays, created on access."""

    def __init__(self, table: KeyedTable) -> None:
        self._table = table

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        known = self._table.declared.columns.names
        if name not in known:
            raise DataError(f"table {self._table.name!r} has no column {name!r}; it has {', '.join(known)}")
        found = self._table._face(name).shown(self._table._views())
        if name in self._table.declared.key:
            found = found.view()
            found.setflags(write=False)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, column in self._table._layout.columns.items() if column.is_face])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@functools.lru_cache(maxsize=256)
def _layout(declared: StateTable) -> tuple[RowLayout, tuple[Any, ...], int]:
    """Return the layout, its form for compiled code, and a fingerprint of both."""
    from headrace.kernels.keyed import row_store

    layout = RowLayout(declared)
    key, plain, slots = layout.masks()
    texts = layout.texts()
    shape = row_store.ColumnShape(
        key[: layout.key_words].copy(),
        plain,
        slots,
        layout.made(),
        np.array([column.word for column in texts], np.int64),
        sum(column.is_key for column in texts),
        layout.faces(),
        layout.due_place(),
    )
    return layout, tuple(shape), _sum(json.dumps([TABLE_FORMAT, declared.describe()]).encode())


def _no_work() -> tuple[Numbers, Words]:
    return np.zeros(0, np.int64), np.zeros(0, np.uint64)


def _enlarged(size: int, need: int, most: int, spread: int) -> int:
    """Return a larger size, which is not soon too small. `spread` varies it, so that similar tables do not all move in
    one epoch."""
    return size if need <= size // 2 else max(size, min(need + need // 2 + need * spread // (4 * SPREAD), most))


def _first(hashes: Words) -> Numbers:
    """Return the first position of each different hash."""
    return np.unique(hashes, return_index=True)[1]


def _has_twins(hashes: Words) -> bool:
    """Return whether two keys may be equal: equal hashes."""
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


def _words(keys: pa.Table, row: int) -> str:
    return ", ".join(f"{name}={value_text(keys.column(name)[row]):.100}" for name in keys.column_names)


def _sum(said: Any) -> int:
    return xxhash.xxh3_64_intdigest(said) >> 1  # a positive 64-bit number
