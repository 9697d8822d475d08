"""Messages as rows, without a broker; and those that cannot be read."""

from __future__ import annotations

import datetime as dt
import json
import random
import sys
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import MissingLibrary, QueryError, QueryTypeError
from headrace.sources.kafka import decoding
from headrace.sources.kafka.client import Servers
from headrace.sources.kafka.decoding import MESSAGE, WRITTEN, decoder
from headrace.sources.kafka.reading import Piece, _rounds

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("at", TS), ("k", pa.string()), ("n", pa.int64())])
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class Message:
    def __init__(self, value: bytes | None, offset: int = 0, when: int = 1_772_366_400_000, kind: int = 1) -> None:
        self._value, self._offset, self._when = value, offset, (kind, when)

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


def test_poison_that_fits_together_is_still_poison():
    """Each message by itself, whatever comes before or after."""
    rng, values = random.Random(5), [*POISON, b'{"n": 7}', b"{}", None]
    for _ in range(30):
        chosen = [rng.choice(values) for _ in range(rng.randrange(1, 12))]
        found, wrong = rows("json", *chosen)
        alone = [rows("json", value) for value in chosen]
        assert found == [row for one, _ in alone for row in one]
        assert [place for place, _ in wrong] == [place for place, (_, bad) in enumerate(alone) if bad]


def test_a_reason_does_not_tell_what_stands_in_the_message():
    _, wrong = rows("json", b'{"n": "secret-4711"}', b'{"n": 47.11e99}', b"secret-4711", b'{"at": "secret-4711"}')
    assert len(wrong) == 4 and not any("4711" in why or "47.11" in why for _, why in wrong)


def test_only_what_is_read_is_looked_at():
    found, wrong = rows("json", b'{"n": "no number", "k": "a"}', columns=["k"])
    assert (found, wrong) == ([{"k": "a"}], [])
    found, wrong = rows("json", b'{"n": 1}', columns=[])
    assert len(wrong) == 0


def test_no_value_is_said_to_be_none():
    assert rows("json", None)[1] == [(0, "it has no value")]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64())])
def test_types_that_json_has_not_are_refused_at_once(kind: pa.DataType):
    with pytest.raises(QueryTypeError, match=r"field 'm' has type .* which is not read from JSON"):
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
        ({"format": "avro", "avro": "{"}, "no Avro schema of a record"),
        ({"format": "avro", "avro": {**AVRO, "fields": AVRO["fields"][:2]}}, "the Avro schema has no field n"),
        ({"avro": AVRO}, 'give format="avro"'),
        ({"topic": []}, "topic must be the name of a topic"),
        ({"topic": ["a", "a"]}, "a topic stands twice"),
        ({"start": "now"}, "start must be one of earliest, latest, or a datetime"),
        ({"start": dt.datetime(2026, 1, 1)}, "start must have a time zone"),
        ({"gaps": "skip"}, "gaps must be one of stop, count"),
        ({"messages_per_epoch": 0}, "messages_per_epoch must be a whole number, at least 1"),
        ({"servers": ""}, "servers must name at least one broker"),
        (
            {"settings": {"isolation.level": "read_uncommitted"}},
            "must not have 'isolation.level': headrace sets it itself",
        ),
        ({"settings": {"no.such": "secret-4711"}}, "No such configuration property"),
        ({"schema": SCHEMA.append(pa.field(WRITTEN, TS))}, "give that field of the schema another name"),
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
        repr(origin.ledger(origin.taken()).reader),
        origin.place,
        stream.explain(),
    ):
        assert "4711" not in text
    assert Servers("x", {"sasl.password": "secret-4711"}).words("login secret-4711 failed") == "login *** failed"


@pytest.mark.parametrize(("module", "given"), [("confluent_kafka", {}), ("fastavro", {"format": "avro", "avro": AVRO})])
def test_a_library_that_is_missing_is_named(module: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingLibrary, match=r"pip install 'headrace\[kafka\]'"):
        kafka(**given)


def test_pieces_are_read_side_by_side_one_of_each_partition():
    pieces = [Piece("t", 0, 0, 5, 1), Piece("t", 1, 0, 5, 1), Piece("t", 0, 5, 9, 1)]
    assert list(_rounds(pieces)) == [pieces[:2], pieces[2:]]
    assert decoding.FORMATS == ("json", "avro", "arrow", "raw")
