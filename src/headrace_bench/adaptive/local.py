"""Epochs in this process: the real driver, stages and controller, without Spark or a clock.

Only counts and layouts are read from these runs, so a busy machine does not affect the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.control.policy import Policy
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.stream import Stream
from headrace.task.work import WorkTotals
from headrace.testing import LocalRun, table_stream
from headrace_bench.running import scratch
from headrace_demo.workloads import SCHEMA, Workload

COLUMNS = ("ts", "key", "value")
SIDES = ("left", "right")
NEEDED = pa.schema([SCHEMA.field(name) for name in COLUMNS])
EVERY = Policy().every  # epochs between reorganisations
Tables = Mapping[str, pa.Table]


def stream(name: str) -> Stream:
    """Return a stream of generated tuples without their payload."""
    return table_stream(NEEDED.empty_table(), name=name)


def epochs(workloads: Sequence[Workload], seconds: int) -> Iterable[Tables]:
    """Yield one epoch per second."""
    for tables in zip(*(w.tables(seconds) for w in workloads), strict=True):
        yield {w.name: table.select(COLUMNS) for w, table in zip(workloads, tables, strict=True)}


def drive(
    query: Stream,
    tables: Iterable[Tables],
    *,
    begin: Callable[[LocalRun], object] = lambda run: None,
    **options: Any,
) -> list[Manifest]:
    """Run the query and return the manifest of every epoch. `begin` is called before the first epoch."""
    found: list[Manifest] = []
    with scratch("local") as folder:
        run = LocalRun(query, Path(folder), store=StateStore.open(folder, fsync=False), **options)
        try:
            begin(run)
            for each in tables:
                run.epoch(each)
                assert run.store.last is not None
                found.append(run.store.last)
        finally:
            run.close()
    return found


def sent_and_read(manifests: Sequence[Manifest]) -> list[tuple[int, int]]:
    """Return per epoch the deliveries of new tuples to slots, and the window tuples that slots read."""
    works = [WorkTotals.from_json(m.work).counts for m in manifests]
    totals = [(sum(map(sum, w.sent.values())), sum(w.read.values())) for w in works]
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise([(0, 0), *totals])]


def layouts(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return the layout of the only operator in every epoch."""
    return [next(iter(m.layouts.values())) for m in manifests]


def reorganisations(begin: int, end: int, every: int = EVERY) -> int:
    """Return how many of the epochs [begin, end) end with a reorganisation.

    >>> reorganisations(0, 5), reorganisations(3, 5), reorganisations(5, 9)
    (1, 1, 0)
    """
    return sum((epoch + 1) % every == 0 for epoch in range(begin, end))


def settling(found: Sequence[Any], flip: int, end: int, every: int = EVERY) -> int:
    """Return the reorganisations from a change of the input in epoch `flip` to the last change of the layout before
    `end`.
    """
    last = max((n for n in range(flip + 1, end) if found[n] != found[n - 1]), default=flip)
    return reorganisations(flip, last, every)
