"""Origins of sources, and the conversion of delivered rows to tuples of a stream.

An origin is the handle of a source: a folder, Kafka topics, a DataFrame or an Arrow table. `headrace.sources.protocol`
describes the sources that headrace drives itself.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS, plain_type
from headrace.errors import QueryTypeError, SourceError
from headrace.support.terminal_text import printable


class Origin(Protocol):
    """The origin of a `Source`."""

    @property
    def bounded(self) -> bool:
        """Return whether all tuples exist when a run starts."""

    @property
    def readable_whole(self) -> bool:
        """Return whether `table()` can read all current tuples."""

    @property
    def place(self) -> str | None:
        """Return the place that the origin reads or, if it is static, a description of its content.

        Another start gets the same text for the same input. None: the origin cannot tell.
        """

    @property
    def unread_schema(self) -> pa.Schema | None:
        """Return the columns that show a message that cannot be decoded. None: the source has no messages."""

    def table(self) -> pa.Table:
        """Return all current tuples, in the schema of the source."""


class SourceSchema(Protocol):
    """The names and types of a source that `as_tuples` needs."""

    @property
    def name(self) -> str | None: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def raw_schema(self) -> pa.Schema: ...
    @property
    def time(self) -> str: ...
    def needs(self, name: str) -> bool:
        """Return whether the source must deliver a column of the stream with its declared type."""


class TableOrigin:
    """An Arrow table as a source, for tests and small experiments."""

    bounded = True
    readable_whole = True
    place = None
    unread_schema = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def table(self) -> pa.Table:
        return self._table


def as_tuples(raw: pa.Table, source: SourceSchema, schema: pa.Schema) -> pa.Table:
    """Return delivered rows as tuples with the columns of `schema`: the time is `ts`, and types are those of
    streams."""
    check_schema(raw.schema, source, schema)
    fits = columns_to_read(raw.schema, source, schema)
    columns = [
        _column(raw, name, field.type, source) if name in fits else pa.nulls(raw.num_rows, field.type)
        for name, field in zip(raw_names(schema, source), schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def raw_names(schema: pa.Schema, source: SourceSchema) -> list[str]:
    """Return the names that a source gives to columns of its stream."""
    return [source.time if name == TS else name for name in schema.names]


def check_text(rows: pa.Table, source: str) -> None:
    """Raise if a string is not UTF-8. Spark stores any bytes as a string, but Arrow and DuckDB expect UTF-8."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            msg = f"column {name!r} of {printable(source)} contains text that is not UTF-8: {error}; correct it (in Spark: make_valid_utf8), or use type binary"
            raise SourceError(msg) from None


def check_schema(found: pa.Schema, source: SourceSchema, schema: pa.Schema) -> None:
    """Raise if a source no longer delivers the columns that the query reads with their types."""
    label = printable(source.name or "a source")
    needed = [raw for name, raw in zip(schema.names, raw_names(schema, source), strict=True) if source.needs(name)]
    twice = [name for name in needed if found.names.count(name) > 1]
    if twice:
        raise SourceError(f"{label} delivers columns of the same name: {twice}; name each column once")
    if missing := [name for name in needed if name not in found.names]:
        msg = (
            f"the schema of {label} changed: missing {missing}, which the query reads; there are {printable(', '.join(found.names))};"
            " operators that depend on the sequence of tuples (first, asof, distinct, processors) read every column of their input;"
            " write the data again with all of them, a file under the same name, and start again"
        )
        raise SourceError(msg)
    for name in needed:
        field, now = source.raw_schema.field(name), found.field(name).type
        if not is_same_kind(now, field):
            msg = (
                f"column {name!r} of {label} changed its type from {field.type} to {now}, and the query reads it; write the data again"
                f" as {field.type}, a file under the same name, and start again; or, if no state contains it, give the"
                " source the new type (hr.files: schema=) and cast it in the query"
            )
            raise SourceError(msg)


def columns_to_read(found: pa.Schema, source: SourceSchema, schema: pa.Schema) -> list[str]:
    """Return the columns to read from those found, by the names that the source gives them."""
    there = [name for name in raw_names(schema, source) if found.names.count(name) == 1]
    return [name for name in there if is_same_kind(found.field(name).type, source.raw_schema.field(name))]


def is_same_kind(now: pa.DataType, field: pa.Field) -> bool:
    """Return whether a type becomes the same stream type as the declared field."""
    try:
        return bool(plain_type(now, field.name) == plain_type(field.type, field.name))
    except QueryTypeError:  # a type that streams do not support
        return False


def _column(raw: pa.Table, name: str, kind: pa.DataType, source: SourceSchema) -> Any:
    try:
        return to_stream_type(raw.column(name), kind)
    except pa.ArrowInvalid as error:
        msg = f"column {name!r} of {source.name or 'a source'} contains a value that does not fit {kind}: {error}; correct the value"
        raise SourceError(msg) from None


def to_stream_type(column: Any, kind: pa.DataType) -> Any:
    """Convert a column to a stream type."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and kind.tz and not getattr(column.type, "tz", None):
        column = pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")
    return column.cast(kind)
