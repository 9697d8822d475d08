"""A sender of tables to a Kafka topic, as an ordinary program would send them, for the demo, generated streams and
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, WorkloadError
from headrace.sinks.kafka_messages import message_format
from headrace.support.extras import import_extra

LARGEST = 900_000  # bytes of the largest message
ANSWER = 10.0  # seconds within which a reachable broker answers
FLUSH = 60.0  # seconds within which the broker must accept all messages
HURRY = 1.0  # seconds for unsent messages when the sender closes


class Sender:
    """Sends each row as a JSON message, with or without a key, or with format="arrow" as many rows per message as fit."""

    def __init__(
        self,
        servers: str,
        topic: str,
        key: str | None = None,
        format: str = "json",
        *,
        settings: Mapping[str, Any] | None = None,
        who: str = "a sender",
    ) -> None:
        self.servers, self.topic = servers, topic
        self._form = message_format(format, key)
        self._kafka = import_extra("confluent_kafka", "kafka", who)
        self._admin = import_extra("confluent_kafka.admin", "kafka", who)
        self._settings = {"bootstrap.servers": servers, "log_level": 0, **(settings or {})}
        self._producer = self._kafka.Producer(
            {**self._settings, "enable.idempotence": True, "linger.ms": 5, "partitioner": "murmur2_random"}
        )
        self._refused: str | None = None

    def create(self, partitions: int) -> bool:
        """Create the topic if it does not exist. Return whether it was created."""
        admin = self._admin.AdminClient(self._settings)
        try:
            if self.topic in admin.list_topics(timeout=ANSWER).topics:
                return False
            # generated tuples may have old times, to which retention would apply
            new = self._admin.NewTopic(self.topic, partitions, config={"message.timestamp.type": "LogAppendTime"})
            admin.create_topics([new])[self.topic].result(ANSWER)
        except self._kafka.KafkaException as error:
            raise WorkloadError(
                f"Kafka at {self.servers} cannot create topic {self.topic!r}: {_words(error)}"
            ) from None
        return True

    def put(self, table: pa.Table) -> None:
        """Send a table. Return when the broker has accepted all of it."""
        for values, keys, times in self._form.messages(table, LARGEST):
            for value, key, time in zip(values, keys, times, strict=True):
                self._produce(value, key, time)
        left = self._producer.flush(FLUSH)
        if left or self._refused:
            why = self._refused or f"{left:,} messages were not accepted within {FLUSH:.0f} seconds"
            raise EngineError(f"topic {self.topic!r} of Kafka at {self.servers}: {why}")

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(HURRY)

    def _produce(self, value: bytes, key: bytes | None, time: int) -> None:
        while True:
            try:
                self._producer.produce(self.topic, value, key, timestamp=time, on_delivery=self._hear)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _hear(self, error: Any, message: Any) -> None:
        if error is not None and self._refused is None:
            self._refused = _words(error)


def _words(error: Any) -> str:
    found = error.args[0] if isinstance(error, Exception) and error.args else error
    return str(found.str()) if hasattr(found, "str") else str(found)
