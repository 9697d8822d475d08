"""The column names and types that a stream may have.

Invariant: a schema from `stream_schema` has exactly one event time, the column `ts` (microseconds, UTC), no reserved or
ambiguous names, and only types that Arrow, DuckDB and Spark all represent without loss.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import QueryError, QueryTypeError

TS = "ts"
TS_TYPE = pa.timestamp("us", "UTC")
EVENT_TIME = {TS: "the event time, which every result has"}
BOUNDS = {
    "window_start": "the start of the window, which every result over time windows or sessions has",
    "window_end": "the end of the window, which every result over time windows or sessions has",
}
LONGEST_NAME = 255
RESERVED = "__"  # prefix of columns that headrace adds internally
SUBSTREAM = "__substream"  # internal column: the substream to which a split sends the tuple


class JoinColumn(NamedTuple):
    """A column of a join's result: its name there, its side ("l" or "r"), and its name on that side."""

    name: str
    side: str
    source: str


def stream_schema(raw: pa.Schema, time: str) -> pa.Schema:
    """Return the schema of a source with its time column renamed to `ts`."""
    if time not in raw.names:
        raise QueryError(f"there is no time column {time!r}; the source has {', '.join(raw.names)}")
    if twin := next((name for name in raw.names if name != time and fold_name(name) == TS), None):
        msg = f"the source has a column {twin!r} beside its time column {time!r}; 'ts' is headrace's name of the event time; rename the column first"
        raise QueryError(msg)
    check_names(raw.names)
    _check_time(raw.field(time))
    return pa.schema([_field(field, time) for field in raw])


def _field(field: pa.Field, time: str) -> pa.Field:
    if field.name == time:
        return pa.field(TS, TS_TYPE)
    return pa.field(field.name, plain_type(field.type, field.name))


def _check_time(field: pa.Field) -> None:
    if not pa.types.is_timestamp(field.type):
        msg = f"the time column {field.name!r} must be a timestamp; found {field.type}; cast it first"
        raise QueryTypeError(msg)


def check_names(names: Iterable[str]) -> None:
    """Raise if names are empty, too long, reserved, or equal up to case and Unicode form."""
    names = list(names)
    for name in names:
        _check_name(name)
    _refuse_twins(names, "columns")


def refuse_added_names(
    names: Iterable[str], added: Mapping[str, str], verb: str, instead: str = "choose another name"
) -> None:
    """Raise if a column has the name of a column that the verb adds.

    added: those names with their meanings. instead: what to do, for the error.
    """
    for name in names:
        own = fold_name(name)
        if own in added:
            subject = "it is" if name == own else f"{own!r}, from which it differs only in case, is"
            raise QueryError(f"{verb} cannot make a column {name!r}: {subject} {added[own]}; {instead}")


def fold_name(name: str) -> str:
    """Return the form of a name in which names that differ only in case or in Unicode form are equal."""
    return unicodedata.normalize("NFC", name).casefold()


def _refuse_twins(names: Iterable[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if twin := seen.get(fold_name(name)):
            how = "have the same name" if twin == name else "differ only in case or in Unicode form"
            raise QueryError(f"{what} {twin!r} and {name!r} {how}; rename one of them")
        seen[fold_name(name)] = name


def _check_name(name: str) -> None:
    if not name or name != name.strip():
        raise QueryError(f"a column name must not be empty or begin or end with a space; found {name!r}")
    if len(name) > LONGEST_NAME:
        raise QueryError(f"a column name has {len(name)} characters; at most {LONGEST_NAME}; it begins {name[:30]!r}")
    if name.startswith(RESERVED):
        raise QueryError(f"column names that begin with '{RESERVED}' are reserved; found {name!r}; rename the column")
    if not name.isprintable():
        raise QueryError(f"a column name has an unprintable character; found {name!r}; rename the column")


def plain_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type that streams use for values of this type. Raise if there is none."""
    t = pa.types
    if t.is_dictionary(kind):
        return plain_type(kind.value_type, name)
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if t.is_timestamp(kind):  # also nanoseconds: a cast fails if they are not whole microseconds
        return pa.timestamp("us", "UTC") if kind.tz else pa.timestamp("us")
    if t.is_date64(kind):
        return pa.date32()
    if t.is_time(kind):
        return pa.time64("us")
    if t.is_struct(kind) and kind.num_fields:
        _refuse_twins((f.name for f in kind), f"column {name!r} is a struct whose fields")
        return pa.struct([pa.field(f.name, plain_type(f.type, f"{name}.{f.name}")) for f in kind])
    if t.is_map(kind):
        return pa.map_(plain_type(kind.key_type, name), plain_type(kind.item_type, name))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type, name))
    if _refused(kind):
        msg = f"column {name!r} has type {kind}, which streams do not carry; cast it to a number or to text first"
        raise QueryTypeError(msg)
    return kind


def _refused(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        isinstance(kind, pa.BaseExtensionType)
        or t.is_null(kind)
        or t.is_struct(kind)  # a struct without fields cannot be stored in Parquet
        or t.is_interval(kind)
        or t.is_duration(kind)
        or t.is_float16(kind)
        or t.is_decimal256(kind)
        or t.is_union(kind)
        or t.is_run_end_encoded(kind)
        or t.is_list_view(kind)
        or t.is_large_list_view(kind)
    )


def refuse_nanoseconds(rows: pa.Table) -> None:
    """Raise if a time has a fraction of a microsecond. Nanosecond types with whole microseconds are allowed."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if getattr(field.type, "unit", None) == "ns" and not pa.types.is_duration(field.type):
            try:
                column.cast(plain_type(field.type, field.name))
            except pa.ArrowInvalid as error:
                msg = f"column {field.name!r} has nanoseconds, but streams have microseconds ({error}); round the column and cast it to timestamp[us] first"
                raise QueryTypeError(msg) from None


def has_float(kind: pa.DataType) -> bool:
    """Return whether values of this type can contain floating point numbers."""
    if pa.types.is_nested(kind):
        return any(has_float(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def public_text(text: str) -> str:
    """Replace internal column names in the text of an operator by public ones."""
    return text.replace(SUBSTREAM, SUBSTREAM.strip("_"))


def unnested_schema(schema: pa.Schema, column: str, elements: pa.Schema, index: str | None) -> pa.Schema:
    """Return the schema with `elements` in place of `column`, and with the column `index` last unless it is None."""
    fields = [each for field in schema for each in (elements if field.name == column else [field])]
    return pa.schema([*fields, *([] if index is None else [pa.field(index, pa.int64())])])


def describe_schema(schema: pa.Schema) -> list[list[str]]:
    """Return a schema as JSON: names and types in order."""
    return [[field.name, str(field.type)] for field in schema]


def value_text(value: pa.Scalar) -> str:
    """Format a value. Times outside Python's range are shown as numbers."""
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):  # a time outside Python's range, or invalid text
        return str(getattr(value, "value", "?"))
