"""Conversion of messages to rows: JSON, Avro, Arrow, or unchanged.

Invariant: `rows` returns the rows of every readable message, in order, and for every other message its position and the
reason; the result for a message does not depend on other messages. JSON messages are parsed together: they are joined
by newlines, and since each begins with `{` and ends with `}`, the number of rows equals the number of messages only if
each message is one object.

Rows have the plain types of streams, so a value that does not fit them makes its message unreadable. A reason never
contains any part of the message.
"""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.columnar.types import TS_TYPE, plain_type
from headrace.errors import QueryError, QueryTypeError, SourceError
from headrace.sources import is_same_kind
from headrace.support.extras import import_extra

FORMATS = ("json", "avro", "arrow", "raw")
WRITTEN = "@timestamp"  # as the name of the time column: when the message was written
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MESSAGE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TS_TYPE),
    ]
)
FURTHEST_MILLIS = 2**63 // 1000
NO_FIELDS = pa.schema([("@nothing", pa.bool_())])  # a schema with a single field that never occurs, to count objects
AVRO_TIMES = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
NOT_ONE, NO_BASE64 = "it is not one JSON object", "bytes are not base64"
NO_ROOM = "a value does not fit the type of its field"
NO_MEMORY = "there is not enough memory for it"  # not a fault of the message, so the message is never rejected for it
HARMLESS = re.compile(
    rf"{NOT_ONE}|{NO_BASE64}|JSON parse error: [^\n]*|(Column \d+: In chunk \d+: Invalid: )?Invalid UTF8[ \w]*"
    r"|Failed to convert JSON to \w+(\[[^]\n]*\]|\([^)\n]*\))?"
)
IS_NUMBER = re.compile(r"JSON parse error: Column\(/(.*)\) changed from string to number in row ", re.DOTALL)
Wrong = list[tuple[int, str]]  # (position, reason) of messages that cannot be read


@dataclass(frozen=True)
class Decoder(ABC):
    """A conversion of messages to rows. `schema` includes the time of the message if it was requested."""

    schema: pa.Schema

    def rows(self, messages: Sequence[Any], columns: Sequence[str]) -> tuple[pa.Table, Wrong]:
        """Return these columns of the rows of messages, and the unreadable messages."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        inner = pa.schema([field for field in wanted if field.name != WRITTEN])
        parts, wrong = self._decoded(messages, inner)
        if not parts:
            return _as_plain(wanted.empty_table()), wrong
        tables = [
            _with_time(table, [messages[at] for at in places], counts) if WRITTEN in columns else table
            for table, places, counts in parts
        ]
        return pa.concat_tables(table.select(wanted.names) for table in tables), wrong

    @abstractmethod
    def _decoded(self, messages: Sequence[Any], schema: pa.Schema) -> tuple[list[Part], Wrong]:
        """Return these fields of messages in plain types."""


def _with_time(table: pa.Table, messages: Sequence[Any], counts: Sequence[int] | None) -> pa.Table:
    """Append the times at which messages were written. counts: rows per message; None: one each."""
    times = _times(messages)
    if counts is not None:
        rows = [place for place, count in enumerate(counts) for _ in range(count)]
        times = times.take(pa.array(rows, pa.int64()))
    return table.append_column(WRITTEN, times)


def _as_plain(table: pa.Table) -> pa.Table:
    """Convert columns to the types of streams. Raise if a conversion would lose information."""
    kinds = [plain_type(field.type, field.name) for field in table.schema]
    if kinds == table.schema.types:
        return table
    columns = [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)]
    return pa.table(columns, names=table.column_names)


# rows, positions of their messages, rows per message (None: one each)
Part = tuple[pa.Table, Sequence[int], Sequence[int] | None]


class RawDecoder(Decoder):
    """Messages with their raw key and value."""

    def _decoded(self, messages: Sequence[Any], schema: pa.Schema) -> tuple[list[Part], Wrong]:
        return ([(as_messages(messages, schema), range(len(messages)), None)] if messages else []), []


def as_messages(messages: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Return messages as rows with some columns of `MESSAGE`."""
    made: dict[str, Callable[[], list[Any]]] = {
        "key": lambda: [_bytes(m.key()) for m in messages],
        "value": lambda: [_bytes(m.value()) for m in messages],
        "headers": lambda: [[{"key": k, "value": _bytes(v)} for k, v in m.headers() or ()] for m in messages],
        "topic": lambda: [m.topic() for m in messages],
        "partition": lambda: [m.partition() for m in messages],
        "offset": lambda: [m.offset() for m in messages],
    }
    columns = [
        _times(messages) if field.name == "timestamp" else pa.array(made[field.name](), field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)


def _times(messages: Sequence[Any]) -> pa.Array:
    """Return the times at which messages were written, or null if the broker gives none or one out of range."""
    told = (message.timestamp() for message in messages)
    found = [when if kind and abs(when) < FURTHEST_MILLIS else None for kind, when in told]
    return pc.cast(pa.array(found, pa.timestamp("ms", "UTC")), TS_TYPE)


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


# --- JSON --------------------------------------------------------------------------------------------------------------


class JsonDecoder(Decoder):
    """One JSON object per message. Times and dates are ISO 8601 text, or numbers in the unit of their type; bytes are
    base64.
    """

    def _decoded(self, messages: Sequence[Any], schema: pa.Schema) -> tuple[list[Part], Wrong]:
        values = [message.value() for message in messages]
        parts: list[Part] = []
        wrong: Wrong = []
        if _are_lines(values):
            self._parse(values, range(len(values)), schema, parts, wrong)
        else:
            lines = {place: line for place, value in enumerate(values) if (line := _line(value)) is not None}
            wrong += [(place, _no_object(value)) for place, value in enumerate(values) if place not in lines]
            self._parse([*lines.values()], [*lines], schema, parts, wrong)
        return parts, sorted(wrong)

    def _parse(
        self, lines: list[bytes], places: Sequence[int], schema: pa.Schema, parts: list[Part], wrong: Wrong
    ) -> None:
        """Parse all lines at once. If that fails, split them in half until the unreadable ones are known."""
        if not lines:
            return
        try:
            parts.append((_parsed(lines, schema if schema.names else NO_FIELDS), places, None))
        except pa.ArrowException as error:
            if len(lines) == 1:
                wrong.append((places[0], NO_MEMORY if isinstance(error, MemoryError) else _kind_of_fault(error)))
                return
            half = len(lines) // 2
            self._parse(lines[:half], places[:half], schema, parts, wrong)
            self._parse(lines[half:], places[half:], schema, parts, wrong)


def _are_lines(values: Sequence[Any]) -> bool:
    """Return whether each value may be an object on one line, as nearly all are. All values are checked at once."""
    if set(map(type, values)) != {bytes}:
        return False
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    joined = b"".join(values)
    if not sizes.all() or b"\n" in joined:
        return False
    letters, ends = np.frombuffer(joined, np.uint8), np.cumsum(sizes)
    return bool((letters[ends - sizes] == ord("{")).all() and (letters[ends - 1] == ord("}")).all())


def _line(value: Any) -> bytes | None:
    """Return a message as one line, or None if it cannot be an object. Newlines outside texts have no meaning; within,
    they are invalid.
    """
    line = (_bytes(value) or b"").strip()
    if line[:1] != b"{" or line[-1:] != b"}":
        return None
    return line if b"\n" not in line else line.replace(b"\n", b" ") if _is_json(line) else None


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _no_object(value: Any) -> str:
    return "it has no value" if value is None else "it is no JSON object"


def _parsed(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Return one row per line, in plain types. Each time field is text in all lines, or a number in all lines.

    Arrow's reader stops at the first time that is a number and names its field. The lines are then read again with that
    field as a number, so an error that remains is the real fault of the lines.
    """
    times = {field.name for field in schema if _is_time(field.type)}
    numbers: set[str] = set()
    while True:
        try:
            return _read(lines, schema, numbers)
        except pa.ArrowInvalid as error:
            found = IS_NUMBER.match(str(error))
            if found is None or found[1] not in times - numbers:
                raise
            numbers.add(found[1])


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))


def _read(lines: Sequence[bytes], schema: pa.Schema, numbers: Collection[str] = ()) -> pa.Table:
    """Return one row per line. numbers: the time fields that contain numbers."""
    data = b"\n".join(lines)
    stored = pa.schema([field.with_type(_stored(field.type, number=field.name in numbers)) for field in schema])
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=stored, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid(NOT_ONE)
    table.validate(full=True)
    columns = [
        pa.chunked_array([_restored(chunk, field.type) for chunk in table.column(field.name).chunks], field.type)
        for field in schema
    ]
    return _as_plain(pa.table(columns, schema=schema))


def _stored(kind: pa.DataType, *, number: bool = False) -> pa.DataType:
    """Return the type that Arrow's reader uses: text for dates, times of day and bytes, which are converted afterwards."""
    t = pa.types
    if number:
        return pa.int64() if t.is_timestamp(kind) else kind
    if t.is_date(kind) or t.is_time(kind) or _is_bytes(kind):
        return pa.string()
    if t.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type)) for field in kind])
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)))
    return kind


def _is_bytes(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind))


def _restored(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column that was read as `_stored` to its type."""
    t = pa.types
    if found.type == kind:
        return found
    if t.is_struct(kind):
        parts = [_restored(found.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=found.is_null())
    if t.is_list(kind):
        inner = _restored(found.values, kind.value_type)
        return pa.ListArray.from_arrays(found.offsets, inner, kind, mask=found.is_null())
    if _is_bytes(kind):
        return pa.array([None if text is None else _from_base64(text) for text in found.to_pylist()], kind)
    if t.is_time(kind):  # Arrow cannot cast text to times of day
        found = pc.binary_join_element_wise("1970-01-01T", found, "").cast(pa.timestamp("us")).cast(pa.time64("us"))
    return found.cast(kind)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise pa.ArrowInvalid(NO_BASE64) from None


def _kind_of_fault(error: Exception) -> str:
    """Return the fault without any content of the message: only those texts of Arrow that contain none."""
    known = HARMLESS.match(str(error))
    return known.group().removesuffix(" in row 0").rpartition("Invalid: ")[2] if known else NO_ROOM


# --- Avro --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AvroDecoder(Decoder):
    """One Avro record per message, without a header."""

    written: str = ""  # the writers' schema, as JSON

    @cached_property
    def _schema(self) -> Any:
        return _fastavro().parse_schema(_with_uuids_as_text(json.loads(self.written)))

    def _decoded(self, messages: Sequence[Any], schema: pa.Schema) -> tuple[list[Part], Wrong]:
        records: list[dict[str, Any]] = []
        places: list[int] = []
        wrong: Wrong = []
        for place, message in enumerate(messages):
            try:
                record = self._record(_bytes(message.value()) or b"")
                records.append({name: record[name] for name in schema.names})
                places.append(place)
            except MemoryError:
                wrong.append((place, NO_MEMORY))
            except Exception as error:  # bytes that are not a record can raise anything
                wrong.append((place, f"it is no record of the Avro schema ({type(error).__name__})"))
        parts: list[Part] = []
        _gather(records, places, schema, parts, wrong)
        return parts, sorted(wrong)

    def _record(self, value: bytes) -> Any:
        data = BytesIO(value)
        found = _fastavro().schemaless_reader(data, self._schema, None)
        if data.read(1):
            raise ValueError("bytes follow the record")
        return found


def _gather(
    records: list[dict[str, Any]], places: list[int], schema: pa.Schema, parts: list[Part], wrong: Wrong
) -> None:
    """Convert records to rows. If a value does not fit, split the records in half until the unreadable ones are known."""
    if not records:
        return
    try:
        made = pa.array(records, pa.struct(list(schema)))
        table = _as_plain(pa.Table.from_struct_array(made)) if schema.names else _rows(len(records))
        parts.append((table, places, None))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if len(records) == 1:
            no_room = f"a value does not fit the schema ({type(error).__name__})"
            wrong.append((places[0], NO_MEMORY if isinstance(error, MemoryError) else no_room))
            return
        half = len(records) // 2
        _gather(records[:half], places[:half], schema, parts, wrong)
        _gather(records[half:], places[half:], schema, parts, wrong)


def _rows(count: int) -> pa.Table:
    """Return rows without columns."""
    return pa.table({"_": pa.nulls(count)}).select([])


def _with_uuids_as_text(schema: Any) -> Any:
    """Replace UUIDs by text in the schema, because fastavro would return Python UUID objects."""
    if isinstance(schema, list):
        return [_with_uuids_as_text(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and schema.get("logicalType") == "uuid":
        return "string"
    return {name: _with_uuids_as_text(each) for name, each in schema.items()}


def _times_without_unit(kind: pa.DataType, written: Any) -> bool:
    """Return whether a time column has no time unit in the Avro schema."""
    told = [
        each if isinstance(each, dict) else {"type": each}
        for each in (written if isinstance(written, list) else [written])
    ]
    told = [each for each in told if each["type"] != "null"]
    t = pa.types
    if t.is_timestamp(kind):
        return any(each.get("logicalType") not in AVRO_TIMES for each in told)
    if t.is_struct(kind):
        fields = {field["name"]: field["type"] for each in told for field in each.get("fields", ())}
        return any(_times_without_unit(field.type, fields[field.name]) for field in kind if field.name in fields)
    if t.is_list(kind):
        return any(_times_without_unit(kind.value_type, each["items"]) for each in told if "items" in each)
    return False


def _fastavro() -> Any:
    return import_extra("fastavro", "kafka", 'hr.kafka(format="avro")')


# --- Arrow -------------------------------------------------------------------------------------------------------------


class ArrowDecoder(Decoder):
    """One Arrow stream of record batches per message: many rows at once."""

    def _decoded(self, messages: Sequence[Any], schema: pa.Schema) -> tuple[list[Part], Wrong]:
        parts: list[Part] = []
        wrong: Wrong = []
        for place, message in enumerate(messages):
            try:
                table = self._table(message.value(), schema)
                parts.append((table, [place], [table.num_rows]))
            except SourceError as error:
                wrong.append((place, f"it is no Arrow stream with these columns: {error}"))
            except MemoryError:
                wrong.append((place, NO_MEMORY))
            except (pa.ArrowException, TypeError, OSError, UnicodeDecodeError) as error:
                wrong.append((place, f"it is no Arrow stream with these columns ({type(error).__name__})"))
        return parts, wrong

    def _table(self, value: Any, schema: pa.Schema) -> pa.Table:
        if value is None:
            raise SourceError("it has no value")
        with pa.ipc.open_stream(pa.py_buffer(_bytes(value))) as reader:
            found = reader.read_all()
        for field in schema:
            if found.schema.names.count(field.name) != 1 or not is_same_kind(
                found.schema.field(field.name).type, field
            ):
                raise SourceError(f"column {field.name!r} is missing, or of another type")
        if not schema.names:
            return _rows(found.num_rows)
        chosen = found.select(schema.names)
        chosen.validate(full=True)
        try:
            return _as_plain(chosen.cast(schema))
        except ValueError:  # Arrow raises it for a value that does not fit; a plain one: a null where none is allowed
            raise SourceError(NO_ROOM) from None


# --- arguments -------------------------------------------------------------------------------------------------------


def decoder(kind: str, schema: pa.Schema | None, time: str, avro: Any) -> Decoder:
    """Return the decoder. The arguments are checked as far as possible without a message."""
    if kind not in FORMATS:
        raise QueryError(f"format must be one of {', '.join(FORMATS)}; found {kind!r}")
    if kind != "avro" and avro is not None:
        raise QueryError(f'avro= is the schema of Avro messages; found it with format={kind!r}; give format="avro"')
    if kind == "raw":
        if schema is not None:
            raise QueryError(f"raw messages have the columns {', '.join(MESSAGE.names)}; leave out schema=")
        return RawDecoder(MESSAGE)
    if not isinstance(schema, pa.Schema):
        raise QueryTypeError(f"schema must be a pyarrow.Schema, the fields that are read; found {schema!r}")
    if WRITTEN in schema.names:
        raise QueryError(f"{WRITTEN!r} is the time at which a message was written; rename this field of the schema")
    whole = schema.append(pa.field(WRITTEN, TS_TYPE)) if time == WRITTEN else schema
    if kind == "avro":
        return _avro(whole, avro)
    if kind == "json":
        _check_json(schema)
    return {"json": JsonDecoder, "arrow": ArrowDecoder}[kind](whole)


def _avro(schema: pa.Schema, given: Any) -> AvroDecoder:
    if given is None:
        raise QueryError('format="avro" needs avro=, the schema of the writers, as JSON text or a dict')
    _fastavro()
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        found = AvroDecoder(schema, text)
        names = {field["name"] for field in found._schema["fields"]}
    except Exception as error:  # an invalid schema can raise anything
        raise QueryError(f"avro= is not an Avro record schema: {error}") from None
    if missing := [name for name in schema.names if name not in names and name != WRITTEN]:
        raise QueryError(
            f"the Avro schema has no field {', '.join(missing)}; its fields are {', '.join(sorted(names))}"
        )
    types = {field["name"]: field["type"] for field in found._schema["fields"]}
    for field in schema:
        if field.name != WRITTEN and _times_without_unit(field.type, types[field.name]):
            msg = (
                f"field {field.name!r} has a time type, but the Avro schema does not define it as a time in milliseconds or"
                f" microseconds (logicalType {', '.join(AVRO_TIMES)}); read it with its own type, such as pa.int64(), and convert it to a"
                " time in the query, or correct avro="
            )
            raise QueryTypeError(msg)
    return found


def _check_json(schema: pa.Schema) -> None:
    """Raise for types that cannot be read from JSON."""
    for field in schema:
        try:
            _read([b"{}"], pa.schema([field]))
        except pa.ArrowException as error:
            msg = f"field {field.name!r} has type {field.type}, which cannot be read from JSON ({error}); choose another type"
            raise QueryTypeError(msg) from None
