"""Counts and sessions as processors, as a user of headrace would write them: one `get` and one `put` per chunk, or row
numbers in place.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.processor import State

TS = pa.timestamp("us", "UTC")
Ints = npt.NDArray[np.int64]
SESSION = [("key", pa.int64()), ("began", TS), ("last", TS), ("n", pa.int64())]


class RunningCount(hr.Processor):
    """Numbers the tuples of each key."""

    schema = pa.schema([("ts", TS), ("key", pa.int64()), ("n", pa.int64())])
    tables = {"counts": hr.StateTable(key=["key"], columns=pa.schema([("key", pa.int64()), ("n", pa.int64())]))}  # noqa: RUF012

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        keys, of, many = np.unique(tuples["key"].to_numpy(), return_inverse=True, return_counts=True)
        asked = pa.table({"key": keys})
        before = state["counts"].get(asked)["n"].fill_null(0).to_numpy()
        state["counts"].put(asked.append_column("n", pa.array(before + many)))
        return self.numbered(tuples, of, many, before)

    def numbered(self, tuples: pa.Table, of: Ints, many: Ints, before: Ints) -> pa.Table:
        """Return the numbered tuples. of: key index of each tuple; many: tuples per key; before: earlier tuples per
        key.
        """
        order = np.argsort(of, kind="stable")  # groups the tuples by key, in sequence
        n = np.empty(len(of), np.int64)
        n[order] = np.arange(1, len(of) + 1) + np.repeat(before - (np.cumsum(many) - many), many)
        return pa.table([tuples["ts"], tuples["key"], pa.array(n)], schema=self.schema)


class RunningCountInPlace(RunningCount):
    """Numbers the tuples of each key by row numbers in place."""

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        counts = state["counts"]
        rows, of, many = np.unique(counts.numbers(tuples["key"].to_numpy()), return_inverse=True, return_counts=True)
        n = counts.columns["n"]
        before = n[rows]
        n[rows] = before + many
        counts.touched(rows)
        return self.numbered(tuples, of, many, before)


class CountInPlace(RunningCount):
    """Counts the tuples of each key in its table, without results."""

    def process(self, tuples: pa.Table, state: State) -> None:
        counts = state["counts"]
        rows = counts.numbers(tuples["key"].to_numpy())
        np.add.at(counts.columns["n"], rows, 1)
        counts.touched(rows)


class CountByType(hr.Processor):
    """Counts the tuples of each type in a substream between two ticks."""

    schema = pa.schema([("ts", TS), ("substream", pa.int64()), ("type", pa.int64()), ("n", pa.int64())])
    tables = {"counts": hr.StateTable(key=["type"], columns=pa.schema([("type", pa.int64()), ("n", pa.int64())]))}  # noqa: RUF012

    def __init__(self, every: dt.timedelta) -> None:
        self.every = every

    def open(self, substream: int, substreams: int) -> None:
        self.substream = substream

    def process(self, tuples: pa.Table, state: State) -> None:
        counts, many = state["counts"], np.bincount(tuples["type"].to_numpy())
        types = np.flatnonzero(many)
        rows = counts.numbers(types)
        counts.columns["n"][rows] += many[types]
        counts.touched(rows)

    def tick(self, time: dt.datetime, state: State) -> pa.Table:
        found = state["counts"].rows()
        state["counts"].delete(found)
        ts, number = (pa.repeat(pa.scalar(*of), len(found)) for of in ((time, TS), (self.substream, pa.int64())))
        return pa.table([ts, number, *found.columns], schema=self.schema)


class Sessions(hr.Processor):
    """Sessions: tuples of a key, each less than a gap after the previous one. A session is emitted by the tuple that
    begins the next, or by a tick.
    """

    schema = pa.schema([("ts", TS), *SESSION])
    tables = {"open": hr.StateTable(key=["key"], columns=pa.schema([*SESSION, ("closes", TS)]), due="closes")}  # noqa: RUF012

    def __init__(self, gap: dt.timedelta, every: dt.timedelta) -> None:
        self.gap, self.every = gap, every

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        keys, of = np.unique(tuples["key"].to_numpy(), return_inverse=True)
        held = state["open"].get(pa.table({"key": keys}))
        known = np.flatnonzero(held["n"].is_valid())
        held = held.take(pa.array(known))

        # open sessions, then each tuple as a session, by key and in sequence
        order = np.argsort(np.concatenate([known, of]), kind="stable")
        key, ts = np.concatenate([known, of])[order], tuples["ts"].to_numpy()
        began = np.concatenate([held["began"].to_numpy(), ts])[order]
        last = np.concatenate([held["last"].to_numpy(), ts])[order]
        n = np.concatenate([held["n"].to_numpy(), np.ones(len(ts), np.int64)])[order]

        # a session starts with a new key or after a gap; the last one of a key stays open
        other = np.append(True, key[1:] != key[:-1])
        starts = np.flatnonzero(other | np.append(True, began[1:] - last[:-1] >= np.timedelta64(self.gap)))
        ends = np.append(starts[1:], len(key)) - 1
        found = (keys[key[starts]], began[starts], last[ends], np.add.reduceat(n, starts))
        stays = np.append(other[starts[1:]], True)
        closes = last[ends][stays] + np.timedelta64(self.gap)
        state["open"].put(_table(self.tables["open"].columns, *(values[stays] for values in found), closes))
        over = np.flatnonzero(~stays)
        return _table(self.schema, began[starts[over + 1]], *(values[over] for values in found))

    def tick(self, time: dt.datetime, state: State) -> pa.Table:
        return self.close(state["open"].due(time), time, state)

    def end(self, time: dt.datetime, state: State) -> pa.Table:
        return self.close(state["open"].rows(), time, state)

    def close(self, sessions: pa.Table, time: dt.datetime, state: State) -> pa.Table:
        state["open"].delete(sessions.select(["key"]))
        times = pa.repeat(pa.scalar(time, TS), len(sessions))
        return sessions.drop_columns(["closes"]).add_column(0, self.schema.field("ts"), times)


def _table(schema: pa.Schema, *columns: npt.NDArray[np.generic]) -> pa.Table:
    return pa.table(
        [pa.array(values, field.type) for field, values in zip(schema, columns, strict=True)], schema=schema
    )
