"""What a query costs and lets pass, measured on a sample of its real input.

The first windows of every source go through the same stages as in a run, in this process, twice: once to warm up, once
to measure. Counts become rates, shares and costs by the formulas below, which are those of
`headrace.plan.figures` solved for what was unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headrace import plan as p
from headrace.columnar import scratch
from headrace.compile import compile_query
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.plan.figures import Figures, SampleCounts
from headrace.query import nodes
from headrace.routing.by_range import as_numbers, even_bounds, range_of
from headrace.sources import as_tuples
from headrace.sources.files import FilesOrigin, read_head
from headrace.sources.protocol import PhysicalWindow
from headrace.sources.tables import ArrowTable, table_rows
from headrace.state.blocks import BlockReader
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.task.in_process import execute_locally
from headrace.task.work import WorkCounts, WorkTotals

SAMPLED_TUPLES = 50_000  # of every source
FEWEST_EPOCHS, MOST_EPOCHS = 4, 50
MOST_SAMPLE_SLOTS = 8  # of a sample: it runs in one process
RANGES = 256
MOST_DRIFT = 0.4  # share of the values that lie elsewhere in the second half of the sample

Tell = Callable[[str], None]


@dataclass(frozen=True)
class CalibrationSample:
    """The first windows of every source, as far as all of them go."""

    windows: Mapping[str, Sequence[pa.Table]]
    spans: Mapping[str, float]  # seconds of event time that the windows of a source cover
    times: tuple[int, int]  # first and last of all
    most_epochs: int = MOST_EPOCHS

    @property
    def epochs(self) -> int:
        """A window at a time, as in a run that keeps up."""
        return min(max(FEWEST_EPOCHS, *(len(tables) for tables in self.windows.values())), self.most_epochs)

    @property
    def tuples(self) -> int:
        return sum(table.num_rows for tables in self.windows.values() for table in tables)


def calibrate(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    *,
    slots: int = 2,
    tuples: int = SAMPLED_TUPLES,
    tell: Tell = lambda _: None,
) -> Figures:
    """Figures of a query, from at most so many tuples of every source.

    slots: several make their own partials of one group, so what is sent depends on them.
    """
    sources = nodes.named_sources(*roots)
    sample = take_sample(sources, tuples)
    tell(f"sample: {sample.tuples:,} tuples of {', '.join(sources)}")
    tables = _as_they_are(roots)
    found = Figures()
    few = min(slots, MOST_SAMPLE_SLOTS)
    for strategy in ("operator", "subquery"):  # the names of stateless operators exist only in the first
        plan = compile_query(roots, ordered, strategy)
        _measured(plan, sample, few, tables)
        tell(f"measuring as {strategy}")
        found = _joined(found, _figures(plan, sample, *_measured(plan, sample, few, tables)))
    return found


def sample_bounds(roots: Sequence[nodes.Node], ordered: Sequence[bool], *, slots: int, tuples: int) -> Figures:
    """The same at once and without costs: few epochs, nothing warm, only as the query is run."""
    sample = replace(take_sample(nodes.named_sources(*roots), tuples), most_epochs=FEWEST_EPOCHS)
    plan = compile_query(roots, ordered)
    measured = _measured(
        plan, sample, min(slots, MOST_SAMPLE_SLOTS), _as_they_are(roots), keep_failed=True
    )  # whether they stop it, the run decides
    return replace(_figures(plan, sample, *measured), costs={})


def _as_they_are(roots: Sequence[nodes.Node]) -> dict[str, nodes.TableDefinition]:
    """The tables, read once."""
    named = nodes.named_tables(*roots)
    return {n: replace(t, origin=ArrowTable(table_rows(t.origin, t.schema, n)), refresh=None) for n, t in named.items()}


def _joined(first: Figures, second: Figures) -> Figures:
    names = Figures.__dataclass_fields__
    return Figures(**{name: {**getattr(first, name), **getattr(second, name)} for name in names})


# --- the sample ----------------------------------------------------------------------------------------------------


def take_sample(sources: Mapping[str, nodes.Source], tuples: int) -> CalibrationSample:
    read = {name: _head(name, source, tuples) for name, source in sources.items()}
    ends = [_times(tables)[1] for tables, whole in read.values() if not whole and tables]
    end = min(ends, default=None)  # what comes later in one source would meet nothing of the others
    cut = {name: [_until(table, end) for table in tables] for name, (tables, _) in read.items()}
    windows = {name: [table for table in tables if table.num_rows] for name, tables in cut.items()}
    longest = max((_span(tables) for tables in windows.values()), default=0.0)
    spans = {name: _span(tables) or longest or 1.0 for name, tables in windows.items()}
    return CalibrationSample(windows, spans, _times([table for tables in windows.values() for table in tables]))


def _head(name: str, source: nodes.Source, tuples: int) -> tuple[list[pa.Table], bool]:
    """The first windows of a source, and whether that is all of it."""
    tables: list[pa.Table] = []
    rows = 0
    for raw in _windows(name, source, tuples):
        if rows >= tuples:
            return tables, False
        table = as_tuples(raw, _NamedSource(name, source), source.schema)
        tables.append(table.slice(0, tuples - rows).filter(table.slice(0, tuples - rows).column("ts").is_valid()))
        rows += table.num_rows
    return tables, rows <= tuples


@dataclass(frozen=True)
class _NamedSource:
    """A source as `as_tuples` wants it: with its name."""

    name: str
    source: nodes.Source

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def raw_schema(self) -> pa.Schema:
        return self.source.raw_schema

    @property
    def time(self) -> str:
        return self.source.time

    def needs(self, name: str) -> bool:
        """A sample of what a run will refuse is none; of what it does without, that of the others is enough."""
        return name == "ts"


def _windows(name: str, source: nodes.Source, tuples: int) -> Iterator[pa.Table]:
    origin = source.origin
    if not origin.readable_whole:
        msg = f"{name!r} is a streaming DataFrame, of which no sample can be taken; calibrate with files or a static DataFrame"
        raise QueryError(msg)
    if isinstance(origin, FilesOrigin):
        yield from (read_head(path, tuples + 1) for path in origin.listing())
    else:
        yield origin.first_rows(tuples + 1) if hasattr(origin, "first_rows") else origin.table()


def _times(tables: Sequence[pa.Table]) -> tuple[int, int]:
    times = [np.asarray(table.column("ts").cast(pa.int64())) for table in tables if table.num_rows]
    return (int(min(t.min() for t in times)), int(max(t.max() for t in times))) if times else (0, 0)


def _span(tables: Sequence[pa.Table]) -> float:
    low, high = _times(tables) if tables else (0, 0)
    return (high - low) / 1e6


def _until(table: pa.Table, end: int | None) -> pa.Table:
    if end is None:
        return table
    return table.filter(pa.array(np.asarray(table.column("ts").cast(pa.int64())) <= end))


# --- the run -------------------------------------------------------------------------------------------------------


def _measured(
    plan: p.PhysicalPlan,
    sample: CalibrationSample,
    slots: int,
    tables: Mapping[str, nodes.TableDefinition],
    *,
    keep_failed: bool = False,
) -> tuple[Manifest, dict[str, tuple[float, ...]], dict[str, int]]:
    """The manifest after the sample; bounds and reach of band joins."""
    with (
        scratch.temporary_folder("calibrate") as folder,
        StateStore.open(folder / "state", fsync=False) as store,
    ):
        settings = Settings(slots, keep_failed=keep_failed)
        driver = Driver(_by_ts(plan), {"operators": []}, store, {}, settings, tables=tables).open()
        for number in range(sample.epochs):
            windows = [PhysicalWindow(name, part) for name, part in _part(sample, number)]
            _run(driver, store, windows)
        last = store.last
        assert last is not None
        bounds, reach = _bands(plan, last, BlockReader(store.storage))
        _run(driver, store, [], final=True)  # windows that are open give their results
        final = store.last
        assert final is not None
        return _with_state(final, last), bounds, reach


def _by_ts(plan: p.PhysicalPlan) -> p.PhysicalPlan:
    """The sources as the sample has them: already tuples."""
    return replace(plan, sources=tuple(replace(s, raw_schema=s.schema, time="ts") for s in plan.sources))


def _run(driver: Driver, store: StateStore, windows: list[PhysicalWindow], *, final: bool = False) -> None:
    each = [[window] for window in windows]  # to a splitter of its own
    driver.run_epoch(Position("sample"), lambda epoch: execute_locally(epoch, each, store.storage), final=final)


def _part(sample: CalibrationSample, number: int) -> Iterator[tuple[str, pa.Table]]:
    """An epoch's part of each source: whole windows where there are enough, else slices."""
    for name, tables in sample.windows.items():
        if len(tables) >= sample.epochs:
            start, stop = (len(tables) * end // sample.epochs for end in (number, number + 1))
            yield from ((name, table) for table in tables[start:stop])
        elif tables:
            whole = pa.concat_tables(tables)
            start, stop = (whole.num_rows * end // sample.epochs for end in (number, number + 1))
            yield name, whole.slice(start, stop - start)


def _with_state(final: Manifest, last: Manifest) -> Manifest:
    """All that was counted, with the state before the end."""
    return replace(final, operators=last.operators, work={**final.work, "held": last.work["held"]})


def _bands(
    plan: p.PhysicalPlan, last: Manifest, reader: BlockReader
) -> tuple[dict[str, tuple[float, ...]], dict[str, int]]:
    """Where points of band joins lie, and over how many ranges their intervals extend."""
    bounds: dict[str, tuple[float, ...]] = {}
    reach: dict[str, int] = {}
    for operator in plan.operators:
        if operator.band is None:
            continue
        band, state = operator.band, last.operators[operator.name].inputs
        side = 0 if band.point[0] == "l" else 1
        points, intervals = ([reader.open(b).table for b in blocks] for blocks in (state[side], state[1 - side]))
        if not points or not intervals or _drifts(points, band.point[1]):
            continue
        bounds[operator.name] = even_bounds(as_numbers(_valid(points, band.point[1:]).column(0)), RANGES)
        ends = _valid(intervals, band.interval)
        if bounds[operator.name] and ends.num_rows:
            low = range_of(ends, ends.column_names[0], bounds[operator.name], -band.width)
            high = range_of(ends, ends.column_names[1], bounds[operator.name], band.width)
            reach[operator.name] = max(int((high - low).max()), 0)
    return bounds, reach


def _drifts(tables: Sequence[pa.Table], column: str) -> bool:
    """Whether later values lie elsewhere than earlier ones, as times do: ranges of today would be empty tomorrow."""
    table = _valid(tables, [column, "ts"])
    values = as_numbers(table.column(0))[np.argsort(np.asarray(table.column(1)), kind="stable")]
    bounds = even_bounds(values, 8)
    halves = (values[: len(values) // 2], values[len(values) // 2 :])
    shares = [
        np.bincount(np.searchsorted(bounds, half, side="right"), minlength=len(bounds) + 1) / max(len(half), 1)
        for half in halves
    ]
    return bool(np.abs(shares[0] - shares[1]).sum() / 2 > MOST_DRIFT)


def _valid(tables: Sequence[pa.Table], columns: Sequence[str]) -> pa.Table:
    """These columns, under names of their own, without rows that have a null in them."""
    named = [pa.table([t.column(c) for c in columns], names=[f"c{i}" for i in range(len(columns))]) for t in tables]
    return pa.concat_tables(named).drop_null()


# --- from counts to figures ------------------------------------------------------------------------------------------


def _figures(
    plan: p.PhysicalPlan,
    sample: CalibrationSample,
    last: Manifest,
    bounds: Mapping[str, tuple[float, ...]],
    reach: Mapping[str, int],
) -> Figures:
    known = WorkTotals.from_json(last.work)
    counts = known.counts
    span = max(sample.spans.values(), default=1.0)
    rates = {name: last.sources[name].accepted / sample.spans[name] for name in sample.windows}
    passing = {name: after / before for name, (before, after) in counts.edges.items() if before}
    costs = {name: counts.cpu.get(name, 0.0) * 1e6 / n for name, n in _taken(plan, last, counts).items() if n}
    found: dict[str, dict[str, float]] = {}
    for operator in plan.operators:
        sent = counts.sent.get(operator.name)
        counted = SampleCounts(
            tuple(_arrived(plan, operator, side, counts) for side in range(len(operator.schemas))),
            counts.out.get(operator.name, 0),
            sent[0] if sent else None,
            known.held.get(operator.name, 0.0),
            span,
            sample.times,
        )
        for figure, value in operator.measured(counted).items():
            found.setdefault(figure, {})[operator.name] = value
    return Figures(rates=rates, passing=passing, costs=costs, bounds=bounds, reach=reach, **found)


def _taken(plan: p.PhysicalPlan, last: Manifest, counts: WorkCounts) -> dict[str, int]:
    """Tuples that came into every source and operator."""
    found = {name: source.accepted for name, source in last.sources.items()}
    for operator in plan.operators:
        found[operator.name] = sum(_arrived(plan, operator, s, counts) for s in range(len(operator.schemas)))
    return found


def _arrived(plan: p.PhysicalPlan, operator: Operator, side: int, counts: WorkCounts) -> int:
    return sum(counts.edges.get(edge.name, [0, 0])[1] for edge in plan.entering(operator.name, side))
