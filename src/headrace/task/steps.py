"""What a task puts aside: late and rejected tuples, and those that failed in a step, for the `late` sink.

Invariant: a tuple that fails in a step is counted once for that step, however many edges lead through it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import plan as p
from headrace.columnar import arrow
from headrace.columnar.types import SUBSTREAM
from headrace.errors import CorruptState
from headrace.kernels.joins.table_join import indexed_table, join_table, table_columns_read
from headrace.kernels.stateless.split import split_window
from headrace.kernels.stateless.steps import FailedTuples, run_step
from headrace.plan.columns_read import names_of
from headrace.sources.protocol import UnreadMessages
from headrace.state.blocks import REPAIR
from headrace.task.block_writer import Task, write_output
from headrace.task.places import LATE, FailurePoint, step_key
from headrace.task.reports import ReportBuilder

if TYPE_CHECKING:
    from headrace.task.stages import Epoch


MOST_TUPLES_TOGETHER = 1_000_000  # tuples that are worked on together


class Rejects:
    def __init__(self, epoch: Epoch, task: Task, report: ReportBuilder) -> None:
        self.epoch, self.task, self.report = epoch, task, report
        self._late: dict[tuple[str, str], list[pa.Table]] = {}
        self._failed: dict[FailurePoint, list[pa.Table]] = {}

    def late(self, source: str, reason: str, table: pa.Table) -> None:
        if table.num_rows and self.epoch.keep_late:
            self._late.setdefault((source, reason), []).append(_marked(table, source, [reason] * table.num_rows))

    def failed(self, place: FailurePoint, failed: FailedTuples | UnreadMessages) -> None:
        self.report.failed(place.source, place.words, failed.tuples.num_rows)
        if self.epoch.keep_late:
            reasons = [f"failed: {place.words}: {why}" for why in failed.reasons()]
            self._failed.setdefault(place, []).append(_marked(failed.tuples, place.source, reasons))

    def write(self) -> None:
        for (source, _), tables in self._late.items():
            self._put(f"{LATE}{source}", pa.concat_tables(tables))
        for place, tables in self._failed.items():
            self._put(place.name, pa.concat_tables(tables))
        self._late, self._failed = {}, {}

    def _put(self, result: str, table: pa.Table) -> None:
        self.report.put_aside(result, write_output(self.epoch, self.task, result, table))

    def run_step(self, table: pa.Table, step: p.Step, *, last: bool = False) -> tuple[pa.Table, Sequence[FailedTuples]]:
        """What comes out of a step, counted, and who failed in it; they stop the run unless it keeps them.

        last: what goes nowhere may stay among the tuples of a split, since whoever writes them leaves it out.
        """
        keep = self.epoch.keep_failed and p.may_fail(step)
        if isinstance(step, p.SplitStep):
            found = split_window(table, step, keep=keep)
            self.report.split(step.name, found.counts, found.largest)
            return found.marked if last and not step.replicate else found.tuples, found.failed
        if isinstance(step, p.TableStep):
            met = [*self.beside_table(table, step)]
            return pa.concat_tables(met) if met else step.schema.empty_table(), ()
        tuples, failed = run_step(table, step, keep=keep)
        return tuples, [failed] if failed else []

    def beside_table(self, table: pa.Table, step: p.TableStep) -> Iterator[pa.Table]:
        """The tuples with the rows of a table, in the version of this epoch, as many at a time as are worked on together.

        A predicate that fails stops the run.
        """
        block = self.epoch.tables[step.table].block
        rows = self.task.reader.open(block).table
        if missing := sorted(table_columns_read(step) - names_of(rows.column_names)):
            raise CorruptState(f"block {block.name} is no version of table {step.table}: it has no {missing}. {REPAIR}")
        return _together(join_table(table, indexed_table(step, rows, block.checksum)))

    def run_steps(self, table: pa.Table, steps: Sequence[p.Step], place: FailurePoint) -> pa.Table:
        """Steps in an operator of their own."""
        for step in steps:
            table, found = self.run_step(table, step)
            for failed in found:
                self.failed(place, failed)
        return table


class Walk:
    """One table along the edges of its producer: what comes out of the steps of each, and at last who failed where. Where
    the last step is a split, tuples that go nowhere may be among them.

    Steps that edges have in common, from the first on, are run once: what is counted there is counted once. What no
    other edge needs is not kept.
    """

    def __init__(self, aside: Rejects, table: pa.Table, edges: Iterable[p.Edge]) -> None:
        self.aside, self.epoch = aside, aside.epoch
        self._wanted = Counter(edge.steps[:depth] for edge in edges for depth in range(1, len(edge.steps) + 1))
        self._done: dict[tuple[p.Step, ...], list[pa.Table]] = {(): [table]}
        self._failed: dict[tuple[Any, ...], Sequence[FailedTuples]] = {}

    def along(self, edge: p.Edge) -> Iterator[pa.Table]:
        """One table as a rule; several where a join with a table makes more of it than is worked on together."""
        begun = next(depth for depth in range(len(edge.steps), -1, -1) if edge.steps[:depth] in self._done)
        tables: Iterable[pa.Table] = self._done[edge.steps[:begun]]
        failed: dict[tuple[Any, ...], list[FailedTuples]] = {}
        for depth in range(begun, len(edge.steps)):
            again = self._wanted[edge.steps[: depth + 1]] > 1
            tables = self._stepped(tables, edge, depth, not again, failed)
            if again:
                tables = self._done[edge.steps[: depth + 1]] = list(tables)
        yield from tables
        for key, found in failed.items():
            self._keep(key, found)

    def _stepped(
        self, tables: Iterable[pa.Table], edge: p.Edge, depth: int, alone: bool, failed: dict[Any, list[FailedTuples]]
    ) -> Iterator[pa.Table]:
        step, last = edge.steps[depth], alone and depth + 1 == len(edge.steps)
        for table in tables:
            if isinstance(step, p.TableStep):
                yield from self.aside.beside_table(table, step)
                continue
            found, failing = self.aside.run_step(table, step, last=last)
            if failing:
                failed.setdefault(step_key(edge, depth), []).extend(failing)
            yield found

    def _keep(self, key: tuple[Any, ...], failed: Sequence[FailedTuples]) -> None:
        """Of a `case` the branch that asks most: who fails in an earlier one fails in it as well."""
        if _rows(self._failed.get(key, ())) < _rows(failed):
            self._failed[key] = failed

    def finish(self) -> None:
        for key, found in self._failed.items():
            for failed in found:
                self.aside.failed(self.epoch.places[key], failed)


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables put together until they are many rows or bytes."""
    gathered: list[pa.Table] = []
    for table in tables:
        gathered.append(table)
        if (
            sum(t.num_rows for t in gathered) >= MOST_TUPLES_TOGETHER
            or sum(t.nbytes for t in gathered) >= arrow.MOST_TABLE_BYTES
        ):
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)


def _rows(failed: Sequence[FailedTuples]) -> int:
    return sum(each.tuples.num_rows for each in failed)


def _marked(table: pa.Table, source: str, reasons: list[str]) -> pa.Table:
    if SUBSTREAM in table.column_names:  # whoever wrote the step never saw it
        table = table.drop_columns([SUBSTREAM])
    marked = table.append_column("_source", pa.array([source] * table.num_rows))
    return marked.append_column("_reason", pa.array(reasons))
