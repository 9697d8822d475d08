"""Processors that run on streams of any schema: told which column is the key, and which a number."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.columnar.types import TS_TYPE
from tests.helpers import rows_of

SECOND = 1_000_000


def micros(time: datetime.datetime) -> int:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (time - epoch) // datetime.timedelta(microseconds=1)


def table_of(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Rows in a schema; times as microseconds."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(values, pa.int64()).cast(f.type) if f.type == TS_TYPE else pa.array(values, f.type)
        for f, values in zip(schema, columns, strict=True)
    ]
    return pa.table(arrays, schema=schema)


class Keyed(hr.Processor):
    """What they share: a key of any type."""

    def __init__(self, key: str, kind: pa.DataType, number: str | None) -> None:
        self.key, self.kind, self.number = key, kind, number

    def fields(self, **more: pa.DataType) -> pa.Schema:
        return pa.schema([("key", self.kind), *more.items()])

    def out(self, **more: pa.DataType) -> pa.Schema:
        return pa.schema([("ts", TS_TYPE), ("key", self.kind), *more.items()])

    def given(self, tuples: pa.Table) -> list[tuple[Any, ...]]:
        """(ts, key, number) of every tuple, in sequence."""
        return rows_of(tuples, "ts", self.key, self.number or "ts")

    def one(self, key: Any) -> pa.Table:
        return pa.table({"key": pa.array([key], self.kind)})


class Counter(Keyed):
    """The how-manieth of its key every tuple is."""

    @property
    def schema(self) -> pa.Schema:
        return self.out(n=pa.int64())

    @property
    def tables(self) -> Any:
        return {"counts": hr.StateTable(key=["key"], columns=self.fields(n=pa.int64()))}

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        counts, rows = state["counts"], []
        for ts, key, _ in self.given(tuples):
            n = (counts.get(self.one(key))["n"][0].as_py() or 0) + 1
            counts.put(table_of(self.fields(n=pa.int64()), [(key, n)]))
            rows.append((ts, key, n))
        return table_of(self.schema, rows)


class Sessions(Keyed):
    """Tuples of a key that follow each other soon; closed by a tick once their time is due, or by the end."""

    every = "2 seconds"
    gap = 3 * SECOND

    @property
    def schema(self) -> pa.Schema:
        return self.out(began=TS_TYPE, n=pa.int64())

    @property
    def tables(self) -> Any:
        columns = self.fields(began=TS_TYPE, n=pa.int64(), closes=TS_TYPE)
        return {"open": hr.StateTable(key=["key"], columns=columns, due="closes")}

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        held, rows = state["open"], []
        for ts, key, _ in self.given(tuples):
            ((began, n, closes),) = rows_of(held.get(self.one(key)), "began", "n", "closes")
            if n is not None and closes < ts:
                rows.append((ts, key, began, n))
                n = None
            began, n = (ts, 1) if n is None else (began, n + 1)
            held.put(table_of(self.tables["open"].columns, [(key, began, n, ts + self.gap)]))
        return table_of(self.schema, rows)

    def tick(self, time: datetime.datetime, state: Any) -> pa.Table:
        return self.closed(time, state["open"].due(time), state)

    def end(self, time: datetime.datetime, state: Any) -> pa.Table:
        return self.closed(time, state["open"].rows(), state)

    def closed(self, time: datetime.datetime, due: pa.Table, state: Any) -> pa.Table:
        state["open"].delete(due.select(["key"]))
        return table_of(self.schema, [(micros(time), *row) for row in rows_of(due, "key", "began", "n")])


class Matcher(Keyed):
    """A number that is larger than the two before it of its key."""

    @property
    def schema(self) -> pa.Schema:
        return self.out(value=pa.int64())

    @property
    def tables(self) -> Any:
        return {"last": hr.StateTable(key=["key"], columns=self.fields(a=pa.int64(), b=pa.int64()))}

    def process(self, tuples: pa.Table, state: Any) -> pa.Table | None:
        last, rows = state["last"], []
        for ts, key, number in self.given(tuples):
            value = int(number or 0)
            ((a, b),) = rows_of(last.get(self.one(key)), "a", "b")
            if a is not None and b is not None and value > max(a, b):
                rows.append((ts, key, value))
                last.delete(self.one(key))  # begins anew
            else:
                last.put(table_of(self.tables["last"].columns, [(key, b, value)]))
        return table_of(self.schema, rows) if rows else None


class Silent(Keyed):
    """At every tick: keys that were heard before, but not since the last one."""

    every = "1500 milliseconds"

    @property
    def schema(self) -> pa.Schema:
        return self.out(heard=TS_TYPE, ticks=pa.int64())

    @property
    def tables(self) -> Any:
        return {
            "heard": hr.StateTable(key=["key"], columns=self.fields(at=TS_TYPE)),
            "ticks": hr.StateTable(key=["one"], columns=pa.schema([("one", pa.bool_()), ("n", pa.int64())])),
        }

    def process(self, tuples: pa.Table, state: Any) -> None:
        newest = {_hashable(key): (key, ts) for ts, key, _ in self.given(tuples)}
        state["heard"].put(table_of(self.tables["heard"].columns, newest.values()))

    def tick(self, time: datetime.datetime, state: Any) -> pa.Table:
        one = pa.table({"one": [True]})
        n = (state["ticks"].get(one)["n"][0].as_py() or 0) + 1
        state["ticks"].put(pa.table({"one": [True], "n": [n]}))
        since = micros(time) - 1_500_000
        rows = [(micros(time), key, at, n) for key, at in rows_of(state["heard"].rows(), "key", "at") if at < since]
        return table_of(self.schema, rows)


class Two(Keyed):
    """Two outputs of different kinds; one says which substream it comes from."""

    @property
    def outputs(self) -> Any:  # type: ignore[override]
        where = pa.schema([("ts", TS_TYPE), ("substream", pa.int64()), ("substreams", pa.int64())])
        return {"keys": self.out(first=pa.bool_()), "places": where}

    @property
    def tables(self) -> Any:
        return {"seen": hr.StateTable(key=["key"], columns=self.fields(at=TS_TYPE))}

    def open(self, substream: int, substreams: int) -> None:
        self.place = (substream, substreams)

    def process(self, tuples: pa.Table, state: Any) -> Any:
        keys, places = [], []
        for ts, key, _ in self.given(tuples):
            first = not state["seen"].has(self.one(key))[0].as_py()
            if first:
                state["seen"].put(table_of(self.tables["seen"].columns, [(key, ts)]))
                places.append((ts, *self.place))
            keys.append((ts, key, first))
        outputs = self.outputs
        return {"keys": table_of(outputs["keys"], keys), "places": table_of(outputs["places"], places)}


class Together(Keyed):
    """How many tuples have one time: it relies on their coming together. At the end, how many there were in all."""

    @property
    def schema(self) -> pa.Schema:
        return self.out(n=pa.int64())

    @property
    def tables(self) -> Any:
        return {"all": hr.StateTable(key=["one"], columns=pa.schema([("one", pa.bool_()), ("n", pa.int64())]))}

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        n = self.so_far(state) + tuples.num_rows
        state["all"].put(pa.table({"one": [True], "n": [n]}))
        keys = {ts: key for ts, key, _ in reversed(self.given(tuples))}  # the first of each time
        many = collections.Counter(ts for ts, _, _ in self.given(tuples))
        return table_of(self.schema, [(ts, keys[ts], n) for ts, n in many.items()])

    def end(self, time: datetime.datetime, state: Any) -> pa.Table:
        return table_of(self.schema, [(micros(time), None, self.so_far(state))])

    def so_far(self, state: Any) -> int:
        return state["all"].get(pa.table({"one": [True]}))["n"][0].as_py() or 0


def _hashable(key: Any) -> Any:
    return "nan" if isinstance(key, float) and key != key else key


SINGLE = (Counter, Sessions, Matcher, Silent, Together)


class Later(Keyed):
    """Every tuple again, some seconds after it: a result may have any time that is not before its cause."""

    @property
    def schema(self) -> pa.Schema:
        return self.out(cause=TS_TYPE)

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return table_of(self.schema, [(ts + 7 * SECOND, key, ts) for ts, key, _ in self.given(tuples)])
