"""A keyed table of one substream: what `processor.Table` is when a processor runs.

Rows have numbers. Columns are read and written by number (`columns.py`), an index leads from a key to its number, and the
numbers of rows that went are given to others. Keys are the same value iff the index finds them so: a null is a value, NaN
is NaN, and -0.0 is stored as 0.0.

Invariant: the rows that were loaded, with the `changes` of every call applied in turn, are the rows that are there now. So
the number of a row that went stays reserved, with its key, until `changes` has told of it. A call that fails changes
nothing.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.arrow import Numbers, order
from headrace.errors import DataError
from headrace.given import named
from headrace.kernels.columns import Column, Fixed, column, enlarged, is_fixed, numpy_of, objects_of
from headrace.kernels.due import Due
from headrace.kernels.fitting import fit
from headrace.kernels.rooms import MEMORY, Damaged, Memory, Room
from headrace.moments import micros
from headrace.processor import StateTable
from headrace.types import shown

Keys = list[Any]  # one value that can be hashed per row: of a column, or a tuple of several

NAN = "nan"  # stands for NaN, which is not equal to itself
ENTRY = 100  # bytes, about, that the index takes per key
SMALLEST = 64  # rows that there is room for at first


@dataclass(frozen=True)
class Changes:
    """What happened to a table since it was loaded, or since it was last asked."""

    put: pa.Table  # whole rows, new or replaced
    gone: pa.Table  # keys that were there and are no longer
    new: npt.NDArray[np.bool_]  # of what was put: the key was not there before


class KeyedTable:
    """The rows of one substream by key."""

    def __init__(self, declared: StateTable, name: str, rows: pa.Table | None = None, room: Room = MEMORY) -> None:
        self.declared, self.name = declared, name
        self._room, self._area = room, np.zeros(0, np.uint8)
        self.damaged: Damaged | None = None
        self._keys = pa.schema([declared.columns.field(key) for key in declared.key])
        self._columns: dict[str, Column] = {f.name: column(f.type) for f in declared.columns}
        self._index: dict[Any, int] = {}
        self._gone: dict[Any, int] = {}  # keys that were there, and the rows that still hold them
        self._free: list[int] = []  # row numbers below `top` that nothing holds
        self._top = 0
        self._live = np.zeros(0, bool)  # rows that have a key in the index
        self._known = np.zeros(0, bool)  # rows whose key was there when changes were last asked for
        self._changed = np.zeros(0, bool)
        self._due = Due(self._fixed(declared.due)) if declared.due is not None else None
        if rows is not None:
            self._load(rows)
        self._spill()

    @classmethod
    def reopen(
        cls, declared: StateTable, name: str, areas: Mapping[str, npt.NDArray[np.uint8]], room: Room
    ) -> KeyedTable:
        """STAND-IN until tables live in areas."""
        area = areas["rows"]
        size, check = (int(each) for each in area[:16].view(np.uint64))
        if size > len(area) - 16 or xxhash.xxh3_64_intdigest(area[16 : 16 + size].tobytes()) != check:
            raise Damaged(f"table {name!r}")
        made = cls(declared, name, pa.ipc.open_stream(area[16 : 16 + size].tobytes()).read_all())
        made._room, made._area = room, area
        return made

    def _spill(self) -> None:
        if isinstance(self._room, Memory):
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.declared.columns) as writer:
            writer.write_table(self._read(self._all()))
        data = np.frombuffer(sink.getvalue(), np.uint8)
        if len(data) + 16 > len(self._area):
            self._area = self._room.areas({"rows": 2 * len(data) + 16})["rows"]
        self._area[:16].view(np.uint64)[:] = len(data), xxhash.xxh3_64_intdigest(data.tobytes())
        self._area[16 : 16 + len(data)] = data

    def _load(self, rows: pa.Table) -> None:
        rows = self._fit_rows(rows, "what was loaded")
        keys = _keys_of(rows.select(self.declared.key).columns)
        self._index = dict(zip(keys, range(len(keys)), strict=True))
        if len(self._index) < len(keys):
            self._refuse_twins(rows, keys, "what was loaded")
        self._top = len(keys)
        self._make_room()
        self._write(np.arange(self._top), rows)
        self._known[: self._top], self._changed[: self._top] = True, False

    # --- what a processor calls --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        return f"<table {self.name}: {len(self):,} rows>"

    def get(self, keys: pa.Table) -> pa.Table:
        """One row per key asked for, in that order: key columns as asked, the others null where there is no row."""
        keys = self._fit_keys(keys, "get")
        rows = self._numbers_of(_keys_of(keys.columns))
        found = [
            keys.column(name) if name in self.declared.key else values.read(rows)
            for name, values in self._columns.items()
        ]
        return pa.Table.from_arrays(found, schema=self.declared.columns)

    def has(self, keys: pa.Table) -> pa.BooleanArray:
        """Whether there is a row, for each key."""
        return pa.array(self._numbers_of(_keys_of(self._fit_keys(keys, "has").columns)) >= 0)

    def put(self, rows: pa.Table) -> None:
        """Insert or replace; a key twice in one call is an error."""
        rows = self._fit_rows(rows, "what was put")
        keys = _keys_of(rows.select(self.declared.key).columns)
        if len(set(keys)) < len(keys):
            self._refuse_twins(rows, keys, "what was put")
        self._write(self._numbers_for(keys), rows)

    def delete(self, keys: pa.Table) -> None:
        """Keys that are not there are no error."""
        asked = _keys_of(self._fit_keys(keys, "delete").columns)
        found = np.fromiter(map(self._index.pop, asked, repeat(-1)), np.int64, len(asked))
        places = np.flatnonzero(found >= 0)
        rows = found[places]
        known = self._known[rows]
        self._gone.update(
            (asked[place], row) for place, row in zip(places[known].tolist(), rows[known].tolist(), strict=True)
        )
        self._free += rows[~known].tolist()
        self._clear(rows)

    def rows(self) -> pa.Table:
        """All rows in order of the key."""
        return self._read(self._in_order(self._all(), self.declared.key))

    def due(self, time: dt.datetime) -> pa.Table:
        """The rows whose `due` is not after a time, in order of (due, key)."""
        if self._due is None or self.declared.due is None:
            msg = f"table {self.name!r} has no due column; declare one: StateTable(key=..., columns=..., due='closes')"
            raise DataError(msg)
        rows = self._due.until(self._micros(time), self._live)
        by_due = [self.declared.due, *(key for key in self.declared.key if key != self.declared.due)]
        return self._read(self._in_order(rows, by_due))

    # --- the fast face -----------------------------------------------------------------------------------------------

    def numbers(self, keys: pa.Table | npt.NDArray[Any]) -> Numbers:
        """The row number of each key, which holds until it is deleted. Where there is none a row is made: zeros and nulls.

        A NumPy array will do for a single key of whole numbers.
        """
        fitted = self._fit_keys(self._as_table(keys), "numbers")
        found = _keys_of(fitted.columns)
        rows = self._numbers_of(found)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            first = {found[place]: place for place in reversed(missing.tolist())}  # a key may be asked for twice
            made, places = self._numbers_for(list(first)), np.fromiter(first.values(), np.int64, len(first))
            for name, values in self._columns.items():
                if name in self.declared.key:
                    values.write(made, _one_form(fitted.column(name)).take(pa.array(places)))
                elif isinstance(values, Fixed):
                    values.begin(made)
            self._note(made)
            rows = self._numbers_of(found)
        return rows

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """NumPy views of the columns of numbers, booleans and times, by row number; say by `touched` what was written.

        Key columns are there to be read. A null reads as 0, NaN or NaT. Take the views after `numbers`, which may move them.
        """
        return _Faces(self)

    def touched(self, rows: npt.NDArray[Any]) -> None:
        """These rows were written through `columns`. A null that still reads as one stays null; a NaT becomes one."""
        rows = np.unique(np.asarray(rows, np.int64))
        if len(rows) and not (rows[0] >= 0 and rows[-1] < self._top and self._live[rows].all()):
            msg = f"table {self.name!r}: touched was given numbers of no row; ask for them by numbers(keys), after any delete"
            raise DataError(msg)
        for name in self.declared.values:
            values = self._columns[name]
            if isinstance(values, Fixed):
                values.accept(rows)
        self._note(rows)

    def _as_table(self, keys: pa.Table | npt.NDArray[Any]) -> pa.Table:
        if isinstance(keys, np.ndarray) and len(self._keys) == 1 and keys.ndim == 1 and keys.dtype.kind in "iu":
            return pa.Table.from_arrays([pa.array(keys)], names=self._keys.names)
        return keys

    # --- what the engine calls ---------------------------------------------------------------------------------------

    def changes(self) -> Changes:
        """What was put since loading or the last call, and which keys went; in order of the key."""
        put = np.flatnonzero(self._changed[: self._top])
        gone = np.fromiter(self._gone.values(), np.int64, len(self._gone))
        put = self._in_order(put, self.declared.key)
        found = Changes(
            self._read(put), self._read(self._in_order(gone, self.declared.key), self._keys), ~self._known[put]
        )
        self._changed[put], self._known[put], self._known[gone] = False, True, False
        self._free += gone.tolist()
        for name in self.declared.key:
            self._columns[name].clear(gone)
        self._gone = {}
        self._spill()
        return found

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        rows = len(self._index) + len(self._gone)
        return sum(values.nbytes(rows) for values in self._columns.values()) + ENTRY * rows + 3 * len(self._known)

    # --- rows by number ----------------------------------------------------------------------------------------------

    def _numbers_of(self, keys: Keys) -> Numbers:
        """-1 where there is no row."""
        return np.fromiter(map(self._index.get, keys, repeat(-1)), np.int64, len(keys))

    def _numbers_for(self, keys: Keys) -> Numbers:
        """Row numbers of different keys, given where there are none."""
        rows = self._numbers_of(keys)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            new = [keys[place] for place in missing.tolist()]
            rows[missing] = given = self._given(new)
            self._index.update(zip(new, given.tolist(), strict=True))
            self._make_room()
        return rows

    def _given(self, keys: Keys) -> Numbers:
        """Numbers for keys without a row: the one that is still reserved, or one that is free, or a new one."""
        rows = np.fromiter(map(self._gone.pop, keys, repeat(-1)), np.int64, len(keys))
        open_ = np.flatnonzero(rows < 0)
        free = self._free[-len(open_) :] if len(open_) else []
        del self._free[len(self._free) - len(free) :]
        top = self._top + len(open_) - len(free)
        rows[open_] = [*free, *range(self._top, top)]
        self._top = top
        return rows

    def _make_room(self) -> None:
        if self._top <= len(self._known):
            return
        rows = max(SMALLEST, self._top + self._top // 2 if len(self._known) else self._top)
        for values in self._columns.values():
            values.grow(rows)
        self._live, self._known, self._changed = (
            enlarged(marks, rows) for marks in (self._live, self._known, self._changed)
        )

    def _all(self) -> Numbers:
        return np.fromiter(self._index.values(), np.int64, len(self._index))

    @functools.cached_property
    def _no_rows(self) -> pa.Table:
        return self.declared.columns.empty_table()

    def _read(self, rows: Numbers, schema: pa.Schema | None = None) -> pa.Table:
        if not len(rows) and schema is None:
            return self._no_rows  # at most ticks nothing is due
        schema = schema or self.declared.columns
        return pa.Table.from_arrays([self._columns[name].read(rows) for name in schema.names], schema=schema)

    def _write(self, rows: Numbers, values: pa.Table) -> None:
        for name, target in self._columns.items():
            found = values.column(name)
            target.write(rows, _one_form(found) if name in self.declared.key else found)
        self._note(rows)

    def _note(self, rows: Numbers) -> None:
        self._live[rows] = self._changed[rows] = True
        if self._due is not None:
            self._due.add(rows)
        self._spill()

    def _clear(self, rows: Numbers) -> None:
        """Rows that went; those whose key must still be told keep it."""
        self._live[rows] = self._changed[rows] = False
        freed = rows[~self._known[rows]]
        for name, values in self._columns.items():
            values.clear(freed if name in self.declared.key else rows)
        self._spill()

    def _in_order(self, rows: Numbers, by: Sequence[str]) -> Numbers:
        """Nulls last, NaN above the numbers, text by its bytes."""
        if len(rows) < 2:
            return rows
        ordered: Numbers = rows[order([self._columns[name].read(rows) for name in by])]
        return ordered

    def _fixed(self, name: str) -> Fixed:
        found = self._columns[name]
        if not isinstance(found, Fixed):
            kind = self.declared.columns.field(name).type
            msg = f"column {name!r} of table {self.name!r} is {kind}: no NumPy array holds it; use get and put"
            raise DataError(msg)
        return found

    # --- what is refused ---------------------------------------------------------------------------------------------

    def _fit_rows(self, rows: Any, what: str) -> pa.Table:
        return fit(rows, self.declared.columns, f"table {self.name!r}: {what}")

    def _fit_keys(self, keys: Any, verb: str) -> pa.Table:
        """The key columns alone: tuples and rows can be asked with as they are."""
        if isinstance(keys, pa.Table) and all(keys.column_names.count(name) == 1 for name in self._keys.names):
            keys = keys.select(self._keys.names)
        return fit(keys, self._keys, f"table {self.name!r}: what {verb} was asked for", "the key columns")

    def _refuse_twins(self, rows: pa.Table, keys: Keys, what: str) -> None:
        seen: dict[Any, int] = {}
        for row, key in enumerate(keys):
            first = seen.setdefault(key, row)
            if first < row:
                parts = ", ".join(f"{name}={shown(rows.column(name)[row]):.100}" for name in self.declared.key)
                msg = f"table {self.name!r}: {what} has the key ({parts}) more than once, in rows {first} and {row}; a key has one row: decide which counts"
                raise DataError(msg)

    def _micros(self, time: Any) -> int:
        if not isinstance(time, dt.datetime) or time.tzinfo is None:
            msg = f"table {self.name!r}: due takes a datetime with a zone; found {named(time)}; such as the time of tick, or datetime(2026, 1, 1, tzinfo=UTC)"
            raise DataError(msg)
        return micros(time)


class _Faces(Mapping[str, npt.NDArray[Any]]):
    """The columns of fixed width as NumPy arrays, when they are asked for."""

    def __init__(self, table: KeyedTable) -> None:
        self._table = table

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        known = self._table.declared.columns.names
        if name not in known:
            raise DataError(f"table {self._table.name!r} has no column {name!r}; it has {', '.join(known)}")
        found = self._table._fixed(name).face
        if name in self._table.declared.key:
            found = found.view()
            found.setflags(write=False)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, values in self._table._columns.items() if isinstance(values, Fixed)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


# --- keys ------------------------------------------------------------------------------------------------------------


def _keys_of(columns: Sequence[pa.ChunkedArray]) -> Keys:
    plain = [_plain(values) for values in columns]
    return plain[0] if len(plain) == 1 else list(zip(*plain, strict=True))


def _plain(values: pa.ChunkedArray) -> Keys:
    """Values that are equal iff they are the same key."""
    plain = _plain_numbers(values) if is_fixed(values.type) else objects_of(values)
    return list(plain.tolist())


def _plain_numbers(values: pa.ChunkedArray) -> npt.NDArray[Any]:
    found, valid = numpy_of(values)
    odd = np.isnan(found) if found.dtype.kind == "f" else np.zeros(0, bool)
    if valid is True and not odd.any():
        return found
    plain = found.astype(object)
    if odd.any():
        plain[odd] = NAN
    if valid is not True:
        plain[~np.asarray(valid)] = None
    return plain


def _one_form(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """With one form of each key: doubles have two zeros, and many NaNs."""
    if not pa.types.is_floating(values.type):
        return values
    zero, nan = pa.scalar(0.0, values.type), pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))
