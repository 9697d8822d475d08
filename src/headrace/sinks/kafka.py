"""The Kafka sink: writes the messages of an epoch and its number in one transaction, and skips epochs that are stored
already.

    headrace-epochs     a compacted topic of the same cluster; the newest message with the key
                        "<query> <result> <topic>" records the newest epoch of the topic and its rows

Invariant: that message and the epoch's messages are committed together. Each result has one producer, whose
transactional id consists of the same three names. Starting a producer ends the open transaction of an older one and
fences it off. The epochs are read only after that, so they are final. After an error during a commit it is unknown
whether the commit succeeded, so the producer is started again and reads the epochs.

Epochs could also be stored as offsets of a consumer group in the same transaction, but a cluster deletes the offsets of
a group that was inactive for a week. Compaction keeps the newest message of a key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS
from headrace.errors import QueryError, SinkError
from headrace.sinks.base import Delivery
from headrace.sinks.epoch_marks import MarkingSink, epoch_in, mark_of, other_results_error
from headrace.sinks.kafka_clients import ANSWER, Fenced, KafkaCluster
from headrace.sinks.kafka_messages import MessageColumns, MessageFormat, message_format
from headrace.sinks.patience import Unreachable, WaitLimit

_log = logging.getLogger(__name__)

EPOCHS_TOPIC = "headrace-epochs"
OF_EPOCHS = {  # small segments that are compacted soon, because the topic is read whole at the start of a run
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "segment.ms": str(6 * 3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
BEGIN = 30.0  # seconds within which a cluster ends the transaction of an older producer
POLL = 1_000  # messages between two polls for delivery reports
DEFAULT_MESSAGE_BYTES = 1_000_000  # default limit of the client


class KafkaTopic(MarkingSink):
    """The Kafka sink."""

    kind = "topic"

    def __init__(self, cluster: KafkaCluster, topic: str, form: MessageFormat, ordered: bool, seconds: float) -> None:
        self.cluster, self.topic, self.form, self.ordered = cluster, topic, form, ordered
        self.place, self.patience = f"topic {topic} of {cluster}", WaitLimit(f"{cluster} (topic {topic})", seconds)
        self._ready: set[str] = set()  # results whose schemas have been checked
        self._sent: list[tuple[bytes, bytes]] | None = None  # (name, mark) of all epochs; None: not read yet
        self._writers: dict[str, _ResultProducer] = {}
        self._largest = DEFAULT_MESSAGE_BYTES  # bytes of the largest message that the topic accepts
        self._kept: int | None = None  # milliseconds for which the topic keeps a message, from the message's timestamp

    # --- the run ---------------------------------------------------------------------------------------------------

    def begin(self, result: str, schema: pa.Schema) -> None:
        """Check that the topic exists, and create the topic of epochs if necessary."""
        self.patience.begin()
        self._ready.discard(result)
        self._sent = None
        try:
            self._prepare(result, schema)
        except Unreachable as error:
            raise SinkError(f"{self.cluster} cannot be reached: {error}") from None

    def _noted(self, query: str, result: str) -> int | None:
        """Return the newest epoch that was sent, committed or not. An epoch is sent only after its state is committed,
        so the state existed. Reading uncommitted marks avoids waiting for a transaction that a killed run left open.
        """
        if self._sent is None:
            with self.cluster.named_errors():
                self._sent = [(each.key(), each.value()) for each in marks_in(self.cluster, committed=False)]
        name = self._name(query, result).encode()
        return max((epoch_in(mark.decode()) for key, mark in self._sent if key == name and mark), default=None)

    def _name(self, query: str, result: str) -> str:
        return f"{query} {result} {self.topic}"

    def hurry(self) -> None:
        self.patience.hurry()

    def close(self) -> None:
        for name in list(self._writers):
            self._writers.pop(name).close()
        self.cluster.close()

    # --- one epoch ---------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        self.form.check(delivery.table.schema)  # schemas of late, rejected and failed tuples are known only now
        self.patience.wait_for(partial(self._deliver, delivery))

    def _deliver(self, delivery: Delivery) -> None:
        if delivery.result not in self._ready:
            self._prepare(delivery.result, delivery.table.schema)
        name = self._name(delivery.query, delivery.result)
        try:
            writer = self._writers.get(name) or self._begun(name)
            if not self._has(writer, delivery):
                self._warn_of_retention(delivery.table)
                writer.write(self.form.messages(delivery.table, self._largest), mark_of(delivery))
        except BaseException as error:
            if name in self._writers:  # its mark may be outdated and its transaction open
                self._writers.pop(name).close(abort=not isinstance(error, Unreachable))
            self._ready.discard(delivery.result)  # the topic may have been replaced or deleted
            if isinstance(error, Fenced):
                raise self._fenced(error) from None
            raise

    def _begun(self, name: str) -> _ResultProducer:
        self._writers[name] = writer = _ResultProducer(self.cluster, self.topic, name, self._largest)
        writer.begin()
        return writer

    def _has(self, writer: _ResultProducer, delivery: Delivery) -> bool:
        """Return whether the epoch is stored. Raise if another one is stored under its number."""
        if writer.mark is None or epoch_in(writer.mark) < delivery.epoch:
            return False
        if writer.mark != mark_of(delivery):
            raise other_results_error(self.place, delivery, epoch_in(writer.mark), "topic")
        return True

    def _fenced(self, error: Fenced) -> SinkError:
        return SinkError(
            f"another run of this query delivers to topic {self.topic} of {self.cluster}, so this run may no longer deliver: {error}"
        )

    def _warn_of_retention(self, table: pa.Table) -> None:
        if self._kept is None or TS not in table.column_names or not table.num_rows:
            return
        oldest = pc.min(table.column(TS).cast(pa.int64())).as_py()
        if oldest is not None and oldest // 1000 < time.time() * 1000 - self._kept:
            self._kept = None  # warn once
            _log.warning(
                "topic %s keeps messages for a time that counts from their own, and results are older than that: the cluster"
                " may remove them at once; set its retention.ms to -1 or its message.timestamp.type to LogAppendTime",
                self.topic,
            )

    # --- topics --------------------------------------------------------------------------------------------------------

    def _prepare(self, result: str, schema: pa.Schema) -> None:
        self.form.check(schema)
        with self.cluster.named_errors():
            there = self.cluster.admin.list_topics(timeout=ANSWER).topics
            if self.topic not in there:
                raise self._no_topic()
            if EPOCHS_TOPIC not in there:
                self._make_epochs()
            settings = self._settings_of(self.topic)
            if self._settings_of(EPOCHS_TOPIC).get("cleanup.policy", "compact") != "compact":
                msg = f"topic {EPOCHS_TOPIC} of {self.cluster} must keep the newest message of every key; set its cleanup.policy to compact"
                raise QueryError(msg)
        client = self.cluster.setting("message.max.bytes", DEFAULT_MESSAGE_BYTES)
        self._largest = min(client, int(settings.get("max.message.bytes", client)))
        own_time = settings.get("message.timestamp.type") == "CreateTime" and "delete" in settings["cleanup.policy"]
        self._kept = int(settings["retention.ms"]) if own_time and settings["retention.ms"] != "-1" else None
        self._ready.add(result)

    def _make_epochs(self) -> None:
        new = self.cluster.admin_library.NewTopic(
            EPOCHS_TOPIC, num_partitions=1, replication_factor=-1, config=OF_EPOCHS
        )
        try:
            self.cluster.admin.create_topics([new], request_timeout=ANSWER)[EPOCHS_TOPIC].result(BEGIN)
        except self.cluster.library.KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another run created it first
                raise

    def _settings_of(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, or nothing if they may not be read or the topic is too new for some brokers."""
        of_topic = self.cluster.admin_library.ConfigResource("topic", topic)
        try:
            found = self.cluster.admin.describe_configs([of_topic], request_timeout=ANSWER)[of_topic].result(BEGIN)
        except self.cluster.library.KafkaException as error:
            if error.args[0].name() in ("TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART"):
                return {}
            raise
        return {name: entry.value for name, entry in found.items()}

    def _no_topic(self) -> QueryError:
        return QueryError(
            f"there is no topic {self.topic!r} in {self.cluster}; create it first, with the partitions, replicas and retention"
            f" that its readers want (kafka-topics.sh --create --topic {self.topic} --partitions 6 ...)"
        )

    def __repr__(self) -> str:
        key = f", key={self.form.key!r}" if self.form.key else ""
        return f"kafka({self.cluster.servers!r}, {self.topic!r}{key}, format={self.form.name!r})"


class _ResultProducer:
    """The producer of a result, and its newest committed epoch."""

    def __init__(self, cluster: KafkaCluster, topic: str, name: str, largest: int) -> None:
        self.cluster, self.topic, self.name = cluster, topic, name
        self.mark: str | None = None
        self.producer = cluster.producer(f"headrace {name}", largest)
        self.longest = cluster.setting("transaction.timeout.ms", 0) / 1000

    def begin(self) -> None:
        """Fence off older producers, end their open transactions, and then read the newest mark."""
        with self.cluster.named_errors():
            self.producer.init_transactions(BEGIN)
            self.mark = self._newest_mark()

    def write(self, messages: Any, mark: str) -> None:
        began = time.monotonic()
        try:
            with self.cluster.named_errors():
                self.producer.begin_transaction()
                for some in messages:
                    self._send(some)
                self._with_room(partial(self.producer.produce, EPOCHS_TOPIC, mark.encode(), self.name.encode(), 0))
                self._all_sent()
                self.producer.commit_transaction(ANSWER)
        except Fenced as error:
            if time.monotonic() - began > self.longest:
                msg = f"the transaction was ended by the cluster after {self.longest:.0f} seconds, transaction.timeout.ms: {error}"
                raise Unreachable(msg) from None
            raise
        self.mark = mark

    def _send(self, messages: MessageColumns) -> None:
        produce, poll = self.producer.produce, self.producer.poll
        for number, (value, key, moment) in enumerate(zip(*messages, strict=True)):
            try:
                produce(self.topic, value, key, timestamp=moment)
            except BufferError:
                self._with_room(partial(produce, self.topic, value, key, timestamp=moment))
            if number % POLL == 0:
                poll(0)

    def _with_room(self, produce: Callable[[], None]) -> None:
        """Send a message as soon as the queue has space for it."""
        while True:
            try:
                return produce()
            except BufferError:
                self._wait_for_room()

    def _wait_for_room(self) -> None:
        """Wait until the queue has shrunk."""
        before, end = len(self.producer), time.monotonic() + ANSWER
        while len(self.producer) >= before:
            self.producer.poll(0.05)
            if time.monotonic() > end:
                raise Unreachable(f"the cluster accepts no messages{self.cluster.why()}")

    def _all_sent(self) -> None:
        while before := len(self.producer):
            end = time.monotonic() + ANSWER
            while self.producer.flush(0.5) >= before:
                if time.monotonic() > end:
                    raise Unreachable(f"the cluster accepts no messages{self.cluster.why()}")

    def _newest_mark(self) -> str | None:
        """Return the newest committed mark of this result, or None."""
        mine = [message for message in marks_in(self.cluster) if message.key() == self.name.encode()]
        newest = mine[-1].value() if mine else None
        return newest.decode() if newest else None

    def close(self, *, abort: bool = False) -> None:
        """Discard the producer. Uncommitted messages do not count, and the next producer ends their transaction."""
        with suppress(self.cluster.library.KafkaException):
            if abort:
                self.producer.abort_transaction(ANSWER)
        self.producer.purge()
        del self.producer  # closing it would wait, and warn about unsent messages


def marks_in(cluster: KafkaCluster, *, committed: bool = True) -> Iterator[Any]:
    """Yield the messages of the topic of epochs up to its current end."""
    place = cluster.library.TopicPartition(EPOCHS_TOPIC, 0, cluster.library.OFFSET_BEGINNING)
    end = _end_of(cluster, place)
    consumer = cluster.consumer(committed=committed)
    try:
        consumer.assign([place])
        while True:
            message = consumer.poll(ANSWER)
            if message is None:
                raise Unreachable(f"topic {EPOCHS_TOPIC} cannot be read{cluster.why()}")
            error = message.error()
            if error is None:
                yield message
            elif error.name() != "_PARTITION_EOF":
                raise cluster.library.KafkaException(error)
            elif message.offset() >= end:
                return
            else:  # a reader of committed messages stops at the first open transaction
                raise Unreachable(f"another query's transaction in topic {EPOCHS_TOPIC} is still open")
    finally:
        consumer.close()


def _end_of(cluster: KafkaCluster, place: Any) -> int:
    latest = cluster.admin_library.OffsetSpec.latest()
    found: Mapping[Any, Any] = cluster.admin.list_offsets({place: latest}, request_timeout=ANSWER)
    (future,) = found.values()
    try:
        return int(future.result(BEGIN).offset)
    except cluster.library.KafkaException as error:
        if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":  # the topic was just created or deleted
            raise Unreachable(f"topic {EPOCHS_TOPIC} is not known to all brokers yet") from None
        raise


def kafka_topic(
    servers: str | Sequence[str],
    topic: str,
    key: str | Sequence[str] | None,
    format: str,
    settings: Mapping[str, Any] | None,
    ordered: bool,
    seconds: float,
) -> KafkaTopic:
    if not isinstance(topic, str) or not topic or topic == EPOCHS_TOPIC:
        msg = f"kafka takes the name of a topic other than {EPOCHS_TOPIC}, in which headrace records the epochs of other topics; found {topic!r}"
        raise QueryError(msg)
    return KafkaTopic(KafkaCluster(servers, settings), topic, message_format(format, key), ordered, seconds)
