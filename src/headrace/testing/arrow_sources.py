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
    """A stream over an Arrow table, for `reference` and `LocalRun`."""
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
    """A table beside streams, made of an Arrow table, or of what a function returns whenever it is read."""
    source = ArrowTable(given)
    every = None if refresh is None else parse_duration(refresh, "refresh")
    return Table(nodes.TableDefinition(name, table_schema(source.schema()), every, source))
