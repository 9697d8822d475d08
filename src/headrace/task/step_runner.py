"""Execution of stateless steps in a task: along the edges of a producer, and inside an operator.

Invariant: steps that edges share from their producer on are run once per table, so each tuple is counted once per step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace import plan as p
from headrace.columnar import arrow
from headrace.errors import CorruptState
from headrace.kernels.joins.table_join import indexed_table, join_table, table_columns_read
from headrace.kernels.stateless.sample import sample_tuples
from headrace.kernels.stateless.split import split_window
from headrace.kernels.stateless.steps import FailedTuples, run_step
from headrace.kernels.stateless.unnest import unnest_rows
from headrace.plan.columns_read import names_of
from headrace.state.blocks import REPAIR
from headrace.task.epoch import Epoch
from headrace.task.failure_points import FailurePoint, step_key
from headrace.task.rejects import Rejects
from headrace.task.task import Task

MOST_TUPLES_TOGETHER = 1_000_000  # in one table between steps


class StepRunner:
    """Runs steps on tables. Tuples that fail in a step stop the run unless the epoch keeps them."""

    def __init__(self, epoch: Epoch, task: Task, rejects: Rejects) -> None:
        self.epoch, self.task, self.rejects, self.report = epoch, task, rejects, rejects.report

    def run(self, table: pa.Table, steps: Sequence[p.Step], point: FailurePoint) -> pa.Table:
        """Run the steps of an operator; tuples that fail are added to the rejects at `point`."""
        for step in steps:
            table, failures = self.run_step(table, step)
            for failed in failures:
                self.rejects.add_failed(point, failed)
        return table

    def run_step(
        self, table: pa.Table, step: p.Step, *, is_last: bool = False
    ) -> tuple[pa.Table, Sequence[FailedTuples]]:
        """Return the tuples after a step, and those that failed in it.

        `is_last`: after the last step, a split may leave omitted tuples in the table, because the writer drops them.
        """
        keep = self.epoch.keep_failed and p.may_fail(step)
        if isinstance(step, p.SplitStep):
            found = split_window(table, step, keep=keep)
            self.report.split(step.name, found.counts, found.largest)
            return found.marked if is_last and not step.replicate else found.tuples, found.failed
        if isinstance(step, p.SampleStep):
            return sample_tuples(table, step), ()
        if isinstance(step, p.ExpandingStep):
            expanded = [*self.expand(table, step)]
            return pa.concat_tables(expanded) if expanded else p.schema_after([step], table.schema).empty_table(), ()
        tuples, failed = run_step(table, step, keep=keep)
        return tuples, [failed] if failed else []

    def expand(self, table: pa.Table, step: p.ExpandingStep) -> Iterator[pa.Table]:
        """Yield the output of a step on a table, in several tables."""
        if isinstance(step, p.TableStep):
            return self.join_table(table, step)
        return _regrouped(unnest_rows(table, step))

    def join_table(self, table: pa.Table, step: p.TableStep) -> Iterator[pa.Table]:
        """Yield the tuples joined with the epoch's version of a table, `MOST_TUPLES_TOGETHER` at a time.

        A predicate that fails stops the run.
        """
        block = self.epoch.table_versions[step.table].block
        rows = self.task.reader.open(block).table
        if missing := sorted(table_columns_read(step) - names_of(rows.column_names)):
            raise CorruptState(
                f"block {block.name} does not belong to table {step.table}; missing columns: {', '.join(missing)}. {REPAIR}"
            )
        return _regrouped(join_table(table, indexed_table(step, rows, block.checksum)))


class EdgeWalk:
    """The way of one table of a producer along the producer's edges.

    The output of a step that several edges share is kept until the walk ends; other outputs are not. After a split that
    is the last step of an edge, omitted tuples may still be in the table.
    """

    def __init__(self, runner: StepRunner, table: pa.Table, edges: Iterable[p.Edge]) -> None:
        self._runner = runner
        self._edges_through = Counter(edge.steps[:depth] for edge in edges for depth in range(1, len(edge.steps) + 1))
        self._done: dict[tuple[p.Step, ...], list[pa.Table]] = {(): [table]}
        self._failed: dict[tuple[Any, ...], Sequence[FailedTuples]] = {}

    def along(self, edge: p.Edge) -> Iterator[pa.Table]:
        """Yield the output of the last step of an edge: one table, or several after a step that expands tuples."""
        begun = next(depth for depth in range(len(edge.steps), -1, -1) if edge.steps[:depth] in self._done)
        tables: Iterable[pa.Table] = self._done[edge.steps[:begun]]
        failed: dict[tuple[Any, ...], list[FailedTuples]] = {}
        for depth in range(begun, len(edge.steps)):
            is_shared = self._edges_through[edge.steps[: depth + 1]] > 1
            tables = self._run_step(tables, edge, depth, not is_shared, failed)
            if is_shared:
                tables = self._done[edge.steps[: depth + 1]] = list(tables)
        yield from tables
        for key, found in failed.items():
            self._keep_larger(key, found)

    def _run_step(
        self, tables: Iterable[pa.Table], edge: p.Edge, depth: int, alone: bool, failed: dict[Any, list[FailedTuples]]
    ) -> Iterator[pa.Table]:
        step, is_last = edge.steps[depth], alone and depth + 1 == len(edge.steps)
        for table in tables:
            if isinstance(step, p.ExpandingStep):
                yield from self._runner.expand(table, step)
                continue
            found, failing = self._runner.run_step(table, step, is_last=is_last)
            if failing:
                failed.setdefault(step_key(edge, depth), []).extend(failing)
            yield found

    def _keep_larger(self, key: tuple[Any, ...], failed: Sequence[FailedTuples]) -> None:
        """Keep the failures of the `case` branch that evaluates most predicates.

        A tuple that fails in an earlier branch fails in every later branch as well.
        """
        if _row_count(self._failed.get(key, ())) < _row_count(failed):
            self._failed[key] = failed

    def finish(self) -> None:
        """Add the tuples that failed on any edge to the rejects."""
        for key, found in self._failed.items():
            for failed in found:
                self._runner.rejects.add_failed(self._runner.epoch.failure_points[key], failed)


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenate tables until they reach the limit of rows or bytes."""
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


def _row_count(failed: Sequence[FailedTuples]) -> int:
    return sum(each.tuples.num_rows for each in failed)
