"""Rows that a test writes by hand, as Arrow tables.

A row is a tuple of values in the order of the columns, or a dict of values by column. Times are seconds since
1970-01-01T00:00Z or datetimes; a datetime without a zone is UTC.

Invariant: a value is stored exactly as the test wrote it, or the error names its row and column.
"""

from __future__ import annotations

import datetime as dt
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.columnar.types import TS
from headrace.errors import QueryError, QueryTypeError
from headrace.support.argument_errors import describe_argument
from headrace.support.event_time import to_micros
from headrace.testing.type_texts import type_of_text

Rows: TypeAlias = pa.Table | Sequence[Sequence[Any] | Mapping[str, Any]]
Columns: TypeAlias = Mapping[str, str | pa.DataType] | pa.Schema


def column_types(columns: Columns, what: str) -> pa.Schema:
    """Return columns given as {name: type}; a type is an Arrow type or its name in Arrow, Spark or DuckDB."""
    if isinstance(columns, pa.Schema):
        return columns
    if not isinstance(columns, Mapping):
        raise QueryTypeError(
            f"the columns of {what} must be a dict of names and types, such as {{'k': 'string', 'n': 'int64'}};"
            f" found {describe_argument(columns)}"
        )
    return pa.schema([pa.field(name, _type(kind, name, what)) for name, kind in columns.items()])


def _type(kind: Any, name: Any, what: str) -> pa.DataType:
    if not isinstance(name, str):
        raise QueryTypeError(
            f"the columns of {what} must have names of text, such as {{'k': 'string'}}; found {name!r:.80}"
        )
    if isinstance(kind, pa.DataType):
        return kind
    found = type_of_text(kind, name) if isinstance(kind, str) else None
    if found is None:
        raise QueryTypeError(
            f"the type of column {name!r} of {what} must be an Arrow type, such as pa.int64(), or its name, such as 'string',"
            f" 'int64', 'double', 'bool', or a type of DuckDB, such as 'decimal(10, 2)' or 'varchar[]'; found {kind!r:.80}"
        )
    return found


def typed_table(rows: Rows, schema: pa.Schema, what: str, *, sparse: bool = True) -> pa.Table:
    """Return rows as a table with these columns; what: what the rows are, for errors.

    sparse: a dict may leave out columns, which are then null. Otherwise it must name all of them.
    """
    if isinstance(rows, pa.Table):
        return _cast(rows, schema, what)
    if isinstance(rows, str | Mapping) or not isinstance(rows, Sequence):
        raise QueryTypeError(
            f"{what} must be a list of rows, each a tuple {_shape(schema)}; found {describe_argument(rows)}"
        )
    values = [_values(row, schema, f"row {number} of {what}", sparse) for number, row in enumerate(rows)]
    columns = [_column([row[i] for row in values], field, what) for i, field in enumerate(schema)]
    return pa.table(columns, schema=schema) if columns else pa.table({})


def _shape(schema: pa.Schema) -> str:
    names = ["time" if name == TS else name for name in schema.names]
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _cast(rows: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    if sorted(rows.column_names) != sorted(schema.names):
        raise QueryError(
            f"{what} must have the columns {', '.join(schema.names)}; found {', '.join(rows.column_names)}"
        )
    try:
        return rows.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise QueryTypeError(f"{what} do not fit the columns {_typed(schema)}: {error}") from None


def _typed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _values(row: Any, schema: pa.Schema, what: str, sparse: bool) -> Sequence[Any]:
    if isinstance(row, Mapping):
        unknown = [name for name in row if name not in schema.names]
        missing = [] if sparse else [name for name in schema.names if name not in row]
        if unknown or missing:
            problem = f"has no column {missing[0]!r}" if missing else f"has an unknown column {unknown[0]!r}"
            raise QueryError(f"{what} {problem}; found {row!r:.200}; the columns are {', '.join(schema.names)}")
        return [row.get(name) for name in schema.names]
    if isinstance(row, str) or not isinstance(row, Sequence):
        raise QueryTypeError(f"{what} must be a tuple {_shape(schema)}; found {describe_argument(row)}")
    if len(row) != len(schema):
        raise QueryError(
            f"{what} has {len(row)} values, the columns are {len(schema)}; found {row!r:.200}; expected {_shape(schema)}"
        )
    return row


def _column(values: Sequence[Any], field: pa.Field, what: str) -> Any:
    try:
        return _array(values, field.type)
    except _MISFITS:
        pass
    for number, value in enumerate(values):
        try:
            _array([value], field.type)
        except _MISFITS as error:
            wanted = "seconds since 1970 or a datetime" if pa.types.is_timestamp(field.type) else f"{field.type}"
            raise QueryTypeError(
                f"row {number} of {what}: column {field.name!r} must be {wanted}; found {value!r:.80} ({error})"
            ) from None
    raise QueryTypeError(f"column {field.name!r} of {what} must be {field.type}; found {values!r:.200}")


_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _array(values: Sequence[Any], kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.array([_micros(value) for value in values], pa.timestamp("us", kind.tz)).cast(kind)
    found = pa.array(values, kind)
    if any(map(_altered, values, found.to_pylist())):
        raise TypeError("it would be altered")
    return found


def _altered(given: Any, stored: Any) -> bool:
    """Whether Arrow cut something off: the fraction of a whole number, the time of a date, an unknown field of a struct."""
    if isinstance(given, Mapping) and isinstance(stored, dict):
        return any(name not in stored or _altered(value, stored[name]) for name, value in given.items())
    if isinstance(stored, dict):
        return given is not None and not isinstance(given, Mapping)
    if isinstance(stored, list | tuple):
        if isinstance(given, str | bytes | bytearray):
            raise TypeError(f"Arrow would take it apart; write a list, such as {[given]!r:.80}")
        items = given.items() if isinstance(given, Mapping) else given
        return any(map(_altered, items, stored))
    if type(stored) is dt.date:
        return type(given) is not dt.date
    return type(stored) is int and bool(given != stored)


def _micros(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return to_micros(value if value.tzinfo else value.replace(tzinfo=dt.UTC))
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number: Any = value
        micros: int = round(number * 1_000_000)
        return micros
    raise TypeError("no time")
