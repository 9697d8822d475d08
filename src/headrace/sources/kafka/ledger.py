"""The ledger of Kafka topics: the next offset of every partition, and the choice of what an epoch takes.

Invariant: an epoch takes the offsets [next, stop) of a partition, where stop is at most the last stable offset, and
`next` in the manifest is `stop` of the previous epoch. If retention removed messages before they were read, the run
stops or, with `gaps="count"`, skips, counts and logs them. A topic is identified by the id that the brokers assigned. A
topic that was deleted or recreated stops the run.

The size of messages is known only after they are read, so the number that an epoch takes is an estimate. A task that
reads far more bytes than planned stops. Nothing of that epoch is committed, and it is repeated with fewer messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

from headrace.errors import SourceAway, SourceError
from headrace.sources.kafka.client import BrokerClient, Start, TopicDescription, TopicPartition
from headrace.sources.kafka.reader import KafkaReader, OffsetPiece
from headrace.sources.protocol import MessageAmount
from headrace.state.manifest import OffsetReached, TopicsState
from headrace.state.storage import Storage
from headrace.support.terminal_text import printable
from headrace.support.waiting import ServerWait

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MOST_EPOCH_BYTES = 64 << 20  # bytes of messages taken in one epoch when the user sets no number
# a task stops after this multiple of MOST_EPOCH_BYTES, because messages are larger than estimated
BYTES_LIMIT_FACTOR = 2
SHRINK_FACTOR = 16  # attempt n of an epoch takes this factor to the power n fewer messages than attempt n - 1
SHRINK_ATTEMPTS = 8  # from this attempt on, an epoch takes one message of each partition
FIRST_EPOCH_MESSAGES = 2_000  # messages of the first epoch, before their size is known
ASSUMED_MESSAGE_BYTES = 1_000  # bytes of a message, before any message was read
MESSAGE_OVERHEAD = 20  # bytes that a message counts for in addition to its value and key
START_SECONDS = 60.0  # seconds that a ledger waits for the brokers' first answer
LEADER_CHANGE_SECONDS = 30.0  # seconds for which a log may seem too short because its leader has just changed


class OffsetRange(NamedTuple):
    """The offsets `start` to `stop` - 1 of a partition."""

    place: TopicPartition
    start: int
    stop: int

    @property
    def offsets(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class TakenOffsets:
    """A range of offsets that an epoch takes, and the estimated size of its messages."""

    source: str
    range: OffsetRange
    each: float  # estimated bytes of a message
    most: int | None = None  # bytes that a task may read

    @property
    def bytes(self) -> int:
        return int(self.range.offsets * self.each)

    def sample_times(self, column: str) -> Sequence[tuple[int, int]]:
        """Return nothing: messages must be read to know their times."""
        return ()

    def pieces(self, most: int) -> list[OffsetPiece]:
        topic, number = self.range.place
        step = max(1, int(most / self.each))
        starts = range(self.range.start, self.range.stop, step)
        stops = [min(start + step, self.range.stop) for start in starts]
        return [
            OffsetPiece(topic, number, start, stop, int((stop - start) * self.each) or 1, self.most)
            for start, stop in zip(starts, stops, strict=True)
        ]


class KafkaLedger:
    """The ledger of the topics of one source."""

    unit: ClassVar[str] = "messages"

    def __init__(
        self,
        client: BrokerClient,
        topics: Sequence[str],
        start: Start,
        limit: int | None,
        reader: KafkaReader,
        state: TopicsState,
        *,
        pass_gaps: bool = False,
    ) -> None:
        self.state, self.reader = state, reader
        self._client, self._topics, self._start, self._limit = client, tuple(topics), start, limit
        self._pass_gaps = pass_gaps
        self._known = {
            n: reached._replace(until=None) for n, reached in state.partitions.items()
        }  # by partition, since the last request to the brokers
        self._ids = dict(state.topics)
        self._listed = False  # True: take only messages that existed when the run began
        self._message_bytes: float | None = None  # smoothed size of recent messages; None: unknown
        self._attempts = 0  # epochs chosen since the last commit
        self._hurry = threading.Event()
        self._wait = ServerWait(SourceAway, self._hurry, self._give_up, self._warn, self._resumed)
        self._brokers_answered = False  # at least once
        self._too_short_since: dict[TopicPartition, float] = {}  # partition that ends too early -> since when
        self.silent_since = -1.0

    @property
    def must_be_noted(self) -> bool:
        """Return whether the start of the source must be committed first, because another start could begin elsewhere."""
        return self._start != "earliest" and not self.state.topics

    @property
    def partitions(self) -> Collection[str]:
        return self._known.keys()

    # --- waiting messages --------------------------------------------------------------------------------------------

    def keep_to_list(self) -> None:
        """Restrict this run to the current ends of partitions, or to those in the state."""
        if self.state.listed:
            self._known, self._listed = dict(self.state.partitions), True
        else:
            self.waiting()
            ends = self._patiently(lambda: self._client.ends(map(TopicPartition.of, self._known)))
            self._known = {
                name: reached._replace(until=max(ends[TopicPartition.of(name)], reached.next))
                for name, reached in self._known.items()
            }
            self._listed = True

    def waiting(self) -> list[OffsetRange]:
        """Return for each partition the range from the next offset to the last stable offset."""
        return self._patiently(self._ask_brokers)

    def _ask_brokers(self) -> list[OffsetRange]:
        self._update_partitions(self._client.topics(self._topics))
        places = [TopicPartition.of(name) for name in self._known]
        ends = self._client.ends(places)
        self._check_ends(ends)
        found = [
            OffsetRange(place, self._known[place.name].next, self._end_of_range(place, ends[place])) for place in places
        ]
        found = [each for each in found if each.offsets > 0]
        return self._without_gaps(found, self._client.beginnings([each.place for each in found]))

    def _end_of_range(self, place: TopicPartition, end: int) -> int:
        until = self._known[place.name].until
        return end if until is None else min(end, until)

    def _update_partitions(self, topics: dict[str, TopicDescription | None]) -> None:
        """Check that the topics are the same, and add their new partitions.

        A partition that was added to a known topic begins at offset 0. If retention has already removed its first
        messages, that counts as a gap.
        """
        for name in self._topics:
            topic, known = topics[name], self._ids.get(name)
            if topic is None:
                raise SourceError(_gone(name) if known else _missing(name, self._client.servers.shown))
            if known not in (None, topic.id):
                raise SourceError(_made_again(name))
        met = {name: topic for name, topic in topics.items() if topic is not None}
        there = [TopicPartition(name, number) for name, topic in met.items() for number in topic.partitions]
        new = [place for place in there if place.name not in self._known]
        if new and not self._listed:
            first = [place for place in new if place.topic not in self._ids]
            later = [place for place in new if place.topic in self._ids]
            starts = self._client.starts(first, self._start) | dict.fromkeys(later, 0)
            self._known |= {place.name: OffsetReached(starts[place]) for place in new}
            if later:
                _log.info("new partitions: %s", printable(", ".join(place.name for place in later)))
        self._ids |= {name: topic.id for name, topic in met.items()}

    def _check_ends(self, ends: dict[TopicPartition, int]) -> None:
        """Raise if a partition ends before an offset that was taken or listed, because it has lost messages.

        This may be temporary while its leader changes, so it is `SourceAway` for `LEADER_CHANGE_SECONDS`.
        """
        short = {place: end for place, end in ends.items() if end < self._must_reach(place)}
        now = time.monotonic()
        self._too_short_since = {place: self._too_short_since.get(place, now) for place in short}
        for place, end in short.items():
            known = self._known[place.name]
            was = f"it was read up to {known.next}" if end < known.next else f"it had messages up to {known.until}"
            words = f"partition {place.name} ends at offset {end}, but {was}"
            if now - self._too_short_since[place] > LEADER_CHANGE_SECONDS:
                raise SourceError(f"{words}: its log was truncated; restore the topic, or use a new checkpoint folder")
            raise SourceAway(words)

    def _must_reach(self, place: TopicPartition) -> int:
        known = self._known[place.name]
        return max(known.next, known.until or 0)

    def _without_gaps(self, found: Sequence[OffsetRange], beginnings: dict[TopicPartition, int]) -> list[OffsetRange]:
        """Return the ranges without the offsets that retention has removed."""
        whole = []
        for each in found:
            begins, name = beginnings[each.place], each.place.name
            if begins > each.start:
                self._skip_gap(name, each, begins)
            if (start := max(begins, each.start)) < each.stop:
                whole.append(each._replace(start=start))
        return whole

    def _skip_gap(self, name: str, gap: OffsetRange, begins: int) -> None:
        stop = min(begins, gap.stop)
        words = f"offsets {gap.start} to {stop - 1} of partition {name} were removed before they were read (retention)"
        if not self._pass_gaps:
            msg = f'{words}: it now begins at {begins}; give hr.kafka gaps="count" to continue without them, or use a new checkpoint folder'
            raise SourceError(msg)
        _log.warning("%s: %s are skipped and counted", printable(words), stop - gap.start)
        known = self._known[name]
        self._known[name] = known._replace(next=stop, lost=known.lost + stop - gap.start)

    # --- choice of an epoch ------------------------------------------------------------------------------------------

    def choose(self, waiting: Sequence[OffsetRange], ahead: Collection[str] = ()) -> list[OffsetRange]:
        """Give every partition an equal share of the epoch. A share that a partition does not need goes to the others.

        If the previous choice was not committed, it may have been too large, so this one is smaller.
        """
        open_ = sorted((each for each in waiting if each.place.name not in ahead), key=lambda each: each.offsets)
        left, found = self._most_messages(), []
        for number, each in enumerate(open_):
            share = min(each.offsets, max(1, left // (len(open_) - number)))
            found.append(each._replace(stop=each.start + share))
            left -= share
        self._attempts += bool(found)
        return sorted(found)

    def _most_messages(self) -> int:
        if self._limit is not None:
            return self._limit
        most = FIRST_EPOCH_MESSAGES if self._message_bytes is None else MOST_EPOCH_BYTES / self._message_bytes
        attempts = min(self._attempts, SHRINK_ATTEMPTS)
        return max(1, int(most / SHRINK_FACTOR ** (attempts * (attempts + 1) // 2)))

    def remaining(self, waiting: Sequence[OffsetRange], chosen: Sequence[OffsetRange]) -> dict[str, int]:
        found = {each.place.name: each.offsets for each in waiting}
        for each in chosen:
            found[each.place.name] -= each.offsets
        return found

    def inputs(self, source: str, chosen: Sequence[OffsetRange]) -> list[TakenOffsets]:
        """Return the chosen ranges as inputs. Their bytes are limited if their number is an estimate that could be
        reduced.
        """
        bounded = self._attempts and self._limit is None and any(each.offsets > 1 for each in chosen)
        most = BYTES_LIMIT_FACTOR * MOST_EPOCH_BYTES if bounded else None
        return [TakenOffsets(source, each, self._message_bytes or ASSUMED_MESSAGE_BYTES, most) for each in chosen]

    # --- committed offsets -------------------------------------------------------------------------------------------

    def state_after(self, storage: Storage, epoch: int, chosen: Sequence[OffsetRange]) -> TopicsState:
        taken = {each.place.name: each.stop for each in chosen}
        known = {n: reached._replace(next=taken.get(n, reached.next)) for n, reached in self._known.items()}
        return TopicsState(dict(self._ids), known, self._listed)

    def note_commit(self, state: TopicsState, chosen: Sequence[OffsetRange], read: MessageAmount) -> None:
        """Note that the epoch is committed, and estimate the size of messages from those that were read."""
        self.state, self._known, self._attempts = state, dict(state.partitions), 0
        if read.messages:
            each = read.bytes / read.messages + MESSAGE_OVERHEAD
            self._message_bytes = each if self._message_bytes is None else max(each, (self._message_bytes + each) / 2)

    # --- unreachable brokers -----------------------------------------------------------------------------------------

    def hurry(self) -> None:
        self._hurry.set()

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Return the brokers' answer, however long it takes. The first answer must come within `START_SECONDS`."""
        found = self._wait.call(ask)
        self._brokers_answered = True
        return found

    def _give_up(self, error: SourceAway, waited: float, pause: float) -> Exception | None:
        if self._hurry.is_set():
            return error
        if self._brokers_answered or waited + pause <= START_SECONDS:
            return None
        return SourceError(f"{error}; waited {waited:.0f} seconds; check servers and settings")

    def _warn(self, error: SourceAway) -> None:
        _log.warning("the run waits for Kafka: %s", printable(str(error)))

    def _resumed(self, waited: float) -> None:
        self.silent_since = time.monotonic()  # producers could not write during the outage
        _log.warning("Kafka is reachable again after %.1f seconds", waited)


def _gone(topic: str) -> str:
    return f"topic {topic!r} does not exist: it was deleted after it was last read; what was committed is safe; use a new checkpoint folder for a recreated topic"


def _made_again(topic: str) -> str:
    return f"topic {topic!r} was deleted and recreated, or belongs to another cluster, so its offsets have another meaning; use a new checkpoint folder"


def _missing(topic: str, servers: str) -> str:
    return f"there is no topic {topic!r} at {servers}; create it first, or correct the name"
