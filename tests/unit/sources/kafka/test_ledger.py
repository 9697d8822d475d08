"""What was taken of topics, without a broker: one that is moved by hand answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace.errors import SourceAway, SourceError
from headrace.sources.kafka import ledger as module
from headrace.sources.kafka.client import BrokerSettings, TopicDescription, TopicPartition
from headrace.sources.kafka.ledger import KafkaLedger, OffsetRange
from headrace.sources.protocol import NO_MESSAGES, MessageAmount
from headrace.state.manifest import OffsetReached, TopicsState


class Brokers:
    """Answers as `client.Client`."""

    servers = BrokerSettings("nowhere:1")

    def __init__(self, **ends: int) -> None:
        self.logs = {TopicPartition("t", int(name[1:])): [0, end] for name, end in ends.items()}
        self.id, self.away = "first", 0

    def topics(self, names: Any) -> dict[str, TopicDescription | None]:
        if self.away:
            self.away -= 1
            raise SourceAway("no answer")
        there = tuple(sorted(place.number for place in self.logs))
        return {name: TopicDescription(self.id, there) if there else None for name in names}

    def beginnings(self, places: Any) -> dict[TopicPartition, int]:
        return {place: self.logs[place][0] for place in places}

    def ends(self, places: Any) -> dict[TopicPartition, int]:
        return {place: self.logs[place][1] for place in places}

    def starts(self, places: Any, start: Any) -> dict[TopicPartition, int]:
        return self.beginnings(places) if start == "earliest" else self.ends(places)


def ledger(brokers: Brokers, state: TopicsState | None = None, start: str = "earliest", **options: Any) -> KafkaLedger:
    client: Any = brokers
    reader: Any = None
    limit = options.pop("limit", None)
    return KafkaLedger(client, ["t"], start, limit, reader, state or TopicsState(), **options)


def take(found: KafkaLedger) -> dict[str, tuple[int, int]]:
    """An epoch, committed: what it took."""
    chosen = found.choose(found.waiting())
    state: Any = found.state_after(None, 0, chosen)  # type: ignore[arg-type]
    messages = sum(each.offsets for each in chosen)
    found.note_commit(state, chosen, MessageAmount(100 * messages, messages))
    return {each.place.name: (each.start, each.stop) for each in chosen}


def test_every_offset_is_taken_once_over_epochs_and_starts():
    brokers = Brokers(p0=250, p1=30)
    first = ledger(brokers, limit=100)
    assert take(first) == {"t/0": (0, 70), "t/1": (0, 30)}
    brokers.logs[TopicPartition("t", 1)][1] = 40
    again = ledger(brokers, first.state, limit=100)
    assert take(again) == {"t/0": (70, 160), "t/1": (30, 40)}
    assert take(again) == {"t/0": (160, 250)}
    assert take(again) == {}
    assert again.state == TopicsState({"t": "first"}, {"t/0": OffsetReached(250), "t/1": OffsetReached(40)})


def test_what_is_not_committed_is_taken_again():
    found = ledger(Brokers(p0=10))
    chosen = found.choose(found.waiting())
    found.state_after(None, 0, chosen)  # type: ignore[arg-type]
    assert found.choose(found.waiting()) == chosen == [OffsetRange(TopicPartition("t", 0), 0, 10)]


def test_partitions_that_are_ahead_wait():
    found = ledger(Brokers(p0=10, p1=10), limit=8)
    waiting = found.waiting()
    assert [each.place.number for each in found.choose(waiting, ["t/0"])] == [1]
    assert found.remaining(waiting, found.choose(waiting, ["t/0"])) == {"t/0": 10, "t/1": 2}


def test_without_a_limit_an_epoch_is_as_large_as_messages_are_small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FIRST_EPOCH_MESSAGES", 50)
    monkeypatch.setattr(module, "MOST_EPOCH_BYTES", 20_000)
    found = ledger(Brokers(p0=1000))
    assert take(found) == {"t/0": (0, 50)}, "before any was read"
    assert take(found) == {"t/0": (50, 216)}, "of 100 bytes each, and a few beside"
    assert [p.start for p in found.inputs("s", [OffsetRange(TopicPartition("t", 0), 0, 200)])[0].pieces(6_000)] == [
        0,
        50,
        100,
        150,
    ]


def test_an_epoch_that_is_begun_again_takes_fewer_messages_down_to_one_of_each_partition(
    monkeypatch: pytest.MonkeyPatch,
):
    """Five attempts are made, so the last must have no limit."""
    found, taken = ledger(Brokers(p0=10**7, p1=10**7)), []
    take(found)
    for _ in range(5):
        chosen = found.choose(found.waiting())
        taken.append(sum(each.offsets for each in chosen))
        limits = {each.most for each in found.inputs("s", chosen)}
    assert taken[0] > 500_000 and taken[1] == taken[0] // 16 and taken[2] == taken[0] // 16**3 and taken[3:] == [2, 2]
    assert limits == {None}, "one message is read however large it is"
    found.note_commit(found.state_after(None, 0, chosen), chosen, MessageAmount(200, 2))  # type: ignore[arg-type]
    assert sum(stop - start for start, stop in take(found).values()) == taken[0], "it is as large as before"


def test_an_epoch_that_is_begun_again_is_cut_as_before():
    """A broker that was away says nothing about the size of messages, nor does a number that the user gave change."""
    found = ledger(Brokers(p0=10**6), limit=10**6)
    pieces = [
        len(each.pieces(16 << 20)) for _ in range(30) for each in found.inputs("s", found.choose(found.waiting()))
    ]
    assert set(pieces) == {pieces[0]}


def test_only_what_was_chosen_by_its_size_is_bounded():
    """Not what a user's number asks for, nor all that there is."""
    every, counted, sized = ledger(Brokers(p0=100)), ledger(Brokers(p0=100), limit=50), ledger(Brokers(p0=100))
    assert [each.most for each in every.inputs("s", every.waiting())] == [None]
    assert [each.most for each in counted.inputs("s", counted.choose(counted.waiting()))] == [None]
    (taken,) = sized.inputs("s", sized.choose(sized.waiting()))
    assert {piece.most for piece in taken.pieces(1000)} == {module.BYTES_LIMIT_FACTOR * module.MOST_EPOCH_BYTES}


def test_what_was_aborted_says_nothing_of_how_large_messages_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FIRST_EPOCH_MESSAGES", 50)
    monkeypatch.setattr(module, "MOST_EPOCH_BYTES", 20_000)
    found = ledger(Brokers(p0=10_000))
    take(found)
    for _ in range(5):
        chosen = found.choose(found.waiting())
        assert sum(each.offsets for each in chosen) == 166
        found.note_commit(found.state_after(None, 0, chosen), chosen, NO_MESSAGES)  # type: ignore[arg-type]


def test_partitions_that_are_added_are_read_from_their_beginning_whatever_the_start():
    brokers = Brokers(p0=10)
    found = ledger(brokers, start="latest")
    assert take(found) == {}
    brokers.logs[TopicPartition("t", 0)][1] = 12
    brokers.logs[TopicPartition("t", 1)] = [0, 3]
    assert take(found) == {"t/0": (10, 12), "t/1": (0, 3)}
    assert set(found.partitions) == {"t/0", "t/1"}


@pytest.mark.parametrize("left", [[4, 9], [9, 9]], ids=["some", "all"])
def test_what_retention_removed_of_a_partition_that_was_added_is_a_gap_too(left: list[int]):
    """It was added while the run was down, and nobody read its first messages."""
    brokers = Brokers(p0=10)
    first = ledger(brokers)
    take(first)
    brokers.logs[TopicPartition("t", 1)] = left
    with pytest.raises(
        SourceError,
        match=rf"offsets 0 to {left[0] - 1} of partition t/1 were removed before they were read .*retention",
    ):
        ledger(brokers, first.state).waiting()
    counted = ledger(brokers, first.state, pass_gaps=True)
    assert take(counted) == ({"t/1": (4, 9)} if left[0] == 4 else {})
    assert counted.state.partitions["t/1"] == OffsetReached(9, None, left[0])


def test_a_run_that_is_to_end_keeps_to_where_partitions_ended_also_when_it_is_killed():
    brokers = Brokers(p0=10, p1=0)
    found = ledger(brokers, limit=4)
    found.keep_to_list()
    brokers.logs[TopicPartition("t", 0)][1], brokers.logs[TopicPartition("t", 2)] = 99, [0, 5]
    assert take(found) == {"t/0": (0, 4)}
    again = ledger(brokers, found.state, limit=100)
    again.keep_to_list()
    assert take(again) == {"t/0": (4, 10)}
    assert take(again) == {}


def test_an_ordinary_start_forgets_where_partitions_ended():
    brokers = Brokers(p0=10)
    found = ledger(brokers, limit=4)
    found.keep_to_list()
    take(found)
    brokers.logs[TopicPartition("t", 0)][1], brokers.logs[TopicPartition("t", 1)] = 20, [0, 5]
    again = ledger(brokers, found.state)
    assert take(again) == {"t/0": (4, 20), "t/1": (0, 5)}
    assert not again.state.listed


def test_where_a_run_begins_is_noted_unless_it_is_the_beginning():
    found = ledger(Brokers(p0=1), start="latest")
    assert found.must_be_noted and not ledger(Brokers(p0=1)).must_be_noted
    take(found)
    assert not found.must_be_noted


def test_what_retention_removed_is_named():
    brokers = Brokers(p0=100)
    found = ledger(brokers, limit=10)
    take(found)
    brokers.logs[TopicPartition("t", 0)][0] = 40
    with pytest.raises(
        SourceError,
        match=r"offsets 10 to 39 of partition t/0 were removed before they were read .*it now begins at 40.*gaps=\"count\"",
    ):
        found.waiting()


def test_or_passed_over_and_counted(caplog: pytest.LogCaptureFixture):
    brokers = Brokers(p0=100)
    found = ledger(brokers, limit=10, pass_gaps=True)
    take(found)
    brokers.logs[TopicPartition("t", 0)][0] = 40
    with caplog.at_level(logging.WARNING):
        assert take(found) == {"t/0": (40, 50)}
    assert "30 are skipped and counted" in caplog.text
    brokers.logs[TopicPartition("t", 0)] = [100, 100]
    assert take(found) == {}
    brokers.logs[TopicPartition("t", 0)] = [100, 101]
    assert take(found) == {"t/0": (100, 101)}
    assert found.state.partitions["t/0"] == OffsetReached(101, None, 80)


def test_a_topic_that_is_gone_or_another_is_named():
    brokers = Brokers(p0=10)
    found = ledger(brokers)
    take(found)
    brokers.id = "second"
    with pytest.raises(SourceError, match=r"topic 't' was deleted and recreated"):
        found.waiting()
    brokers.logs = {}
    with pytest.raises(SourceError, match=r"topic 't' does not exist: it was deleted"):
        found.waiting()
    with pytest.raises(SourceError, match=r"there is no topic 't' at nowhere:1; create it first"):
        ledger(brokers).waiting()


def test_a_log_that_ends_too_early_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers(p0=10)
    found = ledger(brokers)
    take(found)
    brokers.logs[TopicPartition("t", 0)][1] = 7
    monkeypatch.setattr(module, "LEADER_CHANGE_SECONDS", 0.3)
    with pytest.raises(
        SourceError, match=r"partition t/0 ends at offset 7, but it was read up to 10: its log was truncated"
    ):
        found.waiting()


def test_a_log_that_ends_before_what_was_listed_does_not_end_the_input(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers(p0=10)
    found = ledger(brokers, limit=4)
    found.keep_to_list()
    take(found)
    brokers.logs[TopicPartition("t", 0)][1] = 7
    monkeypatch.setattr(module, "LEADER_CHANGE_SECONDS", 0.3)
    for each in (found, ledger(brokers, found.state)):
        each.keep_to_list()
        with pytest.raises(
            SourceError,
            match=r"t/0 ends at offset 7, but it had messages up to 10: its log was truncated; restore the topic",
        ):
            each.waiting()


def test_brokers_that_are_away_are_waited_for_aloud_and_silence_begins_anew(caplog: pytest.LogCaptureFixture):
    brokers = Brokers(p0=10)
    found = ledger(brokers)
    assert found.silent_since < 0
    brokers.away = 2
    with caplog.at_level(logging.WARNING):
        assert take(found) == {"t/0": (0, 10)}
    assert "the run waits for Kafka: no answer" in caplog.text and "Kafka is reachable again after" in caplog.text
    assert found.silent_since > 0


def test_who_is_to_end_waits_for_nobody_and_who_never_had_an_answer_not_forever(monkeypatch: pytest.MonkeyPatch):
    brokers = Brokers(p0=10)
    brokers.away = 1000
    monkeypatch.setattr(module, "START_SECONDS", 0.2)
    with pytest.raises(SourceError, match=r"no answer; waited 0 seconds; check servers and settings"):
        ledger(brokers).waiting()
    found = ledger(brokers)
    found.hurry()
    with pytest.raises(SourceAway):
        found.waiting()
