"""The messages of exact ranges of offsets, in tasks.

Invariant: a range is read from its first offset to its last, or the task fails and says why. Transactions leave gaps, so a
range ends when the reader's position has passed its last offset, or a later message has come: the last message of it may
lie before its end. Only what is committed is read, and below the last stable offset that never changes: whoever reads a
range again reads the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import SourceAway, SourceError
from headrace.sources.driven import Read, Unread, Wanted
from headrace.sources.kafka.client import Place, Servers, confluent
from headrace.sources.kafka.decoding import MESSAGE, Decoder, as_messages

AT_ONCE = 10_000  # messages asked for at a time
GLANCE = 0.05  # seconds that are waited for them: a range may end without a message
STUCK = 20.0  # seconds of looking without any progress after which the driver looks again
GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


@dataclass(frozen=True)
class Piece:
    """Some offsets of a partition."""

    topic: str
    partition: int
    start: int
    stop: int
    size: int  # bytes, about

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition)

    @property
    def words(self) -> str:
        return f"partition {self.place.name}, offsets {self.start} to {self.stop - 1}"


@dataclass
class _Reading:
    """A piece that is being read."""

    piece: Piece
    messages: list[Any] = field(default_factory=list)
    done: bool = False

    def add(self, message: Any) -> None:
        offset, before = message.offset(), self.messages[-1].offset() if self.messages else self.piece.start - 1
        if offset <= before:
            raise SourceError(f"{self.piece.words}: offset {offset} came after {before}; nothing was committed")
        if offset >= self.piece.stop:
            self.done = True
        else:
            self.messages.append(message)


@dataclass(frozen=True)
class KafkaReader:
    servers: Servers
    decoder: Decoder

    def piece(self, data: Mapping[str, Any]) -> Piece:
        return Piece(**data)

    def read(self, pieces: Sequence[Piece], wanted: Wanted, *, keep: bool) -> Iterator[Read]:
        columns = wanted(f"topic {pieces[0].topic}", self.decoder.schema) if pieces else ()
        consumer = self.servers.consumer()
        try:
            for together in _rounds(pieces):
                for reading in self._messages(consumer, together):
                    yield self._rows(reading, columns, keep)
        finally:
            consumer.close()

    def _rows(self, reading: _Reading, columns: Sequence[str], keep: bool) -> Read:
        messages, place = reading.messages, reading.piece.place
        table, wrong = self.decoder.rows(messages, columns)
        unread = None
        if wrong:
            if not keep:
                raise _unreadable(messages[wrong[0][0]], place, wrong[0][1])
            unread = Unread(as_messages([messages[at] for at, _ in wrong], MESSAGE), tuple(why for _, why in wrong))
        size = sum(len(message.value() or b"") + len(message.key() or b"") for message in messages)
        return Read(table, _arrived(messages), reading.piece.words, place.name, unread, size)

    def _messages(self, consumer: Any, pieces: Sequence[Piece]) -> Iterator[_Reading]:
        """Of pieces of different partitions, side by side; each as soon as it is whole."""
        at = confluent().TopicPartition
        open_ = {piece.place: _Reading(piece) for piece in pieces}
        consumer.assign([at(piece.topic, piece.partition, piece.start) for piece in pieces])
        consumer.resume([at(*place) for place in open_])  # a round before may have paused them
        glances, positions = 0, dict.fromkeys(open_, -1)
        while open_:
            glances += 1
            left = sum(each.piece.stop - each.piece.start - len(each.messages) for each in open_.values())
            for message in self._some(consumer, min(left, AT_ONCE)):
                place, error = Place(message.topic(), message.partition()), message.error()
                if error is not None:
                    self._judge(error, open_.get(place))
                elif place in open_:
                    open_[place].add(message)
                    glances = 0
            for found in consumer.position([at(*place) for place in open_]):
                place = Place(found.topic, found.partition)
                if found.offset > positions[place]:
                    positions[place], glances = found.offset, 0
                if open_[place].done or found.offset >= open_[place].piece.stop:
                    consumer.pause([at(*place)])
                    yield open_.pop(place)
                    glances = 0
            if glances * GLANCE > STUCK:
                raise SourceAway(f"nothing came for {STUCK:.0f} seconds of {_first(open_).piece.words}")

    def _some(self, consumer: Any, count: int) -> list[Any]:
        try:
            found: list[Any] = consumer.consume(count, GLANCE)
        except confluent().KafkaException as error:
            raise SourceError(f"Kafka cannot be read: {self.servers.words(error)}") from None
        return found

    def _judge(self, error: Any, reading: _Reading | None) -> None:
        """What will pass is waited for; what will not is named."""
        kafka = confluent().KafkaError
        if error.code() == kafka._PARTITION_EOF or reading is None:
            return
        name = error.name()
        if name in GONE:
            raise SourceAway(f"{reading.piece.words}: some are gone ({self.servers.words(error.str())})")
        if error.fatal() or "AUTHORIZATION" in name or "AUTHENTICATION" in name:
            raise SourceError(f"{reading.piece.words} cannot be read: {self.servers.words(error.str())}")


def _rounds(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces that can be read side by side: one of each partition."""
    by_place: dict[Place, list[Piece]] = {}
    for piece in pieces:
        by_place.setdefault(piece.place, []).append(piece)
    for together in itertools.zip_longest(*by_place.values()):
        yield [piece for piece in together if piece is not None]


def _first(readings: Mapping[Place, _Reading]) -> _Reading:
    return next(iter(readings.values()))


def _arrived(messages: Sequence[Any]) -> float | None:
    """When the last of them was written."""
    if not messages:
        return None
    kind, when = messages[-1].timestamp()
    return when / 1000 if kind else None


def _unreadable(message: Any, place: Place, why: str) -> SourceError:
    where = f"the message at offset {message.offset()} of partition {place.name}"
    return SourceError(f'{where} cannot be read: {why}; start with errors="keep" to put such messages aside')
