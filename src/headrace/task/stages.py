"""One epoch as pure functions of the input of a task: `run_splitter` (stage 0) and `run_stage` (every later stage).

Invariant: for the same epoch record and input, every attempt of a task writes the same rows and reports the same facts. Tasks
write only new blocks, whose names contain the epoch, and change no existing file. This module does not use Spark: the caller
runs these functions and moves the messages (`headrace.spark.job`, `headrace.task.in_process`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import plan as p
from headrace.columnar import arrow
from headrace.errors import EngineError, SourceError
from headrace.operators.base import AppendingOperator
from headrace.sources import as_tuples, check_text
from headrace.sources.protocol import PhysicalWindow
from headrace.support.durations import format_duration
from headrace.support.event_time import FOREVER, FURTHEST, NEVER, moment_text
from headrace.task import slot_state_tables, watermarks
from headrace.task.block_writer import write_merged
from headrace.task.epoch import Epoch
from headrace.task.inbox import Inbox, Inputs
from headrace.task.messages import Goodbye, Message
from headrace.task.outlet import Outlet
from headrace.task.reports import ReportBuilder, SourceCounts
from headrace.task.slots import EpochSlot
from headrace.task.task import Task
from headrace.task.work import TaskTimer

Marks = npt.NDArray[np.bool_]
LATE, UNTIMED, BEYOND = (
    "late",
    "time is null",
    "time is beyond 73,000 years from 1970",
)  # reasons for setting a tuple aside


# --- stage 0 -------------------------------------------------------------------------------------------------------


def run_splitter(epoch: Epoch, task: Task, windows: Iterable[PhysicalWindow]) -> Iterator[Message]:
    """Run one splitter: accept the tuples of its windows, run the steps of their edges, and send them to slots."""
    began = TaskTimer()
    report = ReportBuilder(task.itself, task.stamp)
    outlet = Outlet(epoch, task, report, Inputs())  # nothing is handed over: no operator runs in stage 0
    counts = {s.name: SourceCounts() for s in epoch.plan.sources}
    for window in windows:
        source = epoch.plan.source(window.source)
        counts[source.name].read(window.amount)
        if window.unread is not None:
            outlet.rejects.add_failed(epoch.unread[source.name], window.unread)
        for piece in arrow.slice_table(window.rows):
            with report.work.timed(source.name):
                accepted = _accept(epoch, source, replace(window, rows=piece), counts[source.name], outlet)
            outlet.put(source.name, 0, accepted)
            yield from outlet.flush_full()
    yield from outlet.flush()
    for name, each in counts.items():
        if each.delivered or each.messages:
            report.delivered(name, each)
    seen = {name: each.partition_times for name, each in counts.items() if each.partition_times}
    yield from outlet.finish(seen, (), began)


def _tuples(epoch: Epoch, source: p.SourceInput, window: PhysicalWindow) -> pa.Table:
    try:
        if not window.is_checked:
            check_text(window.rows, source.name)
        return as_tuples(window.rows, source, source.reads(whole=epoch.keep_late))
    except SourceError as error:
        if window.location is None:
            raise
        raise SourceError(f"{error}; found in {window.location!r}") from None


def _accept(
    epoch: Epoch, source: p.SourceInput, window: PhysicalWindow, counts: SourceCounts, outlet: Outlet
) -> pa.Table:
    """Return the accepted tuples of a window. Count all tuples, and keep late and rejected ones for the sink `late`.

    In most windows all tuples are accepted. The smallest and the largest time show this without a check of each tuple.
    """
    tuples = _tuples(epoch, source, window)
    counts.deliver(window.arrived, tuples.num_rows)
    clock = watermarks.SourceClock() if epoch.bounded else epoch.clocks[source.name]
    furthest = watermarks.accepts_until(clock, source.lateness, source.ahead)
    smallest, largest = _span(tuples)
    if tuples.column("ts").null_count or smallest < max(clock.watermark, -FURTHEST) or largest > furthest:
        late, rejected = _others(tuples, clock.watermark, furthest, source.ahead)
        if epoch.keep_late:
            for reason, mask in {LATE: late, **rejected}.items():
                outlet.rejects.add_late(source.name, reason, tuples.filter(pa.array(mask)))
        earliest, _ = _span(tuples.select(["ts"]).filter(pa.array(late)))
        counts.came_late(window.partition, int(late.sum()), clock.watermark - earliest)
        counts.rejected += sum(int(mask.sum()) for mask in rejected.values())
        tuples = tuples.filter(pa.array(~np.logical_or.reduce([late, *rejected.values()])))
        smallest, largest = _span(tuples)
    counts.accept(window.partition, tuples.num_rows, smallest, largest)
    return tuples


def _span(tuples: pa.Table) -> tuple[int, int]:
    """Return the smallest and the largest time; without any tuple, `FOREVER` and `NEVER`."""
    found = pc.min_max(tuples.column("ts").cast(pa.int64())).as_py()
    return (FOREVER, NEVER) if found["min"] is None else (found["min"], found["max"])


def _others(tuples: pa.Table, watermark: int, furthest: int, ahead: int | None) -> tuple[Marks, dict[str, Marks]]:
    """Return which tuples are late, and which are rejected, by the reason. No tuple is in two of these."""
    column = tuples.column("ts")
    times, untimed = (np.asarray(each) for each in (column.cast(pa.int64()).fill_null(0), column.is_null()))
    beyond = (times > FURTHEST) | (times < -FURTHEST)
    rejected = {UNTIMED: untimed, BEYOND: beyond}
    timed = ~untimed & ~beyond
    if ahead is not None and furthest < FURTHEST:
        reason = f"more than {format_duration(ahead)} (ahead) past {moment_text(furthest - ahead)}"
        rejected[reason] = timed & (times > furthest)
        timed = timed & (times <= furthest)
    return timed & (times < watermark), rejected


# --- later stages --------------------------------------------------------------------------------------------------


def run_stage(epoch: Epoch, stage: int, task: Task, messages: Iterable[Message]) -> Iterator[Message]:
    """Run one slot of a stage: its operators on the messages that were sent to it, and its merges of blocks."""
    began = TaskTimer()
    inbox, handed, report = Inbox(), Inputs(), ReportBuilder(task.itself, task.stamp)
    outlet = Outlet(epoch, task, report, handed)
    here = {operator.name for operator in epoch.plan.at(stage)}
    for message in messages:
        if message.kind == Goodbye.kind:
            inbox.add_goodbye(message.read(Goodbye))
            continue
        inbox.received += 1
        if message.to in here:
            inbox.add(message)
        else:  # for a later stage, or for the driver
            yield outlet.passing(message)
    _check_complete(inbox, epoch, stage, task.number)
    report.add_split_times(inbox.split_times)
    outlet.pass_on(inbox.stretches)
    clocks = watermarks.advance_clocks(epoch.plan, epoch.clocks, inbox.seen, ended=epoch.ended)
    for operator in epoch.plan.at(stage):
        if epoch.plan.handed_over(operator):  # it gets the output of earlier operators of the stage
            yield from outlet.flush()
        with EpochSlot(epoch, operator, task, (inbox.inputs, handed), clocks, inbox, outlet.runner) as slot:
            for output, table in report.work.timing(operator.name, operator.run(slot)):
                outlet.put(operator.name, output, table)
                yield from outlet.flush_full()
            with report.work.timed(operator.name):
                slot.keep_tables()
    yield from outlet.flush()
    _merge_blocks(epoch, stage, task, report)
    yield from outlet.finish(inbox.seen, inbox.senders, began)


def _check_complete(inbox: Inbox, epoch: Epoch, stage: int, slot: int) -> None:
    if inbox.promised != inbox.received:
        msg = (
            f"slot {slot} of stage {stage} in epoch {epoch.number} received {inbox.received} messages,"
            f" {inbox.promised} were sent; nothing was committed"
        )
        raise EngineError(msg)


def _merge_blocks(epoch: Epoch, stage: int, task: Task, report: ReportBuilder) -> None:
    for merge in epoch.merges[task.number] if epoch.merges else ():
        operator = epoch.plan.by_name[merge.operator]
        if operator.stage != stage:
            continue
        if merge.table is not None:
            block = slot_state_tables.write_merged_table(epoch, task, operator, merge.table, merge.blocks)
        else:
            assert isinstance(operator, AppendingOperator)
            block = write_merged(epoch, task, operator, merge.inputs[0], merge.blocks, merge.piece)
        gone = [b.name for b in merge.blocks] if merge.piece[0] == 0 else []  # once, for any number of pieces
        for name, inputs in ((operator.name, merge.inputs), *((name, (side,)) for name, side in merge.also)):
            report.merged(name, inputs, gone, block, merge.table)
