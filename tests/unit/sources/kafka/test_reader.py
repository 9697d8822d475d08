"""Ranges of offsets in a task, without a broker: a consumer that is moved by hand has the messages."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from headrace.errors import SourceAway, SourceError
from headrace.sources.kafka import reader
from headrace.sources.kafka.client import BrokerSettings, TopicPartition
from headrace.sources.kafka.decoders import decoder
from headrace.sources.kafka.reader import KafkaReader, OffsetPiece
from tests.unit.sources.kafka import test_decoders as decoding


class Message(decoding.Message):
    def __init__(self, place: TopicPartition, offset: int, value: bytes) -> None:
        super().__init__(value, offset)
        self._place = place

    def topic(self) -> str:
        return self._place.topic

    def partition(self) -> int:
        return self._place.number

    def error(self) -> Any:
        return None


class End(Message):
    """What the client says where a partition ends."""

    def __init__(self, place: TopicPartition, offset: int) -> None:
        super().__init__(place, offset, b"")

    def error(self) -> Any:
        return KafkaError(KafkaError._PARTITION_EOF)


class Consumer:
    """Has messages by partition and offset; gives some of each partition in turn, as many as are asked for."""

    def __init__(self, messages: Sequence[Message], after: dict[TopicPartition, int]) -> None:
        self._messages, self._after = list(messages), after  # where a partition ends
        self._at: dict[TopicPartition, int] = {}
        self.most = 0  # messages asked for at once

    def assign(self, places: Sequence[Any]) -> None:
        self._at = {TopicPartition(each.topic, each.partition): each.offset for each in places}

    def pause(self, places: Sequence[Any]) -> None:
        for each in places:
            self._at.pop(TopicPartition(each.topic, each.partition))

    def consume(self, count: int, seconds: float) -> list[Message]:
        self.most = max(self.most, count)
        found = []
        for message in self._messages:
            place = TopicPartition(message.topic(), message.partition())
            if place in self._at and message.offset() >= self._at[place] and len(found) < min(count, 7):
                found.append(message)
                self._at[place] = message.offset() + 1
        if not found:  # behind the last message only what nobody may see, and of which the client says nothing
            return [End(place, self._after[place]) for place in self._at][:count]
        return found

    def position(self, places: Sequence[Any]) -> list[Any]:
        found = [TopicPartition(each.topic, each.partition) for each in places]
        return [SimpleNamespace(topic=at.topic, partition=at.number, offset=self._at[at]) for at in found]

    def close(self) -> None:
        self.closed = True


P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
TEXT = pa.schema([("n", pa.int64())])


def a_reader(consumer: Consumer) -> KafkaReader:
    class Given(BrokerSettings):
        def consumer(self) -> Any:
            return consumer

    return KafkaReader(Given("nowhere:1"), decoder("json", TEXT, "n", None))


def read(consumer: Consumer, *pieces: OffsetPiece, keep: bool = False) -> list[Any]:
    return list(a_reader(consumer).read(pieces, lambda where, schema: schema.names, keep=keep))


def numbered(place: TopicPartition, offsets: Sequence[int]) -> list[Message]:
    return [Message(place, offset, b'{"n": %d}' % offset) for offset in offsets]


def found(reads: Sequence[Any]) -> dict[str, list[int]]:
    parts: dict[str, list[int]] = {}
    for each in reads:
        parts.setdefault(each.partition, []).extend(each.rows["n"].to_pylist())
    return parts


@pytest.mark.parametrize("at_once", [1, 5, 10_000])
@pytest.mark.parametrize("held", [0, 30, 200, 1 << 20])
def test_however_much_is_handed_on_at_once_each_message_of_a_range_comes_once_and_in_order(
    held: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    """Ranges with gaps, of which the last messages may be missing, and what lies around them."""
    monkeypatch.setattr(reader, "MOST_GATHERED_BYTES", held)
    monkeypatch.setattr(reader, "AT_ONCE", at_once)
    p, q = range(60), [offset for offset in range(90) if offset % 3]
    consumer = Consumer([*numbered(P, p), *numbered(Q, q)], {P: 60, Q: 99})
    pieces = [OffsetPiece("t", 0, 10, 40, 1), OffsetPiece("t", 1, 30, 95, 1), OffsetPiece("t", 0, 40, 50, 1)]
    reads = read(consumer, *pieces)
    assert found(reads) == {"t/0": list(range(10, 50)), "t/1": [offset for offset in q if offset >= 30]}
    size = len(b'{"n": 10}') + len(b"key")
    messages = 40 + len([o for o in q if o >= 30])
    assert sum(each.amount.messages for each in reads) == messages
    assert sum(each.amount.bytes for each in reads) == size * messages
    assert (len(reads) == 3) == (held == 1 << 20) and consumer.closed
    assert all(each.amount.bytes <= held + 7 * size for each in reads)


@pytest.mark.parametrize(("held", "at_once"), [(100, 10_000), (1 << 20, 3)])
def test_a_message_that_cannot_be_read_is_named_in_whichever_go_it_comes(
    held: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reader, "MOST_GATHERED_BYTES", held)
    monkeypatch.setattr(reader, "AT_ONCE", at_once)
    messages = numbered(P, range(50))
    messages[33], messages[41] = Message(P, 33, b"no"), Message(P, 41, b"neither")
    with pytest.raises(SourceError, match="the message at offset 33 of partition t/0"):
        read(Consumer(messages, {P: 50}), OffsetPiece("t", 0, 0, 50, 1))
    kept = read(Consumer(messages, {P: 50}), OffsetPiece("t", 0, 0, 50, 1), keep=True)
    unread = [each.unread for each in kept if each.unread]
    assert [offset for each in unread for offset in each.tuples["offset"].to_pylist()] == [33, 41]
    assert [len(each.why) for each in unread] == [each.tuples.num_rows for each in unread]
    assert found(kept) == {"t/0": [n for n in range(50) if n not in (33, 41)]}


def test_a_partition_that_ends_too_early_has_not_ended():
    """A replica that is behind says that it ends before the range does, and has the rest a moment later."""

    class Behind(Consumer):
        said = 0

        def consume(self, count: int, seconds: float) -> list[Message]:
            self.said += 1
            return [End(P, 5)] if self.said == 2 else super().consume(min(count, 5), seconds)

    assert found(read(Behind(numbered(P, range(9)), {P: 9}), OffsetPiece("t", 0, 0, 9, 1))) == {"t/0": list(range(9))}


def test_a_range_without_any_message_ends_where_the_partition_does():
    """Aborted messages before an open transaction: the client's own position stays before them."""

    class Still(Consumer):
        def position(self, places: Sequence[Any]) -> list[Any]:
            return [SimpleNamespace(topic=each.topic, partition=each.partition, offset=-1001) for each in places]

    (only,) = read(Still([], {P: 55}), OffsetPiece("t", 0, 50, 55, 1))
    assert only.rows.num_rows == 0 and only.amount == (0, 0)


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.OFFSET_OUT_OF_RANGE])
def test_what_the_client_passes_over_is_read_again_and_not_missed_in_silence(code: int):
    class Damaged(End):
        def error(self) -> Any:
            return KafkaError(code)

    class Skipping(Consumer):
        def consume(self, count: int, seconds: float) -> list[Message]:
            return [Damaged(P, 3), *self._messages[4:]]

    with pytest.raises(SourceAway, match="partition t/0, offsets 0 to 8: some"):
        read(Skipping(numbered(P, range(9)), {P: 9}), OffsetPiece("t", 0, 0, 9, 1))


def test_much_in_small_messages_is_handed_on_too(monkeypatch: pytest.MonkeyPatch):
    """What lies in memory counts, not what was sent: here nothing."""
    monkeypatch.setattr(reader, "MOST_GATHERED_BYTES", 20 * reader.ENVELOPE)
    messages = [Message(P, offset, b"") for offset in range(100)]
    reads = read(Consumer(messages, {P: 100}), OffsetPiece("t", 0, 0, 100, 1), keep=True)
    assert len(reads) > 3 and sum(each.unread.tuples.num_rows for each in reads if each.unread) == 100


def test_a_message_for_which_there_is_no_memory_is_not_put_aside(monkeypatch: pytest.MonkeyPatch):
    def short(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        raise pa.ArrowMemoryError("malloc")

    monkeypatch.setattr(decoding.decoders, "_parsed", short)
    with pytest.raises(SourceError, match="offset 0 of partition t/0 cannot be read: there is not enough memory"):
        read(Consumer(numbered(P, range(3)), {P: 3}), OffsetPiece("t", 0, 0, 3, 1), keep=True)


def test_an_offset_that_comes_twice_at_once_is_seen():
    class Stammering(Consumer):
        def consume(self, count: int, seconds: float) -> list[Message]:
            return [self._messages[0], self._messages[0]]

    with pytest.raises(SourceError, match=r"offset 0 arrived after offset 0; nothing was committed"):
        read(Stammering(numbered(P, range(9)), {P: 9}), OffsetPiece("t", 0, 0, 9, 1))


def test_an_offset_that_comes_twice_is_seen_also_when_the_first_was_handed_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "MOST_GATHERED_BYTES", 0)

    class Stuttering(Consumer):
        def consume(self, count: int, seconds: float) -> list[Message]:
            return self._messages[:3]

    with pytest.raises(SourceError, match=r"offset 0 arrived after offset 2; nothing was committed"):
        read(Stuttering(numbered(P, range(9)), {P: 9}), OffsetPiece("t", 0, 0, 9, 1))


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_a_task_stops_if_its_pieces_are_more_than_they_may_be(at_once: int, monkeypatch: pytest.MonkeyPatch):
    """Of all its pieces together, by what came; whether it does depends on nothing else."""
    monkeypatch.setattr(reader, "AT_ONCE", at_once)
    monkeypatch.setattr(reader, "MOST_GATHERED_BYTES", 30)
    values = [*numbered(P, range(20)), *numbered(Q, range(20))]
    size = sum(len(message) + len(message.key()) for message in values)
    for most in (size, size - 1):
        pieces = [OffsetPiece("t", 0, 0, 20, 1, most), OffsetPiece("t", 1, 0, 20, 1, most)]
        consumer = Consumer(values, {P: 20, Q: 20})
        if most == size:
            assert found(read(consumer, *pieces)) == {"t/0": list(range(20)), "t/1": list(range(20))}
        else:
            with pytest.raises(
                SourceAway, match=rf"far larger than before: read {size} bytes, expected at most {most};"
            ):
                read(consumer, *pieces)
