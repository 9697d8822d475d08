"""Counts of the work of tasks, which show how well a plan runs.

Counts add up: over the tasks of an epoch, over epochs, over restarts under the same plan. They inform users and the
compiler; no result of a query depends on them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace.state.caches import NOT_IN_PLACE
from headrace.state.manifest import Manifest
from headrace.support import validators

T = TypeVar("T")


class TaskTimer:
    """The start of a task, in CPU time and wall-clock time."""

    def __init__(self) -> None:
        self._cpu, self._clock = time.process_time(), time.monotonic()

    def passed(self) -> tuple[float, float]:
        return time.process_time() - self._cpu, time.monotonic() - self._clock


@dataclass
class WorkCounts:
    """Counts of the work of tasks. They are added up over the tasks of an epoch and over epochs."""

    edges: dict[str, list[int]] = field(default_factory=dict)  # edge: tuples into its steps, and out of them
    sent: dict[str, list[int]] = field(default_factory=dict)  # operator: (tuple, slot) deliveries to each input
    out: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # source or operator: tuples emitted
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same: seconds, sending included
    read: dict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )  # join: tuples of its windows that slots read
    opened: dict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )  # operator: bytes of blocks that slots read
    pairs: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # join: pairs compared

    split: dict[str, list[int]] = field(default_factory=dict)  # split: tuples for one substream, for all, for none
    table_use: dict[str, list[float]] = field(
        default_factory=dict
    )  # operator: tables found in caches; rows and seconds to build others from blocks; how many for each reason

    def passed(self, edge: str, before: int, after: int) -> None:
        self.edges[edge] = [a + b for a, b in zip(self.edges.get(edge, [0, 0]), (before, after), strict=True)]

    def divided(self, split: str, routed: int, broadcast: int, omitted: int) -> None:
        known = self.split.get(split, [0, 0, 0])
        self.split[split] = [a + b for a, b in zip(known, (routed, broadcast, omitted), strict=True)]

    def delivered(self, operator: str, side: int, rows: int, sides: int = 2) -> None:
        """Count rows that one slot receives of an input. sides: how many inputs the operator has, at least two."""
        self.sent.setdefault(operator, [0] * max(sides, 2))[side] += rows

    @contextmanager
    def timed(self, producer: str) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            self.cpu[producer] += time.process_time() - begin

    def timing(self, producer: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and count the CPU time that it takes to make them for the producer."""
        iterator = iter(items)
        while True:
            with self.timed(producer):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def less(self, before: WorkCounts) -> WorkCounts:
        """Return the difference to `before`, which these counts contain."""
        found = WorkCounts()
        for what, counts in vars(self).items():
            known = vars(before)[what]
            vars(found)[what].update({name: _less(count, known.get(name)) for name, count in counts.items()})
        return found

    def to_json(self) -> dict[str, Any]:
        cpu = {name: round(seconds, 6) for name, seconds in self.cpu.items()}
        return {
            "edges": self.edges,
            "sent": self.sent,
            "out": dict(self.out),
            "cpu": cpu,
            "read": dict(self.read),
            "opened": dict(self.opened),
            "pairs": dict(self.pairs),
            "split": self.split,
            "tables": {name: [round(each, 6) for each in counts] for name, counts in self.table_use.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WorkCounts:
        return WorkCounts(**{key: data[key] for key in data if key != "tables"}, table_use=data["tables"])


def sum_counts(parts: Iterable[WorkCounts]) -> WorkCounts:
    """Return the sum of counts."""
    found = WorkCounts()
    for part in parts:
        for what, counts in vars(part).items():
            sums = vars(found)[what]
            for name, count in counts.items():
                before = sums.get(name)
                sums[name] = count if before is None else _sum(before, count)
    return found


def _sum(a: Any, b: Any) -> Any:
    return [x + y for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b


def counts_between(before: Manifest | None, after: Manifest) -> WorkCounts:
    """Return the counts of the epochs between two manifests."""
    now, known = WorkTotals.of(after), WorkTotals.of(before)
    if now is None:
        return WorkCounts()
    if known is None:
        return now.counts
    less = now.counts.less(known.counts)
    if now.since != known.since or now.plan != known.plan:  # counting started again, except for splits
        return replace(now.counts, split=less.split)
    return less


def _less(a: Any, b: Any) -> Any:
    if b is None:
        return a
    return [x - y for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a - b


# --- what is stored ------------------------------------------------------------------------------------------------

_COUNTS, _PAIRS = (
    validators.mapping_of(validators.count),
    validators.mapping_of(validators.exact_list(validators.count, validators.count)),
)
_WORK_FORM = validators.record(
    plan=validators.list_of(validators.exact_list(validators.text, validators.text, validators.text)),
    since=validators.count,
    counts=validators.record(
        edges=_PAIRS,
        sent=validators.mapping_of(validators.list_of(validators.count)),
        out=_COUNTS,
        cpu=validators.mapping_of(validators.non_negative),
        read=_COUNTS,
        opened=_COUNTS,
        pairs=_COUNTS,
        split=validators.mapping_of(validators.exact_list(validators.count, validators.count, validators.count)),
        tables=validators.mapping_of(
            validators.exact_list(
                validators.count, validators.count, validators.non_negative, *[validators.count] * len(NOT_IN_PLACE)
            )
        ),
    ),
    held=validators.mapping_of(validators.non_negative),
)
Edge = tuple[str, str, str]  # name, producer, target


@dataclass(frozen=True)
class WorkTotals:
    """The work of all tasks since a plan began to run: the section `work` of a manifest."""

    plan: tuple[Edge, ...]  # its edges, which identify it
    since: int  # the first epoch counted
    counts: WorkCounts
    held: Mapping[str, float]  # operator: tuples in its state, recently

    def to_json(self) -> dict[str, Any]:
        plan = [list(edge) for edge in self.plan]
        return {"plan": plan, "since": self.since, "counts": self.counts.to_json(), "held": dict(self.held)}

    @staticmethod
    def from_json(data: Any) -> WorkTotals:
        """Return the totals that a manifest holds; raise for JSON that `to_json` never returns."""
        found = _WORK_FORM(data, "work")
        edges = tuple((name, producer, target) for name, producer, target in found["plan"])
        return WorkTotals(edges, found["since"], WorkCounts.from_json(found["counts"]), found["held"])

    @staticmethod
    def edges_of(manifest: Manifest) -> list[Edge]:
        """Return the edges of the plan alone, from a manifest that this run made or checked."""
        return [(name, producer, target) for name, producer, target in manifest.work.get("plan", ())]

    @staticmethod
    def of(last: Manifest | None) -> WorkTotals | None:
        return WorkTotals.from_json(last.work) if last is not None and last.work else None


def split_counts(manifest: Manifest) -> dict[str, list[int]]:
    """Return by split the tuples for one substream, for all and for none since the state began, from a checked
    manifest."""
    found: dict[str, list[int]] = manifest.work["counts"]["split"] if manifest.work else {}
    return found
