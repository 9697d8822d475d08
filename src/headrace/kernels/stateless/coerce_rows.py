"""Checks of tables from user code against the declared schema.

Invariant: the result has exactly the declared columns, in their order and types, with the given values. Types change
within a family only (integers, floats, text, times with a zone, ...), and a value that the declared type cannot hold is
an error. Only doubles are rounded, where narrower floats were declared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import describe_schema, has_float
from headrace.errors import DataError
from headrace.support.argument_errors import describe_argument

Family = Callable[[pa.DataType], bool]

_t = pa.types
_FAMILIES: tuple[Family, ...] = (
    _t.is_integer,
    _t.is_floating,
    _t.is_boolean,
    lambda kind: bool(_t.is_string(kind) or _t.is_large_string(kind) or _t.is_string_view(kind)),
    lambda kind: bool(
        _t.is_binary(kind) or _t.is_large_binary(kind) or _t.is_binary_view(kind) or _t.is_fixed_size_binary(kind)
    ),
    lambda kind: bool(_t.is_timestamp(kind) and kind.tz),
    lambda kind: bool(_t.is_timestamp(kind) and not kind.tz),
    _t.is_date,
    _t.is_time,
    _t.is_decimal,
)


def coerce_rows(given: Any, schema: pa.Schema, what: object, columns: str = "") -> pa.Table:
    """Return the rows in the declared schema.

    what: the start of every message; it becomes text only if there is an error. columns: how messages call the columns.
    """
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if not isinstance(given, pa.Table):
        raise DataError(f"{what} must be a pyarrow Table; found {describe_argument(given)}; such as pa.table({{...}})")
    if given.schema.equals(schema):
        return given
    _check_names(given.column_names, schema, what, columns or "its columns")
    fitted = [_fitted(given.column(field.name), field, what) for field in schema]
    return pa.Table.from_arrays(fitted, schema=schema)


def _check_names(found: list[str], schema: pa.Schema, what: object, columns: str) -> None:
    missing = [name for name in schema.names if name not in found]
    extra = [name for name in found if name not in schema.names]
    twice = sorted({name for name in found if found.count(name) > 1})
    wrong = [
        f"{word} {', '.join(map(repr, names))}"
        for word, names in (("lacks", missing), ("also has", extra), ("has more than once", twice))
        if names
    ]
    if wrong:
        expected = ", ".join(f"{name} {kind}" for name, kind in describe_schema(schema))
        raise DataError(f"{what} {' and '.join(wrong)}; {columns} are {expected}; give just these, by select([...])")


def _fitted(column: pa.ChunkedArray, field: pa.Field, what: object) -> pa.ChunkedArray:
    if column.type.equals(field.type):
        return column
    if not _is_kin(column.type, field.type):
        msg = f"{what} has column {field.name!r} of type {column.type}; expected {field.type}; cast it"
        raise DataError(msg)
    try:
        cast = column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"{what} has column {field.name!r} of type {column.type} with a value that {field.type}, as declared, does not hold: {error}"
        raise DataError(msg) from None
    _refuse_overflow(column, cast, field, what)
    return cast


def _refuse_overflow(column: pa.ChunkedArray, cast: pa.ChunkedArray, field: pa.Field, what: object) -> None:
    """Refuse a finite double that became infinite, which Arrow allows."""
    if has_float(field.type) and any(map(_overflows, column.chunks, cast.chunks)):
        msg = f"{what} has column {field.name!r} of type {column.type} with a value that {field.type}, as declared, does not hold"
        raise DataError(f"{msg}; declare it as double")


def _overflows(given: pa.Array, cast: pa.Array) -> bool:
    """Return whether a double in these values, at any depth, is finite as given and infinite after the cast."""
    if _t.is_dictionary(given.type):
        return _overflows(given.dictionary_decode(), cast)
    if _t.is_nested(cast.type) and _t.is_nested(given.type):
        return any(map(_overflows, _members(given), _members(cast)))
    if not (_t.is_floating(cast.type) and _t.is_floating(given.type)):
        return False
    return bool(pc.any(pc.and_(pc.is_inf(cast), pc.is_finite(given))).as_py())


def _members(values: pa.Array) -> list[pa.Array]:
    """Return the arrays that nested values are made of."""
    if _t.is_struct(values.type):
        return list(values.flatten())
    if not _t.is_map(values.type):
        return [values.flatten()]
    start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
    return [each.slice(start, end - start) for each in (values.keys, values.items)]


def _is_kin(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return whether values of type `found` can be converted to `expected`."""
    if _t.is_null(found) or found.equals(expected):
        return True
    if _t.is_dictionary(found):
        return _is_kin(found.value_type, expected)
    if _t.is_struct(expected):
        return bool(
            _t.is_struct(found)
            and [f.name for f in found] == [f.name for f in expected]
            and all(_is_kin(a.type, b.type) for a, b in zip(found, expected, strict=True))
        )
    if _t.is_map(expected):
        return bool(
            _t.is_map(found)
            and _is_kin(found.key_type, expected.key_type)
            and _is_kin(found.item_type, expected.item_type)
        )
    if _t.is_list(expected):
        is_list = _t.is_list(found) or _t.is_large_list(found) or _t.is_fixed_size_list(found)
        return bool(is_list and _is_kin(found.value_type, expected.value_type))
    return any(family(found) and family(expected) for family in _FAMILIES)
