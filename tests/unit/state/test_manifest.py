from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.columnar.types import plain_type
from headrace.errors import CorruptState, StateError
from headrace.state import Block, Manifest, OperatorState, OutboxEntry, SourceState, Totals, block_name
from headrace.state.manifest import (
    READABLE_FORMATS,
    STATE_FORMAT,
    FolderState,
    TableState,
    _encode,
    _seal,
    _to_json,
    manifest_digest,
    manifest_name,
    number_of,
)
from headrace.state.schemas import schema_from_json, schema_to_json

from .checks import NAME, example_manifest, example_table
from .faulty import flip

SOURCE, TOTALS = SourceState().to_json(), Totals().to_json()
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def forged(**changes: Any) -> bytes:
    """A manifest with a right checksum and wrong content: what an attacker or a bug would write."""
    return _seal({**_to_json(example_manifest()), **changes})


def hostile_block(**changes: Any) -> list[Any]:
    good = Block(block_name(1, 0, 0, 0), 1, "0" * 32, 1, 0, 0).to_json()
    return [changes.get(field, value) for field, value in zip(Block.__dataclass_fields__, good, strict=True)]


TABLE = example_table(Block.from_json(hostile_block())).to_json()
HOSTILE_TABLES: list[Any] = [
    None,
    {},
    {**TABLE, "surprise": 1},
    {**TABLE, "key": "k"},
    {**TABLE, "key": ["other"]},
    {**TABLE, "key": ["k", "k"]},
    {**TABLE, "blocks": [7]},
    {**TABLE, "renewed": [0, 1]},
    {**TABLE, "renewed": [0, -2, 1]},
    {**TABLE, "renewed": [0, True, 1]},
    {**TABLE, "rows": [-1, 0, 1]},
    {**TABLE, "rows": 3},
    *({**TABLE, "columns": columns} for columns in ({}, ["k"], [["k"]], [["k", "int64"], ["k", "int64"]], [[1, "int64"]], [["k\ud800", "int64"]])),
    *(
        {**TABLE, "columns": [["k", kind]]}
        for kind in (
            None, 7, "", "int65", "null", "large_string", [], {}, {"list": "x"}, {"list": "int8", "map": []}, {"map": ["int8"]},
            {"struct": {}}, {"struct": [["a", "b"]]}, {"decimal128": [39, 0]}, {"decimal128": [0, 0]}, {"decimal128": 3},
            {"decimal256": [3, 0]}, {"decimal32": [38, 0]},
        )
    ),
]  # fmt: skip


def test_round_trip_and_one_spelling() -> None:
    manifest = example_manifest()
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data, NAME) == manifest
    assert Manifest.from_bytes(data, NAME).to_bytes() == data
    assert len(manifest_digest(data)) == 64


@given(st.dictionaries(st.text(), TREES, max_size=4))
def test_opaque_parts_come_back_exactly(tree: dict[str, Any]) -> None:
    manifest = replace(
        example_manifest(), position=tree, query=tree, layouts=tree, work=tree, control=tree, decisions=[tree]
    )
    assert Manifest.from_bytes(manifest.to_bytes(), NAME) == manifest


def test_live_blocks_are_named_once_ledgers_and_outbox_included() -> None:
    one, two, three, four = (Block(block_name(1, 0, p, 0), 1, "0" * 32, 1, 0, 0) for p in range(4))
    operators = {"a": OperatorState(((one,),)), "b": OperatorState(((one,),))}
    ledgers = {"s": FolderState((two,), three), "t": FolderState((two,))}
    manifest = replace(example_manifest(), operators=operators, ledgers=ledgers, outbox=(OutboxEntry("r", 0, four),))
    assert manifest.state_blocks() == (one, two, three)
    kept = TableState(("k",), pa.schema([("k", pa.int8())]), (four, one), (0,), (1,))
    with_table = replace(manifest, operators={**operators, "c": OperatorState((), {}, {"t": kept})}, outbox=())
    assert with_table.state_blocks() == with_table.live_blocks() == (one, four, two, three)
    assert manifest.live_blocks() == (one, two, three, four)


@pytest.mark.thorough
def test_every_flipped_bit_of_a_manifest() -> None:
    data = example_manifest().to_bytes()
    for bit in range(len(data) * 8):
        with pytest.raises(StateError, match=NAME):
            Manifest.from_bytes(flip(data, bit), NAME)


def test_every_truncation_of_a_manifest() -> None:
    data = example_manifest().to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptState, match=NAME):
            Manifest.from_bytes(data[:length], NAME)
    with pytest.raises(CorruptState):
        Manifest.from_bytes(data + b"\n", NAME)


def test_message_says_what_to_do() -> None:
    data = example_manifest().to_bytes().replace(b'"delivered":3', b'"delivered":4')
    with pytest.raises(CorruptState) as caught:
        Manifest.from_bytes(data, NAME)
    text = str(caught.value)
    assert NAME in text and "never falls back" in text and "backup" in text and "new, empty folder" in text


@pytest.mark.parametrize(("found", "age"), [(READABLE_FORMATS[0] - 1, "an older"), (STATE_FORMAT + 1, "a newer")])
def test_another_format_is_refused_before_anything_else(found: int, age: str) -> None:
    words = f"{age} version of headrace: it has format {found}, this version reads formats {READABLE_FORMATS[0]} and {STATE_FORMAT}"
    with pytest.raises(StateError, match=words) as caught:
        Manifest.from_bytes(b'{"format": %d, "anything": "else"}' % found, NAME)
    assert not isinstance(caught.value, CorruptState) and "new, empty folder" in str(caught.value)


@pytest.mark.parametrize("found", [0, -1, "1", True, 1.0, None, [1]])
def test_impossible_formats(found: object) -> None:
    with pytest.raises(CorruptState, match="format"):
        Manifest.from_bytes(forged(format=found), NAME)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"NaN", b'{"format":NaN}', b"[" * 100_000])
def test_other_files_are_no_manifest(data: bytes) -> None:
    with pytest.raises(CorruptState, match=NAME):
        Manifest.from_bytes(data, NAME)


@pytest.mark.parametrize(
    "changes",
    [
        {"state_id": "../x"},
        {"state_id": None},
        {"number": -1},
        {"number": True},
        {"number": "1"},
        {"previous": None},
        {"previous": "x"},
        {"number": 0},
        {"run": 1},
        {"versions": {"a": 1}},
        {"position": []},
        {"groups": 1.5},
        {"sources": {"s": 1}},
        {"sources": {"s": {**SOURCE, "surprise": 1}}},
        {"sources": {"s": {**SOURCE, "watermark": None}}},
        {"sources": {"s": {**SOURCE, "largest": 2**62}}},
        {"sources": {"s": {**SOURCE, "late": -1}}},
        {"sources": {"s": {**SOURCE, "failed": -1}}},
        {"sources": {"s": {**SOURCE, "idle": 0}}},
        {"sources": {"s": {**SOURCE, "place": 7}}},
        {"ledgers": []},
        {"ledgers": {"s": {}}},
        {"ledgers": {"s": []}},
        {"ledgers": {"s": {"taken": [7], "listed": None}}},
        {"ledgers": {"s": {"taken": [], "listed": []}}},
        {"ledgers": {"s": {"taken": None, "listed": None}}},
        {"ledgers": {"s": {"taken": []}}},
        {"operators": []},
        {"operators": {"w": {}}},
        {"operators": {"w": {"inputs": {}, "extra": {}, "tables": {}}}},
        {"operators": {"w": {"inputs": [{}], "extra": {}, "tables": {}}}},
        {"operators": {"w": {"inputs": [], "extra": [], "tables": {}}}},
        {"operators": {"w": {"inputs": [], "extra": {}}}},
        {"operators": {"w": {"inputs": [], "extra": {}, "tables": []}}},
        *({"operators": {"w": {"inputs": [], "extra": {}, "tables": {"t": table}}}} for table in HOSTILE_TABLES),
        {"outbox": {}},
        {"outbox": [{"result": 1, "part": 0, "block": hostile_block()}]},
        {"outbox": [{"result": "r", "part": -1, "block": hostile_block()}]},
        {"outbox": [{"result": "r", "part": 0, "receipt": {}}]},
        {"outbox": [{"result": "r", "part": 0, "receipt": {"rows": -1, "said": "x"}}]},
        {"outbox": [{"result": "r", "part": 0, "receipt": {"rows": 1, "said": "x"}, "block": hostile_block()}]},
        {"outbox": [{"result": "r", "part": 0}]},
        {"outbox": ["receipt"]},
        {"totals": {}},
        {"totals": {**TOTALS, "delivered": 1.5}},
        {"totals": {**TOTALS, "delivered": True}},
        {"totals": {**TOTALS, "results": {"r": -1}}},
        {"totals": {**TOTALS, "results": []}},
        {"totals": {**TOTALS, "failed": 1}},
        {"totals": {**TOTALS, "failed": {"s": -1}}},
        {"work": []},
        {"control": None},
        {"decisions": {}},
        {"closed": 0},
        {"surprise": 1},
    ],
)
def test_forged_fields_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptState, match=NAME):
        Manifest.from_bytes(forged(**changes), NAME)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "../blocks/x", "x", "", 7, None])
@pytest.mark.parametrize("place", ["operators", "tables", "outbox", "ledgers", "a list of files"])
def test_hostile_block_names_are_refused(name: object, place: str) -> None:
    block = hostile_block(name=name)
    parts = {
        "operators": {"w": {"inputs": [[block]], "extra": {}, "tables": {}}},
        "tables": {"w": {"inputs": [], "extra": {}, "tables": {"t": {**TABLE, "blocks": [block]}}}},
        "outbox": [{"result": "r", "part": 0, "block": block}],
        "ledgers": {"s": {"taken": [block], "listed": None}},
        "a list of files": {"s": {"taken": [], "listed": block}},
    }
    with pytest.raises(CorruptState, match=NAME):
        section = {"a list of files": "ledgers", "tables": "operators"}.get(place, place)
        Manifest.from_bytes(forged(**{section: parts[place]}), NAME)


def test_one_name_two_descriptions() -> None:
    one = hostile_block()
    inputs = [[one, [*one[:3], 2, *one[4:]]]]
    with pytest.raises(CorruptState, match="two ways"):
        Manifest.from_bytes(forged(operators={"w": {"inputs": inputs, "extra": {}, "tables": {}}}), NAME)


def test_repeated_keys_are_seen() -> None:
    body = _encode(_to_json(example_manifest())).decode()
    twice = body[:-1] + ',"number":1}'
    data = json.dumps({**json.loads(body), "checksum": manifest_digest(body.encode())}).encode()
    for forgery in (twice.encode(), data):
        with pytest.raises(CorruptState):
            Manifest.from_bytes(forgery, NAME)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"x", {1, 2}])
def test_what_json_cannot_hold_is_refused_when_written(value: object) -> None:
    with pytest.raises(StateError, match="JSON"):
        replace(example_manifest(), position={"v": value}).to_bytes()


def test_file_names() -> None:
    assert manifest_name(12) == "manifests/000000012.json"
    assert number_of("manifests/000000012.json") == 12
    assert number_of(manifest_name(10**10)) == 10**10
    for other in (
        "manifests/12.json",
        "manifests/0000000012.json",
        "manifests/x",
        "manifests/_000000012.json.ab",
    ):
        assert number_of(other) is None


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(), pa.int8(), pa.uint64(), pa.float32(), pa.string(), pa.binary(), pa.date32(), pa.time64("us"),
        pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(38, -2), pa.decimal64(12, 3), pa.list_(pa.list_(pa.int8())),
        pa.struct([("a", pa.map_(pa.string(), pa.struct([("b", pa.float64())])))]),
    ],
    ids=str,
)  # fmt: skip
def test_columns_come_back_as_they_are(kind: pa.DataType) -> None:
    schema = pa.schema([("a", plain_type(kind, "a")), ("ä b", pa.int64())])
    written = json.loads(json.dumps(schema_to_json(schema)))
    assert schema_from_json(written, "columns") == schema


def test_a_column_that_cannot_be_spelled_is_refused_when_written() -> None:
    with pytest.raises(StateError, match="a stored table cannot have a column of type large_string"):
        schema_to_json(pa.schema([("a", pa.large_string())]))
