"""Calibration: the costs and selectivities of a query, measured on a sample of its real input.

The first windows of every source pass through the same stages as in a run, in this process, twice: once to warm up and
once to measure. Rates, shares and costs follow from the counts by the formulas of `headrace.plan.figures`, solved for
the unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headrace import plan as p
from headrace.columnar import scratch
from headrace.compile import compile_query
from headrace.control.policy import Policy
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.plan.figures import Figures, SampleCounts
from headrace.query import nodes
from headrace.routing.by_range import as_numbers, even_bounds
from headrace.sources import as_tuples
from headrace.sources.files import FilesOrigin, read_head
from headrace.sources.protocol import PhysicalWindow
from headrace.sources.tables import ArrowTable, table_rows
from headrace.state.blocks import BlockReader
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.task.in_process import execute_locally
from headrace.task.work import WorkCounts, WorkTotals

SAMPLED_TUPLES = 50_000  # from each source
FEWEST_EPOCHS, MOST_EPOCHS = 4, 50
MOST_SAMPLE_SLOTS = 8  # slots of a sample, which runs in one process
RANGES = 256
MOST_DRIFT = 0.4  # share of values whose range changes between the two halves of the sample

Tell = Callable[[str], None]


@dataclass(frozen=True)
class CalibrationSample:
    """The first windows of every source, up to the time that all of them cover."""

    windows: Mapping[str, Sequence[pa.Table]]
    spans: Mapping[str, float]  # seconds of event time that a source's windows cover
    times: tuple[int, int]  # first and last event time
    most_epochs: int = MOST_EPOCHS

    @property
    def epochs(self) -> int:
        """Return the number of epochs: one per window, as in a run that keeps up."""
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
    """Measure the figures of a query on at most `tuples` tuples from each source.

    slots: several slots compute separate partials of a group, so the number of sent rows depends on them.
    """
    sources = nodes.named_sources(*roots)
    sample = take_sample(sources, tuples)
    tell(f"sample: {sample.tuples:,} tuples of {', '.join(sources)}")
    tables = _as_they_are(roots)
    found = Figures()
    few = min(slots, MOST_SAMPLE_SLOTS)
    for strategy in ("operator", "subquery"):  # only the first strategy has names for stateless operators
        plan = compile_query(roots, ordered, strategy)
        _measured(plan, sample, few, tables)
        tell(f"measuring as {strategy}")
        found = _joined(found, _figures(plan, sample, *_measured(plan, sample, few, tables)))
    return found


def sample_bounds(roots: Sequence[nodes.Node], ordered: Sequence[bool], *, slots: int, tuples: int) -> Figures:
    """Measure the bounds of band joins quickly, without costs: few epochs, no warm-up, only the default strategy."""
    sample = replace(take_sample(nodes.named_sources(*roots), tuples), most_epochs=FEWEST_EPOCHS)
    plan = compile_query(roots, ordered)
    measured = _measured(
        plan, sample, min(slots, MOST_SAMPLE_SLOTS), _as_they_are(roots), keep_failed=True
    )  # whether failing tuples stop the run is decided by the run
    return replace(_figures(plan, sample, *measured), costs={})


def _as_they_are(roots: Sequence[nodes.Node]) -> dict[str, nodes.TableDefinition]:
    """Return the tables with their current content, which is read once."""
    named = nodes.named_tables(*roots)
    return {n: replace(t, origin=ArrowTable(table_rows(t.origin, t.schema, n)), refresh=None) for n, t in named.items()}


def _joined(first: Figures, second: Figures) -> Figures:
    names = Figures.__dataclass_fields__
    return Figures(**{name: {**getattr(first, name), **getattr(second, name)} for name in names})


# --- the sample ----------------------------------------------------------------------------------------------------


def take_sample(sources: Mapping[str, nodes.Source], tuples: int) -> CalibrationSample:
    read = {name: _head(name, source, tuples) for name, source in sources.items()}
    ends = [_times(tables)[1] for tables, whole in read.values() if not whole and tables]
    end = min(ends, default=None)  # later tuples of one source would find no matches in the others
    cut = {name: [_until(table, end) for table in tables] for name, (tables, _) in read.items()}
    windows = {name: [table for table in tables if table.num_rows] for name, tables in cut.items()}
    longest = max((_span(tables) for tables in windows.values()), default=0.0)
    spans = {name: _span(tables) or longest or 1.0 for name, tables in windows.items()}
    return CalibrationSample(windows, spans, _times([table for tables in windows.values() for table in tables]))


def _head(name: str, source: nodes.Source, tuples: int) -> tuple[list[pa.Table], bool]:
    """Return the first windows of a source, and whether they are the whole source."""
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
    """A source with its name, as `as_tuples` requires it."""

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
        """Return whether the column must exist. Only the time must: a run checks the other columns itself."""
        return name == "ts"


def _windows(name: str, source: nodes.Source, tuples: int) -> Iterator[pa.Table]:
    origin = source.origin
    if not origin.readable_whole:
        msg = f"{name!r} is a streaming DataFrame, which cannot be sampled; calibrate with files or a static DataFrame"
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
    """Return the manifest after the sample, and the bounds and reach of band joins."""
    with (
        scratch.temporary_folder("calibrate") as folder,
        StateStore.open(folder / "state", fsync=False) as store,
    ):
        # the counts of all epochs belong to one plan
        settings = Settings(slots, keep_failed=keep_failed, policy=Policy(hot=False))
        driver = Driver(_by_ts(plan), {"operators": []}, store, {}, settings, tables=tables).open()
        for number in range(sample.epochs):
            windows = [PhysicalWindow(name, part) for name, part in _part(sample, number)]
            _run(driver, store, windows)
        last = store.last
        assert last is not None
        bounds, reach = _bands(plan, last, BlockReader(store.storage))
        _run(driver, store, [], final=True)  # open windows emit their results
        final = store.last
        assert final is not None
        return _with_state(final, last), bounds, reach


def _by_ts(plan: p.PhysicalPlan) -> p.PhysicalPlan:
    """Return the plan with sources that deliver tuples with `ts`, as the sample does."""
    return replace(plan, sources=tuple(replace(s, raw_schema=s.schema, time="ts") for s in plan.sources))


def _run(driver: Driver, store: StateStore, windows: list[PhysicalWindow], *, final: bool = False) -> None:
    each = [[window] for window in windows]  # each window goes to a separate splitter
    driver.run_epoch(Position("sample"), lambda epoch: execute_locally(epoch, each, store.storage), final=final)


def _part(sample: CalibrationSample, number: int) -> Iterator[tuple[str, pa.Table]]:
    """Yield each source's part of an epoch: whole windows if there are enough, otherwise slices."""
    for name, tables in sample.windows.items():
        if len(tables) >= sample.epochs:
            start, stop = (len(tables) * end // sample.epochs for end in (number, number + 1))
            yield from ((name, table) for table in tables[start:stop])
        elif tables:
            whole = pa.concat_tables(tables)
            start, stop = (whole.num_rows * end // sample.epochs for end in (number, number + 1))
            yield name, whole.slice(start, stop - start)


def _with_state(final: Manifest, last: Manifest) -> Manifest:
    """Return the final counts with the state before the end of the input."""
    return replace(final, operators=last.operators, work={**final.work, "held": last.work["held"]})


def _bands(
    plan: p.PhysicalPlan, last: Manifest, reader: BlockReader
) -> tuple[dict[str, tuple[float, ...]], dict[str, int]]:
    """Return the bounds of equally full ranges for each band join, and the number of ranges that an interval spans."""
    bounds: dict[str, tuple[float, ...]] = {}
    reach: dict[str, int] = {}
    for operator in plan.operators:
        if operator.band is None:
            continue
        band, state = operator.band, last.operators[operator.name].inputs
        side = band.points_side
        points, intervals = ([reader.open(b).table for b in blocks] for blocks in (state[side], state[1 - side]))
        if not points or not intervals or _drifts(points, band.point[1]):
            continue
        bounds[operator.name] = even_bounds(as_numbers(_valid(points, band.point[1:]).column(0)), RANGES)
        ends = _valid(intervals, band.interval)
        if bounds[operator.name] and ends.num_rows:
            low, high = (as_numbers(ends.column(place)) for place in (0, 1))
            first, final = (np.searchsorted(bounds[operator.name], at) for at in (low - band.width, high + band.width))
            reach[operator.name] = max(int((final - first).max()), 0)
    return bounds, reach


def _drifts(tables: Sequence[pa.Table], column: str) -> bool:
    """Return whether later values are in another range than earlier ones, as times are: present ranges would soon be
    empty.
    """
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
    """Return these columns with new names, without rows that contain nulls."""
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
    """Return the number of tuples that entered each source and operator."""
    found = {name: source.accepted for name, source in last.sources.items()}
    for operator in plan.operators:
        found[operator.name] = sum(_arrived(plan, operator, s, counts) for s in range(len(operator.schemas)))
    return found


def _arrived(plan: p.PhysicalPlan, operator: Operator, side: int, counts: WorkCounts) -> int:
    return sum(counts.edges.get(edge.name, [0, 0])[1] for edge in plan.entering(operator.name, side))
