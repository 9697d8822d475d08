"""Keyed tables of processors, held against a dict: random calls, keys and values of every type."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.buffers import Area
from headrace.columnar.values import comparable_values, sort_key
from headrace.errors import DataError
from headrace.kernels.keyed import keyed_table, row_layout, row_store
from headrace.kernels.keyed.buffer_allocator import DamagedTable, MemoryAllocator
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.processor import StateTable
from headrace.support.event_time import to_datetime

TS = pa.timestamp("us", "UTC")
MORE = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
NAN = float("nan")

Make = Callable[[random.Random], Any]

VALUES: dict[str, tuple[pa.DataType, Make]] = {
    "i8": (pa.int8(), lambda r: r.randint(-128, 127)),
    "u64": (pa.uint64(), lambda r: r.choice([0, 1, 2**64 - 1])),
    "f32": (pa.float32(), lambda r: r.choice([0.5, NAN, math.inf])),
    "f64": (pa.float64(), lambda r: r.choice([r.random(), NAN, -math.inf])),
    "flag": (pa.bool_(), lambda r: r.random() < 0.5),
    "text": (pa.string(), lambda r: "é" * r.randint(0, 5)),
    "long": (pa.binary(), lambda r: r.randbytes(r.choice((0, 3, 100, 120, 128, 130, 300, 310, 700)))),
    "raw": (pa.binary(), lambda r: bytes(r.randint(0, 3))),
    "day": (pa.date32(), lambda r: r.randint(-(10**6), 10**7)),
    "time": (pa.time64("us"), lambda r: r.randint(0, 86_399_999_999)),
    "local": (pa.timestamp("us"), lambda r: r.choice([-1, 0, 2**61])),
    "price": (pa.decimal128(10, 2), lambda r: Decimal(r.randint(-(10**6), 10**6)) / 4 * 4),
    "list": (pa.list_(pa.int64()), lambda r: [r.randint(0, 9)] * 2),
    "texts": (pa.list_(pa.string()), lambda r: ["ü", None][: r.randint(0, 2)]),
    "times": (pa.list_(TS), lambda r: [2**61, None, -(2**61)][: r.randint(0, 3)]),
    "struct": (pa.struct([("a", TS), ("b", pa.list_(pa.string()))]), lambda r: {"a": 2**60, "b": None}),
    "map": (pa.map_(pa.string(), pa.date32()), lambda r: [("x", r.randint(0, 9))]),
}
KEYS: dict[str, tuple[tuple[pa.DataType, list[Any]], ...]] = {
    "int": ((pa.int64(), [*range(-4, 5), 2**63 - 1]),),
    "small": ((pa.int8(), [*range(-4, 5), None]),),
    "text": ((pa.string(), ["", "a", "b", "é", "z\U0001f600", "\uffff", "A", None]),),
    "bytes": ((pa.binary(), [b"", b"\xff", b"a", b"ab", None]),),
    "both": ((pa.int32(), [1, 2, None]), (pa.string(), ["a", "b", None, ""])),
    "float": ((pa.float64(), [0.0, -0.0, NAN, math.inf, -math.inf, 1.5, None, -2.0]),),
    "floats": ((pa.float32(), [0.0, -0.0, NAN, 1.5, None]), (pa.float64(), [NAN, -0.0, None])),
    "time": ((TS, [-1, 0, 1, 2**61, -(2**61), None]),),
    "local": ((pa.timestamp("us"), [-1, 0, 2**61, None]), (pa.time64("us"), [0, 1])),
    "decimal": ((pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-3"), Decimal("10"), Decimal("0"), None]),),
    "decimals": ((pa.decimal32(5, 1), [Decimal("1.5"), Decimal("-3"), Decimal("10")]), (pa.bool_(), [True, False])),
    "flag": ((pa.bool_(), [True, False, None]),),
    "day": ((pa.date32(), [0, -1, 10**6, None]), (pa.uint64(), [0, 2**64 - 1])),
}
DUE = [None, -5, 0, 1, 2, 3, 50, 99]


def key(row: dict[str, Any], names: list[str]) -> Any:
    return tuple(sort_key(row[name]) for name in names)


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with values that compare; a type that is looked at by no other test is looked at here."""
    columns = [[sort_key(value) for value in comparable_values(column)] for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def counts(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


class Kept(MemoryAllocator):
    """Memory that another process would find again."""

    def areas(self, sizes: Mapping[str, int]) -> dict[str, Area]:
        self.last = super().areas(sizes)
        return self.last

    def found(self) -> Kept:
        """The same bytes elsewhere."""
        before, after = self.last, Kept()
        for name, area in after.areas({name: len(area) for name, area in before.items()}).items():
            area[:] = before[name]
        return after


class Walk:
    """Random calls, and what a dict says of them."""

    def __init__(self, kind: str, seed: int) -> None:
        self.r = random.Random(f"{kind} {seed}")
        self.names = [f"k{i}" for i in range(len(KEYS[kind]))]
        self.pools = [pool for _, pool in KEYS[kind]]
        fields = [(name, type_) for name, (type_, _) in zip(self.names, KEYS[kind], strict=True)]
        used = self.r.sample(sorted(VALUES), 4)
        fields += [(name, VALUES[name][0]) for name in used] + [("due", TS)]
        self.r.shuffle(fields)
        self.schema = pa.schema(fields)
        self.declared = StateTable(self.names, self.schema, due="due")
        self.key_schema = pa.schema([self.schema.field(name) for name in self.names])
        first = self.draw(self.some_keys(distinct=True))
        self.room = Kept()
        self.table = KeyedTable(self.declared, "t", first if self.r.random() < 0.8 else None, self.room)
        self.model = self.by_key(first) if len(self.table) else {}
        self.stored = dict(self.model)

    def some_keys(self, distinct: bool) -> list[tuple[Any, ...]]:
        keys = [tuple(self.r.choice(pool) for pool in self.pools) for _ in range(self.r.randint(0, 6))]
        if not distinct:
            return keys
        return list({tuple(sort_key(part) for part in k): k for k in keys}.values())

    def draw(self, keys: list[tuple[Any, ...]]) -> pa.Table:
        columns = {}
        for field in self.schema:
            if field.name in self.names:
                values = [k[self.names.index(field.name)] for k in keys]
            elif field.name == "due":
                values = [self.r.choice(DUE) for _ in keys]
            else:
                make = VALUES[field.name][1]
                values = [None if self.r.random() < 0.2 else make(self.r) for _ in keys]
            columns[field.name] = pa.array(values, field.type)
        return pa.table(columns, schema=self.schema)

    def asked(self, keys: list[tuple[Any, ...]]) -> pa.Table:
        columns = [pa.array([k[i] for k in keys], self.schema.field(name).type) for i, name in enumerate(self.names)]
        return pa.table(columns, schema=self.key_schema)

    def disguised(self, table: pa.Table) -> pa.Table:
        """The same rows in another form: columns in another order, chunks, slices, wider types."""
        if table.num_rows > 1 and self.r.random() < 0.5:
            cut = self.r.randint(0, table.num_rows)
            table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
        if self.r.random() < 0.3:
            table = pa.concat_tables([table, table]).slice(table.num_rows)
        if self.r.random() < 0.5:
            table = table.select(self.r.sample(table.column_names, table.num_columns))
        wide = {
            pa.string(): pa.large_string(),
            pa.int8(): pa.int64(),
            pa.float32(): pa.float64(),
            TS: pa.timestamp("us", "Asia/Tokyo"),
        }
        if self.r.random() < 0.5:
            table = table.cast(pa.schema([(f.name, wide.get(f.type, f.type)) for f in table.schema]))
        return table

    def by_key(self, table: pa.Table) -> dict[Any, dict[str, Any]]:
        return {tuple(row[name] for name in self.names): row for row in plain(table)}

    def step(self) -> None:
        getattr(self, self.r.choice(["put", "put", "delete", "get", "rows", "due", "changes", "face", "reopen"]))()
        assert len(self.table) == len(self.model)

    def put(self) -> None:
        rows = self.draw(self.some_keys(distinct=True))
        self.table.put(self.disguised(rows))
        self.model |= self.by_key(rows)

    def delete(self) -> None:
        keys = self.asked(self.some_keys(distinct=False))
        self.table.delete(self.disguised(keys))
        for row in plain(keys):
            self.model.pop(tuple(row.values()), None)

    def get(self) -> None:
        keys = self.asked(self.some_keys(distinct=False))
        found = self.table.get(self.disguised(keys))
        assert found.schema == self.schema
        nothing = dict.fromkeys(self.schema.names, sort_key(None))
        assert plain(found) == [{**self.model.get(tuple(k.values()), nothing), **k} for k in plain(keys)]
        assert self.table.has(keys).to_pylist() == [tuple(k.values()) in self.model for k in plain(keys)]

    def rows(self) -> None:
        found = self.table.rows()
        found.validate(full=True)
        assert found.schema == self.schema
        assert plain(found) == [self.model[k] for k in sorted(self.model)]

    def due(self) -> None:
        time = self.r.randint(-6, 100)
        expected = [row for row in self.model.values() if row["due"] != sort_key(None) and row["due"] <= sort_key(time)]
        expected.sort(key=lambda row: (row["due"], tuple(row[name] for name in self.names)))
        assert plain(self.table.due(to_datetime(time))) == expected

    def changes(self) -> None:
        found, before = self.table.changes(), set(self.stored)
        assert (found.put.schema, found.gone.schema) == (self.schema, self.key_schema)
        put, gone = self.by_key(found.put), [tuple(k.values()) for k in plain(found.gone)]
        assert list(put) == sorted(put) and gone == sorted(gone)
        for k in gone:
            del self.stored[k]
        assert not set(put) & set(gone)
        assert (found.old[: len(put)] < 0).tolist() == [k not in before for k in put]
        self.stored |= put
        assert self.stored == self.model
        assert self.table.changes().put.num_rows == self.table.changes().gone.num_rows == 0

    def reopen(self) -> None:
        """As another process does in the next epoch."""
        self.changes()
        self.room = self.room.found()
        self.table = KeyedTable.reopen(self.declared, "t", self.room.last, self.room)

    def face(self) -> None:
        """Rows made by number, and times written in place."""
        keys = self.asked(self.some_keys(distinct=False))
        numbers = self.table.numbers(keys)
        assert len(set(numbers.tolist())) == len({tuple(k.values()) for k in plain(keys)})
        time = self.r.choice([None, 7])
        self.table.columns["due"][numbers] = np.datetime64("NaT" if time is None else time, "us")
        self.table.touched(numbers)
        found = self.by_key(self.table.get(keys))
        for k, row in found.items():
            made = {f.name: sort_key(0 if counts(f.type) else None) for f in self.schema}
            made |= dict(zip(self.names, k, strict=True))
            self.model[k] = {**self.model.get(k, made), "due": sort_key(time)}
            assert row == self.model[k]


def walk(kind: str, seed: int, steps: int = 60) -> None:
    found = Walk(kind, seed)
    for _ in range(steps):
        found.step()
    found.rows()
    found.changes()


@pytest.mark.parametrize("seed", range(3 * MORE))
@pytest.mark.parametrize("kind", KEYS)
def test_a_table_is_a_dict(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:  # as if tables were large
        monkeypatch.setattr(keyed_table, "SMALLEST", 1)  # no room but what is needed
    walk(kind, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KEYS)
def test_a_table_is_a_dict_for_long(kind: str) -> None:
    for seed in range(100, 100 + 20 * MORE):
        walk(kind, seed, 100)


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged_walk(kind: str, seed: int) -> bool:
    """Whether damage was met; if not, answers are as if there were none."""
    found = Walk(kind, seed)
    for _ in range(25):
        found.step()
    found.changes()
    found.room = found.room.found()
    area = found.room.last[found.r.choice(sorted(found.room.last))]
    area[found.r.randrange(len(area))] ^= 1 << found.r.randrange(8)
    try:
        found.table = KeyedTable.reopen(found.declared, "t", found.room.last, found.room)
        for _ in range(25):
            found.step()
        found.rows()
    except DamagedTable as error:
        if error is not found.table.damaged:
            assert "its head is not" in str(error)
        return True
    return False


@pytest.mark.parametrize("kind", KEYS)
def test_a_bit_that_is_flipped_is_met_or_does_not_matter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_table, "SMALLEST", 1)
    met = [damaged_walk(kind, seed) for seed in range(10 * MORE)]
    assert any(met)


@pytest.mark.long
@pytest.mark.parametrize("kind", KEYS)
def test_a_bit_that_is_flipped_is_met_for_long(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_table, "SMALLEST", 1)
    met = [damaged_walk(kind, seed) for seed in range(100, 100 + 150 * MORE)]
    assert sum(met) > len(met) // 4


def answers(table: KeyedTable) -> list[Any]:
    """What a table says of everything; it is changed by that."""
    asked = pa.table({"vid": range(-2, 14)})
    said = [len(table), plain(table.get(asked)), plain(table.rows()), plain(table.due(to_datetime(6)))]
    table.put(cars(3, 20, 21, 22))
    table.delete(cars(5, 7, 21))
    numbers = table.numbers(np.arange(-3, 9))
    table.columns["n"][numbers] += 1
    table.touched(numbers)
    changes = table.changes()
    return [*said, plain(changes.put), plain(changes.gone), plain(table.due(to_datetime(99))), plain(table.rows())]


def some_cars() -> Kept:
    room = Kept()
    table = KeyedTable(CARS, "cars", cars(*range(10)), room)
    table.put(pa.concat_tables([car(i, closes=to_datetime(i), name="x" * 3 * i) for i in range(8)]))
    table.delete(cars(2, 4, 9))
    table.changes()
    return room


def reopened(room: Kept) -> KeyedTable:
    return KeyedTable.reopen(CARS, "cars", room.last, room)


@pytest.mark.parametrize(
    "step", [151, pytest.param(7, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.long)]
)
def test_every_bit_is_looked_at_or_does_not_matter(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_table, "SMALLEST", 1)
    before, met = some_cars(), 0
    expected, size = answers(reopened(before.found())), 8 * sum(map(len, before.last.values()))
    bits = [(name, bit) for name, area in before.last.items() for bit in range(8 * len(area))]
    for name, bit in bits[::step]:
        room = before.found()
        room.last[name][bit // 8] ^= 1 << bit % 8
        try:
            assert answers(reopened(room)) == expected, (name, bit)
        except DamagedTable:
            met += 1
    assert met * step > size // 3


def test_a_part_that_was_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had never been written."""
    monkeypatch.setattr(keyed_table, "SMALLEST", 1)
    before, met = some_cars(), 0
    expected = answers(reopened(before.found()))
    for name, area in before.last.items():
        for start in range(0, len(area), 64):
            room = before.found()
            room.last[name][start : start + 64] = 0
            try:
                assert answers(reopened(room)) == expected, (name, start)
            except DamagedTable:
                met += 1
    assert met > 12


@pytest.mark.parametrize("way", ["put", "touched"])
def test_what_is_due_is_never_missed_behind_a_time_that_was_altered(way: str) -> None:
    """Entries that come later are held against it on their way up."""
    r, met = random.Random(way), 0
    declared = StateTable(["k"], pa.schema([("k", pa.int64()), ("at", TS)]), due="at")
    for _ in range(250 * MORE):
        room, count = Kept(), r.randint(5, 40)
        first, later = ([r.randint(1, 99) for _ in range(size)] for size in (count, r.randint(0, 20)))
        rows = pa.table({"k": range(count), "at": pa.array(first, TS)})
        KeyedTable(declared, "t", rows, room).changes()
        room = room.found()
        room.last["heap"].view(np.int64)[2 * r.randrange(1, count // 2)] ^= 1 << r.randrange(63)
        table, keys, until = KeyedTable.reopen(declared, "t", room.last, room), np.arange(100, 100 + len(later)), 50
        try:
            if way == "put":
                table.put(pa.table({"k": keys, "at": pa.array(later, TS)}))
            else:
                n = table.numbers(keys)
                table.columns["at"][n] = np.array(later, "M8[us]")
                table.touched(n)
            found = set(table.due(to_datetime(until))["k"].to_pylist())
            dues = [*enumerate(first), *zip(keys.tolist(), later, strict=True)]
            assert found == {key for key, at in dues if at <= until}
        except DamagedTable:
            met += 1
    assert met > 50


def test_a_head_that_does_not_fit_is_refused() -> None:
    room = some_cars()
    with pytest.raises(DamagedTable, match="'cars' is damaged: its head is that of a table with other columns"):
        KeyedTable.reopen(StateTable(["vid"], CARS.columns), "cars", room.last, room)
    with pytest.raises(DamagedTable, match=r"its areas have .* bytes; expected"):
        KeyedTable.reopen(CARS, "cars", {**room.last, "text": room.last["text"][:-8]}, room)
    with pytest.raises(DamagedTable, match="its head is not what was written there"):
        KeyedTable.reopen(CARS, "cars", {}, room)


def test_damage_is_remembered() -> None:
    room = some_cars()
    room.last["rows"][:] = 0
    table = reopened(room)
    with pytest.raises(DamagedTable, match=r"'cars' is damaged: row .* is not what was written there") as caught:
        table.get(cars(1))
    assert table.damaged is caught.value
    for call in (table.rows, table.changes, table.__len__, lambda: table.put(cars(50)), lambda: table.columns["n"]):
        with pytest.raises(DamagedTable):
            call()


# --- room ------------------------------------------------------------------------------------------------------------


def cars_of_many(table: KeyedTable) -> None:
    table.put(cars(*range(100, 300)))


def long_name(table: KeyedTable) -> None:
    table.put(car(3, name="y" * 5000))


def many_numbers(table: KeyedTable) -> None:
    table.numbers(np.arange(100, 300))


def test_text_that_nobody_has_any_more_makes_room() -> None:
    room = Kept()
    table = KeyedTable(CARS, "cars", cars(*range(50)), room)
    for round_ in range(60):
        table.put(pa.concat_tables([car(i, name=str(round_ % 10) * (100 + 8 * (round_ % 7))) for i in range(50)]))
        if round_ % 3 == 0:
            table.changes()
    assert len(room.last["text"]) < 50 * 160 * 4
    assert table.rows()["name"].to_pylist() == ["9" * (100 + 8 * (59 % 7))] * 50
    table.changes()
    assert reopened(room).rows().equals(table.rows())


def test_what_was_not_told_is_not_told_after_text_has_moved_either() -> None:
    table = KeyedTable(CARS, "cars", cars(*range(50)))
    numbers = table.numbers(np.array([1, 2]))
    table.columns["n"][numbers[:1]] = 99
    for round_ in range(20):
        table.put(pa.concat_tables([car(i, name="x" * (100 + 8 * (round_ % 7))) for i in range(10, 50)]))
    with pytest.raises(DataError, match=r"the row of \(vid=1\) was written in place without a call of touched"):
        table.changes()
    table.touched(numbers)
    assert table.changes().put.num_rows == 42


@pytest.mark.parametrize("is_told", [True, False])
def test_a_row_that_was_only_read_may_get_another_entry_when_it_is_looked_for(is_told: bool) -> None:
    table = KeyedTable(CARS, "cars")
    for due in (5, 10):
        table.put(car(1, closes=to_datetime(due)))
        table.changes()
    n = table.numbers(cars(1))
    if not is_told:
        table.columns["n"][n] = 99
    assert table.due(to_datetime(7)).num_rows == 0
    if is_told:
        assert table.changes().put.num_rows == 0
    else:
        with pytest.raises(DataError, match="was written in place without a call"):
            table.changes()


@pytest.mark.parametrize("moved_by", [cars_of_many, long_name, many_numbers])
def test_columns_that_were_taken_before_the_table_moved_are_refused(moved_by: Callable[[KeyedTable], Any]) -> None:
    table = KeyedTable(CARS, "cars", cars(1, 2))
    n = table.numbers(cars(1, 2))
    column = table.columns["n"][1:]
    table.columns["n"][n] = 7
    table.touched(n)
    before = table.nbytes
    moved_by(table)
    assert table.nbytes > before
    column[:] = 8
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"columns that were taken before the table moved.*take them again after numbers"
        ):
            table.touched(n)
    column = table.columns["n"]
    column[n] = 9
    table.touched(n)
    assert table.get(cars(1, 2))["n"].to_pylist() == [9, 9]


class Keeper:
    """Takes a column, makes the table move, and writes through a column that was taken later."""

    def counted(self, keep: Callable[[Keeper, Any], Any], keys: int = 500) -> KeyedTable:
        table = KeyedTable(CARS, "cars", cars(1, 2))
        kept = keep(self, table.columns["n"])  # noqa: F841  merely held
        n = table.numbers(cars(*range(keys)))
        table.columns["n"][n] += 1
        table.touched(n)
        return table

    def held(self, column: Any) -> None:
        self.column = column

    def dropped(self, column: Any) -> None:
        """By nobody who can be reached."""
        circle: list[Any] = [column]
        circle.append(circle)


@pytest.mark.parametrize(
    "keep", [lambda _, column: column, lambda _, column: column[1:], Keeper.held, lambda _, column: [column]]
)
def test_who_merely_holds_an_earlier_column_is_refused(keep: Callable[[Keeper, Any], Any]) -> None:
    with pytest.raises(DataError, match="every variable, attribute and list entry that holds an earlier one"):
        Keeper().counted(keep)
    assert len(Keeper().counted(keep, keys=5)) == 5, "the table did not move"


@pytest.mark.parametrize("keep", [lambda _, column: column.copy(), lambda _, column: None, Keeper.dropped])
def test_who_holds_no_earlier_column_is_not_refused(keep: Callable[[Keeper, Any], Any]) -> None:
    assert len(Keeper().counted(keep)) == 500


def test_more_text_than_an_array_holds_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    table = KeyedTable(CARS, "cars", cars(*range(50)))
    found = table.rows()
    monkeypatch.setattr(row_layout, "MOST_ARRAY_BYTES", 40)
    assert table.rows()["name"].num_chunks > 8
    assert table.rows().equals(found)


def test_entries_of_rows_that_went_make_room() -> None:
    room = Kept()
    table = KeyedTable(CARS, "cars", None, room)
    for round_ in range(500):
        table.put(car(round_ % 5, closes=to_datetime(10_000 - round_)))  # earlier, each time
        if round_ % 2:
            table.delete(cars(1))
    assert len(room.last["heap"]) == 16 * 2 * keyed_table.SMALLEST
    assert table.due(to_datetime(9503))["vid"].to_pylist() == [4, 3, 2]


def test_a_list_of_much_work_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_table, "MOST_WORK", 100)
    table = KeyedTable(CARS, "cars", cars(*range(300)))
    assert len(table._areas.work) == len(table._areas.sums) == 0
    for vids in (range(300), range(20)):
        table.put(cars(*vids))
        assert table.changes().put.num_rows == len(vids)
        assert len(table._areas.work) == len(table._areas.sums) <= 100
    assert len(table._areas.work) >= 20, "a short one is kept"


def test_a_new_key_that_is_asked_for_often_takes_one_row() -> None:
    table = KeyedTable(CARS, "cars")
    before = table.nbytes
    table.numbers(np.repeat(np.arange(60), 1000))
    assert (len(table), table.nbytes) == (60, before)


def test_keys_of_one_hash_are_different_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room was made for fewer keys than there are."""
    monkeypatch.setattr(keyed_table, "SMALLEST", 1)
    table = KeyedTable(CARS, "cars")
    monkeypatch.setattr(keyed_table, "_first", lambda hashes: np.array([0]))
    monkeypatch.setattr(keyed_table, "_has_twins", lambda hashes: True)
    assert len(set(table.numbers(np.arange(100)).tolist())) == 100
    table.put(cars(*range(90, 120)))
    assert len(table) == 120
    with pytest.raises(DataError, match="more than once"):
        table.put(cars(7, 7))


def test_what_cannot_be_kept_is_compiled_all_the_same() -> None:
    names: dict[str, Any] = {}
    exec("def twice(number):\n    return 2 * number", names)  # of no file, so there is no place beside it
    assert row_store.compile_cached(names["twice"])(4) == 8


def test_many_columns() -> None:
    names = [f"c{i}" for i in range(100)]
    declared = StateTable(["c50", "c99"], pa.schema([(name, pa.int16()) for name in names]))
    rows = pa.table({name: pa.array([i, None, 2], pa.int16()) for i, name in enumerate(names)})
    room = Kept()
    table = KeyedTable(declared, "t", rows.slice(0, 2), room)
    table.put(rows.slice(2))
    table.changes()
    assert KeyedTable.reopen(declared, "t", room.last, room).get(rows).equals(rows)


# --- the rest is said one by one -------------------------------------------------------------------------------------

CARS = StateTable(
    ["vid"],
    pa.schema([("vid", pa.int64()), ("speed", pa.float64()), ("n", pa.int32()), ("closes", TS), ("name", pa.string())]),
    due="closes",
)


def car(vid: Any, **values: Any) -> pa.Table:
    row = {"vid": vid, "speed": None, "n": None, "closes": None, "name": None, **values}
    return pa.Table.from_pylist([row], schema=CARS.columns)


def cars(*vids: Any) -> pa.Table:
    return pa.concat_tables([car(vid, n=i, name=f"car {vid}") for i, vid in enumerate(vids)])


@pytest.mark.parametrize(
    "given", [np.array([True, False]), np.array([0.0, 1.0]), [None], ["a"], np.array([0], "M8[us]")]
)
def test_rows_that_were_touched_are_told_by_number(given: Any) -> None:
    table = KeyedTable(CARS, "cars", cars(1, 2))
    table.numbers(cars(1, 2))
    with pytest.raises(DataError, match=r"touched takes row numbers, as numbers\(keys\) gives them; found an array of"):
        table.touched(given)
    table.touched([])  # type: ignore[arg-type]
    table.touched(np.array([], bool))
    assert table.changes().put.num_rows == 0


def test_a_row_number_is_used_again() -> None:
    table = KeyedTable(CARS, "cars", cars(1, 2))
    for round_ in range(100):
        table.put(cars(*range(100 + round_, 130 + round_)))
        table.delete(table.rows().select(["vid"]))
        table.changes()
    assert len(table) == 0
    assert table.numbers(np.arange(30)).max() < 2 + 30


def test_bytes_grow_with_rows_and_with_text() -> None:
    few, many = KeyedTable(CARS, "cars", cars(1)), KeyedTable(CARS, "cars", cars(*range(2000)))
    assert few.nbytes + 100_000 < many.nbytes < 1_000_000
    long = KeyedTable(CARS, "cars", pa.concat_tables([car(i, name="x" * 10_000) for i in range(1000)]))
    assert long.nbytes > 10_000_000


def test_text_that_is_no_utf8_is_kept() -> None:
    declared = StateTable(["k"], pa.schema([("k", pa.string()), ("v", pa.string())]))
    odd = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
    table = KeyedTable(declared, "t", pa.table([odd, odd], schema=declared.columns))
    table.put(pa.table([odd, odd], schema=declared.columns))
    assert table.rows().column("v").cast(pa.binary()).to_pylist() == [b"a", b"\xff\xfe"]


def test_the_key_may_be_due() -> None:
    declared = StateTable(["at", "k"], pa.schema([("k", pa.int64()), ("at", TS)]), due="at")
    table = KeyedTable(declared, "t", pa.table({"k": [1, 2, 3], "at": pa.array([5, 3, None], TS)}))
    assert table.due(to_datetime(5)).column("k").to_pylist() == [2, 1]
    table.delete(table.due(to_datetime(4)).select(["at", "k"]))
    assert table.due(to_datetime(9)).column("k").to_pylist() == [1]
    assert table.changes().gone.to_pylist() == [{"at": to_datetime(3), "k": 2}]


def test_zeros_and_nan_have_one_form_when_stored() -> None:
    declared = StateTable(["k"], pa.schema([("k", pa.float64())]))
    other = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    table = KeyedTable(declared, "t", pa.table({"k": [-0.0, other]}))
    table.put(pa.table({"k": [-0.0]}))
    assert np.signbit(table.rows().column("k").to_numpy()).tolist() == [False, False]
    assert table.rows().column("k").to_numpy().view(np.uint64)[1] == np.array([NAN]).view(np.uint64)[0]
    assert np.signbit(table.get(pa.table({"k": [-0.0]})).column("k").to_numpy()).tolist() == [True], "as asked"


def test_rows_in_place() -> None:
    table = KeyedTable(CARS, "cars", car(7, n=5))
    for _ in range(3):
        numbers = table.numbers(np.array([7, 8, 9]))
        table.columns["n"][numbers] += 1
        table.touched(numbers)
    assert table.rows().column("n").to_pylist() == [8, 3, 3]
    assert table.rows().column("speed").to_pylist() == [None, 0.0, 0.0], "a null that nobody wrote stays"
    assert table.rows().column("closes").to_pylist() == [None] * 3
    assert table.changes().put.num_rows == 3
    assert not table.columns["vid"].flags.writeable
    assert sorted(table.columns) == ["closes", "n", "speed", "vid"]
    with pytest.raises(DataError, match="'name' of table 'cars' is string: no NumPy array holds it; use get and put"):
        table.columns["name"]
    with pytest.raises(DataError, match="no column 'x'; it has vid, speed"):
        table.columns["x"]
    table.delete(pa.table({"vid": [8]}))
    with pytest.raises(DataError, match="numbers without a row"):
        table.touched(numbers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: t.put(cars(1, 2, 1)),
            r"table 'cars': what was put has the key \(vid=1\) more than once, in rows 0 and 2",
        ),
        (
            lambda t: t.put(cars(1).drop_columns(["n"])),
            "'cars': what was put lacks 'n'; its columns are vid int64, speed",
        ),
        (lambda t: t.put(cars(1).append_column("x", [[1]])), "'cars': what was put also has 'x'; .* select"),
        (lambda t: t.put(cars(1).append_column("n", [[1]])), "more than once 'n'"),
        (
            lambda t: t.put(cars(1).set_column(1, "speed", pa.array(["fast"]))),
            "column 'speed' of type string; expected double; cast it",
        ),
        (
            lambda t: t.put(cars(1).set_column(1, "speed", pa.array([1]))),
            "column 'speed' of type int64; expected double",
        ),
        (
            lambda t: t.put(cars(1).set_column(3, "closes", pa.array([1], pa.timestamp("us")))),
            r"column 'closes' of type timestamp\[us\]; expected timestamp\[us, tz=UTC\]",
        ),
        (
            lambda t: t.put(cars(1).set_column(3, "closes", pa.array([1], pa.timestamp("ns", "UTC")))),
            "column 'closes' .* would lose data",
        ),
        (
            lambda t: t.put(cars(1).set_column(2, "n", pa.array([2**40]))),
            "column 'n' of type int64 with a value that int32, as declared, does not hold: .*1099511627776",
        ),
        (lambda t: t.put([{"vid": 1}]), "what was put must be a pyarrow Table; found a list"),
        (
            lambda t: t.get(cars(1).select(["speed"])),
            "get was asked for lacks 'vid' and also has 'speed'; the key columns",
        ),
        (lambda t: t.has(pa.table({"k": [1]})), "what has was asked for lacks 'vid' and also has 'k'"),
        (lambda t: t.delete(pa.table({"vid": ["a"]})), "column 'vid' of type string; expected int64"),
        (lambda t: t.due(dt.datetime(2026, 1, 1)), "'cars': due takes a datetime with a zone; found datetime"),
        (lambda t: t.due(5), "due takes a datetime with a zone; found 5"),
        (lambda t: t.numbers(np.array([1.5])), "must be a pyarrow Table"),
    ],
)
def test_errors_say_what_was_found_and_change_nothing(call: Any, message: str) -> None:
    table = KeyedTable(CARS, "cars", cars(1, 2))
    before = table.rows()
    with pytest.raises(DataError, match=message):
        call(table)
    assert table.rows() == before
    assert table.changes().put.num_rows == 0


def test_a_table_without_due_says_so() -> None:
    table = KeyedTable(StateTable(["k"], pa.schema([("k", pa.int64())])), "t")
    with pytest.raises(DataError, match="'t' has no due column; declare one"):
        table.due(to_datetime(0))
    with pytest.raises(DataError, match=r"'t': what was loaded has the key \(k=1\) more than once"):
        KeyedTable(table.declared, "t", pa.table({"k": [1, 1]}))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.array([None]), pa.list_(pa.int64())),
        (pa.array([None]), pa.struct([("a", pa.list_(TS))])),
        (pa.array([None]), pa.map_(pa.string(), TS)),
        (pa.array([None]), pa.decimal128(10, 2)),
        (pa.array([None]), pa.bool_()),
        (pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), pa.list_(pa.string())),
        (pa.array(["a"]).dictionary_encode(), pa.string()),
        (pa.array(["a"], pa.string_view()), pa.string()),
        (pa.array([b"ab"], pa.binary(2)), pa.binary()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([Decimal("1.50")]), pa.decimal128(20, 1)),
        (pa.array([0], pa.date64()), pa.date32()),
        (pa.array([0], pa.time32("s")), pa.time64("us")),
        (pa.array([[1]], pa.large_list(pa.int8())), pa.list_(pa.int64())),
        (pa.array([[]]), pa.list_(pa.int64())),
        (pa.array([{"a": None}]), pa.struct([("a", pa.string())])),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int64())),
        (pa.array([1], pa.uint8()), pa.int64()),
    ],
)
def test_types_of_one_family_are_taken(found: pa.Array, expected: pa.DataType) -> None:
    declared = StateTable(["k"], pa.schema([("k", pa.int64()), ("v", expected)]))
    table = KeyedTable(declared, "t")
    table.put(pa.table({"k": [1], "v": found}))
    assert table.rows().column("v").type == expected
    assert table.rows().column("v").to_pylist() == found.to_pylist()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.decimal128(10, 1)),
        (pa.array([1]), pa.string()),
        (pa.array([True]), pa.int64()),
        (pa.array([1]), TS),
        (pa.array([1], TS), pa.timestamp("us")),
        (pa.array(["a"]).dictionary_encode(), pa.int64()),
        (pa.array([{"b": 1}]), pa.struct([("a", pa.int64())])),
        (pa.array([["a"]]), pa.list_(pa.int64())),
        (pa.array([1e300]), pa.float32()),
        (pa.array([Decimal("1.55")]), pa.decimal128(20, 1)),
    ],
)
def test_types_of_another_family_and_values_that_do_not_fit_are_refused(found: pa.Array, expected: pa.DataType) -> None:
    declared = StateTable(["k"], pa.schema([("k", pa.int64()), ("v", expected)]))
    with pytest.raises(DataError, match="'t': what was put has column 'v' of type"):
        KeyedTable(declared, "t").put(pa.table({"k": [1], "v": found}))


def test_rows_will_do_for_keys() -> None:
    table = KeyedTable(CARS, "cars")
    table.put(cars(1, 2))
    assert table.has(cars(1, 3)).to_pylist() == [True, False]
    assert table.get(cars(2))["name"].to_pylist() == ["car 2"]
    table.delete(cars(1))
    assert len(table) == 1
