"""Conversion of results to Kafka messages: one JSON message per row, or one Arrow message per batch of rows.

Invariant: messages are exact. JSON has one kind of number, which some readers parse as double, so decimals are text.
Times are text in UTC and bytes are base64. NaN and infinity have no JSON number, so they are rejected with the name of
their column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import duck
from headrace.columnar.types import TS
from headrace.errors import QueryError, QueryTypeError, SinkError

ROWS_TOGETHER = 50_000  # rows converted at once
BATCH_SHARE = 0.9  # share of the largest message for a batch of rows; the rest is for Kafka's overhead
ROWS = "__rows"


class MessageColumns(NamedTuple):
    """Several messages as columns. Times are in milliseconds; 0: the time of sending."""

    values: list[bytes]
    keys: list[bytes | None]
    times: list[int]


class MessageFormat(Protocol):
    """A conversion of rows to messages."""

    name: str
    key: str | Sequence[str] | None

    def check(self, schema: pa.Schema) -> None:
        """Raise if a column cannot be converted."""

    def messages(self, table: pa.Table, largest: int) -> Iterator[MessageColumns]:
        """Yield messages in the order of the rows, none larger than `largest` bytes unless a single row is."""


class JsonMessages:
    """One JSON object per row. key: a column whose text is the key, or a list of columns that form an object."""

    name = "json"

    def __init__(self, key: str | Sequence[str] | None) -> None:
        self.key = key

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            _demand_form(field.type, field.name)
        for name in [self.key] if isinstance(self.key, str) else self.key or ():
            if name not in schema.names:
                raise QueryError(f"key: there is no column {name!r}; the results have {', '.join(schema.names)}")
            kind = schema.field(name).type
            if pa.types.is_floating(kind) or pa.types.is_nested(kind):
                msg = f"key: column {name!r} is {kind}, which does not identify messages reliably; use whole numbers, text or times"
                raise QueryTypeError(msg)

    def messages(self, table: pa.Table, largest: int) -> Iterator[MessageColumns]:
        sql = f"SELECT {_object(table.schema, table.column_names)} AS v, {self._key(table.schema)} AS k FROM {ROWS}"
        for start in range(0, table.num_rows, ROWS_TOGETHER):
            rows = table.slice(start, ROWS_TOGETHER)
            try:
                found = duck.run_select(sql, {ROWS: rows})
            except duckdb.InvalidInputException as error:
                raise SinkError(str(error).removeprefix("Invalid Input Error: ")) from None
            values, keys = (found[name].cast(pa.binary()).to_pylist() for name in "vk")
            yield MessageColumns(values, keys, _times(rows))

    def _key(self, schema: pa.Schema) -> str:
        if self.key is None:
            return "NULL::VARCHAR"
        if not isinstance(self.key, str):
            return _object(schema, self.key)
        kind, column = schema.field(self.key).type, duck.quote(self.key)
        return column if pa.types.is_binary(kind) else f"CAST({_in_json(kind, column, self.key)} AS VARCHAR)"


class ArrowMessages:
    """One Arrow IPC stream with a batch of rows per message."""

    name = "arrow"
    key: str | Sequence[str] | None = None

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema, because Arrow stores all columns of a stream."""

    def messages(self, table: pa.Table, largest: int) -> Iterator[MessageColumns]:
        room = int(largest * BATCH_SHARE)
        rows = max(1, int(room * table.num_rows // max(table.nbytes, 1)))
        for start in range(0, table.num_rows, rows):
            yield from _fitting(table.slice(start, rows), room)


def message_format(format: str, key: str | Sequence[str] | None) -> MessageFormat:
    if key is not None and not isinstance(key, str):
        key = list(key)
        if not key or not all(isinstance(name, str) for name in key):
            raise QueryTypeError(f"key takes a column, or a list of columns; found {key!r}; leave it out for no key")
    if format == "json":
        return JsonMessages(key)
    if format != "arrow":
        raise QueryError(f"format is 'json' or 'arrow'; found {format!r}")
    if key is not None:
        msg = "key: an Arrow message contains many rows, so it cannot have a row's key; leave out key, or use format='json'"
        raise QueryError(msg)
    return ArrowMessages()


def _fitting(table: pa.Table, room: int) -> Iterator[MessageColumns]:
    """Yield the table as one message, split in half until it fits. A single row is never split."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    value = sink.getvalue()
    if len(value) <= room or table.num_rows == 1:
        yield MessageColumns([value.to_pybytes()], [None], [max(_times(table))])
        return
    half = table.num_rows // 2
    yield from _fitting(table.slice(0, half), room)
    yield from _fitting(table.slice(half), room)


def _times(table: pa.Table) -> list[int]:
    """Return the times of rows in milliseconds. Kafka has no times before 1970 and treats 0 as no time."""
    if TS not in table.column_names:
        return [0] * table.num_rows
    millis = pc.divide(table.column(TS).cast(pa.int64()), 1000)
    found: list[int] = pc.fill_null(pc.max_element_wise(millis, 1, skip_nulls=False), 0).to_pylist()
    return found


# --- JSON --------------------------------------------------------------------------------------------------------------


def _demand_form(kind: pa.DataType, column: str) -> None:
    t = pa.types
    if t.is_map(kind) and not t.is_string(kind.key_type):
        msg = f"column {column!r} has type {kind}; in JSON the keys of a map are text; cast them in the query, or use format='arrow'"
        raise QueryTypeError(msg)
    if t.is_nested(kind):
        for number in range(kind.num_fields):
            _demand_form(kind.field(number).type, column)


def _object(schema: pa.Schema, names: Sequence[str]) -> str:
    return f"to_json({_struct([(name, schema.field(name).type, duck.quote(name)) for name in names])})"


def _struct(fields: Sequence[tuple[str, pa.DataType, str]], column: str | None = None) -> str:
    parts = (f"{_text(name)}: {_in_json(kind, value, column or name)}" for name, kind, value in fields)
    return f"{{{', '.join(parts)}}}"


def _in_json(kind: pa.DataType, value: str, column: str, depth: int = 0) -> str:
    """Return SQL that converts a value so that `to_json` writes it exactly."""
    t = pa.types
    if t.is_floating(kind):
        what = f"column {column!r} contains NaN or infinity, which JSON cannot represent; filter such results out in the query, or use format='arrow'"
        return f"CASE WHEN isfinite({value}) OR {value} IS NULL THEN {value} ELSE error({_text(what)}) END"
    if t.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        return f"strftime(CAST({value} AS TIMESTAMP), '%Y-%m-%dT%H:%M:%S.%f{zone}')"
    if t.is_decimal(kind) or t.is_date(kind) or t.is_time(kind):
        return f"CAST({value} AS VARCHAR)"
    if t.is_binary(kind):
        return f"to_base64({value})"
    inner = f"x{depth}"
    if t.is_list(kind):
        return f"list_transform({value}, lambda {inner}: {_in_json(kind.value_type, inner, column, depth + 1)})"
    if t.is_map(kind):
        item = _in_json(kind.item_type, f"{inner}.value", column, depth + 1)
        pairs = f"list_transform(map_entries({value}), lambda {inner}: {{'key': {inner}.key, 'value': {item}}})"
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE map_from_entries({pairs}) END"
    if t.is_struct(kind):
        fields = [(field.name, field.type, f"({value}).{duck.quote(field.name)}") for field in kind]
        parts = (f"{_text(name)}: {_in_json(held, each, column, depth)}" for name, held, each in fields)
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE {{{', '.join(parts)}}} END"
    return value


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
