"""Tables into a topic of Kafka, as an ordinary program would send them: for the demo, made-up streams and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.errors import EngineError, WorkloadError
from headrace.sinks.kafka_messages import message_format
from headrace.support.extras import import_extra

LARGEST = 900_000  # bytes of a message
ANSWER = 10.0  # seconds in which a broker that is there has answered
FLUSH = 60.0  # seconds in which it has taken what it was sent
HURRY = 1.0  # seconds that are given to what is left when the sender ends


class Sender:
    """Each row a message in JSON, with a key or without; or with format="arrow" as many rows in a message as it holds."""

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
        """Make the topic if it is not there; whether it was made."""
        admin = self._admin.AdminClient(self._settings)
        try:
            if self.topic in admin.list_topics(timeout=ANSWER).topics:
                return False
            # times of made-up tuples may be of long ago, and retention counts from them
            new = self._admin.NewTopic(self.topic, partitions, config={"message.timestamp.type": "LogAppendTime"})
            admin.create_topics([new])[self.topic].result(ANSWER)
        except self._kafka.KafkaException as error:
            raise WorkloadError(f"Kafka at {self.servers} gives no topic {self.topic!r}: {_words(error)}") from None
        return True

    def put(self, table: pa.Table) -> None:
        """Returns when the broker has all of it."""
        for values, keys, times in self._form.messages(table, LARGEST):
            for value, key, time in zip(values, keys, times, strict=True):
                self._produce(value, key, time)
        left = self._producer.flush(FLUSH)
        if left or self._refused:
            why = self._refused or f"{left:,} messages were not taken within {FLUSH:.0f} seconds"
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
