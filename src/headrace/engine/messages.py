"""What travels between the tasks of one epoch: rows of one Arrow schema, JSON and Arrow bytes only.

kinds: `block` (a stored block, by reference), `rows` (tuples, by value), `control` (a producer's goodbye: who it is,
how many messages it sent here, how far its sources' time has come), `report` (for the driver).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema([("slot", pa.int32()), ("kind", pa.string()), ("head", pa.string()), ("body", pa.binary())])
LARGEST_BODY = 32 << 20


@dataclass(frozen=True)
class Message:
    slot: int
    kind: str
    head: dict[str, Any]
    body: bytes = b""


def encode(messages: Iterable[Message]) -> Iterator[pa.RecordBatch]:
    """Messages as record batches of moderate size."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message.body)
        if size > LARGEST_BODY or len(batch) >= 1000:
            yield _batch(batch)
            batch, size = [], 0
    yield _batch(batch)


def _batch(messages: list[Message]) -> pa.RecordBatch:
    columns = [
        pa.array([m.slot for m in messages], pa.int32()),
        pa.array([m.kind for m in messages], pa.string()),
        pa.array([json.dumps(m.head) for m in messages], pa.string()),
        pa.array([m.body for m in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    for batch in batches:
        for row in batch.to_pylist():
            yield Message(row["slot"], row["kind"], json.loads(row["head"]), row["body"])


def pack(table: pa.Table) -> bytes:
    """Tuples as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack(body: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()
