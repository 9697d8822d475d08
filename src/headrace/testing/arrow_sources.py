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
    """Return a stream over an Arrow table, for `hr.reference`, `LocalRun` and `peek`. It needs no Spark.

    Args:
        table: the tuples in order of arrival.
        time: the column with the event time, a timestamp; the stream calls it `ts`.
        lateness: how far a tuple may lag behind the largest `ts` of the epochs before its own without being late.
        idle: after this much wall-clock time without a tuple the other streams stop waiting for this one. None: never.
        ahead: a tuple that is further than this past the largest `ts` committed is rejected. None: no limit.
        name: what logs, progress and results of late tuples call the source. None: source-1, source-2, ...

    Returns:
        The stream.

    Raises:
        QueryError: the column does not exist or is no timestamp, a type is not supported, or a duration is invalid.

    Examples:
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "caller": ["ann", "bob"]})
        >>> calls = hr.testing.table_stream(table, lateness="2 seconds", name="calls")
        >>> hr.reference(calls.filter("caller = 'ann'")).num_rows
        1
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
    """Return a table that streams can be joined with, for `hr.reference` and `LocalRun`. It needs no Spark.

    Args:
        given: an Arrow table, or a function that returns one, which is called whenever the table is read.
        refresh: how often it is read again. None: with every start.
        name: what logs and progress call the table. None: table-1, table-2, ...

    Returns:
        The table.

    Raises:
        QueryError: a type is not supported, or the duration is invalid.

    Examples:
        >>> zones = hr.testing.arrow_table(pa.table({"zone": ["harbour", "park"]}), name="zones")
        >>> zones.columns
        ['zone']
    """
    source = ArrowTable(given)
    every = None if refresh is None else parse_duration(refresh, "refresh")
    return Table(nodes.TableDefinition(name, table_schema(source.schema()), every, source))
