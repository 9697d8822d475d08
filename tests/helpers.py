"""What tests in many folders do: make tuples, write the files of a source, wait for a run, look at rows."""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.columnar.types import TS_TYPE
from tests.patience import PATIENCE

SECOND = 1_000_000  # microseconds

# --- tuples ------------------------------------------------------------------------------------------------------------


def tuples(*rows: tuple[Any, ...], **kinds: pa.DataType) -> pa.Table:
    """Return rows as a table: `ts` (seconds if a float, microseconds if an int), then by default `k` text and `v` a number."""
    kinds = kinds or {"k": pa.string(), "v": pa.int64()}
    times, *columns = zip(*rows, strict=True) if rows else [()] * (1 + len(kinds))
    micros = [round(ts * SECOND) if isinstance(ts, float) else ts for ts in times]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.values(), strict=True)]
    return pa.table([pa.array(micros, pa.int64()).cast(TS_TYPE), *arrays], names=["ts", *kinds])


def numbered(*values: int) -> pa.Table:
    """Return a tuple for each number: it is its second, and its `v`."""
    return tuples(*((value * SECOND, value) for value in values), v=pa.int64())


def keyed(*seconds: float | None, key: int = 1) -> pa.Table:
    """Return tuples at these seconds, all with one `k`."""
    return tuples(*((None if s is None else int(s * SECOND), key) for s in seconds), k=pa.int64())


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, or of some of its columns, as Python values; times as microseconds."""
    columns = table.select(names or table.column_names).columns
    plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


def count_rows(table: pa.Table, *names: str) -> Counter[tuple[Any, ...]]:
    """Return how often each row is there."""
    return Counter(rows_of(table, *names))


def sorted_rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Return the same rows in an order that depends on nothing but them."""
    return sorted(rows_of(table, *names), key=repr)


@functools.cache
def duckdb_in_utc() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB of one thread, to ask for an answer apart from the engine."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


# --- the files of a source -----------------------------------------------------------------------------------------------


def write_whole(path: Path, table: pa.Table, modified: float | None = None) -> Path:
    """Write a Parquet file that is complete when its name appears; modified: the time it gets, in seconds since 1970."""
    path.parent.mkdir(exist_ok=True)
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(table, hidden)
    if modified is not None:
        os.utime(hidden, (modified, modified))
    return hidden.rename(path)


def add_file(folder: Path, number: int, table: pa.Table) -> Path:
    """Add a file to a folder; one second after the one before, since Spark orders files by their time."""
    return write_whole(folder / f"{number:03d}.parquet", table, 1_700_000_000 + number)


# --- runs ----------------------------------------------------------------------------------------------------------------


def wait_until(run: Any, condition: Callable[[Any], bool], seconds: float = PATIENCE) -> Any:
    """Wait until the progress of a run meets a condition, and return that progress."""
    deadline = time.monotonic() + seconds
    while not condition(progress := run.progress):
        assert time.monotonic() < deadline, f"waited {seconds} s: {progress}"
        run.wait(0.02)
    return progress


def failure_of(run: Any) -> BaseException:
    """Return what ended a run that is about to fail."""
    deadline = time.monotonic() + PATIENCE
    while run.active:
        assert time.monotonic() < deadline, "the run goes on"
        time.sleep(0.02)
    assert run.exception is not None
    return run.exception
