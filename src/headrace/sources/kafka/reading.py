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
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import SourceAway, SourceError
from headrace.sources.driven import Read, Unread, Wanted
from headrace.sources.kafka.client import Place, Servers, confluent
from headrace.sources.kafka.decoding import MESSAGE, Decoder, as_messages

AT_ONCE = 10_000  # messages asked for at a time
HELD = 32 << 20  # bytes of messages that are gathered before some are handed on
GLANCE = 0.01  # seconds that are waited for them: a range may end without a message, and then nobody comes
STUCK = 20.0  # seconds of looking without any progress after which the driver looks again
GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
_ERROR, _KEY = methodcaller("error"), methodcaller("key")


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


class _Rows(NamedTuple):
    """Of some messages."""

    table: pa.Table
    unread: Unread | None
    arrived: float | None  # when the last of them was written


class _Reading:
    """A piece that is being read.

    Messages become rows a few thousand at a time: a hundred thousand of them would be a hundred thousand objects, which the
    garbage collector looks through again and again.
    """

    def __init__(self, piece: Piece, rows: Callable[[list[Any], Place], _Rows]) -> None:
        self.piece, self.done = piece, False
        self.newest = piece.start - 1  # offset of the last message that came
        self.bytes = 0  # of those that were not handed on yet
        self._to_rows = rows
        self._messages: list[Any] = []
        self._rows: list[_Rows] = []

    @property
    def left(self) -> int:
        """Offsets that may still come."""
        return self.piece.stop - 1 - self.newest

    def add(self, messages: list[Any]) -> None:
        offsets = [message.offset() for message in messages]
        for before, offset in itertools.pairwise([self.newest, *offsets]):
            if offset <= before:
                raise SourceError(f"{self.piece.words}: offset {offset} came after {before}; nothing was committed")
        if offsets[-1] >= self.piece.stop:
            self.done = True
            del messages[bisect_left(offsets, self.piece.stop) :]
            if not messages:
                return
        self.newest = messages[-1].offset()
        self.bytes += sum(map(len, messages)) + sum(len(key) for key in map(_KEY, messages) if key)
        self._messages += messages
        if len(self._messages) >= AT_ONCE:
            self._decode()

    def _decode(self) -> None:
        if self._messages:
            self._rows.append(self._to_rows(self._messages, self.piece.place))
            self._messages = []

    def hand_on(self) -> Read:
        """What came since the last time."""
        self._decode()
        found, size, piece = self._rows, self.bytes, self.piece
        self._rows, self.bytes = [], 0
        if not found:
            found = [self._to_rows([], piece.place)]
        unread = [each.unread for each in found if each.unread is not None]
        return Read(
            pa.concat_tables(each.table for each in found),
            found[-1].arrived,
            piece.words,
            piece.place.name,
            Unread.together(unread) if unread else None,
            size,
        )


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
                yield from self._round(consumer, together, partial(self._rows, columns=columns, keep=keep))
        finally:
            consumer.close()

    def _rows(self, messages: list[Any], place: Place, columns: Sequence[str], keep: bool) -> _Rows:
        table, wrong = self.decoder.rows(messages, columns)
        unread = None
        if wrong:
            if not keep:
                raise _unreadable(messages[wrong[0][0]], place, wrong[0][1])
            unread = Unread(as_messages([messages[at] for at, _ in wrong], MESSAGE), tuple(why for _, why in wrong))
        return _Rows(table, unread, _arrived(messages))

    def _round(
        self, consumer: Any, pieces: Sequence[Piece], rows: Callable[[list[Any], Place], _Rows]
    ) -> Iterator[Read]:
        """Pieces of different partitions, side by side; each as soon as it is whole, or all together are much."""
        at = confluent().TopicPartition
        open_: dict[Place, _Reading] = {piece.place: _Reading(piece, rows) for piece in pieces}
        consumer.assign([at(piece.topic, piece.partition, piece.start) for piece in pieces])
        consumer.resume([at(*place) for place in open_])  # a round before may have paused them
        glances, positions = 0, dict.fromkeys(open_, -1)
        while open_:
            glances += 1
            left = sum(each.left for each in open_.values())
            for place, messages in self._some(consumer, min(left, AT_ONCE), open_):
                if place in open_:
                    open_[place].add(messages)
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

    def _some(self, consumer: Any, count: int, open_: Mapping[Place, _Reading]) -> Iterator[tuple[Place, list[Any]]]:
        """Messages that have come, by partition."""
        try:
            found: list[Any] = consumer.consume(count, GLANCE)
        except confluent().KafkaException as error:
            raise SourceError(f"Kafka cannot be read: {self.servers.words(error)}") from None
        if any(map(_ERROR, found)):
            for message in found:
                if message.error() is not None:
                    self._judge(message.error(), open_.get(Place(*_place(message))))
            found = [message for message in found if message.error() is None]
        for place, messages in itertools.groupby(found, _place):
            yield Place(*place), list(messages)

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


def _place(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()  # no `Place`: it is asked of every message


def _too_much(readings: Mapping[Place, _Reading]) -> Iterator[Read]:
    """What must not stay in memory: the largest first, until the rest is little."""
    while sum(each.bytes for each in readings.values()) > HELD:
        yield max(readings.values(), key=lambda each: each.bytes).hand_on()


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
