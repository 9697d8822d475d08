"""Messages for the tests: random calls over partitions, out of order within the lateness, transactions among them."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import Producer

SECOND = 1_000_000
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("caller", pa.string()), ("seconds", pa.int64())])
BEGIN = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Call:
    partition: int
    at: int  # microseconds after BEGIN
    caller: str
    seconds: int

    @property
    def time(self) -> dt.datetime:
        return BEGIN + dt.timedelta(microseconds=self.at)

    def row(self) -> dict[str, Any]:
        return {"at": self.time, "caller": self.caller, "seconds": self.seconds}

    def text(self) -> bytes:
        return json.dumps({**self.row(), "at": self.time.isoformat(), "other": [1, {"x": None}]}).encode()


def calls(seed: int, count: int, partitions: int, *, lateness: float = 2.0, begin: float = 0.0) -> list[Call]:
    """In the order in which they are sent: in each partition at most `lateness` behind what came before, partitions at
    paces of their own."""
    rng = random.Random(seed)
    newest = [int(begin * SECOND)] * partitions
    pace = [rng.choice([1, 2, 5]) for _ in range(partitions)]
    found = []
    for _ in range(count):
        p = rng.randrange(partitions)
        newest[p] += rng.randrange(200_000) * pace[p]
        back = rng.randrange(int(lateness * SECOND)) if rng.random() < 0.3 else 0
        found.append(Call(p, max(newest[p] - back, 0), rng.choice("abcdef"), rng.randrange(60)))
    return found


def send(servers: str, topic: str, messages: Iterable[tuple[int, bytes]], **settings: Any) -> None:
    """(partition, value), in this order."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, **settings})
    for partition, value in messages:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0


class Transactions:
    """A producer whose messages count when they are committed."""

    def __init__(self, servers: str, name: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 5})
        self._producer.init_transactions(60)

    def send(self, topic: str, messages: Sequence[tuple[int, bytes]], *, commit: bool) -> None:
        self.begin(topic, messages)
        self.end(commit=commit)

    def begin(self, topic: str, messages: Sequence[tuple[int, bytes]]) -> None:
        self._producer.begin_transaction()
        for partition, value in messages:
            self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(60) == 0

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(60)
        else:
            self._producer.abort_transaction(60)


def send_mixed(servers: str, topic: str, made: Sequence[Call], seed: int) -> None:
    """Some as they are, some in transactions, and between them others that are aborted: only `made` counts."""
    rng, at = random.Random(seed), 0
    transactions = Transactions(servers, f"{topic}-{seed}")
    while at < len(made):
        many = rng.randrange(1, 80)
        batch = [(call.partition, call.text()) for call in made[at : at + many]]
        kind = rng.randrange(3)
        if kind == 0:
            send(servers, topic, batch)
        else:
            if kind == 1:
                ghosts = [Call(call.partition, call.at + 3600 * SECOND, "ghost", 1) for call in made[at : at + many]]
                transactions.send(topic, [(call.partition, call.text()) for call in ghosts], commit=False)
            transactions.send(topic, batch, commit=True)
        at += many


def table(made: Sequence[Call]) -> pa.Table:
    return pa.Table.from_pylist([call.row() for call in made], SCHEMA)


AVRO = {
    "type": "record",
    "name": "Call",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "caller", "type": "string"},
        {"name": "seconds", "type": ["null", "long"]},
    ],
}


def avro(call: Call) -> bytes:
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(AVRO), call.row())
    return data.getvalue()


def ipc(made: Sequence[Call]) -> bytes:
    """Calls as one message: a stream of Arrow's."""
    found, sink = table(made), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_table(found)
    return bytes(sink.getvalue())
