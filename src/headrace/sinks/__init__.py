"""The functions that make sinks. A sink receives the results of each committed epoch, or parts of them in the tasks.

`headrace.sinks.base` describes the two kinds. All sinks but `console` and `foreach` have every result exactly once.
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
    """Parquet in a folder: a file per epoch; with `parts`, a folder of files per epoch, written by the tasks.

    An epoch appears whole, and once, however often it is delivered.
    """
    folder = given_path(path, "the sink")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the sink path {str(folder)!r} is a file; give a folder")
    if parts and ordered:
        msg = "parquet(parts=True) cannot be ordered: each task writes what it has, and nobody sees all; leave out one"
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
    """A table of PostgreSQL (`postgresql://user@host/database`), SQLite (`sqlite:///file.db`) or DuckDB (`duckdb:///file`).

    Rows and the number of their epoch are committed together, so every result is there exactly once. The table is made, or
    its columns are checked. With `key`, a list of columns, a row takes the place of the one with the same key; within an
    epoch the last counts. While the database is away the run waits, within its patience.

    The URL may be `hr.secret("NAME")`. No text shows a password, nor a part of the URL that a password could be a part of.
    """
    return database_table(url, table, key, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def delta(
    uri: str | os.PathLike[str],
    *,
    ordered: bool = False,
    storage_options: Mapping[str, str | Secret] | None = None,
    patience: Duration = "10 minutes",
) -> Sink:
    """A Delta table, of a folder or of a store that `deltalake` knows (`s3://...`, with `storage_options`).

    Each epoch is one commit, which its log knows by the epoch, so every result is there exactly once. The table is made, or
    its columns are checked. While it cannot be reached the run waits, within its patience.

    Options may be `hr.secret("NAME")`. No text shows these, nor those that are secret by name (keys, passwords, tokens).
    """
    return DeltaTable(_place(uri), storage_options, ordered, parse_duration(patience, "patience", zero=True) / 1e6)


def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str | Secret] | Any = None,
    ordered: bool = False,
    patience: Duration = "10 minutes",
) -> Sink:
    """An Iceberg table, as `namespace.table` of a catalog: its properties, its name in PyIceberg's settings, or a `Catalog`.

    Each epoch is one commit, which the table's properties know, so every result is there exactly once. Namespace and table
    are made, or its columns are checked. While the catalog cannot be reached the run waits, within its patience.

    Properties may be `hr.secret("NAME")`. No text shows these, nor those that are secret by name (keys, passwords, tokens),
    nor logins in URLs.
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
    """A topic of Kafka, which is there already; `servers` as `host:port`, several with commas.

    Messages and the number of their epoch are committed in one transaction, so a reader of what is committed finds every
    result exactly once. `json`: a message per row, with the text of the column `key` as its key, or an object of the columns
    in a list; `arrow`: a batch of rows in every message. `settings` are librdkafka's, for TLS and logins too. While the
    cluster is away the run waits, within its patience.

    Settings may be `hr.secret("NAME")`. No text shows these, nor those that are secret by name (passwords, keys, tokens).
    """
    seconds = parse_duration(patience, "patience", zero=True) / 1e6
    return kafka_topic(servers, topic, key, format, settings, ordered, seconds)


def _place(uri: str | os.PathLike[str]) -> str:
    """A store's address as it is; a folder of this machine as a whole path."""
    if isinstance(uri, str) and "://" in uri and not uri.startswith("file:"):
        return uri
    folder = given_path(uri, "the Delta table")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the Delta table cannot be at {str(folder)!r}: that is a file; give a folder")
    return str(folder.absolute())


def memory(*, ordered: bool = False) -> MemorySink:
    """Results in this process, as one Arrow table: `sink.table()`."""
    return MemorySink(ordered)


def console(rows: int = 10, *, ordered: bool = False, file: TextIO | None = None) -> Sink:
    """The first rows of every epoch on the terminal."""
    return ConsoleSink(rows, ordered, file)


def foreach(function: Callable[[pa.Table, int], object], *, ordered: bool = False) -> Sink:
    """Call `function(table, epoch)` for every epoch with results. When a run starts again the newest epoch may come again."""
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
