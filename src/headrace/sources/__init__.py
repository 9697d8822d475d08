"""Where tuples come from, and how what a source delivers becomes tuples of a stream.

An origin is a source's own handle: `bounded` says whether it ends, `table()` reads all of it (for `reference`), and
the engine knows how to hand its kind to Spark.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS, plain_type
from headrace.errors import QueryTypeError, SourceError
from headrace.support.terminal_text import printable


class Origin(Protocol):
    """What stands behind a `Source`."""

    @property
    def bounded(self) -> bool:
        """Whether all of its tuples are there when a run starts."""

    @property
    def readable_whole(self) -> bool:
        """Whether `table()` can read all tuples that are there now."""

    @property
    def place(self) -> str | None:
        """What it reads or, if static, holds, in words that another start finds the same; None where that cannot be told."""

    def table(self) -> pa.Table:
        """All tuples that are there now, in the source's own schema."""


class SourceSchema(Protocol):
    """What `as_tuples` must know of a source."""

    @property
    def name(self) -> str | None: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def raw_schema(self) -> pa.Schema: ...
    @property
    def time(self) -> str: ...
    def needs(self, name: str) -> bool:
        """Whether a column of the stream must be there as it was declared."""


class TableOrigin:
    """An Arrow table as a source: for tests and small experiments."""

    bounded = True
    readable_whole = True
    place = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def table(self) -> pa.Table:
        return self._table


def as_tuples(raw: pa.Table, source: SourceSchema, schema: pa.Schema) -> pa.Table:
    """Delivered rows as tuples with some columns of the stream, in order: time renamed, types plain."""
    check_schema(raw.schema, source, schema)
    fits = columns_to_read(raw.schema, source, schema)
    columns = [
        _column(raw, name, field.type, source) if name in fits else pa.nulls(raw.num_rows, field.type)
        for name, field in zip(raw_names(schema, source), schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def raw_names(schema: pa.Schema, source: SourceSchema) -> list[str]:
    """Columns of a stream as its source calls them."""
    return [source.time if name == TS else name for name in schema.names]


def check_text(rows: pa.Table, source: str) -> None:
    """Refuse text that is no text: Spark stores any bytes as a string, Arrow and DuckDB take strings for UTF-8."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            msg = f"column {name!r} of {printable(source)} holds what is not UTF-8 text: {error}; correct it (Spark: make_valid_utf8), or keep it as binary"
            raise SourceError(msg) from None


def check_schema(found: pa.Schema, source: SourceSchema, schema: pa.Schema) -> None:
    """Stop when a source no longer delivers what the query reads of it, as it was declared; other columns are free."""
    label = printable(source.name or "a source")
    needed = [raw for name, raw in zip(schema.names, raw_names(schema, source), strict=True) if source.needs(name)]
    twice = [name for name in needed if found.names.count(name) > 1]
    if twice:
        raise SourceError(f"{label} delivers columns of the same name: {twice}; name each column once")
    if missing := [name for name in needed if name not in found.names]:
        msg = (
            f"the schema of {label} changed: missing {missing}, which the query reads; there are {printable(', '.join(found.names))};"
            " what goes by the sequence of tuples (first, asof, distinct, a processor) reads every column that its input had;"
            " write it again with all of them, a file under the same name, and start again"
        )
        raise SourceError(msg)
    for name in needed:
        field, now = source.raw_schema.field(name), found.field(name).type
        if not is_same_kind(now, field):
            msg = (
                f"column {name!r} of {label} changed its type from {field.type} to {now}, and the query reads it; write it again"
                f" as {field.type}, a file under the same name, and start again; or, where no state has read it, give the"
                " source the new type (hr.files: schema=) and cast it in the query"
            )
            raise SourceError(msg)


def columns_to_read(found: pa.Schema, source: SourceSchema, schema: pa.Schema) -> list[str]:
    """The columns that are taken of what was found, as the source calls them."""
    there = [name for name in raw_names(schema, source) if found.names.count(name) == 1]
    return [name for name in there if is_same_kind(found.field(name).type, source.raw_schema.field(name))]


def is_same_kind(now: pa.DataType, field: pa.Field) -> bool:
    """Whether values of a type are what a column of a stream is made of."""
    try:
        return bool(plain_type(now, field.name) == plain_type(field.type, field.name))
    except QueryTypeError:  # a type that no stream carries
        return False


def _column(raw: pa.Table, name: str, kind: pa.DataType, source: SourceSchema) -> Any:
    try:
        return to_stream_type(raw.column(name), kind)
    except pa.ArrowInvalid as error:
        msg = f"column {name!r} of {source.name or 'a source'} holds a value that does not fit {kind}: {error}; correct it"
        raise SourceError(msg) from None


def to_stream_type(column: Any, kind: pa.DataType) -> Any:
    """A column in the type that streams carry it in."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and kind.tz and not getattr(column.type, "tz", None):
        column = pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")
    return column.cast(kind)
