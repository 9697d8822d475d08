"""Driving `LocalRun` through a cut: reopened, with other slots, with other layouts."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import sinks
from headrace.operators import Operator
from headrace.operators.base import SequentialOperator
from headrace.operators.joins import JoinOperator
from headrace.operators.nway_join import NWayJoinOperator
from headrace.routing import BOTH, Diagonal, HotGroup, Layout, OneSlotRouter, Ranges, Rectangles
from headrace.state import caches
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.stream import Stream
from headrace.testing import LocalRun

SLOTS = (1, 2, 3, 5)
LATE = ("_source", "_reason")


@dataclass
class Driven:
    """A run that may be closed and opened again; results and late tuples of all its lives together."""

    query: Stream
    folder: Path
    options: dict[str, Any]
    results: Any = field(default_factory=sinks.memory)  # a sink that has a table()
    late: dict[str, sinks.MemorySink] = field(default_factory=dict)
    most_blocks: int = 0
    lives: int = 0
    run: LocalRun | None = None

    def open(self, slots: int) -> None:
        store = StateStore.open(self.folder, fsync=False)
        options = dict(self.options)
        if strategies := options.pop("strategies", ()):  # another one in every life
            options["strategy"] = strategies[self.lives % len(strategies)]
        if plans := options.pop("plans", None):
            options["plan"] = plans(self.query, slots)
        self.lives += 1
        self.run = LocalRun(self.query, self.folder, slots=slots, sink=self.results, store=store, **options)
        for name, sink in self.run.late.items():
            known = self.late.setdefault(name, sink)
            known.epochs.update(sink.epochs)  # delivered again on opening
            sink.epochs = known.epochs

    def epoch(self, tables: Any = None, *, splitters: int = 1, final: bool = False, idle: Sequence[str] = ()) -> None:
        assert self.run is not None
        if self.run.driver.progress.epoch % 2:
            caches._KEPT.forget()  # as if another process of the machine did the tasks
        self.run.epoch(tables, splitters=splitters, final=final, idle=idle)
        self.most_blocks = max(self.most_blocks, len(self.last.live_blocks()))

    @property
    def last(self) -> Manifest:
        assert self.run is not None and self.run.store.last is not None
        return self.run.store.last

    def close(self) -> None:
        if self.run is not None:
            self.run.close()
            self.run = None

    def table(self) -> pa.Table:
        found = self.results.table()
        return self.query.schema.empty_table() if found is None else found

    def late_of(self, source: str, reason: str, schema: pa.Schema) -> pa.Table:
        found = self.late[f"late:{source}"].table()
        if found is None:
            return schema.empty_table()
        assert set(found["_source"].to_pylist()) == {source}
        chosen = found.filter(pa.array([fate_of(r) == reason for r in found["_reason"].to_pylist()], pa.bool_()))
        assert [r == "time is null" for r in chosen["_reason"].to_pylist()] == chosen["ts"].is_null().to_pylist()
        return chosen.drop_columns(list(LATE))


def fate_of(reason: str) -> str:
    """What became of a tuple that was put aside for this reason."""
    told = ("time is null", "more than ", "time is beyond ")
    return "rejected" if reason.startswith(told) else reason


@contextmanager
def driven(query: Stream, slots: int, **options: Any) -> Iterator[Driven]:
    with tempfile.TemporaryDirectory(prefix="headrace-oracle-") as folder:
        given = {"results": make(Path(folder))} if (make := options.pop("results", None)) else {}
        run = Driven(query, Path(folder) / "state", options, **given)
        run.open(slots)
        try:
            yield run
        finally:
            run.close()


def drive(
    query: Stream,
    epochs: Sequence[dict[str, pa.Table]],
    seed: int,
    *,
    end: bool = True,
    reopen: float = 0.3,
    change_slots: float = 0.0,
    check: Callable[[Driven], None] | None = None,
    **options: Any,
) -> pa.Table:
    """Results of a run over these epochs; restarts and changes of slots are drawn from the seed.

    Half of them read of sources what the query needs and no other columns, as runs without `late=` do.
    """
    r = np.random.default_rng(seed)
    options.setdefault("keep_late", check is not None or seed % 2 == 0)
    with driven(query, int(r.choice(SLOTS)), **options) as run:
        for number, tables in enumerate(epochs):
            if number and r.random() < reopen:
                run.close()
                run.open(int(r.choice(SLOTS)))
            if r.random() < change_slots:
                run.run.driver.control.active = int(r.choice(SLOTS))  # type: ignore[union-attr]
            run.epoch(tables, splitters=int(r.integers(1, 4)))
        if end:
            run.epoch(final=True)
        if check is not None:
            check(run)
        return run.table()


def in_two_epochs(query: Stream, tables: dict[str, pa.Table], slots: int) -> pa.Table:
    """Results of a run over the first six rows of each table, and then the next six."""
    with driven(query, slots) as run:
        for start in (0, 6):
            run.epoch({n: t.slice(start, 6) for n, t in tables.items()}, splitters=2)
        run.epoch(final=True)
        return run.table()


def in_random_epochs(query: Stream, table: pa.Table, folder: Path, seed: int, **options: Any) -> pa.Table:
    """Results of a run over rows that are cut anywhere: every epoch is one of its lives, with slots of its own."""
    r, sink = random.Random(seed), sinks.memory()
    cuts = [0, *sorted(r.randint(0, table.num_rows) for _ in range(5)), table.num_rows]
    for number, (start, stop) in enumerate(pairwise(cuts), start=1):
        store = StateStore.open(folder, fsync=False)
        run = LocalRun(query, folder, slots=r.choice(SLOTS), sink=sink, store=store, **options)
        run.epoch(table.slice(start, stop - start), splitters=2, final=number == len(cuts) - 1)
        run.close()
    found = sink.table()
    return query.schema.empty_table() if found is None else found


def random_splits(r: np.random.Generator, groups: int, slots: int) -> tuple[HotGroup, ...]:
    """Some groups on grids of their own."""
    found = []
    for group in r.choice(groups, size=min(groups, int(r.integers(0, 9))), replace=False):
        rows = int(r.integers(1, slots + 1))
        columns = int(r.integers(1, slots // rows + 1))
        found.append(HotGroup(int(group), rows, columns, tuple(map(int, r.permutation(slots)[: rows * columns]))))
    return tuple(found)


def random_layouts(seed: int, grids: float = 0.3) -> Callable[[Operator, int, int], Layout | None]:
    """Another layout at every call, so at every epoch and for every operator.

    Half of the joins have no split group: only then may what is downstream of a join share its slots.
    grids: share of keyed joins that get rectangles.
    """
    r = np.random.default_rng(seed)

    def choose(operator: Operator, groups: int, slots: int) -> Layout | None:
        if isinstance(operator.router, OneSlotRouter):
            return None
        if isinstance(operator, SequentialOperator):  # its stretches ascend with the slots
            bounds = sorted({int(b) for b in r.integers(-5, 40, int(r.integers(0, slots)))})
            return Ranges(tuple(b * 1_000_000 for b in bounds), ((1, 1),) * (len(bounds) + 1), BOTH)
        cells = int(r.integers(1, slots + 1))
        if isinstance(operator, NWayJoinOperator):
            return nway_layout(r, operator, groups, cells, grids)
        join = isinstance(operator, JoinOperator)
        if join and operator.band is not None and r.random() < 0.7:
            return random_ranges(r, slots, operator.band.points_side)
        if join and (not operator.keys or r.random() < grids):
            return Rectangles(groups, composition(r, cells), bool(r.random() < 0.5))
        owners = tuple(int(s) for s in r.integers(0, cells, groups))
        can_be_split = join and r.random() < 0.5
        return Diagonal(owners, cells, random_splits(r, groups, cells) if can_be_split else ())

    return choose


def random_ranges(r: np.random.Generator, slots: int, points: int, scale: float = 5.0) -> Ranges:
    """Some ranges, each on a grid of its own."""
    grids, left = [], slots
    while left and (not grids or r.random() < 0.7):
        rows = int(r.integers(1, left + 1))
        columns = int(r.integers(1, left // rows + 1))
        grids.append((rows, columns))
        left -= rows * columns
    bounds = {float(np.round(b, int(r.integers(0, 3)))) for b in r.normal(0, scale, len(grids) - 1)}
    bounds |= {int(b) for b in r.integers(-9, 99, len(grids) - 1 - len(bounds))}
    return Ranges(tuple(sorted(bounds)), tuple(grids[: len(bounds) + 1]), points)


def nway_layout(r: np.random.Generator, operator: NWayJoinOperator, groups: int, cells: int, grids: float) -> Layout:
    """Rectangles without a key, and sometimes with a key of all aliases; otherwise any owners, and split groups."""
    if not operator.is_keyed or (not operator.everywhere and r.random() < grids):
        return Rectangles(groups, composition(r, cells), bool(r.random() < 0.5))
    owners = tuple(int(s) for s in r.integers(0, cells, groups))
    can_be_split = operator.can_spread_group and r.random() < 0.5
    return Diagonal(owners, cells, random_splits(r, groups, cells) if can_be_split else ())


def composition(r: np.random.Generator, total: int) -> tuple[int, ...]:
    """Numbers, each at least one, whose sum is `total`: every such tuple is as likely as any other."""
    borders = np.flatnonzero(r.random(total - 1) < 0.5) + 1
    return tuple(int(n) for n in np.diff([0, *borders, total]))


def shrink(
    epochs: Sequence[dict[str, pa.Table]], fails: Callable[[list[dict[str, pa.Table]]], bool], seconds: float = 20
) -> list[dict[str, pa.Table]]:
    """Fewer rows, in the same epochs, for which it still fails: halves are left out as long as that works."""
    kept, stop = [dict(epoch) for epoch in epochs], time.monotonic() + seconds
    for number, name in [(n, name) for n, epoch in enumerate(kept) for name in epoch]:
        size = -(-kept[number][name].num_rows // 2)
        start = 0
        while size and time.monotonic() < stop:
            rows = kept[number][name]
            less = pa.concat_tables([rows.slice(0, start), rows.slice(start + size)])
            tried = [{**epoch, name: less} if n == number else epoch for n, epoch in enumerate(kept)]
            if start < rows.num_rows and fails(tried):
                kept = tried
            else:
                start += size
            if start >= kept[number][name].num_rows:
                start, size = 0, size // 2
    return kept
