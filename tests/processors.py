"""Sound processors of five kinds, for every test that needs one.

All take streams with the columns `user` (text), `kind` (text) and `n` (whole number), null in any of them included.
They are written tuple by tuple: what they mean is to be seen at a glance, and how fast they are does not matter here.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from headrace import Processor, StateTable

TS = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("ts", TS), ("user", pa.string()), ("kind", pa.string()), ("n", pa.int64())])


def table(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def key(**values: Any) -> pa.Table:
    """One key of text."""
    return pa.table({name: pa.array([value], pa.string()) for name, value in values.items()})


def first(rows: pa.Table) -> dict[str, Any]:
    found: dict[str, Any] = rows.to_pylist()[0]
    return found


class Counter(Processor):
    """How often a user was seen, at every tuple."""

    schema = pa.schema([("ts", TS), ("user", pa.string()), ("seen", pa.int64())])
    tables = {"seen": StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("times", pa.int64())]))}

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        seen, rows = state["seen"], []
        for row in tuples.to_pylist():
            times = (first(seen.get(key(user=row["user"])))["times"] or 0) + 1
            seen.put(pa.table({"user": pa.array([row["user"]], pa.string()), "times": [times]}))
            rows.append((row["ts"], row["user"], times))
        return table(self.schema, *rows)


class Sessions(Processor):
    """A user's tuples that follow each other within a gap; a session is put out when time has passed its end, by a tick
    or a later tuple, or at the end of the input. Its row has the time at which it closed, or of the end if that is first."""

    schema = pa.schema([("ts", TS), ("user", pa.string()), ("began", TS), ("tuples", pa.int64())])
    held = pa.schema([("user", pa.string()), ("began", TS), ("closes", TS), ("tuples", pa.int64())])
    tables = {"open": StateTable(key=["user"], columns=held, due="closes")}
    every = "10 seconds"

    def __init__(self, gap: int = 5) -> None:
        self.gap = gap  # seconds

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        put = []
        for row in tuples.to_pylist():
            put += self.closed(row["ts"] - dt.timedelta(microseconds=1), row["ts"], state)
            mine = first(state["open"].get(key(user=row["user"])))
            began, so_far = mine["began"] or row["ts"], mine["tuples"] or 0
            closes = row["ts"] + dt.timedelta(seconds=self.gap)
            state["open"].put(table(self.held, (row["user"], began, closes, so_far + 1)))
        return table(self.schema, *put)

    def tick(self, time: dt.datetime, state: Any) -> pa.Table:
        return table(self.schema, *self.closed(time - dt.timedelta(microseconds=1), time, state))

    def end(self, time: dt.datetime, state: Any) -> pa.Table:
        rest = [(time, row["user"], row["began"], row["tuples"]) for row in state["open"].rows().to_pylist()]
        return table(self.schema, *rest)

    def closed(self, until: dt.datetime, now: dt.datetime, state: Any) -> list[tuple[Any, ...]]:
        over = state["open"].due(until)
        state["open"].delete(over.select(["user"]))
        return [(now, row["user"], row["began"], row["tuples"]) for row in over.to_pylist()]


class Break(Processor):
    """Three or more failures of a user in a row, then a success."""

    schema = pa.schema([("ts", TS), ("user", pa.string()), ("failures", pa.int64())])
    tables = {"failing": StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("times", pa.int64())]))}

    def __init__(self, failures: int = 3) -> None:
        self.failures = failures

    def process(self, tuples: pa.Table, state: Any) -> pa.Table | None:
        failing, rows = state["failing"], []
        for row in tuples.to_pylist():
            mine = key(user=row["user"])
            times = first(failing.get(mine))["times"] or 0
            if row["kind"] == "fail":
                failing.put(mine.append_column("times", pa.array([times + 1])))
            elif row["kind"] == "success":
                if times >= self.failures:
                    rows.append((row["ts"], row["user"], times))
                failing.delete(mine)
        return table(self.schema, *rows) if rows else None


class Silence(Processor):
    """At every tick: how many tuples came since the one before, also if it was none."""

    schema = pa.schema([("ts", TS), ("tuples", pa.int64()), ("total", pa.int64())])
    tables = {
        "counts": StateTable(key=["what"], columns=pa.schema([("what", pa.string()), ("tuples", pa.int64())])),
    }
    every = "4 seconds"

    def process(self, tuples: pa.Table, state: Any) -> None:
        since, total = self.counts(state)
        self.keep(state, since + tuples.num_rows, total + tuples.num_rows)

    def tick(self, time: dt.datetime, state: Any) -> pa.Table:
        since, total = self.counts(state)
        self.keep(state, 0, total)
        return table(self.schema, (time, since, total))

    def counts(self, state: Any) -> tuple[int, int]:
        found = state["counts"].get(pa.table({"what": ["since", "total"]}))["tuples"].to_pylist()
        return found[0] or 0, found[1] or 0

    def keep(self, state: Any, since: int, total: int) -> None:
        state["counts"].put(pa.table({"what": ["since", "total"], "tuples": [since, total]}))


class Extremes(Processor):
    """Two outputs: new largest numbers, and who has never had a number by the end."""

    outputs = {
        "records": pa.schema([("ts", TS), ("user", pa.string()), ("n", pa.int64())]),
        "without": pa.schema([("ts", TS), ("user", pa.string()), ("substream", pa.int64())]),
    }
    tables = {"best": StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("n", pa.int64())]))}

    def open(self, substream: int, substreams: int) -> None:
        self.substream = substream

    def process(self, tuples: pa.Table, state: Any) -> dict[str, pa.Table]:
        rows = []
        for row in tuples.to_pylist():
            mine = key(user=row["user"])
            best, n = first(state["best"].get(mine))["n"], row["n"]
            if n is not None and (best is None or n > best):
                rows.append((row["ts"], row["user"], n))
                best = n
            state["best"].put(mine.append_column("n", pa.array([best], pa.int64())))
        return {"records": table(self.outputs["records"], *rows)}

    def end(self, time: dt.datetime, state: Any) -> dict[str, pa.Table]:
        without = [row["user"] for row in state["best"].rows().to_pylist() if row["n"] is None]
        return {"without": table(self.outputs["without"], *((time, user, self.substream) for user in without))}


SOUND = {"counter": Counter, "sessions": Sessions, "break": Break, "silence": Silence, "extremes": Extremes}
