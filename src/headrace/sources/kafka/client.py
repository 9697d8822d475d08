"""Requests to the brokers about the partitions of topics and their first and last offsets. No error contains a secret.

The end of a partition is its last stable offset. Every message before it is finally committed or aborted, so a range
that ends there always contains the same messages.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import QueryError, QueryTypeError, SourceAway, SourceError
from headrace.support.event_time import to_micros
from headrace.support.extras import import_extra
from headrace.support.secrets import SERVERS_ARE_SHOWN, SealedSettings, mask_secrets, refuse_secret

QUESTION_SECONDS = 5.0  # seconds that one request may take
REFUSED = ("AUTHENTICATION", "AUTHORIZATION", "_SSL", "_UNSUPPORTED", "_INVALID_ARG", "_KEY", "INVALID_TOPIC")
OURS = {  # settings that a user may not set, because exactly-once delivery depends on them
    "bootstrap.servers": "servers=",
    "metadata.broker.list": "servers=",
    "default.topic.config": None,  # the client would apply it to more than topics
    "isolation.level": None,
    "enable.auto.commit": None,
    "enable.auto.offset.store": None,
    "enable.partition.eof": None,
    "auto.offset.reset": "start=",
    "group.id": None,
}
Start = str | dt.datetime


def confluent(module: str = "confluent_kafka") -> Any:
    return import_extra(module, "kafka", "hr.kafka")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"

    @staticmethod
    def of(name: str) -> TopicPartition:
        topic, _, number = name.rpartition("/")
        return TopicPartition(topic, int(number))


class BrokerSettings:
    """The addresses of brokers and the settings of clients. Tasks receive them with the values of secrets."""

    def __init__(self, servers: str, settings: Mapping[str, Any] | None = None) -> None:
        self._given = SealedSettings(
            {**(settings or {}), "bootstrap.servers": servers}, kept=str(mask_secrets(servers))
        ).open()

    @property
    def shown(self) -> str:
        """Return the addresses of the brokers, without secrets."""
        return str(self._given.shown["bootstrap.servers"])

    def admin(self, note_error: Callable[[Any], None]) -> Any:
        """Return a client for requests. It passes connection errors to `note_error`."""
        settings = {**self._common(), "socket.timeout.ms": 10_000, "error_cb": note_error}
        return confluent("confluent_kafka.admin").AdminClient(settings)

    def consumer(self) -> Any:
        """Return a client that reads ranges of offsets. It joins no consumer group."""
        return self._made(
            {
                **self._common(),
                "group.id": "headrace",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,  # the requested messages exist, so a long wait would only delay the next range
                # with 100,000 messages queued, the client would pause fetching for a second
                "fetch.queue.backoff.ms": 10,
                "topic.metadata.refresh.interval.ms": 5_000,
                "max.poll.interval.ms": 86_400_000,  # a task may work for a long time between two windows
            }
        )

    def _made(self, settings: dict[str, Any]) -> Any:
        with self.hiding():
            try:
                return confluent().Consumer(settings)
            except (TypeError, ValueError, confluent().KafkaException) as error:
                raise SourceError(f"the Kafka settings are invalid: {_reason(error)}") from None

    def _common(self) -> dict[str, Any]:
        quiet = {"log_level": 0, "error_cb": _say_nothing, "reconnect.backoff.max.ms": 1_000}
        return {**quiet, **self._given.opened}

    def describe(self, error: object) -> str:
        """Return the text of an error without secrets."""
        return self._given.without_secrets(str(error))

    def hiding(self) -> AbstractContextManager[None]:
        """Return a context that removes secrets from errors and from the errors that caused them."""
        return self._given.hiding()

    def __repr__(self) -> str:
        return f"Servers({self.shown!r})"


def _say_nothing(error: object) -> None:
    """Ignore an error, because the waiting call receives it too."""


def checked_servers(servers: str | Sequence[str], settings: Mapping[str, Any] | None) -> BrokerSettings:
    refuse_secret(servers, SERVERS_ARE_SHOWN)
    found = servers if isinstance(servers, str) else ",".join(map(str, servers)) if servers else ""
    if not found.strip():
        raise QueryError("servers must name at least one broker, such as 'localhost:9092'; found none")
    given = dict(settings or {})
    for name, instead in OURS.items():
        if name in given:
            say = f"give it as {instead}" if instead else "headrace sets it itself"
            raise QueryError(f"settings must not contain {name!r}: {say}")
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise QueryTypeError(f"settings must be those of librdkafka by name, such as 'sasl.password'; found {wrong!r}")
    found_servers = BrokerSettings(found, given)
    _try(found_servers)
    return found_servers


def _try(servers: BrokerSettings) -> None:
    """Raise for unknown settings and invalid values before anything runs."""
    try:
        servers.consumer().close()
    except SourceError as error:
        raise QueryError(str(error)) from None


def _reason(error: Any) -> str:
    inner = error.args[0] if error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(inner)


@dataclass(frozen=True)
class TopicDescription:
    """The brokers' description of a topic."""

    id: str  # id assigned by the brokers; a recreated topic has another id
    partitions: tuple[int, ...]


class BrokerClient:
    """Requests information about topics and offsets from the brokers, in the driver."""

    def __init__(self, servers: BrokerSettings) -> None:
        self.servers = servers
        self._admin: Any = None
        self._answered = False  # after the first answer, a rejection by one broker counts as an outage
        self._refusal: Any = None

    def _note_error(self, error: Any) -> None:
        if _is_refusal(error.name()):
            self._refusal = error

    def topics(self, names: Iterable[str]) -> dict[str, TopicDescription | None]:
        """Return the descriptions of topics by name. None: the topic does not exist."""
        kafka = confluent()
        futures = self._ask("describe_topics", kafka.TopicCollection(list(names)))
        return {name: self._topic(name, future) for name, future in futures.items()}

    def _topic(self, name: str, future: Any) -> TopicDescription | None:
        unknown = confluent().KafkaError.UNKNOWN_TOPIC_OR_PART
        with self.servers.hiding():
            try:
                found = future.result(2 * QUESTION_SECONDS)
            except Exception as error:
                if _code(error) == unknown:
                    return None
                raise self._error_of(error, f"topic {name!r}") from None
        return TopicDescription(str(found.topic_id), tuple(sorted(partition.id for partition in found.partitions)))

    def beginnings(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(places, self._spec.earliest())

    def ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets of partitions."""
        return self._offsets(places, self._spec.latest())

    def starts(self, places: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        """Return the offsets at which reading begins."""
        if start == "earliest":
            return self.beginnings(places)
        ends = self.ends(places)
        if not isinstance(start, dt.datetime):
            return ends
        found = self._offsets(places, self._spec.for_timestamp(-(-to_micros(start) // 1000)))
        return {place: ends[place] if offset < 0 else min(offset, ends[place]) for place, offset in found.items()}

    @property
    def _spec(self) -> Any:
        return confluent("confluent_kafka.admin").OffsetSpec

    def _offsets(self, places: Iterable[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        kafka = confluent()
        asked = {kafka.TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        futures = self._ask("list_offsets", asked, isolation_level=kafka.IsolationLevel.READ_COMMITTED)
        found = {}
        for at, future in futures.items():
            place = TopicPartition(at.topic, at.partition)
            with self.servers.hiding():
                try:
                    found[place] = future.result(2 * QUESTION_SECONDS).offset
                    self._answered = True
                except Exception as error:
                    raise self._error_of(error, f"partition {place.name}") from None
        return found

    def _ask(self, question: str, *about: Any, **how: Any) -> Any:
        with self.servers.hiding():
            try:
                if self._admin is None:
                    self._admin = self.servers.admin(self._note_error)
                return getattr(self._admin, question)(*about, request_timeout=QUESTION_SECONDS, **how)
            except confluent().KafkaException as error:
                raise self._error_of(error, "the brokers") from None

    def _error_of(self, error: Exception, what: str) -> SourceError:
        """Return the error to raise: `SourceError` if the answer will not change, otherwise `SourceAway`."""
        inner: Any = error.args[0] if error.args else error
        name = inner.name() if hasattr(inner, "name") else type(error).__name__
        if self._admin is not None:
            self._admin.poll(0)  # delivers pending errors
        if self._refusal is not None and not self._answered:
            inner, name = self._refusal, self._refusal.name()
        words = self.servers.describe(inner.str() if hasattr(inner, "str") else inner)
        if _is_refusal(name):
            return SourceError(f"Kafka at {self.servers.shown} refuses {what}: {words}; correct servers or settings")
        return SourceAway(f"Kafka at {self.servers.shown} gives no answer about {what}: {words}")


def _is_refusal(name: str) -> bool:
    """Return whether an error, given by name, will not change."""
    return any(word in name for word in REFUSED)


def _code(error: Exception) -> int | None:
    inner: Any = error.args[0] if error.args else None
    return inner.code() if hasattr(inner, "code") else None
