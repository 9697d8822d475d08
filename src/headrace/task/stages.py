"""One epoch as pure functions of what a task is given: `split` (stage 0) and `process` (every later stage).

Invariant: for a given epoch record and given input, the tasks of a stage write the same rows and report the same
facts whatever the attempt; they write only new blocks, whose names carry the epoch, and change nothing that exists.
Nothing here knows Spark: an engine calls these functions and moves the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import plan as p
from headrace.columnar import arrow
from headrace.errors import EngineError, SourceError
from headrace.operators.base import AppendedState
from headrace.routing import Layout
from headrace.sinks import PartSink
from headrace.sources import as_tuples, check_text
from headrace.sources.protocol import NO_MESSAGES, MessageAmount, Reader, UnreadMessages
from headrace.state.blocks import Block
from headrace.state.caches import CacheStamps
from headrace.state.manifest import OperatorState, TableVersion
from headrace.support.event_time import FOREVER, FURTHEST, NEVER
from headrace.task import slot_state_tables, watermarks
from headrace.task.block_writer import Task, write_merged
from headrace.task.inbox import Inbox, Inputs
from headrace.task.messages import Goodbye, Message
from headrace.task.outlet import Outlet
from headrace.task.places import FailurePoint, edge_failure_points, unread_message_points
from headrace.task.reports import ReportBuilder, SourceCounts
from headrace.task.slots import EpochSlot
from headrace.task.work import TaskTimer

Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Merge:
    """Runs of state that one slot makes into one block; inputs that share their blocks share the merge."""

    operator: str
    inputs: tuple[int, ...]
    blocks: tuple[Block, ...]
    table: str | None = None  # of a keyed table, and of no input
    also: tuple[tuple[str, int], ...] = ()  # other operators' inputs that hold the same blocks
    piece: tuple[int, int] = (0, 1)  # which of how many: each has some of the groups, and becomes a block of its own


@dataclass(frozen=True)
class Epoch:
    """Everything that the tasks of an epoch must know. All of them get the same record."""

    plan: p.PhysicalPlan
    number: int  # of the manifest that this epoch will publish
    folder: str  # where the state is: the uri of its storage
    slots: int
    groups: int
    clocks: Mapping[str, watermarks.SourceClock]  # after the last epoch
    layouts: Mapping[str, Layout]  # of the operators that follow no other; `layout_of` knows those of all
    state: Mapping[str, OperatorState]
    merges: tuple[tuple[Merge, ...], ...] = ()  # per slot
    tables: Mapping[str, TableVersion] = field(default_factory=dict)  # that streams are joined with, by name
    largest: Mapping[str, int] = field(default_factory=dict)  # by split, of all epochs before: the largest `ts`
    renewals: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)  # operator, table: groups
    ended: tuple[str, ...] = ()  # sources that deliver nothing after this epoch
    bounded: bool = False  # nothing is late
    best_effort: bool = False
    keep_late: bool = False  # those that failed too
    keep_failed: bool = False  # they do not stop the run
    query: str = ""  # the state's name, for sinks
    run: str = ""  # another one with every start
    sinks: Mapping[str, PartSink] = field(default_factory=dict)  # by result: those that take their parts in tasks
    caches: CacheStamps | None = None  # None: tables are built from blocks
    readers: Mapping[str, Reader] = field(
        default_factory=dict
    )  # by source: who reads what tasks are dealt; none: files

    @cached_property
    def layout_of(self) -> Mapping[str, Layout]:
        """The layout of every operator; one that follows another has that of its leader's results."""
        leaders = self.plan.leaders.items()
        return {n: self.layouts[n] if n == leader else self.layouts[leader].handed_on() for n, leader in leaders}

    @cached_property
    def places(self) -> Mapping[tuple[Any, ...], FailurePoint]:
        """Where tuples can fail along edges."""
        return edge_failure_points(self.plan)

    @cached_property
    def unread(self) -> Mapping[str, FailurePoint]:
        """By source, where messages go that cannot be read."""
        return unread_message_points(self.plan)

    @cached_property
    def live(self) -> frozenset[str]:
        """Names of the blocks that this epoch begins with."""
        state = [block.name for state in self.state.values() for block in state.blocks]
        return frozenset([*state, *(version.block.name for version in self.tables.values())])


@dataclass(frozen=True)
class PhysicalWindow:
    """A physical window of a source: delivered rows, and when they arrived (seconds, for latency only)."""

    source: str
    rows: pa.Table
    arrived: float | None = None
    path: str | None = (
        None  # of the file or messages that it is of, to name it in errors; it was checked as it was read
    )
    partition: str = watermarks.UNPARTITIONED
    unread: UnreadMessages | None = None  # messages that came with it and could not be read
    amount: MessageAmount = NO_MESSAGES


# --- stage 0 -------------------------------------------------------------------------------------------------------


def run_splitter(epoch: Epoch, task: Task, windows: Iterable[PhysicalWindow]) -> Iterator[Message]:
    """Accept the tuples of the sources and send each where the plan wants it."""
    began = TaskTimer()
    report = ReportBuilder(task.itself, task.stamp)
    outlet = Outlet(epoch, task, report, Inputs())  # nothing is handed over: no operator runs in stage 0
    counts = {s.name: SourceCounts() for s in epoch.plan.sources}
    for window in windows:
        source = epoch.plan.source(window.source)
        counts[source.name].read(window.amount)
        if window.unread is not None:
            outlet.aside.failed(epoch.unread[source.name], window.unread)
        for piece in arrow.split_table(window.rows):
            with report.work.timed(source.name):
                accepted = _accept(epoch, source, replace(window, rows=piece), counts[source.name], outlet)
            outlet.put(source.name, 0, accepted)
            yield from outlet.flush_full()
    yield from outlet.flush()
    for name, each in counts.items():
        if each.delivered or each.messages:
            report.delivered(name, each)
    seen = {name: each.heard for name, each in counts.items() if each.heard}
    yield from outlet.finish(seen, (), began)


def _tuples(epoch: Epoch, source: p.SourceInput, window: PhysicalWindow) -> pa.Table:
    try:
        if window.path is None:  # files are checked as they are read
            check_text(window.rows, source.name)
        return as_tuples(window.rows, source, source.reads(whole=epoch.keep_late))
    except SourceError as error:
        if window.path is None:
            raise
        raise SourceError(f"{error}; found in {window.path!r}") from None


def _accept(
    epoch: Epoch, source: p.SourceInput, window: PhysicalWindow, counts: SourceCounts, outlet: Outlet
) -> pa.Table:
    """The tuples of a window that are accepted; late and rejected ones are put aside, and all are counted.

    Mostly all are accepted, which their smallest and largest time say: one look at the times.
    """
    tuples = _tuples(epoch, source, window)
    counts.deliver(window.arrived, tuples.num_rows)
    clock = watermarks.SourceClock() if epoch.bounded else epoch.clocks[source.name]
    furthest = watermarks.accepts_until(clock, source.lateness, source.ahead)
    smallest, largest = _span(tuples)
    if tuples.column("ts").null_count or smallest < max(clock.watermark, -FURTHEST) or largest > furthest:
        late, rejected = _others(tuples, clock.watermark, furthest)
        if epoch.keep_late:
            for reason, mask in (("late", late), ("rejected", rejected)):
                outlet.aside.late(source.name, reason, tuples.filter(pa.array(mask)))
        counts.came_late(window.partition, int(late.sum()))
        counts.rejected += int(rejected.sum())
        tuples = tuples.filter(pa.array(~(late | rejected)))
        smallest, largest = _span(tuples)
    counts.accept(window.partition, tuples.num_rows, smallest, largest)
    return tuples


def _span(tuples: pa.Table) -> tuple[int, int]:
    """The smallest and the largest time; of none, the two ends of time."""
    found = pc.min_max(tuples.column("ts").cast(pa.int64())).as_py()
    return (FOREVER, NEVER) if found["min"] is None else (found["min"], found["max"])


def _others(tuples: pa.Table, watermark: int, furthest: int) -> tuple[Marks, Marks]:
    """Which tuples are late, and which rejected: without a time, too far ahead, or beyond all times."""
    times = np.asarray(tuples.column("ts").cast(pa.int64()).fill_null(FOREVER))
    rejected = (times > furthest) | (times < -FURTHEST)
    return ~rejected & (times < watermark), rejected


# --- later stages --------------------------------------------------------------------------------------------------


def run_stage(epoch: Epoch, stage: int, task: Task, messages: Iterable[Message]) -> Iterator[Message]:
    """Run the operators of a stage in one slot on what was sent to it."""
    began = TaskTimer()
    inbox, handed, report = Inbox(), Inputs(), ReportBuilder(task.itself, task.stamp)
    outlet = Outlet(epoch, task, report, handed)
    here = {operator.name for operator in epoch.plan.at(stage)}
    for message in messages:
        if message.kind == Goodbye.kind:
            inbox.hear(message.read(Goodbye))
            continue
        inbox.received += 1
        if message.to in here:
            inbox.add(message)
        else:  # for a later stage, or for the driver
            yield outlet.passing(message)
    _check_complete(inbox, epoch, stage, task.partition)
    report.heard_of(inbox.largest)
    clocks = watermarks.advance_clocks(epoch.plan, epoch.clocks, inbox.seen, ended=epoch.ended)
    for operator in epoch.plan.at(stage):
        if epoch.plan.handed_over(operator):  # what the operators before it put out goes to it first
            yield from outlet.flush()
        with EpochSlot(epoch, operator, task, (inbox.inputs, handed), clocks, inbox.seen, outlet.aside) as slot:
            for output, table in report.work.timing(operator.name, operator.run(slot)):
                outlet.put(operator.name, output, table)
                yield from outlet.flush_full()
            with report.work.timed(operator.name):
                slot.keep_tables()
    yield from outlet.flush()
    _merge_runs(epoch, stage, task, report)
    yield from outlet.finish(inbox.seen, inbox.heard, began)


def _check_complete(inbox: Inbox, epoch: Epoch, stage: int, slot: int) -> None:
    if inbox.promised != inbox.received:
        msg = (
            f"slot {slot} of stage {stage} in epoch {epoch.number} received {inbox.received} messages,"
            f" {inbox.promised} were sent; nothing was committed"
        )
        raise EngineError(msg)


def _merge_runs(epoch: Epoch, stage: int, task: Task, report: ReportBuilder) -> None:
    for merge in epoch.merges[task.partition] if epoch.merges else ():
        operator = epoch.plan.by_name[merge.operator]
        if operator.stage != stage:
            continue
        if merge.table is not None:
            block = slot_state_tables.write_merged_table(epoch, task, operator, merge.table, merge.blocks)
        else:
            assert isinstance(operator, AppendedState)
            block = write_merged(epoch, task, operator, merge.inputs[0], merge.blocks, merge.piece)
        gone = [b.name for b in merge.blocks] if merge.piece[0] == 0 else []  # once, however many pieces there are
        for name, inputs in ((operator.name, merge.inputs), *((name, (side,)) for name, side in merge.also)):
            report.merged(name, inputs, gone, block, merge.table)
