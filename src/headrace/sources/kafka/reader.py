"""The reader of exact ranges of offsets, in tasks.

Invariant: a range is read completely, or the task fails with a reason. Transactions leave gaps in offsets, so the last
message of a range may precede its end. A range ends with its last offset, with a later message, or where the client
reports an end of the partition that is not earlier. The client's own position only shows progress: it does not move
past aborted messages, and older clients move it too far. Only committed messages are read, and below the last stable
offset they never change, so reading a range again returns the same messages.

The size of messages is unknown in advance, so messages are yielded whenever many bytes have been gathered. A range may
be yielded in several parts, in order, with each message in one of them.
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
from headrace.sources.kafka.client import BrokerSettings, TopicPartition, confluent
from headrace.sources.kafka.decoders import MESSAGE, NO_MEMORY, Decoder, as_messages
from headrace.sources.protocol import MessageAmount, ReadRows, UnreadMessages, Wanted

AT_ONCE = 10_000  # messages requested at a time
MOST_GATHERED_BYTES = 32 << 20  # bytes gathered before some rows are yielded
ENVELOPE = 100  # memory of a message in addition to its value and key, in bytes
GLANCE = 0.01  # seconds to wait for messages; a range may end without another message
STUCK = 20.0  # seconds without progress after which the task gives up and the driver lists the topic again
GONE_ERRORS = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
PASSED_OVER = (
    "_BAD_MSG",
    "_BAD_COMPRESSION",
    "_NOT_IMPLEMENTED",
    "INVALID_MSG",
    "INVALID_MSG_SIZE",
    "MSG_SIZE_TOO_LARGE",
)
_ERROR, _KEY = methodcaller("error"), methodcaller("key")


@dataclass(frozen=True)
class OffsetPiece:
    """The offsets `start` to `stop` - 1 of a partition, which one task reads."""

    topic: str
    partition: int
    start: int
    stop: int
    size: int  # approximate bytes
    most: int | None = None  # bytes that a task may read for all its pieces

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def summary(self) -> str:
        return f"partition {self.place.name}, offsets {self.start} to {self.stop - 1}"


class _DecodedRows(NamedTuple):
    """Some messages as rows, with facts about them."""

    table: pa.Table
    unread: UnreadMessages | None
    arrived: float | None  # time at which the last of them was written
    messages: int
    bytes: int  # bytes of the messages


class _PieceReader:
    """The progress of reading one piece.

    Messages are decoded a few thousand at a time: the garbage collector would visit a hundred thousand message objects
    repeatedly.
    """

    def __init__(self, piece: OffsetPiece, rows: Callable[[list[Any], int], _DecodedRows]) -> None:
        self.piece = piece
        self.newest = piece.start - 1  # offset of the last message that arrived
        self.bytes_in_memory = 0  # approximate bytes in memory
        self._ended = False
        self._to_rows = rows
        self._messages: list[Any] = []  # messages that have arrived and are not decoded yet
        self._size = 0  # bytes of these messages
        self._rows: list[_DecodedRows] = []  # decoded rows that have not been yielded yet

    @property
    def left(self) -> int:
        """Return the number of offsets that may still arrive."""
        return 0 if self._ended else self.piece.stop - 1 - self.newest

    def ends_at(self, offset: int) -> None:
        """Record that the partition ends at `offset`, so every message before it has arrived."""
        self._ended = self._ended or offset >= self.piece.stop

    def add(self, messages: list[Any]) -> None:
        offsets = [message.offset() for message in messages]
        for before, offset in itertools.pairwise([self.newest, *offsets]):
            if offset <= before:
                raise SourceError(
                    f"{self.piece.summary}: offset {offset} arrived after offset {before}; nothing was committed"
                )
        if offsets[-1] >= self.piece.stop:
            self._ended = True
            del messages[bisect_left(offsets, self.piece.stop) :]
            if not messages:
                return
        self.newest = messages[-1].offset()
        size = sum(map(len, messages)) + sum(len(key) for key in map(_KEY, messages) if key)
        self._size += size
        self.bytes_in_memory += size + ENVELOPE * len(messages)
        self._messages += messages
        if len(self._messages) >= AT_ONCE:
            self._decode()

    def _decode(self) -> None:
        if self._messages:
            rows = self._to_rows(self._messages, self._size)
            # decoded rows may be larger than compressed messages
            self.bytes_in_memory += max(0, rows.table.nbytes - self._size)
            self._rows.append(rows)
            self._messages, self._size = [], 0

    def hand_on(self) -> ReadRows:
        """Return the rows that have arrived since the last call."""
        self._decode()
        piece, found = self.piece, self._rows or [self._to_rows([], 0)]
        self._rows, self.bytes_in_memory = [], 0
        unread = [each.unread for each in found if each.unread is not None]
        return ReadRows(
            pa.concat_tables(each.table for each in found),
            found[-1].arrived,
            piece.summary,
            piece.place.name,
            UnreadMessages.together(unread) if unread else None,
            MessageAmount(sum(each.bytes for each in found), sum(each.messages for each in found)),
        )


@dataclass(frozen=True)
class KafkaReader:
    """Reads ranges of offsets in the tasks."""

    servers: BrokerSettings
    decoder: Decoder

    def piece(self, data: Mapping[str, Any]) -> OffsetPiece:
        return OffsetPiece(**data)

    def read(self, pieces: Sequence[OffsetPiece], wanted: Wanted, *, keep: bool) -> Iterator[ReadRows]:
        columns = wanted(f"topic {pieces[0].topic}", self.decoder.schema) if pieces else ()
        total = 0
        for together in _rounds(pieces):
            # creating one takes 10 ms; reassigning an existing one may block for a second
            consumer = self.servers.consumer()
            try:
                for read in self._round(consumer, together, partial(self._rows, columns=columns, keep=keep)):
                    total += read.amount.bytes
                    _demand_not_much(total, pieces[0])
                    yield read
            finally:
                consumer.close()

    def _rows(self, messages: list[Any], size: int, columns: Sequence[str], keep: bool) -> _DecodedRows:
        table, wrong = self.decoder.rows(messages, columns)
        unread = None
        if wrong:
            short = [each for each in wrong if each[1] == NO_MEMORY]  # another attempt may have more memory
            if short or not keep:
                at, why = (short or wrong)[0]
                raise _unreadable(messages[at], why)
            unread = UnreadMessages(
                as_messages([messages[at] for at, _ in wrong], MESSAGE), tuple(why for _, why in wrong)
            )
        return _DecodedRows(table, unread, _arrived(messages), len(messages), size)

    def _round(
        self, consumer: Any, pieces: Sequence[OffsetPiece], rows: Callable[[list[Any], int], _DecodedRows]
    ) -> Iterator[ReadRows]:
        """Read pieces of different partitions at once. Yield each when it is complete, or earlier if all of them are
        large.
        """
        at = confluent().TopicPartition
        open_: dict[TopicPartition, _PieceReader] = {piece.place: _PieceReader(piece, rows) for piece in pieces}
        consumer.assign([at(piece.topic, piece.partition, piece.start) for piece in pieces])
        glances, positions = 0, dict[TopicPartition, int]()
        while open_:
            glances += 1
            left = sum(each.left for each in open_.values())
            for place, messages in self._some(consumer, min(left, AT_ONCE), open_):
                if place in open_:
                    open_[place].add(messages)
                    glances = 0
            yield from _too_much(open_)
            for place in [place for place, reading in open_.items() if not reading.left]:
                consumer.pause([at(*place)])
                yield open_.pop(place).hand_on()
                glances = 0
            told = consumer.position([at(*place) for place in open_]) if open_ else []
            moved = {TopicPartition(each.topic, each.partition): each.offset for each in told}
            if moved != positions:
                positions, glances = moved, 0
            if glances * GLANCE > STUCK:
                raise SourceAway(f"nothing arrived for {STUCK:.0f} seconds from {_first(open_).piece.summary}")

    def _some(
        self, consumer: Any, count: int, open_: Mapping[TopicPartition, _PieceReader]
    ) -> Iterator[tuple[TopicPartition, list[Any]]]:
        """Yield the messages that have arrived, by partition."""
        with self.servers.hiding():
            try:
                found: list[Any] = consumer.consume(count, GLANCE)
            except confluent().KafkaException as error:
                raise SourceError(f"Kafka cannot be read: {error}") from None
        if any(map(_ERROR, found)):
            for message in found:
                if message.error() is not None:
                    self._judge(message, open_.get(TopicPartition(*_place(message))))
            found = [message for message in found if message.error() is None]
        for place, messages in itertools.groupby(found, _place):
            yield TopicPartition(*place), list(messages)

    def _judge(self, message: Any, reading: _PieceReader | None) -> None:
        """Raise an error that names what cannot be read. Ignore errors that will pass."""
        if reading is None:
            return
        error = message.error()
        name = error.name()
        if name == "_PARTITION_EOF":
            reading.ends_at(message.offset())
        if name in GONE_ERRORS:
            raise SourceAway(f"{reading.piece.summary}: some were removed ({self.servers.describe(error.str())})")
        if name in PASSED_OVER:  # the client continues after the damaged message
            raise SourceAway(f"{reading.piece.summary}: some arrived damaged ({self.servers.describe(error.str())})")
        if error.fatal() or "AUTHORIZATION" in name or "AUTHENTICATION" in name:
            raise SourceError(f"{reading.piece.summary} cannot be read: {self.servers.describe(error.str())}")


def _rounds(pieces: Sequence[OffsetPiece]) -> Iterator[list[OffsetPiece]]:
    """Yield lists of pieces that can be read at once: one of each partition."""
    by_place: dict[TopicPartition, list[OffsetPiece]] = {}
    for piece in pieces:
        by_place.setdefault(piece.place, []).append(piece)
    for together in itertools.zip_longest(*by_place.values()):
        yield [piece for piece in together if piece is not None]


def _place(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()  # a plain tuple, because this runs for every message


def _too_much(readings: Mapping[TopicPartition, _PieceReader]) -> Iterator[ReadRows]:
    """Yield rows to free memory, the largest first, until the rest is within the limit."""
    while sum(each.bytes_in_memory for each in readings.values()) > MOST_GATHERED_BYTES:
        yield max(readings.values(), key=lambda each: each.bytes_in_memory).hand_on()


def _demand_not_much(total: int, piece: OffsetPiece) -> None:
    """Stop a task that has read more than its limit. The limit depends on the pieces alone, so every attempt decides
    the same.
    """
    if piece.most is not None and total > piece.most:
        msg = f"messages of topic {piece.topic} are far larger than before: read {total} bytes, expected at most {piece.most}; the epoch is repeated with fewer messages"
        raise SourceAway(msg)


def _first(readings: Mapping[TopicPartition, _PieceReader]) -> _PieceReader:
    return next(iter(readings.values()))


def _arrived(messages: Sequence[Any]) -> float | None:
    """Return the time at which the last of the messages was written."""
    if not messages:
        return None
    kind, when = messages[-1].timestamp()
    return when / 1000 if kind else None


def _unreadable(message: Any, why: str) -> SourceError:
    where = f"the message at offset {message.offset()} of partition {TopicPartition(*_place(message)).name}"
    hint = (
        "give tasks more memory" if why == NO_MEMORY else 'start with errors="keep" to continue without such messages'
    )
    return SourceError(f"{where} cannot be read: {why}; {hint}")
