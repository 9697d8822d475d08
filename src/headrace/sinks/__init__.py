"""Functions that create sinks. A sink receives the results of each committed epoch, or parts of them in the tasks.

`headrace.sinks.base` describes the two kinds of sinks. All sinks except `console` and `foreach` receive every result
exactly once.
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
from headrace.support.paths import given_path
from headrace.support.secrets import Secret


@overload
def parquet(path: str | os.PathLike[str], *, ordered: bool = False, parts: Literal[False] = False) -> Sink: ...
@overload
def parquet(path: str | os.PathLike[str], *, ordered: bool = False, parts: bool) -> AnySink: ...
def parquet(path: str | os.PathLike[str], *, ordered: bool = False, parts: bool = False) -> AnySink:
    """Return a sink that writes Parquet to a folder: one file per epoch, or with `parts` one folder of files that tasks
    write.

    An epoch appears as a whole and only once, even if it is delivered repeatedly.
    """
    folder = given_path(path, "the sink")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the sink path {str(folder)!r} is a file; give a folder")
    if parts and ordered:
        msg = "parquet(parts=True) cannot be ordered, because each task writes its own results and no task has all; leave out parts or ordered"
        raise QueryError(msg)
    return ParquetParts(folder) if parts else ParquetFiles(folder, ordered)


def database(
    url: str | Secret,
    table: str,
    *,
    key: Sequence[str] | None = None,
    ordered: bool = False,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to a table of PostgreSQL (`postgresql://user@host/database`), SQLite
    (`sqlite:///file.db`) or DuckDB (`duckdb:///file`).

    Rows and the number of their epoch are committed in one transaction, so every result is stored exactly once. The
    sink creates the table or checks its columns. With `key`, a list of columns, a row replaces the row with the same
    key; within an epoch the last row counts. While the database is unreachable the run waits, at most for `patience`.

    The URL may be `hr.secret("NAME")`. Messages never contain a password, nor a part of the URL that could contain one.
    """
    return database_table(url, table, key, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def delta(
    uri: str | os.PathLike[str],
    *,
    ordered: bool = False,
    storage_options: Mapping[str, str | Secret] | None = None,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to a Delta table, in a folder or in a store that `deltalake` supports (`s3://...`, with
    `storage_options`).

    Each epoch is one commit that records the epoch in the table's log, so every result is stored exactly once. The sink
    creates the table or checks its columns. While the table is unreachable the run waits, at most for `patience`.

    Options may be `hr.secret("NAME")`. Messages never contain these, nor options with secret names (keys, passwords,
    tokens).
    """
    return DeltaTable(_place(uri), storage_options, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str | Secret] | Any = None,
    ordered: bool = False,
    patience: Duration = "10 minutes",
) -> Sink:
    """Return a sink that writes to an Iceberg table, `namespace.table` of a catalog. `catalog`: its properties, its
    name in PyIceberg's settings, or a `Catalog`.

    Each epoch is one commit that records the epoch in the table's properties, so every result is stored exactly once.
    The sink creates namespace and table or checks the table's columns. While the catalog is unreachable the run waits,
    at most for `patience`.

    Properties may be `hr.secret("NAME")`. Messages never contain these, nor properties with secret names (keys,
    passwords, tokens), nor logins in URLs.
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
    """Return a sink that writes to an existing Kafka topic. `servers`: `host:port`, several separated by commas.

    Messages and the number of their epoch are committed in one transaction, so a reader of committed messages gets
    every result exactly once. `json`: one message per row; its key is the text of the column `key`, or an object with a
    list of columns. `arrow`: a batch of rows per message. `settings` are librdkafka's, including TLS and logins. While
    the cluster is unreachable the run waits, at most for `patience`.

    Settings may be `hr.secret("NAME")`. Messages of headrace never contain these, nor settings with secret names
    (passwords, keys, tokens).
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
    """Return a sink that keeps results in this process, as one Arrow table: `sink.table()`."""
    return MemorySink(ordered)


def console(rows: int = 10, *, ordered: bool = False, file: TextIO | None = None) -> Sink:
    """Return a sink that prints the first rows of every epoch on the terminal."""
    return ConsoleSink(rows, ordered, file)


def foreach(function: Callable[[pa.Table, int], object], *, ordered: bool = False) -> Sink:
    """Return a sink that calls `function(table, epoch)` for every epoch with results. A restart may repeat the newest
    epoch.
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
