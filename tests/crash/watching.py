"""A processor to be killed, and what it gives by plain Python.

Sessions of keys: every so manieth tuple of one is marked, a tick closes those that were silent for too long. It has two
tables, of which one only grows, and one has rows that are due; two outputs; ticks; an
end that puts out what is left. In a query it stands twice, the second behind the marks of the first, and an aggregate
behind the second.

Invariant: `model` shares nothing with headrace but the rules of the splits, and those it has in words of its own.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr

SECOND = 1_000_000
EVERY = 2 * SECOND
WINDOW = 4 * SECOND
FIRST, SECOND_ONE = (16, 3, 4), (5, 5, 2)  # substreams, gap in seconds, which tuple of a session is marked
TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("v", pa.int64())])
LOADING = 6  # files that bring every key once

between: Callable[[str], None] = lambda call: None  # called in the middle of every call, when half of it is done  # noqa: E731


class Watch(hr.Processor):
    outputs = {
        "marks": pa.schema([("ts", TS), ("k", pa.int64()), ("v", pa.int64()), ("n", pa.int64())]),
        "closed": pa.schema(
            [("ts", TS), ("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64()), ("began", TS), ("at", pa.int64())]
        ),
    }
    tables = {
        "keys": hr.StateTable(
            key=["k"], columns=pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
        ),
        "open": hr.StateTable(
            key=["k"],
            columns=pa.schema(
                [("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64()), ("began", TS), ("closes", TS)]
            ),
            due="closes",
        ),
    }
    every = "2 seconds"

    def __init__(self, gap: int, nth: int) -> None:
        self.gap, self.nth = gap, nth

    def open(self, substream: int, substreams: int) -> None:
        self.substream = substream

    def process(self, tuples: pa.Table, state: Any) -> dict[str, pa.Table]:
        ts, k, v = (tuples[name].cast(pa.int64()).to_numpy() for name in ("ts", "k", "v"))
        order = np.argsort(k, kind="stable")
        ts, k, v = ts[order], k[order], v[order]
        keys, first, which, counts = np.unique(k, return_index=True, return_inverse=True, return_counts=True)
        sums = np.add.reduceat(v, first)
        self._count(state["keys"], keys, counts, sums)
        between("process")
        held = state["open"].get(pa.table({"k": keys}))
        n, total, began = (held[c].cast(pa.int64()).fill_null(0).to_numpy() for c in ("n", "total", "began"))
        running = n[which] + np.arange(len(k)) - first[which] + 1
        until_here = np.cumsum(v)
        so_far = total[which] + until_here - (until_here[first] - v[first])[which]
        last = first + counts - 1
        state["open"].put(
            _table(
                self.tables["open"].columns,
                keys,
                n + counts,
                total + sums,
                np.where(n == 0, ts[first], began),
                ts[last] + self.gap * SECOND,
            )
        )
        marked = running % self.nth == 0
        return {"marks": _table(self.outputs["marks"], ts[marked], k[marked], so_far[marked], running[marked])}

    def _count(self, table: Any, keys: Any, counts: Any, sums: Any) -> None:
        known = table.get(pa.table({"k": keys}))
        n, total = (known[c].fill_null(0).to_numpy() for c in ("n", "total"))
        table.put(_table(self.tables["keys"].columns, keys, n + counts, total + sums))

    def tick(self, time: dt.datetime, state: Any) -> dict[str, pa.Table]:
        over = state["open"].due(time)
        state["open"].delete(over.select(["k"]))
        between("tick")
        return {"closed": self._closed(time, over)}

    def end(self, time: dt.datetime, state: Any) -> dict[str, pa.Table]:
        rest = state["open"].rows()
        between("end")
        unmarked = rest.filter(pa.array(rest["n"].to_numpy() % self.nth != 0))
        k, n, v = (unmarked[c].to_numpy() for c in ("k", "n", "total"))
        return {
            "closed": self._closed(time, rest),
            "marks": _table(self.outputs["marks"], np.full(len(k), micros(time)), k, v, n),
        }

    def _closed(self, time: dt.datetime, rows: pa.Table) -> pa.Table:
        k, n, total, began = (rows[c].cast(pa.int64()).to_numpy() for c in ("k", "n", "total", "began"))
        at = np.full(len(k), self.substream)
        return _table(self.outputs["closed"], np.full(len(k), micros(time)), k, n, total, began, at)


class FastWatch(Watch):
    """The same through the fast face of a table."""

    def _count(self, table: Any, keys: Any, counts: Any, sums: Any) -> None:
        rows = table.numbers(keys)
        table.columns["n"][rows] += counts
        table.columns["total"][rows] += sums
        table.touched(rows)


def micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _table(schema: pa.Schema, *columns: Any) -> pa.Table:
    found = [pa.array(values, pa.int64()).cast(f.type) for f, values in zip(schema, columns, strict=True)]
    return pa.Table.from_arrays(found, schema=schema)


def results(source: hr.Stream, kind: type[Watch] = Watch) -> list[hr.Stream]:
    q, gap, nth = FIRST
    split = source.split(
        q, route=f"CASE WHEN v % 41 = 7 THEN NULL ELSE (k * 7919 + 5) % {q} END", broadcast="v % 53 = 3"
    )
    first = split.apply(kind(gap, nth))
    q, gap, nth = SECOND_ONE
    again = first["marks"].split(q, route=f"CASE WHEN n % 7 = 0 THEN NULL ELSE k % {q} END", broadcast="v % 29 = 1")
    second = again.apply(kind(gap, nth))
    windows = second["marks"].map("v", g="k % 3").aggregate(by=["g"], window="4 seconds", n="count(*)", total="sum(v)")
    return [first["closed"], second["closed"], windows]


# --- the same by plain Python ------------------------------------------------------------------------------------------

Row = tuple[int, ...]
Rule = Callable[[Row], Iterable[int]]  # the substreams that a tuple goes to


@dataclass
class Watched:
    """What a processor put out, and what its tables hold: rows with the substream last."""

    marks: list[Row] = field(default_factory=list)
    closed: list[Row] = field(default_factory=list)
    keys: set[Row] = field(default_factory=set)
    open: set[Row] = field(default_factory=set)


def first_rule(row: Row) -> Iterable[int]:
    _, k, v = row
    if v % 53 == 3:
        return range(FIRST[0])
    return () if v % 41 == 7 else ((k * 7919 + 5) % FIRST[0],)


def second_rule(row: Row) -> Iterable[int]:
    _, k, v, n = row
    if v % 29 == 1:
        return range(SECOND_ONE[0])
    return () if n % 7 == 0 else (k % SECOND_ONE[0],)


def model(rows: Iterable[Row], lateness: int = SECOND) -> tuple[list[Counter[Row]], list[Watched]]:
    """The three results, and the two processors."""
    rows = list(rows)
    reached = max(row[0] for row in rows) - lateness  # by the watermark, before the end
    one = watched(rows, first_rule, reached, *FIRST)
    two = watched(one.marks, second_rule, reached, *SECOND_ONE)
    return [Counter(one.closed), Counter(two.closed), Counter(_windows(two.marks))], [one, two]


def watched(rows: Sequence[Row], rule: Rule, reached: int, q: int, gap: int, nth: int) -> Watched:
    found, parts = Watched(), defaultdict[int, list[Row]](list)
    last = max(row[0] for row in rows)
    for row in sorted(rows):
        for substream in rule(row):
            parts[substream].append(row)
    for substream, mine in parts.items():
        _one(found, mine, substream, max(_after(last), reached // EVERY * EVERY), last, gap * SECOND, nth)
    return found


def _after(time: int) -> int:
    return (time // EVERY + 1) * EVERY


def _one(found: Watched, rows: list[Row], substream: int, last_tick: int, end: int, gap: int, nth: int) -> None:
    """One substream, tuple by tuple."""
    sessions: dict[int, list[int]] = {}  # n, total, began, closes
    ever: dict[int, list[int]] = {}  # n, total
    closing = defaultdict[int, set[int]](set)  # the tick at which a session may close
    tick = _after(rows[0][0])

    def until(time: int) -> None:
        nonlocal tick
        while tick <= time:
            for k in closing.pop(tick, ()):
                if k in sessions and sessions[k][3] <= tick:
                    n, total, began, _ = sessions.pop(k)
                    found.closed.append((tick, k, n, total, began, substream))
            tick += EVERY

    for ts, k, v, *_ in rows:
        until(ts)
        mine, all_time = sessions.setdefault(k, [0, 0, ts, 0]), ever.setdefault(k, [0, 0])
        mine[0], mine[1], mine[3] = mine[0] + 1, mine[1] + v, ts + gap
        all_time[0], all_time[1] = all_time[0] + 1, all_time[1] + v
        closing[-(-mine[3] // EVERY) * EVERY].add(k)
        if mine[0] % nth == 0:
            found.marks.append((ts, k, mine[1], mine[0]))
    until(last_tick)
    for k, (n, total, began, closes) in sessions.items():
        found.closed.append((end, k, n, total, began, substream))
        found.open.add((k, n, total, began, closes, substream))
        if n % nth:
            found.marks.append((end, k, total, n))
    found.keys |= {(k, n, total, substream) for k, (n, total) in ever.items()}


def _windows(marks: Iterable[Row]) -> Iterable[Row]:
    groups = defaultdict[tuple[int, int], list[Row]](list)
    for mark in marks:
        groups[mark[1] % 3, mark[0] // WINDOW * WINDOW].append(mark)
    for (g, start), mine in groups.items():
        yield min(m[0] for m in mine), g, start, start + WINDOW, len(mine), sum(m[2] for m in mine)


# --- rows --------------------------------------------------------------------------------------------------------------


def rows(number: int, keys: int, per_file: int) -> pa.Table:
    """Of file number n: one second of event time, up to a second of disorder; the first files bring every key once."""
    rng = np.random.default_rng(number)
    load = np.arange(number, keys, LOADING) if number < LOADING else np.zeros(0, np.int64)
    hot, any_key = rng.integers(0, 20, per_file), rng.integers(0, keys, per_file)
    k = np.concatenate([load, np.where(rng.random(per_file) < 0.5, hot, any_key)])
    times = number * SECOND + rng.integers(-SECOND // 2, SECOND // 2, len(k))
    v = np.random.default_rng(number + 10**6).permutation(len(k)) + number * (keys + per_file)
    return _table(SCHEMA, times, k, v)


def steady_rows(number: int, keys: int, per_file: int) -> pa.Table:
    """The same, after which tables are as large in every epoch: no tuple is for all, and all keys but a few take turns."""
    turns = (np.arange(per_file) + number * per_file) % keys
    load = np.arange(number, keys, LOADING) if number < LOADING else np.zeros(0, np.int64)
    rng = np.random.default_rng(number)
    k = np.concatenate([load, np.where(np.arange(per_file) % 2 == 0, rng.integers(0, 20, per_file), turns)])
    times = number * SECOND + rng.integers(-SECOND // 2, SECOND // 2, len(k))
    v = (np.arange(len(k)) + number * (keys + per_file)) * 53 * 29
    return _table(SCHEMA, times, k, v)


def events(count: int) -> pa.Table:
    """In order of arrival, few keys; no row is more than a second behind the largest time before it."""
    rng = random.Random(13)
    times = [i * 200_000 + rng.randrange(0, SECOND) for i in range(count)]
    return _table(SCHEMA, times, [rng.choice([0, 1, rng.randrange(12)]) for _ in times], list(range(count)))
