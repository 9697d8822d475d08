"""What an epoch takes of sources with partitions: who is far ahead waits for who is behind, unless nobody waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.run.intake import Intake
from headrace.sources.protocol import NO_MESSAGES
from headrace.state.manifest import PartitionState, SourceState
from headrace.support.event_time import NEVER
from headrace.task import watermarks
from tests.unit.sources.kafka.test_ledger import Brokers, ledger, take

SECOND = 1_000_000
HOUR = 3600 * SECOND
IDLE, AWAKE = True, False


class Reading:
    """The intake of a query with windows of a minute, whose newest manifest has these partitions."""

    def __init__(
        self, ledgers: dict[str, Any], idle: dict[str, bool] | None = None, **sources: dict[str, PartitionState]
    ) -> None:
        states = {
            name: SourceState(partitions=parts, idle=(idle or {}).get(name, False), watermark=NEVER)
            for name, parts in sources.items()
        }
        self.last: Any = SimpleNamespace(sources=states)
        described: Any = {name: SimpleNamespace(lateness=0) for name in sources}
        self.intake = Intake(described, ledgers, 60 * SECOND)


def taken(reading: Reading) -> dict[str, list[str]]:
    return {name: [each.place.name for each in items] for name, items in reading.intake.take(reading.last).items()}


def a_ledger(**more: int) -> Any:
    """Both partitions were read once; so many messages came since."""
    brokers = Brokers(p0=10, p1=10)
    found = ledger(brokers)
    take(found)
    for place, log in brokers.logs.items():
        log[1] += more.get(f"p{place.number}", 0)
    return found


# --- partitions of a source --------------------------------------------------------------------------------------------


def test_a_partition_far_ahead_waits_for_one_that_has_more():
    parts = {"t/0": PartitionState(HOUR, AWAKE), "t/1": PartitionState(0, AWAKE)}
    assert taken(Reading({"s": a_ledger(p0=5, p1=5)}, s=parts)) == {"s": ["t/1"]}
    assert taken(Reading({"s": a_ledger(p0=5)}, s=parts)) == {"s": ["t/0"]}


def test_a_partition_that_is_idle_is_never_held_back():
    """Nobody waits for it, so the watermark would follow the other past messages that we have not read."""
    parts = {"t/0": PartitionState(HOUR, IDLE), "t/1": PartitionState(0, AWAKE)}
    reading = Reading({"s": a_ledger(p0=5, p1=5)}, s=parts)
    assert taken(reading) == {"s": ["t/0", "t/1"]}
    assert not any(reading.intake.waits["s"].values())


def test_when_it_has_spoken_others_are_waited_for_and_nothing_waits_below_the_watermark():
    plan: Any = SimpleNamespace(sources=[SimpleNamespace(name="s", lateness=0)], operators=[])
    clock = watermarks.SourceClock(
        HOUR, 0, AWAKE, {"t/0": watermarks.PartitionClock(HOUR, IDLE), "t/1": watermarks.PartitionClock(0, AWAKE)}
    )
    read = watermarks.advance_clocks(plan, {"s": clock}, {"s": {"t/0": HOUR + 1, "t/1": 2 * HOUR}})["s"]
    assert read.watermark == HOUR + 1
    held = watermarks.advance_clocks(plan, {"s": clock}, {"s": {"t/1": 2 * HOUR}})["s"]
    assert held.watermark == 2 * HOUR, "what would have happened: late is all that waits of t/0"


# --- sources -----------------------------------------------------------------------------------------------------------


def two(**parts: Any) -> Reading:
    return Reading({"a": a_ledger(p0=5, p1=5), "b": a_ledger(p0=5, p1=5)}, parts.pop("idle", None), **parts)


def at(first: int | None, second: int | None, idle: bool = AWAKE, idle_too: bool = AWAKE) -> dict[str, PartitionState]:
    return {"t/0": PartitionState(first, idle), "t/1": PartitionState(second, idle_too)}


def test_a_source_goes_by_the_slowest_partition_that_has_more():
    assert taken(two(a=at(0, 0), b=at(HOUR, HOUR))) == {"a": ["t/0", "t/1"], "b": []}
    assert taken(two(a=at(0, 0), b=at(0, 0))) == {"a": ["t/0", "t/1"], "b": ["t/0", "t/1"]}


def test_an_empty_partition_does_not_make_a_source_one_that_is_behind():
    """Its watermark stands at the beginning of time, though it has been read as far as the other."""
    reading = Reading({"a": a_ledger(p0=5), "b": a_ledger(p0=5, p1=5)}, a=at(HOUR, None), b=at(HOUR, HOUR))
    assert taken(reading) == {"a": ["t/0"], "b": ["t/0", "t/1"]}


def test_nor_does_one_that_has_nothing_more():
    reading = Reading({"a": a_ledger(p0=5), "b": a_ledger(p0=5, p1=5)}, a=at(HOUR, 0), b=at(HOUR, HOUR))
    assert taken(reading) == {"a": ["t/0"], "b": ["t/0", "t/1"]}


def test_a_source_that_is_idle_is_not_held_back():
    reading = two(a=at(0, 0), b=at(HOUR, HOUR, IDLE, IDLE), idle={"b": True})
    assert taken(reading) == {"a": ["t/0", "t/1"], "b": ["t/0", "t/1"]}


def test_of_a_source_that_is_held_back_idle_partitions_are_read():
    assert taken(two(a=at(0, 0), b=at(HOUR, HOUR, AWAKE, IDLE))) == {"a": ["t/0", "t/1"], "b": ["t/1"]}


# --- where a topic begins ----------------------------------------------------------------------------------------------


def test_where_a_topic_begins_that_was_added_to_a_checkpoint_is_noted_at_once():
    """A run that is stopped before anything comes must not begin at a later end."""
    brokers = Brokers(p0=10)
    found = ledger(brokers, start="latest")
    reading = Reading({"s": found}, s={})
    assert taken(reading) == {"s": []} and reading.intake.must_begin
    found.note_commit(found.state_after(None, 1, []), [], NO_MESSAGES)
    assert not reading.intake.must_begin
    brokers.logs = {place: [0, 99] for place in brokers.logs}
    again = ledger(brokers, found.state, start="latest")
    assert not again.must_be_noted and take(again) == {"t/0": (10, 99)}
