"""Functions that create sinks. A sink receives the results of each committed epoch, or parts of them in the tasks.

`headrace.sinks.base` describes the two kinds. All sinks but `console` and `foreach` have every result exactly once.

Examples:
    >>> from pathlib import Path
    >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
    >>> run = hr.testing.LocalRun(hr.testing.table_stream(table), Path("state"), sink=hr.sinks.parquet("out/"))
    >>> run.epoch(table, final=True)
    >>> run.close()
    >>> len(list(Path("out").glob("*.parquet")))
    1
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TextIO, overload

import pyarrow as pa

from headrace.errors import QueryError, QueryTypeError
from headrace.sinks.base import (
    AnySink,
    Delivery,
    Part,
    PartSink,
    Publication,
    Sink,
    discard,
    is_sink,
    notify,
    takes_parts,
    wants_order,
)
from headrace.sinks.builtin import ConsoleSink, ForeachSink, MemorySink
from headrace.sinks.database import database_table
from headrace.sinks.delta import DeltaTable
from headrace.sinks.iceberg import IcebergTable
from headrace.sinks.kafka import kafka_topic
from headrace.sinks.parquet_files import ParquetFiles
from headrace.sinks.parquet_parts import ParquetParts
from headrace.support.durations import Duration, parse_duration
from headrace.support.habits import missing_sink
from headrace.support.paths import given_path
from headrace.support.secrets import Secret


@overload
def parquet(path: str | os.PathLike[str], *, ordered: bool = False, parts: Literal[False] = False) -> Sink: ...
@overload
def parquet(path: str | os.PathLike[str], *, ordered: bool = False, parts: bool) -> AnySink: ...
def parquet(path: str | os.PathLike[str], *, ordered: bool = False, parts: bool = False) -> AnySink:
    """Return a sink that writes Parquet files into a folder. An epoch appears whole, and once, however often it is
    delivered.

    Args:
        path: the folder, which is created if it does not exist.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.
        parts: False: one file per epoch. True: a folder of files per epoch, written by the tasks. With `ordered`, their names
            are in the order of `ts`.

    Returns:
        The sink.

    Raises:
        QueryError: the path is a file.

    Examples:
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
        >>> run = hr.testing.LocalRun(hr.testing.table_stream(table), Path("state"), sink=hr.sinks.parquet("out/"))
        >>> run.epoch(table, final=True)
        >>> run.close()
        >>> len(list(Path("out").glob("*.parquet")))
        1
    """
    folder = given_path(path, "the sink")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the sink path {str(folder)!r} is a file; give a folder")
    return ParquetParts(folder, ordered) if parts else ParquetFiles(folder, ordered)


def database(
    url: str | Secret,
    table: str,
    *,
    key: Sequence[str] | None = None,
    ordered: bool = False,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to a table of PostgreSQL, SQLite or DuckDB. Every result is in the table exactly once.

    Rows and the number of their epoch are committed together. The table is created, or its columns are checked. No text
    shows a password, nor a part of the URL that a password could be a part of.

    Args:
        url: `postgresql://user@host/database`, `sqlite:///file.db` or `duckdb:///file`; or `hr.secret("NAME")`.
        table: the name of the table.
        key: columns of the key. A row replaces the row with the same key; within an epoch the last one counts. This
            needs `ordered=True`. None: rows are appended.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.
        patience: how long the run waits while the database cannot be reached.

    Returns:
        The sink.

    Raises:
        QueryError: the URL, the name or the key is invalid.
        MissingLibrary: the driver of the database is not installed.

    Examples:
        >>> import sqlite3
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
        >>> sink = hr.sinks.database("sqlite:///shop.db", "xs")
        >>> run = hr.testing.LocalRun(hr.testing.table_stream(table), Path("state"), sink=sink)
        >>> run.epoch(table, final=True)
        >>> run.close()
        >>> connection = sqlite3.connect("shop.db")
        >>> connection.execute("SELECT sum(x) FROM xs").fetchall()
        [(3,)]
        >>> connection.close()
    """
    return database_table(url, table, key, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def delta(
    uri: str | os.PathLike[str],
    *,
    ordered: bool = False,
    storage_options: Mapping[str, str | Secret] | None = None,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to a Delta table. Each epoch is one commit of the table, so every result is there
    exactly once.

    The table is created, or its columns are checked. No text shows options that are secret by name (keys, passwords,
    tokens).

    Args:
        uri: a folder, or the address in a store that `deltalake` supports, such as `s3://...`.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.
        storage_options: settings of the store; a value may be `hr.secret("NAME")`. None: no settings.
        patience: how long the run waits while the table cannot be reached.

    Returns:
        The sink.

    Raises:
        QueryError: the path is a file.
        MissingLibrary: the extra `delta` is not installed.

    Examples:
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
        >>> run = hr.testing.LocalRun(hr.testing.table_stream(table), Path("state"), sink=hr.sinks.delta("xs/"))
        >>> run.epoch(table, final=True)
        >>> run.close()
        >>> import deltalake
        >>> deltalake.DeltaTable("xs/").version() >= 0
        True
    """
    return DeltaTable(_place(uri), storage_options, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str | Secret] | Any = None,
    ordered: bool = False,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to an Iceberg table. Each epoch is one commit of the table, so every result is there
    exactly once.

    Namespace and table are created, or the columns of the table are checked. No text shows properties that are secret
    by name (keys, passwords, tokens), nor logins in URLs.

    Args:
        table: the table as `namespace.table`.
        catalog: the properties of a catalog, its name in PyIceberg's settings, or a `Catalog`. A value of a property
            may be `hr.secret("NAME")`. None: the default catalog.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.
        patience: how long the run waits while the catalog cannot be reached.

    Returns:
        The sink.

    Raises:
        QueryError: the name has no namespace, or the catalog is invalid.
        MissingLibrary: the extra `iceberg` is not installed.

    Examples:
        >>> hr.sinks.iceberg("shop.spent", catalog={"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "lake/"})
        iceberg('shop.spent')
    """
    if not isinstance(table, str) or not all(table.rpartition(".")[::2]):
        raise QueryError(f"iceberg takes a table as namespace.table; found {table!r}")
    return IcebergTable(table, catalog, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def kafka(
    servers: str | Sequence[str],
    topic: str,
    *,
    key: str | Sequence[str] | None = None,
    format: Literal["json", "arrow"] = "json",
    settings: Mapping[str, str | int | float | Secret] | None = None,
    ordered: bool = False,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to a topic of Kafka, which must exist. A reader of committed messages gets every result
    exactly once.

    Messages and the number of their epoch are committed in one transaction. No text shows settings that are secret by
    name (passwords, keys, tokens).

    Args:
        servers: the brokers as host:port; several as a list, or with commas.
        topic: the name of the topic.
        key: a column whose text is the key of a message, or a list of columns, whose object is the key. None: no key.
        format: "json": one message per row. "arrow": a batch of rows in every message.
        settings: settings of librdkafka, such as for TLS and logins; a value may be `hr.secret("NAME")`. None: no
            settings.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.
        patience: how long the run waits while the cluster cannot be reached.

    Returns:
        The sink.

    Raises:
        QueryError: an option is invalid.
        MissingLibrary: the extra `kafka` is not installed.

    Examples:
        >>> hr.sinks.kafka("localhost:9092", "spent", key="customer")
        kafka('localhost:9092', 'spent', key='customer', format='json')
    """
    seconds = parse_duration(patience, "patience", zero=True) / 1e6
    return kafka_topic(servers, topic, key, format, settings, ordered, seconds)


def _place(uri: str | os.PathLike[str]) -> str:
    """Return the URI of a store unchanged, and a local folder as an absolute path."""
    if isinstance(uri, str) and "://" in uri and not uri.startswith("file:"):
        return uri
    folder = given_path(uri, "the Delta table")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the Delta table cannot be at {str(folder)!r}, which is a file; give a folder")
    return str(folder.absolute())


def memory(*, ordered: bool = False) -> MemorySink:
    """Return a sink that keeps the results in this process, as one Arrow table: `sink.table()`.

    Args:
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.

    Returns:
        The sink, a `MemorySink`.

    Examples:
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([2, 1], pa.timestamp("us", "UTC")), "x": [2, 1]})
        >>> sink = hr.sinks.memory()
        >>> run = hr.testing.LocalRun(hr.testing.table_stream(table, lateness="1 second"), Path("state"), sink=sink)
        >>> run.epoch(table, final=True)
        >>> run.close()
        >>> sink.table().num_rows
        2
    """
    return MemorySink(ordered)


def console(rows: int = 10, *, ordered: bool = False, file: TextIO | None = None) -> Sink:
    """Return a sink that prints the first rows of every epoch.

    Args:
        rows: how many rows of each epoch.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.
        file: where to print, a text file. None: standard output.

    Returns:
        The sink.

    Examples:
        >>> sink = hr.sinks.console(rows=5)
        >>> sink.deliver(hr.sinks.Delivery("query", 3, "result-0", pa.table({"x": [1]})))
        epoch 3: 1 results
        ...
    """
    return ConsoleSink(rows, ordered, file)


def foreach(function: Callable[[pa.Table, int], object], *, ordered: bool = False) -> Sink:
    """Return a sink that calls a function for every epoch with results. The newest epoch comes again at every start.

    Args:
        function: a function of a `pyarrow.Table` and the number of its epoch.
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.

    Returns:
        The sink.

    Raises:
        QueryTypeError: `function` cannot be called.

    Examples:
        >>> sink = hr.sinks.foreach(lambda table, epoch: print(epoch, table.num_rows))
        >>> sink.deliver(hr.sinks.Delivery("query", 3, "result-0", pa.table({"x": [1]})))
        3 1
    """
    if not callable(function):
        raise QueryTypeError(f"foreach takes a function(table, epoch); found {function!r}")
    return ForeachSink(function, ordered)


__all__ = [
    "AnySink",
    "Delivery",
    "MemorySink",
    "Part",
    "PartSink",
    "Publication",
    "Sink",
    "console",
    "database",
    "delta",
    "discard",
    "foreach",
    "iceberg",
    "is_sink",
    "kafka",
    "memory",
    "notify",
    "parquet",
    "takes_parts",
    "wants_order",
]


def __getattr__(name: str) -> Any:
    """Name the sink to use instead of one that does not exist."""
    raise missing_sink(name)
