"""Which columns a stream may have.

Invariant: a schema that went through `stream_schema` has exactly one event time, the column `ts` (microseconds,
UTC), names that no part of the system can confuse, and types that Arrow, DuckDB and Spark all carry unchanged.
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
RESERVED = "__"  # columns that headrace adds on the way begin with this
SUBSTREAM = "__substream"  # beside a tuple on its way: where a split sends it


class JoinColumn(NamedTuple):
    """A column of a join's result: its name there, its side ("l" or "r"), and its name on that side."""

    name: str
    side: str
    source: str


def stream_schema(raw: pa.Schema, time: str) -> pa.Schema:
    """The schema of a source with its time column renamed to `ts`."""
    if time not in raw.names:
        raise QueryError(f"there is no time column {time!r}; the source has {', '.join(raw.names)}")
    if twin := next((name for name in raw.names if name != time and fold_name(name) == TS), None):
        msg = f"the source has a column {twin!r} beside its time column {time!r}; 'ts' is the event time here; rename it first"
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
    """Refuse names that are empty, too long, reserved, or twins of each other."""
    names = list(names)
    for name in names:
        _check_name(name)
    _refuse_twins(names, "columns")


def refuse_added_names(names: Iterable[str], added: Mapping[str, str], verb: str) -> None:
    """Refuse columns whose names the verb itself gives to columns of its results; added: what those mean."""
    for name in names:
        own = fold_name(name)
        if own in added:
            subject = "it is" if name == own else f"{own!r}, from which it differs only in case, is"
            raise QueryError(
                f"{verb} cannot make a column {name!r}: {subject} {added[own]}; choose another name (map renames a column)"
            )


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
        raise QueryError(f"column names that begin with '{RESERVED}' are headrace's own; found {name!r}; rename it")
    if not name.isprintable():
        raise QueryError(f"a column name has a character that cannot be printed; found {name!r}; rename it")


def plain_type(kind: pa.DataType, name: str) -> pa.DataType:
    """The one type that headrace uses for this kind of value, or an error that says what to do."""
    t = pa.types
    if t.is_dictionary(kind):
        return plain_type(kind.value_type, name)
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if t.is_timestamp(kind):  # of nanoseconds too, which must be whole microseconds: a cast that loses some fails
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
        or t.is_struct(kind)  # without a field: no Parquet file holds it
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
    """Refuse times with nanoseconds that microseconds do not hold; a type of nanoseconds alone loses nothing."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if getattr(field.type, "unit", None) == "ns" and not pa.types.is_duration(field.type):
            try:
                column.cast(plain_type(field.type, field.name))
            except pa.ArrowInvalid as error:
                msg = f"column {field.name!r} has nanoseconds; times are kept in microseconds ({error}); round it and cast it to timestamp[us] first"
                raise QueryTypeError(msg) from None


def has_float(kind: pa.DataType) -> bool:
    """Whether a value of this type can hold a floating point number."""
    if pa.types.is_nested(kind):
        return any(has_float(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind))


def public_text(text: str) -> str:
    """Words about an operator: the substream by its plain name."""
    return text.replace(SUBSTREAM, SUBSTREAM.strip("_"))


def unnested_schema(schema: pa.Schema, column: str, elements: pa.Schema, index: str | None) -> pa.Schema:
    """Return the schema with `elements` in place of a column, and the column `index` last, if it is not None."""
    fields = [each for field in schema for each in (elements if field.name == column else [field])]
    return pa.schema([*fields, *([] if index is None else [pa.field(index, pa.int64())])])


def describe_schema(schema: pa.Schema) -> list[list[str]]:
    """A schema as JSON: names and types in order."""
    return [[field.name, str(field.type)] for field in schema]


def value_text(value: pa.Scalar) -> str:
    """A value for people; times that Python has no dates for as the numbers that they are."""
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):  # a time beyond Python's, or text that is none
        return str(getattr(value, "value", "?"))
