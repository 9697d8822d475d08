"""Clients of a Kafka cluster: their settings, which may be secret, and their errors.

Unreachable  the cluster is unreachable, or cannot accept messages now
Fenced       another producer with the same transactional id was started
SinkError    waiting does not help
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.errors import QueryError, QueryTypeError, SinkError
from headrace.sinks.patience import Unreachable
from headrace.support.extras import import_extra
from headrace.support.secrets import SERVERS_ARE_SHOWN, SealedSettings, Secret, refuse_secret
from headrace.support.terminal_text import printable

_log = logging.getLogger(__name__)

ANSWER = 10.0  # seconds within which a reachable cluster answers or makes progress
REQUIRED_SETTINGS = {  # exactly-once delivery depends on these settings, or headrace uses them itself
    "bootstrap.servers": "servers",
    "metadata.broker.list": "servers",
    **dict.fromkeys(("transactional.id", "enable.idempotence", "acks", "request.required.acks", "isolation.level")),
    **dict.fromkeys(("group.id", "enable.auto.commit", "enable.partition.eof", "auto.offset.reset", "logger")),
    **dict.fromkeys(("error_cb", "stats_cb", "throttle_cb", "on_delivery", "default.topic.config")),
}
TRANSACTION = 300_000  # milliseconds after which the cluster ends a transaction
FOR_ALL = {
    "reconnect.backoff.max.ms": 1000,
    "allow.auto.create.topics": False,
    "client.id": "headrace",
}
FOR_PRODUCERS = {
    "partitioner": "murmur2_random",  # same as in Java: equal keys go to equal partitions
    "linger.ms": 5,
    "transaction.timeout.ms": TRANSACTION,
    "queue.buffering.max.kbytes": 128 << 10,  # memory of the driver; the client's default is a gigabyte
}
_OF_PRODUCERS = re.compile(
    r"transaction\.|queue\.buffering\.|linger\.ms|batch\.|compression\.|partitioner|message\.|sticky\.|delivery\."
)
FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
LASTING = (  # other errors may pass; for an unknown topic the next attempt shows whether it was deleted or just created
    "_AUTHENTICATION",
    "_INVALID_ARG",
    "_SSL",
    "_UNSUPPORTED_FEATURE",
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_CONFIG",
    "INVALID_RECORD",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_TIMESTAMP",
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "POLICY_VIOLATION",
    "RECORD_LIST_TOO_LARGE",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "TOPIC_EXCEPTION",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "UNSUPPORTED_SASL_MECHANISM",
    "UNSUPPORTED_VERSION",
)

_RIGHTS = "grant the user the rights to describe and write the topic, and to its transactional id, and start again"
HINTS = {
    **dict.fromkeys((name for name in LASTING if name.endswith("AUTHORIZATION_FAILED")), _RIGHTS),
    "INVALID_RECORD": "a topic that is compacted takes messages with a key only: give key=..., or set the topic's"
    " cleanup.policy to delete, and start again",
    "INVALID_TRANSACTION_TIMEOUT": "give settings={'transaction.timeout.ms': ...} that is not above the cluster's own limit,"
    " transaction.max.timeout.ms",
    "MSG_SIZE_TOO_LARGE": "make the result smaller in the query, or raise both the topic's max.message.bytes and"
    " settings={'message.max.bytes': ...}; if the topic's limit was lowered while the run was live, start again",
    "INVALID_TIMESTAMP": "the cluster refuses messages whose time, ts, is so far ahead or behind: look at the topic's"
    " message.timestamp.after.max.ms and before, or set its message.timestamp.type to LogAppendTime",
}


class Fenced(Exception):
    """Another producer with the same transactional id was started, or the transaction took too long."""


class KafkaCluster:
    """A Kafka cluster: its address and the settings of its clients."""

    def __init__(self, servers: str | Sequence[str], settings: Mapping[str, Any] | None) -> None:
        self.library = import_extra("confluent_kafka", "kafka", "hr.sinks.kafka")
        self.admin_library = import_extra("confluent_kafka.admin", "kafka", "hr.sinks.kafka")
        self.servers = _servers(servers)
        self._given = SealedSettings(_checked(settings), kept=self.servers).open()
        self._admin: Any = None
        self._said: str | None = None  # the admin client's last error, which explains why the cluster is unreachable

    # --- clients -------------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self._given.opened
        return settings

    def setting(self, name: str, usual: int) -> int:
        """Return a numeric setting of the producers."""
        return int({**FOR_PRODUCERS, **self._settings}.get(name, usual))

    def producer(self, transactional_id: str, largest: int) -> Any:
        """Return a new producer. largest: bytes that the topic accepts at once, in one message or several."""
        own = {"transactional.id": transactional_id, "batch.size": min(largest, self.setting("batch.size", largest))}
        return self._made(self.library.Producer, {**FOR_PRODUCERS, **self._settings, **own})

    def consumer(self, *, committed: bool = True) -> Any:
        """Return a client that reads committed messages, or all messages, and reports the ends of partitions."""
        level = "read_committed" if committed else "read_uncommitted"
        own = {"group.id": "headrace", "isolation.level": level, "enable.partition.eof": True}
        own |= {"enable.auto.commit": False, "auto.offset.reset": "error"}
        return self._made(self.library.Consumer, {**self._for_others(), **own})

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = self._made(self.admin_library.AdminClient, {**self._for_others(), "error_cb": self._note})
        return self._admin

    def close(self) -> None:
        self._admin = None

    def _for_others(self) -> dict[str, Any]:
        return {name: value for name, value in self._settings.items() if not _OF_PRODUCERS.match(name)}

    def _made(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        given = {**FOR_ALL, **settings, "bootstrap.servers": self.servers, "logger": _QuietLogger(self)}
        with self._given.hiding():
            try:
                return kind(given)
            except self.library.KafkaException as error:
                msg = f"a Kafka client rejects the settings: {self._describe(error.args[0])}"
                raise QueryError(msg) from None

    # --- what goes wrong -----------------------------------------------------------------------------------------------

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        self._said = None
        with self._given.hiding():
            try:
                yield
            except self.library.KafkaException as error:
                raise self._told(error.args[0]) from None

    def _told(self, error: Any) -> Exception:
        name, text = error.name(), self._describe(error)
        if name in FENCED:
            return Fenced(text)
        if name in LASTING:
            return SinkError(f"{self}: {text}" + (f"; {HINTS[name]}" if name in HINTS else ""))
        return Unreachable(text + self.why())

    def why(self) -> str:
        """Return what is known about an unreachable cluster, in brackets."""
        if self._admin is not None:
            self._admin.poll(0)  # producers cannot be polled for their own errors
        return f" ({self._said})" if self._said else ""

    def _note(self, error: Any) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":  # less informative than the errors before it
            self._said = self._describe(error)

    def _describe(self, error: Any) -> str:
        return self.without_secrets(f"{error.name()}: {error.str()}")

    def without_secrets(self, text: str) -> str:
        return printable(self._given.without_secrets(text))

    def __str__(self) -> str:
        return f"Kafka at {self.servers}"

    def __repr__(self) -> str:
        return f"Cluster({self.servers!r})"


class _QuietLogger:
    """A logger for the clients that writes their messages, without secrets, at level DEBUG."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def log(self, _level: int, text: str, *given: object) -> None:
        _log.debug("%s", self._cluster.without_secrets(text % given if given else text))


def _servers(servers: str | Sequence[str]) -> str:
    refuse_secret(servers, SERVERS_ARE_SHOWN)
    each = servers.split(",") if isinstance(servers, str) else list(servers)
    if not each or not all(isinstance(name, str) and re.fullmatch(r"[^\s,/@]+:\d+", name.strip()) for name in each):
        raise QueryError("servers: give the cluster's brokers as host:port, several with commas or as a list")
    return ",".join(name.strip() for name in each)


def _checked(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings. Raise for settings that headrace itself sets; errors never show a value."""
    found = dict(settings or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | Secret):
            msg = (
                f"settings takes names and texts or numbers, as librdkafka does, or hr.secret(...); {name!r} is"
                f" {type(value).__name__}"
            )
            raise QueryTypeError(msg)
        if name in REQUIRED_SETTINGS:
            msg = f"settings: {name!r} is set by headrace, for exactly-once delivery; leave it out"
            raise QueryError(
                f"settings: give {name!r} as {REQUIRED_SETTINGS[name]}" if REQUIRED_SETTINGS[name] else msg
            )
    return found
