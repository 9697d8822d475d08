"""Conversion of the schema of a state table to JSON and back, so that a reader does not need the query.

    schema_from_json(schema_to_json(s)) == s     for every schema of plain types (headrace.columnar.types.plain_type)

A type without parameters is stored as Arrow prints it; a type with parameters is a JSON object.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import CorruptState, StateError
from headrace.support import validators

_WORDS = {
    str(kind): kind
    for kind in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.time64("us"), pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
    )
}  # fmt: skip
_DECIMALS = ("decimal32", "decimal64", "decimal128")


def schema_to_json(schema: pa.Schema) -> list[Any]:
    return [[field.name, _type_to_json(field.type)] for field in schema]


def schema_from_json(value: Any, key: str) -> pa.Schema:
    """Return the schema from its JSON form; raise for any other value."""
    fields = _fields(value, key)
    if len({field.name for field in fields}) != len(fields):
        raise validators.refuse(key, "columns with different names", [field.name for field in fields])
    return pa.schema(fields)


def _type_to_json(kind: pa.DataType) -> Any:
    if _WORDS.get(str(kind)) == kind:
        return str(kind)
    if pa.types.is_decimal(kind) and (name := str(kind).partition("(")[0]) in _DECIMALS:
        return {name: [kind.precision, kind.scale]}
    if pa.types.is_struct(kind):
        return {"struct": [[field.name, _type_to_json(field.type)] for field in kind]}
    if pa.types.is_map(kind):
        return {"map": [_type_to_json(kind.key_type), _type_to_json(kind.item_type)]}
    if pa.types.is_list(kind):
        return {"list": _type_to_json(kind.value_type)}
    raise StateError(f"a stored table cannot have a column of type {kind}; cast it")


def _fields(value: Any, key: str) -> list[pa.Field]:
    return [pa.field(*pair) for pair in validators.list_of(validators.exact_list(_name, _type_from_json))(value, key)]


def _name(value: Any, key: str) -> str:
    try:
        return str(validators.text(value, key).encode(), "utf-8")
    except UnicodeEncodeError:  # a lone surrogate
        raise validators.refuse(key, "the name of a column", value) from None


def _type_from_json(value: Any, key: str) -> pa.DataType:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if not isinstance(value, dict) or len(value) != 1:
        raise validators.refuse(key, "a type", value)
    [(name, parts)] = value.items()
    if name in _DECIMALS:
        precision, scale = validators.exact_list(validators.whole(1, 38), validators.whole(-38, 38))(parts, key)
        return _decimal(name, precision, scale, key)
    if name == "struct":
        return pa.struct(_fields(parts, key))
    if name == "map":
        return pa.map_(*validators.exact_list(_type_from_json, _type_from_json)(parts, key))
    if name == "list":
        return pa.list_(_type_from_json(parts, key))
    raise validators.refuse(key, "a type", value)


def _decimal(name: str, precision: int, scale: int, key: str) -> pa.DataType:
    try:
        return getattr(pa, name)(precision, scale)
    except (AttributeError, ValueError, pa.ArrowException) as error:
        raise CorruptState(f"{key} is not a type: {error}") from None
