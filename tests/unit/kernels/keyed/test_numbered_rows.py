"""Rows by number, written in place: the engine's tables and the reference's give the same rows."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar.types import TS_TYPE
from headrace.difference import difference
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.processor import StateTable
from headrace.reference.state_tables import DictTable
from headrace.testing import check_processor, table_stream

COLUMNS = pa.schema(
    [
        ("k", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
        ("closes", TS_TYPE),
        ("day", pa.date32()),
        ("text", pa.string()),
    ]
)
DECLARED = StateTable(["k"], COLUMNS, due="closes")
SECOND = 1_000_000


def rows(r: random.Random) -> pa.Table:
    keys = r.sample(range(12), r.randint(0, 5))

    def some(value: Any) -> list[Any]:
        return [None if r.random() < 0.3 else value() for _ in keys]

    columns = [
        keys,
        some(lambda: r.randint(-3, 3)),
        some(lambda: r.choice([0.0, 1.5, float("nan")])),
        some(lambda: r.random() < 0.5),
        some(lambda: dt.datetime.fromtimestamp(r.randint(0, 9), dt.UTC)),
        some(lambda: dt.date(2024, 1, r.randint(1, 9))),
        some(lambda: r.choice("ab")),
    ]
    return pa.table(columns, schema=COLUMNS)


def write(table: Any, keys: np.ndarray, seed: int) -> None:
    """In place, by numbers that each table gives itself."""
    r = random.Random(seed)
    n = table.numbers(keys)
    columns = table.columns
    for number in n.tolist():
        if r.random() < 0.7:
            columns["n"][number] += 1
        if r.random() < 0.3:
            columns["x"][number] = r.choice([2.5, np.nan])
        if r.random() < 0.3:
            columns["ok"][number] = not columns["ok"][number]
        if r.random() < 0.4:
            columns["closes"][number] = (
                np.datetime64("NaT") if r.random() < 0.3 else np.datetime64(r.randint(0, 9), "s")
            )
        if r.random() < 0.2:
            columns["day"][number] = 19_000 + r.randint(0, 3)
    table.touched(n)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.thorough) for n in range(4, 24))])
def test_both_have_the_same_rows(seed: int) -> None:
    r = random.Random(seed)
    tables: list[Any] = [KeyedTable(DECLARED, "t"), DictTable("t", DECLARED)]
    for step in range(25):
        given, keys = rows(r), np.array(r.sample(range(12), r.randint(1, 4)))
        kind = r.choice(["put", "delete", "write", "write", "write"])
        for table in tables:
            if kind == "put":
                table.put(given)
            elif kind == "delete":
                table.delete(given)
            else:
                write(table, keys, seed * 100 + step)
        assert difference(tables[1].rows(), tables[0].rows()) is None, (seed, step, kind)
        until = dt.datetime.fromtimestamp(r.randint(0, 9), dt.UTC)
        assert [t.due(until)["k"].to_pylist() for t in tables[:1]] == [
            t.due(until)["k"].to_pylist() for t in tables[1:]
        ]
        if r.random() < 0.2:  # as in the next epoch
            tables = [KeyedTable(DECLARED, "t", tables[0].rows()), tables[1].copy()]


def test_both_refuse_what_are_no_row_numbers() -> None:
    tables: list[Any] = [KeyedTable(DECLARED, "t"), DictTable("t", DECLARED)]
    for table in tables:
        n = table.numbers(np.arange(3))
        for given in (n > 0, n + 0.5):
            with pytest.raises(hr.DataError, match="touched takes row numbers"):
                table.touched(given)
        table.touched(n[n > 5])


class Heard(hr.Processor):
    schema = pa.schema([("ts", TS_TYPE), ("k", pa.int64()), ("n", pa.int32())])
    tables = {"heard": StateTable(["k"], pa.schema([("k", pa.int64()), ("n", pa.int32())]))}
    every = "2 seconds"

    def process(self, tuples: pa.Table, state: Any) -> None:
        n = state["heard"].numbers(tuples["k"].to_numpy())
        np.add.at(state["heard"].columns["n"], n, 1)
        state["heard"].touched(n)

    def tick(self, time: dt.datetime, state: Any) -> pa.Table:
        found = state["heard"].rows()
        return found.add_column(0, "ts", pa.array([time] * len(found), TS_TYPE))


class Untold(Heard):
    def process(self, tuples: pa.Table, state: Any) -> None:
        n = state["heard"].numbers(tuples["k"].to_numpy())
        np.add.at(state["heard"].columns["n"], n, 1)


def arrived() -> pa.Table:
    r = random.Random(3)
    times = sorted(r.randrange(12) * SECOND for _ in range(40))
    return pa.table({"ts": pa.array(times, pa.int64()).cast(TS_TYPE), "k": [r.randrange(5) for _ in times]})


def test_a_processor_that_writes_in_place_means_something() -> None:
    check_processor(Heard(), arrived(), by=["k"])
    found = hr.reference(table_stream(arrived(), name="a").split(3, by=["k"]).apply(Heard())).to_pylist()
    last = {row["k"]: row["n"] for row in sorted(found, key=lambda row: row["ts"])}
    assert sum(last.values()) == 40
    with pytest.raises(hr.HeadraceError, match=r"column 'n' of table 'heard' was written in place without a call"):
        check_processor(Untold(), arrived(), by=["k"])
