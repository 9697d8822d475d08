"""The choice of the next epoch's input from the sources that headrace drives (folders and topics).

Invariant: a source or partition that is ahead of another one with waiting input by more than the longest window is not
read until the other has caught up. Idle sources and partitions are never held back: the watermark does not wait for
them, so their unread tuples would become late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace import plan as p
from headrace.query import nodes
from headrace.sources.protocol import Item, Ledger
from headrace.state.manifest import Manifest, PartitionState, SourceState

Waiting = Mapping[str, int]  # partition -> number of waiting files or messages


class Intake:
    """Chooses the input of each epoch and records what is still waiting.

    `longest`: the longest time window of the query in microseconds. None: sources do not wait for each other.
    """

    def __init__(self, sources: Mapping[str, nodes.Source], ledgers: Mapping[str, Ledger], longest: int | None) -> None:
        self._sources, self._ledgers, self._longest = sources, ledgers, longest
        self.waits: dict[str, Waiting] = {}  # source -> what is waiting since the last `take`

    @property
    def backlog(self) -> int:
        """Return the number of known files and messages that have not been taken."""
        return sum(sum(parts.values()) for parts in self.waits.values())

    @property
    def must_begin(self) -> bool:
        """Return whether a ledger must record something even if nothing is taken."""
        return any(ledger.must_be_noted for ledger in self._ledgers.values())

    def take(self, last: Manifest | None) -> dict[str, Sequence[Item]]:
        """Return the input of the epoch after `last`, by source."""
        items = {name: ledger.waiting() for name, ledger in self._ledgers.items()}
        waiting = {name: self._ledgers[name].remaining(found, []) for name, found in items.items()}
        taken = {name: self._choose(name, found, waiting, last) for name, found in items.items()}
        self.waits = {name: self._ledgers[name].remaining(found, taken[name]) for name, found in items.items()}
        return taken

    def _choose(
        self, name: str, items: Sequence[Item], waiting: Mapping[str, Waiting], last: Manifest | None
    ) -> Sequence[Item]:
        held = [] if last is None or self._longest is None else self._held_back(name, waiting, last, self._longest)
        if all(partition in held for partition, count in waiting[name].items() if count):
            return []
        return self._ledgers[name].choose(items, held)

    def _held_back(self, name: str, waiting: Mapping[str, Waiting], last: Manifest, longest: int) -> list[str]:
        """Return the partitions from which nothing is taken now."""
        if self._is_ahead(name, waiting, last, longest):
            known = last.sources[name].partitions
            return [each for each in waiting[name] if not known.get(each, PartitionState()).idle]
        reached = _reached_by_partition(last.sources[name], waiting[name])
        return [each for each, largest in reached.items() if largest > min(reached.values()) + longest]

    def _is_ahead(self, name: str, waiting: Mapping[str, Waiting], last: Manifest, longest: int) -> bool:
        if last.sources[name].idle:
            return False
        reached = {n: self._reached(last.sources[n], n, parts) for n, parts in waiting.items() if any(parts.values())}
        known = {n: time for n, time in reached.items() if time is not None}
        return name in known and known[name] > min(known.values()) + longest

    def _reached(self, source: SourceState, name: str, waiting: Waiting) -> int | None:
        """Return how far a source with waiting input has been read, or None if unknown.

        This is the time of its newest tuple and not its watermark: neither a larger lateness nor an empty partition
        makes a source lag behind.
        """
        if source.partitions:
            return min(_reached_by_partition(source, waiting).values(), default=None)
        return source.watermark + self._sources[name].lateness


def longest_window(plan: p.PhysicalPlan) -> int | None:
    """Return the longest time window of a plan in microseconds, or None if it has none."""
    return max((o.longest_window for o in plan.operators if o.longest_window is not None), default=None)


def _reached_by_partition(source: SourceState, waiting: Waiting) -> dict[str, int]:
    """Return the time of the newest tuple of each partition that has waiting input and is not idle."""
    known = {each: source.partitions.get(each, PartitionState()) for each, count in waiting.items() if count}
    return {each: state.largest for each, state in known.items() if state.largest is not None and not state.idle}
