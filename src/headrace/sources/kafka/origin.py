"""Kafka topics as the user defined them, with checks of the arguments."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import QueryError, QueryTypeError
from headrace.sources.kafka.client import BrokerClient, BrokerSettings, Start
from headrace.sources.kafka.decoders import MESSAGE, Decoder
from headrace.sources.kafka.ledger import KafkaLedger
from headrace.sources.kafka.reader import KafkaReader
from headrace.state.blocks import BlockReader
from headrace.state.manifest import TopicsState
from headrace.support.argument_errors import describe_argument

STARTS = ("earliest", "latest")
GAPS = ("stop", "count")


@dataclass(frozen=True)
class KafkaOrigin:
    """Kafka topics as a source, which may grow."""

    spark: Any = field(repr=False)
    servers: BrokerSettings
    topics: tuple[str, ...]
    decoder: Decoder = field(repr=False)
    start: Start = "earliest"
    messages_per_epoch: int | None = None
    pass_gaps: bool = False

    driven = "kafka"
    state_type = TopicsState
    unread_schema = MESSAGE
    bounded = False  # a run follows the topics as they grow
    readable_whole = True  # `collect` and `reference` read the current messages
    if_moved = ""

    @property
    def place(self) -> str:
        """Return the names of the topics. Addresses of brokers may change, and the manifest has the ids of topics as
        well.
        """
        return f"Kafka: {', '.join(self.topics)}"

    def is_at(self, place: str) -> bool:
        return place == self.place

    def ledger(self, state: TopicsState, reader: BlockReader | None = None) -> KafkaLedger:
        return KafkaLedger(
            BrokerClient(self.servers),
            self.topics,
            self.start,
            self.messages_per_epoch,
            KafkaReader(self.servers, self.decoder),
            state,
            pass_gaps=self.pass_gaps,
        )

    def table(self) -> pa.Table:
        """Return all current messages as rows."""
        return self._read(None)

    def first_rows(self, rows: int) -> pa.Table:
        """Return about `rows` rows from the beginnings of partitions."""
        return self._read(rows)

    def _read(self, most: int | None) -> pa.Table:
        ledger = self.ledger(TopicsState())
        ranges = ledger.waiting()
        if most is not None and ranges:
            each = max(1, most // len(ranges))
            ranges = [found._replace(stop=min(found.stop, found.start + each)) for found in ranges]
        pieces = [piece for taken in ledger.inputs("", ranges) for piece in taken.pieces(1 << 40)]
        names = self.decoder.schema.names
        tables = [read.rows for read in ledger.reader.read(pieces, lambda *_: names, keep=False)]
        return pa.concat_tables([self.decoder.rows([], names)[0], *tables])


def checked_topics(topic: str | Sequence[str]) -> tuple[str, ...]:
    found = (topic,) if isinstance(topic, str) else tuple(topic) if isinstance(topic, Sequence) else ()
    if not found or not all(isinstance(name, str) and name for name in found):
        raise QueryTypeError(
            f"topic must be the name of a topic, or several in a list; found {describe_argument(topic)}"
        )
    if len(set(found)) != len(found):
        raise QueryError(f"a topic occurs twice in {list(found)}; name each topic once")
    return tuple(sorted(found))


def checked_start(start: Start) -> Start:
    if isinstance(start, dt.datetime):
        if start.tzinfo is None:
            raise QueryError(f"start must have a time zone, such as datetime.now(timezone.utc); found {start!r}")
        return start
    if start not in STARTS:
        raise QueryError(f"start must be one of {', '.join(STARTS)}, or a datetime with a zone; found {start!r}")
    return start


def checked_gaps(gaps: str) -> bool:
    if gaps not in GAPS:
        raise QueryError(f"gaps must be one of {', '.join(GAPS)}; found {gaps!r}")
    return gaps == "count"


def checked_limit(count: int | None) -> int | None:
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise QueryError(f"messages_per_epoch must be a whole number, at least 1; found {count!r}")
    return count
