"""Messages as rows, without a broker; and those that cannot be read."""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
import uuid
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import MissingLibrary, QueryError, QueryTypeError
from headrace.sinks.kafka_messages import message_format
from headrace.sources.kafka import decoders
from headrace.sources.kafka.client import BrokerSettings
from headrace.sources.kafka.decoders import MESSAGE, WRITTEN, decoder
from headrace.sources.kafka.reader import OffsetPiece, _rounds

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("at", TS), ("k", pa.string()), ("n", pa.int64())])
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class Message:
    def __init__(self, value: bytes | None, offset: int = 0, when: int = 1_772_366_400_000, kind: int = 1) -> None:
        self._value, self._offset, self._when = value, offset, (kind, when)

    def __len__(self) -> int:
        return len(self._value or b"")

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return b"key"

    def headers(self) -> Any:
        return [("a", b"1"), ("b", None)] if self._offset else None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._when


def rows(kind: str, *values: bytes | None, schema: pa.Schema | None = SCHEMA, time: str = "at", **given: Any) -> Any:
    found = decoder(kind, schema, time, given.pop("avro", None))
    columns = given.pop("columns", found.schema.names)
    table, wrong = found.rows([Message(value, offset) for offset, value in enumerate(values)], columns)
    return table.to_pylist(), wrong


# --- JSON --------------------------------------------------------------------------------------------------------------


def test_json_in_all_spellings():
    found, wrong = rows(
        "json",
        b'{"at": "2026-03-01T12:00:00Z", "k": "a", "n": 1, "more": {"x": [1, null]}}',
        b' {"n": 2,\n "k": "b\\nb",\r\n "at": "2026-03-01T13:00:00+01:00"}\n',
        b"{}",
        '{"k": "ä€"}'.encode(),
    )
    assert wrong == []
    assert [row["n"] for row in found] == [1, 2, None, None]
    assert [row["k"] for row in found] == ["a", "b\nb", None, "ä€"]
    assert [row["at"] for row in found] == [NOON, NOON, None, None]


def test_a_time_may_be_a_number_in_the_unit_of_its_type():
    schema = pa.schema([("at", pa.timestamp("ms", "UTC"))])
    found, wrong = rows("json", b'{"at": 1772366400000}', b'{"at": "2026-03-01T12:00:00Z"}', schema=schema)
    assert not wrong and [row["at"] for row in found] == [NOON, NOON]


POISON = {
    b"": "no JSON object",
    b"null": "no JSON object",  # Arrow's own reader does not survive it
    b" \n": "no JSON object",
    b"[1]": "no JSON object",
    b'"x"': "no JSON object",
    b"{": "no JSON object",
    b'{"n": 1}{"n": 2}': "not one JSON object",
    b'{"n": 1} null {"n": 2}': "not one JSON object",
    b'{"n": 1}\n{"n": 2}': "no JSON object",
    b'{"n": "1"}': "changed from number to string",
    b'{"n": 1.5}': "Failed to convert JSON to int64",
    b'{"n": 9999999999999999999}': "Failed to convert JSON to int64",
    b'{"n": 1, "n": 2}': "specified twice",
    b'{"k": "\xff"}': "Invalid UTF8",
    b'{"k": "a\x01"}': "Invalid encoding",
    b'{"at": "noon"}': "",
    b'{"k": "x}': "",
    b'{y"}': "",
}


@pytest.mark.parametrize("value", POISON, ids=str)
def test_a_message_that_is_no_object_is_found_among_others(value: bytes):
    good = b'{"n": 7}'
    found, wrong = rows("json", good, value, good, good, value)
    assert [row["n"] for row in found] == [7, 7, 7]
    assert [place for place, _ in wrong] == [1, 4]
    assert all(POISON[value] in why for _, why in wrong)


MALFORMED = (b'{"n": 1,}', b'{"n": 007}', b'{"n": +7}', b'{"n": 1/*c*/}', b'{"n": 1}\r{"n": 2}')


@pytest.mark.parametrize(
    "value", [*(value for value in POISON if value[:2] == b'{"' and b"at" not in value), *MALFORMED]
)
def test_a_time_that_is_a_number_does_not_hide_the_fault_of_its_message(value: bytes):
    """Also where a second time is text: the fault is the same as without any time."""
    ((_, why),) = rows("json", value)[1]
    two = SCHEMA.append(pa.field("day", pa.date32()))
    for times in (b'{"at": 1, ', b'{"day": "2026-03-01", "at": 1, ', b'{"at": "2026-03-01T12:00:00Z", "day": 1, '):
        assert rows("json", value.replace(b"{", times, 1), schema=two)[1] == [(0, why)]


def test_poison_that_fits_together_is_still_poison():
    """Each message by itself, whatever comes before or after."""
    rng, values = random.Random(5), [*POISON, b'{"n": 7}', b"{}", None]
    for _ in range(30):
        chosen = [rng.choice(values) for _ in range(rng.randrange(1, 12))]
        found, wrong = rows("json", *chosen)
        alone = [rows("json", value) for value in chosen]
        assert found == [row for one, _ in alone for row in one]
        assert [place for place, _ in wrong] == [place for place, (_, bad) in enumerate(alone) if bad]


def test_halves_of_an_object_do_not_pass_as_the_message_that_another_has_too_many():
    halves = (b'{"n": 1, "o": [{}', b", {}]}")
    found, wrong = rows("json", *halves, b'{"n": 2} {"n": 3}')
    assert found == [] and [place for place, _ in wrong] == [0, 1, 2]


def test_a_reason_does_not_tell_what_stands_in_the_message():
    _, wrong = rows("json", b'{"n": "secret-4711"}', b'{"n": 47.11e99}', b"secret-4711", b'{"at": "secret-4711"}')
    assert len(wrong) == 4 and not any("4711" in why or "47.11" in why for _, why in wrong)


def test_nor_does_it_where_the_value_is_one_but_has_no_room():
    """Whatever Arrow says of it: it likes to quote."""
    kinds = {"d": pa.decimal128(6, 2), "b": pa.binary(), "t": pa.timestamp("ns"), "day": pa.date32(), "n": pa.int8()}
    texts = [
        '{"d": "4711.345"}',
        '{"d": 4711.345}',
        '{"d": "47114711"}',
        '{"b": "4711!"}',
        '{"t": 4711471147114711001}',
    ]
    texts += ['{"day": "4711-31"}', '{"n": 4711}', '{"t": "4711-01-01T00:00:00Z"}', '{"day": 47110000000000}']
    found, wrong = rows("json", *map(str.encode, texts), schema=pa.schema(list(kinds.items())))
    assert len(wrong) == len(texts) and not found
    assert not any("4711" in why or "345" in why for _, why in wrong), wrong
    table = pa.table({"t": pa.array([4711471147114711001], pa.timestamp("ns"))})
    _, wrong = rows("arrow", ipc(table), b"4711", schema=pa.schema([("t", pa.timestamp("ns"))]))
    assert len(wrong) == 2 and not any("4711" in why for _, why in wrong)


# --- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.timestamp("ns", "UTC"), 1_772_366_400_000_000_000, 1_772_366_400_000_000_001),
        (pa.timestamp("ms", "UTC"), 1_772_366_400_000, 10_000_000_000_000_000),
        (pa.timestamp("s"), 1_772_366_400, 10_000_000_000_000),
    ],
)
def test_a_time_that_microseconds_do_not_hold_is_a_fault_of_its_message(kind: pa.DataType, good: int, bad: int):
    """It is found where the offset is known; a cast further on could only end the run."""
    schema = pa.schema([("at", kind), ("n", pa.int64())])
    wanted = NOON if kind.tz else NOON.replace(tzinfo=None)
    texts = [b'{"at": %d}' % at for at in (good, bad, good)]
    streams = [ipc(pa.table({"at": pa.array([at], kind), "n": [1]})) for at in (good, bad, good)]
    for found, wrong in (rows("json", *texts, schema=schema), rows("arrow", *streams, schema=schema)):
        assert [row["at"] for row in found] == [wanted] * 2 and [place for place, _ in wrong] == [1]
        assert "does not fit" in wrong[0][1]


def test_so_is_one_of_a_record():
    schema = pa.schema([("at", pa.timestamp("ns", "UTC"))])
    far = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)  # beyond what nanoseconds reach
    found, wrong = rows("avro", *(avro(at=at, k=None, n=1) for at in (NOON, far, NOON)), schema=schema, avro=AVRO)
    assert [row["at"] for row in found] == [NOON] * 2 and [place for place, _ in wrong] == [1]


def test_a_time_of_a_message_that_cannot_be_is_none():
    found = decoder("json", pa.schema([("n", pa.int64())]), WRITTEN, None)
    table, wrong = found.rows([Message(b"{}", when=2**62), Message(b"{}")], [WRITTEN])
    assert not wrong and table.to_pylist() == [{WRITTEN: None}, {WRITTEN: NOON}]


def test_rows_have_the_types_that_streams_carry():
    schema = pa.schema([("at", pa.timestamp("ms", "UTC")), ("k", pa.large_string()), ("b", pa.binary(2))])
    for values in ([], [b'{"at": 0, "k": "x", "b": "AAE="}'], [b"no"]):
        found = decoder("json", schema, "at", None).rows([Message(value) for value in values], ["b", "at", "k"])[0]
        assert found.schema == pa.schema([("b", pa.binary()), ("at", TS), ("k", pa.string())])


def test_of_several_times_some_may_be_text_and_some_numbers():
    schema = pa.schema([("a", pa.timestamp("ms", "UTC")), ("b", pa.timestamp("us", "UTC")), ("d", pa.date32())])
    day = dt.date(2026, 3, 1)
    mixed = [
        b'{"a": "2026-03-01T12:00:00Z", "b": 1772366400000000, "d": "2026-03-01"}',
        b'{"a": 1772366400000, "b": "2026-03-01T12:00:00Z", "d": 20513}',
        b'{"b": 1772366400000000}',
        b'{"a": "noon", "b": 1772366400000000}',
        b'{"a": "2026-03-01T12:00:00Z"}',
    ]
    found, wrong = rows("json", *mixed, schema=schema)
    assert [list(row.values()) for row in found] == [
        [NOON, NOON, day],
        [NOON, NOON, day],
        [None, NOON, None],
        [NOON, None, None],
    ]
    assert [place for place, _ in wrong] == [3]


def test_where_all_messages_mix_them_none_is_read_by_itself(monkeypatch: pytest.MonkeyPatch):
    reads, read = [], decoders._read
    monkeypatch.setattr(decoders, "_read", lambda lines, *given: [reads.append(len(lines)), read(lines, *given)][1])
    schema = pa.schema([("a", TS), ("b", TS)])
    found, wrong = rows("json", *[b'{"a": "2026-03-01T12:00:00Z", "b": 1772366400000000}'] * 100, schema=schema)
    assert len(found) == 100 and not wrong
    assert reads == [1, 1, 100, 100], "one to check each field, then all as text, then with `b` as a number"


# --- what the sink writes ----------------------------------------------------------------------------------------------

FULL: dict[str, tuple[pa.DataType, list[Any]]] = {
    "ts": (TS, [NOON, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC), None]),
    "wall": (pa.timestamp("us"), [dt.datetime(2026, 3, 1, 12, 0, 0, 123456), dt.datetime(1901, 1, 1), None]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2026, 3, 1), None]),
    "clock": (pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "i8": (pa.int8(), [-128, 127, None]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1, None]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "u8": (pa.uint8(), [0, 255, None]),
    "u16": (pa.uint16(), [0, 2**16 - 1, None]),
    "u32": (pa.uint32(), [0, 2**32 - 1, None]),
    "u64": (pa.uint64(), [0, 2**64 - 1, None]),
    "f32": (pa.float32(), [0.5, -1.25e-30, None]),
    "f64": (pa.float64(), [0.1, 1.7976931348623157e308, None]),
    "whole": (pa.decimal128(38, 0), [Decimal(10**37 + 1), Decimal(-7), None]),
    "cents": (pa.decimal128(12, 2), [Decimal("-1234567890.12"), Decimal("0.05"), None]),
    "text": (pa.string(), ["a'\"\\ \n\t%s {}", "ünïcödé 𝔘", None]),
    "bytes": (pa.binary(), [b"\x00\xff" * 50, b"", None]),
    "list": (pa.list_(pa.binary()), [[b"\x01", None, b""], [], None]),
    "struct": (
        pa.struct([("b", pa.binary()), ("d", pa.date32()), ("l", pa.list_(pa.time64("us"))), ("n", pa.int8())]),
        [{"b": b"\xff", "d": dt.date(2026, 3, 1), "l": [dt.time(1, 2, 3), None], "n": 1}, dict.fromkeys("bdln"), None],
    ),
    "lists": (
        pa.list_(pa.list_(pa.struct([("t", pa.timestamp("us"))]))),
        [[[{"t": dt.datetime(2026, 3, 1)}], []], [None], None],
    ),
}


def test_what_the_sink_writes_is_read_as_it_was():
    """All plain types but maps."""
    schema = pa.schema([(name, kind) for name, (kind, _) in FULL.items()])
    table = pa.table([pa.array(values, kind) for kind, values in FULL.values()], schema=schema)
    written = [value for some in message_format("json", None).messages(table, 1_000_000) for value in some.values]
    for each in (schema, *(pa.schema([field]) for field in schema)):
        found, wrong = decoder("json", each, "ts", None).rows([Message(value) for value in written], each.names)
        assert wrong == [] and found.equals(table.select(each.names)), each


def test_only_what_is_read_is_looked_at():
    found, wrong = rows("json", b'{"n": "no number", "k": "a"}', columns=["k"])
    assert (found, wrong) == ([{"k": "a"}], [])
    found, wrong = rows("json", b'{"n": 1}', columns=[])
    assert len(wrong) == 0


def test_no_value_is_said_to_be_none():
    assert rows("json", None)[1] == [(0, "it has no value")]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64())])
def test_types_that_json_has_not_are_refused_at_once(kind: pa.DataType):
    with pytest.raises(QueryTypeError, match=r"field 'm' has type .* which cannot be read from JSON"):
        decoder("json", pa.schema([("m", kind)]), "at", None)


# --- the others --------------------------------------------------------------------------------------------------------

AVRO = {
    "type": "record",
    "name": "Call",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "k", "type": ["null", "string"]},
        {"name": "n", "type": "long"},
        {"name": "more", "type": "double"},
    ],
}


def avro(**record: Any) -> bytes:
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(AVRO), {"more": 0.5, **record})
    return data.getvalue()


def test_avro():
    good = avro(at=NOON, k=None, n=5)
    for given in (AVRO, json.dumps(AVRO)):
        found, wrong = rows("avro", good, b"\x00", good + b"x", None, avro(at=NOON, k="ä", n=-1), avro=given)
        assert found == [{"at": NOON, "k": None, "n": 5}, {"at": NOON, "k": "ä", "n": -1}]
        assert [place for place, _ in wrong] == [1, 2, 3]
        assert all("no record of the Avro schema" in why for _, why in wrong)


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_arrow_a_message_is_any_number_of_rows():
    made = pa.table(
        {"n": [1, 2, 3], "at": pa.array([NOON] * 3, TS), "k": pa.array(["a", "b", "a"]).dictionary_encode()}
    )
    other = made.set_column(0, "n", pa.array(["1", "2", "3"]))
    found, wrong = rows("arrow", ipc(made), ipc(made.slice(0, 0)), ipc(other), b"no", None, ipc(made)[:-60], ipc(made))
    assert [row["n"] for row in found] == [1, 2, 3, 1, 2, 3] and {row["k"] for row in found} == {"a", "b"}
    assert [place for place, _ in wrong] == [2, 3, 4, 5]
    assert "column 'n' is missing, or of another type" in wrong[0][1]


def test_arrow_a_null_where_there_must_be_none_is_a_fault_of_its_message():
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    good, bad = (ipc(pa.table({"n": pa.array(values, pa.int64())})) for values in ([7], [1, None]))
    found, wrong = rows("arrow", good, bad, schema=schema, time="n")
    assert [row["n"] for row in found] == [7] and [place for place, _ in wrong] == [1]


def test_the_time_of_the_message_for_every_row_of_it():
    schema = pa.schema([("n", pa.int64())])
    assert rows("json", b'{"n": 1}', schema=schema, time=WRITTEN)[0] == [{"n": 1, WRITTEN: NOON}]
    found, _ = rows("arrow", ipc(pa.table({"n": [1, 2]})), schema=schema, time=WRITTEN)
    assert found == [{"n": 1, WRITTEN: NOON}, {"n": 2, WRITTEN: NOON}]


@pytest.mark.parametrize("kind", ["json", "avro", "arrow"])
def test_nothing_but_the_time_of_the_message_may_be_read(kind: str):
    values = {"json": b'{"n": 1}', "avro": avro(at=NOON, k=None, n=5), "arrow": ipc(pa.table({"n": [1]}))}
    schema, given = pa.schema([("n", pa.int64())]), {"avro": AVRO} if kind == "avro" else {}
    found, wrong = rows(kind, values[kind], values[kind], schema=schema, time=WRITTEN, columns=[WRITTEN], **given)
    assert (found, wrong) == ([{WRITTEN: NOON}] * 2, [])


def with_type(name: str, kind: Any) -> dict[str, Any]:
    """The schema, one field of another type."""
    fields = [{"name": f["name"], "type": kind} if f["name"] == name else f for f in AVRO["fields"]]  # type: ignore[index]
    return {**AVRO, "fields": fields}


def test_an_avro_uuid_is_text():
    found = uuid.UUID("00000000-0000-0000-0000-00000000002a")
    for kind in ({"type": "string", "logicalType": "uuid"}, ["null", {"type": "string", "logicalType": "uuid"}]):
        data, written = BytesIO(), with_type("k", kind)
        fastavro.schemaless_writer(data, fastavro.parse_schema(written), {"at": NOON, "k": found, "n": 1, "more": 0.5})
        read, wrong = rows("avro", data.getvalue(), avro=written)
        assert wrong == [] and read == [{"at": NOON, "k": str(found), "n": 1}]


@pytest.mark.parametrize(
    "kind",
    [
        "long",
        "string",
        {"type": "long", "logicalType": "timestamp-nanos"},
        ["null", "long"],
        {"type": "int", "logicalType": "date"},
    ],
    ids=str,
)
def test_an_avro_time_of_no_known_unit_is_refused_at_once(kind: Any):
    with pytest.raises(
        QueryTypeError, match=r"field 'at' has a time type, but the Avro schema does not define .*timestamp-millis"
    ):
        decoder("avro", SCHEMA, "at", with_type("at", kind))
    inside = {"type": "array", "items": {"type": "record", "name": "In", "fields": [{"name": "t", "type": kind}]}}
    nested = pa.schema([("k", pa.list_(pa.struct([("t", TS)])))])
    with pytest.raises(
        QueryTypeError, match="field 'k' has a time type, but the Avro schema does not define it as a time"
    ):
        decoder("avro", nested, WRITTEN, with_type("k", inside))


@pytest.mark.parametrize("unit", ["timestamp-millis", "local-timestamp-micros"])
def test_an_avro_time_of_a_known_unit_may_be_null(unit: str):
    written = with_type("at", ["null", {"type": "long", "logicalType": unit}])
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(written), {"at": None, "k": "a", "n": 1, "more": 0.5})
    assert rows("avro", data.getvalue(), avro=written) == ([{"at": None, "k": "a", "n": 1}], [])


def test_an_avro_value_that_the_schema_has_no_room_for():
    schema = pa.schema([("n", pa.int8())])
    good, large = avro(at=NOON, k=None, n=5), avro(at=NOON, k=None, n=500)
    found, wrong = rows("avro", good, large, good, schema=schema, time=WRITTEN, avro=AVRO)
    assert [row["n"] for row in found] == [5, 5] and [place for place, _ in wrong] == [1]


def test_raw():
    found, wrong = rows("raw", b"x", None, schema=None, time="timestamp")
    assert not wrong and list(found[0]) == MESSAGE.names
    assert found[0] | {} == {
        "key": b"key",
        "value": b"x",
        "headers": [],
        "topic": "t",
        "partition": 3,
        "offset": 0,
        "timestamp": NOON,
    }
    assert found[1]["value"] is None and found[1]["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "b", "value": None},
    ]
    unknown = decoder("raw", None, "timestamp", None).rows([Message(b"", kind=0)], ["timestamp"])[0]
    assert unknown.to_pylist() == [{"timestamp": None}]


# --- arguments ---------------------------------------------------------------------------------------------------------


def kafka(**given: Any) -> Any:
    return hr.kafka(None, **{"servers": "x:1", "topic": "t", "time": "at", "schema": SCHEMA, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "xml"}, "format must be one of json, avro, arrow, raw; found 'xml'"),
        ({"schema": None}, "schema must be a pyarrow.Schema"),
        ({"time": None}, "time must be a field of the schema, or '@timestamp'"),
        ({"time": "then"}, "no time column 'then'"),
        ({"format": "raw"}, "leave out schema="),
        ({"format": "avro"}, "needs avro="),
        ({"format": "avro", "avro": "{"}, "not an Avro record schema"),
        ({"format": "avro", "avro": {**AVRO, "fields": AVRO["fields"][:2]}}, "the Avro schema has no field n"),
        ({"avro": AVRO}, 'give format="avro"'),
        ({"topic": []}, "topic must be the name of a topic"),
        ({"topic": ["a", "a"]}, "a topic occurs twice"),
        ({"start": "now"}, "start must be one of earliest, latest, or a datetime"),
        ({"start": dt.datetime(2026, 1, 1)}, "start must have a time zone"),
        ({"gaps": "skip"}, "gaps must be one of stop, count"),
        ({"messages_per_epoch": 0}, "messages_per_epoch must be a whole number, at least 1"),
        ({"servers": ""}, "servers must name at least one broker"),
        (
            {"settings": {"isolation.level": "read_uncommitted"}},
            "must not contain 'isolation.level': headrace sets it itself",
        ),
        (
            {"settings": {"default.topic.config": {"isolation.level": "read_uncommitted"}}},
            "must not contain 'default.topic",
        ),
        ({"settings": {"no.such": "secret-4711"}}, "No such configuration property"),
        ({"schema": SCHEMA.append(pa.field(WRITTEN, TS))}, "rename this field of the schema"),
    ],
)
def test_what_cannot_be_meant_is_known_at_once(given: dict[str, Any], words: str):
    with pytest.raises(QueryError) as caught:
        kafka(**given)
    assert words in str(caught.value) and "4711" not in str(caught.value)


def test_what_was_set_is_in_no_text():
    stream = kafka(settings={"sasl.password": "secret-4711", "sasl.username": "anna-4711"})
    origin = stream._node.origin if hasattr(stream, "_node") else stream.node.origin
    for text in (
        repr(stream),
        repr(origin),
        repr(origin.ledger(origin.state_type()).reader),
        origin.place,
        stream.explain(),
    ):
        assert "4711" not in text
    assert (
        BrokerSettings("x", {"sasl.password": "secret-4711"}).describe("login secret-4711 failed") == "login *** failed"
    )


@pytest.mark.parametrize(("module", "given"), [("confluent_kafka", {}), ("fastavro", {"format": "avro", "avro": AVRO})])
def test_a_library_that_is_missing_is_named(module: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingLibrary, match=r"pip install 'headrace\[kafka\]'"):
        kafka(**given)


def test_pieces_are_read_side_by_side_one_of_each_partition():
    pieces = [OffsetPiece("t", 0, 0, 5, 1), OffsetPiece("t", 1, 0, 5, 1), OffsetPiece("t", 0, 5, 9, 1)]
    assert list(_rounds(pieces)) == [pieces[:2], pieces[2:]]
    assert decoders.FORMATS == ("json", "avro", "arrow", "raw")
