"""Sources and tables made of Arrow tables."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.columnar.types import refuse_nanoseconds, stream_schema
from headrace.query import nodes
from headrace.sources import TableOrigin
from headrace.sources.tables import ArrowTable, table_schema
from headrace.stream import Stream, Table
from headrace.support.durations import Duration, parse_duration


def table_stream(
    table: pa.Table,
    time: str = "ts",
    lateness: Duration = "0 seconds",
    idle: Duration | None = None,
    ahead: Duration | None = None,
    name: str | None = None,
) -> Stream:
    """Return a stream over an Arrow table, for `hr.reference`, `LocalRun` and `peek`; it needs no Spark.

    table: the tuples in order of arrival. The other options are those of `hr.stream`.

    calls = table_stream(pa.table({"ts": times, "k": keys}), lateness="2 seconds", name="calls")
    """
    refuse_nanoseconds(table)
    return Stream(
        nodes.Source(
            name,
            table.schema,
            time,
            parse_duration(lateness, "lateness", zero=True),
            None if idle is None else parse_duration(idle, "idle"),
            None if ahead is None else parse_duration(ahead, "ahead", zero=True),
            TableOrigin(table),
            stream_schema(table.schema, time),
        )
    )


def arrow_table(
    given: pa.Table | Callable[[], pa.Table], refresh: Duration | None = None, name: str | None = None
) -> Table:
    """Return a table that streams can be joined with, for `hr.reference` and `LocalRun`; it needs no Spark.

    given: an Arrow table, or a function that returns one, which is called whenever the table is read.
    refresh, name: as in `hr.table`.

    zones = arrow_table(pa.table({"zone": ["harbour", "park"]}), name="zones")
    """
    source = ArrowTable(given)
    every = None if refresh is None else parse_duration(refresh, "refresh")
    return Table(nodes.TableDefinition(name, table_schema(source.schema()), every, source))
