"""Where tuples come from, and how what a source delivers becomes tuples of a stream.

An origin is a source's own handle: `bounded` says whether it ends, `table()` reads all of it (for `reference`), and
the engine knows how to hand its kind to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryTypeError, SourceError
from headrace.types import TS, plain_type


class Origin(Protocol):
    """What stands behind a `Source`."""

    @property
    def bounded(self) -> bool: ...

    @property
    def place(self) -> str | None:
        """What it reads or, if static, holds, in words that another start finds the same; None where that cannot be told."""

    def table(self) -> pa.Table:
        """All tuples that are there now, in the source's own schema."""


class Described(Protocol):
    """What `as_tuples` must know of a source."""

    @property
    def name(self) -> str | None: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def raw_schema(self) -> pa.Schema: ...
    @property
    def time(self) -> str: ...


class TableOrigin:
    """An Arrow table as a source: for tests and small experiments."""

    bounded = True
    place = None

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def table(self) -> pa.Table:
        return self._table


def as_tuples(raw: pa.Table, source: Described, schema: pa.Schema) -> pa.Table:
    """Delivered rows as tuples with some columns of the stream, in order: time renamed, types plain."""
    names = raw_names(schema, source)
    check_schema(raw.schema, source, names)
    columns = [_column(raw, name, kind, source) for name, kind in zip(names, schema.types, strict=True)]
    return pa.table(columns, schema=schema)


def raw_names(schema: pa.Schema, source: Described) -> list[str]:
    """Columns of a stream as its source calls them."""
    return [source.time if name == TS else name for name in schema.names]


def check_text(rows: pa.Table, source: str) -> None:
    """Refuse text that is no text: Spark stores any bytes as a string, Arrow and DuckDB take strings for UTF-8."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            msg = f"column {name!r} of {source} holds what is not UTF-8 text: {error}; correct it (Spark: make_valid_utf8), or keep it as binary"
            raise SourceError(msg) from None


def check_schema(found: pa.Schema, source: Described, wanted: Sequence[str] | None = None) -> None:
    """Stop when a source no longer delivers what the query was built for: all columns, or those that are wanted."""
    expected = source.raw_schema
    missing = [name for name in (expected.names if wanted is None else wanted) if name not in found.names]
    added = [name for name in found.names if name not in expected.names]
    label = source.name or "a source"
    twice = sorted({name for name in found.names if found.names.count(name) > 1})
    if twice:
        raise SourceError(f"{label} delivers columns of the same name: {twice}; name each column once")
    if missing or added:
        msg = (
            f"the schema of {label} changed: missing {missing or 'nothing'}, new {added or 'nothing'};"
            f" the query was built for {', '.join(expected.names)}; build it again with the new schema"
        )
        raise SourceError(msg)
    for field in expected:
        if field.name not in found.names:
            continue
        now = found.field(field.name).type
        if not same_kind(now, field):
            msg = f"column {field.name!r} of {label} changed its type from {field.type} to {now}; build the query again"
            raise SourceError(msg)


def same_kind(now: pa.DataType, field: pa.Field) -> bool:
    """Whether values of a type are what a column of a stream is made of."""
    try:
        return bool(plain_type(now, field.name) == plain_type(field.type, field.name))
    except QueryTypeError:  # a type that no stream carries
        return False


def _column(raw: pa.Table, name: str, kind: pa.DataType, source: Described) -> Any:
    try:
        return plain(raw.column(name), kind)
    except pa.ArrowInvalid as error:
        msg = f"column {name!r} of {source.name or 'a source'} holds a value that does not fit {kind}: {error}; correct it"
        raise SourceError(msg) from None


def plain(column: Any, kind: pa.DataType) -> Any:
    """A column in the type that streams carry it in."""
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and kind.tz and not getattr(column.type, "tz", None):
        column = pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")
    return column.cast(kind)
