"""What a reader finds in a topic who knows nothing of headrace, and reads what is committed."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.patience import PATIENCE


def messages(servers: str, topic: str, *, committed: bool = True, **settings: str) -> list[Any]:
    """Of every partition from its beginning to where it ends for such a reader."""
    level = "read_committed" if committed else "read_uncommitted"
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": level,
            "log_level": 0,
            **settings,
        }
    )
    try:
        partitions = reader.list_topics(topic, PATIENCE).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found, ended = [], set()
        while ended < set(partitions):
            for message in reader.consume(1000, 0.1):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
        return found
    finally:
        reader.close()


def rows(servers: str, topic: str) -> list[dict[str, Any]]:
    """Of messages in JSON."""
    return [json.loads(message.value()) for message in messages(servers, topic)]


def values(servers: str, topic: str) -> list[int]:
    """Of the column v, in order."""
    return sorted(row["v"] for row in rows(servers, topic))


def table(servers: str, topic: str) -> pa.Table:
    """Of messages in Arrow."""
    return pa.concat_tables(pa.ipc.open_stream(each.value()).read_all() for each in messages(servers, topic))
