"""What tasks did, counted: the figures that plans are judged by.

Counts add up: over the tasks of an epoch, over epochs, over restarts under the same plan. They are facts for people and
for the compiler; nothing that a query computes depends on them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace import form

T = TypeVar("T")

_COUNTS, _PAIRS = form.each(form.count), form.each(form.row(form.count, form.count))
STORED = form.record(  # as the driver keeps it: what all tasks did since a plan began to run
    plan=form.items(form.row(form.text, form.text, form.text)),
    since=form.count,
    work=form.record(
        edges=_PAIRS, sent=_PAIRS, out=_COUNTS, cpu=form.each(form.amount), read=_COUNTS, opened=_COUNTS, pairs=_COUNTS
    ),
    held=form.each(form.amount),
)


@dataclass
class Work:
    edges: dict[str, list[int]] = field(default_factory=dict)  # edge: tuples into its steps, and out of them
    sent: dict[str, list[int]] = field(default_factory=dict)  # operator: (tuple, slot) deliveries to each input
    out: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # source or operator: tuples it put out
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # the same: seconds, sending included
    read: dict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )  # join: tuples of its windows that slots read
    opened: dict[str, int] = field(
        default_factory=lambda: defaultdict(int)
    )  # operator: bytes of blocks that slots read
    pairs: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # join without equality: pairs looked at

    def passed(self, edge: str, before: int, after: int) -> None:
        self.edges[edge] = [a + b for a, b in zip(self.edges.get(edge, [0, 0]), (before, after), strict=True)]

    def delivered(self, operator: str, side: int, rows: int) -> None:
        self.sent.setdefault(operator, [0, 0])[side] += rows

    @contextmanager
    def timed(self, producer: str) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            self.cpu[producer] += time.process_time() - begin

    def timing(self, producer: str, items: Iterable[T]) -> Iterator[T]:
        """The items; the time it takes to make them counts for the producer."""
        iterator = iter(items)
        while True:
            with self.timed(producer):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

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
        }


def total(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of several, as JSON."""
    found = Work().to_json()
    for part in parts:
        for what, counts in part.items():
            for name, count in counts.items():
                before = found[what].get(name)
                found[what][name] = count if before is None else _sum(before, count)
    return found


def _sum(a: Any, b: Any) -> Any:
    return [x + y for x, y in zip(a, b, strict=True)] if isinstance(a, list) else a + b
