"""The messages of exact ranges of offsets, in tasks.

Invariant: a range is read from its first offset to its last, or the task fails and says why. Transactions leave gaps, so a
range ends when the reader's position has passed its last offset, or a later message has come: the last message of it may
lie before its end. Only what is committed is read, and below the last stable offset that never changes: whoever reads a
range again reads the same.

How large messages are nobody knows before they come, so what was gathered of ranges is handed on whenever it is much: a range
may come in several goes, in order, each of its messages in one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import SourceAway, SourceError
from headrace.sources.driven import Read, Unread, Wanted
from headrace.sources.kafka.client import Place, Servers, confluent
from headrace.sources.kafka.decoding import MESSAGE, Decoder, as_messages

AT_ONCE = 10_000  # messages asked for at a time
HELD = 32 << 20  # bytes of messages that are gathered before some are handed on
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


class _Gathered(NamedTuple):
    """Messages of a piece, all or some."""

    piece: Piece
    messages: list[Any]
    bytes: int


class _Reading:
    """A piece that is being read."""

    def __init__(self, piece: Piece) -> None:
        self.piece, self.done = piece, False
        self.newest = piece.start - 1  # offset of the last message that came
        self.bytes = 0  # of those that were not handed on yet
        self._messages: list[Any] = []

    @property
    def left(self) -> int:
        """Offsets that may still come."""
        return self.piece.stop - 1 - self.newest

    def add(self, message: Any) -> None:
        offset = message.offset()
        if offset <= self.newest:
            raise SourceError(f"{self.piece.words}: offset {offset} came after {self.newest}; nothing was committed")
        if offset >= self.piece.stop:
            self.done = True
            return
        self.newest = offset
        self.bytes += len(message.value() or b"") + len(message.key() or b"")
        self._messages.append(message)

    def hand_on(self) -> _Gathered:
        """What came since the last time."""
        found = _Gathered(self.piece, self._messages, self.bytes)
        self._messages, self.bytes = [], 0
        return found


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
                for gathered in self._messages(consumer, together):
                    yield self._rows(gathered, columns, keep)
        finally:
            consumer.close()

    def _rows(self, gathered: _Gathered, columns: Sequence[str], keep: bool) -> Read:
        messages, place = gathered.messages, gathered.piece.place
        table, wrong = self.decoder.rows(messages, columns)
        unread = None
        if wrong:
            if not keep:
                raise _unreadable(messages[wrong[0][0]], place, wrong[0][1])
            unread = Unread(as_messages([messages[at] for at, _ in wrong], MESSAGE), tuple(why for _, why in wrong))
        return Read(table, _arrived(messages), gathered.piece.words, place.name, unread, gathered.bytes)

    def _messages(self, consumer: Any, pieces: Sequence[Piece]) -> Iterator[_Gathered]:
        """Of pieces of different partitions, side by side; each as soon as it is whole, or all together are much."""
        at = confluent().TopicPartition
        open_: dict[tuple[str, int], _Reading] = {piece.place: _Reading(piece) for piece in pieces}
        consumer.assign([at(piece.topic, piece.partition, piece.start) for piece in pieces])
        consumer.resume([at(*place) for place in open_])  # a round before may have paused them
        glances, positions = 0, dict.fromkeys(open_, -1)
        while open_:
            glances += 1
            left = sum(each.left for each in open_.values())
            for message in self._some(consumer, min(left, AT_ONCE)):
                reading = open_.get((message.topic(), message.partition()))
                if (error := message.error()) is not None:
                    self._judge(error, reading)
                elif reading is not None:
                    reading.add(message)
                    glances = 0
            yield from _too_much(open_)
            for found in consumer.position([at(*place) for place in open_]):
                place = Place(found.topic, found.partition)
                if found.offset > positions[place]:
                    positions[place], glances = found.offset, 0
                if open_[place].done or found.offset >= open_[place].piece.stop:
                    consumer.pause([at(*place)])
                    yield open_.pop(place).hand_on()
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


def _too_much(readings: Mapping[tuple[str, int], _Reading]) -> Iterator[_Gathered]:
    """What must not stay in memory: the largest first, until the rest is little."""
    while sum(each.bytes for each in readings.values()) > HELD:
        yield max(readings.values(), key=lambda each: each.bytes).hand_on()


def _first(readings: Mapping[tuple[str, int], _Reading]) -> _Reading:
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
