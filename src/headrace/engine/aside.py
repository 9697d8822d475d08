"""What a task puts aside: late and rejected tuples, and those that failed in a step, for the `late` sink.

Invariant: a tuple that fails in a step is counted once for that step, however many edges lead through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import plan as p
from headrace.engine.places import Place, key_of
from headrace.engine.reports import TaskReport
from headrace.engine.writing import Task, write_out
from headrace.kernels.stateless import Failed, run_step_keeping, run_steps

if TYPE_CHECKING:
    from headrace.engine.epoch import Epoch


class Aside:
    def __init__(self, epoch: Epoch, task: Task, report: TaskReport) -> None:
        self.epoch, self.task, self.report = epoch, task, report
        self._late: dict[tuple[str, str], list[pa.Table]] = {}
        self._failed: dict[Place, list[pa.Table]] = {}

    def late(self, source: str, reason: str, table: pa.Table) -> None:
        if table.num_rows and self.epoch.keep_late:
            self._late.setdefault((source, reason), []).append(_marked(table, source, [reason] * table.num_rows))

    def failed(self, place: Place, failed: Failed) -> None:
        self.report.failed(place.source, place.words, failed.tuples.num_rows)
        if self.epoch.keep_late:
            reasons = [f"failed: {place.words}: {why}" for why in failed.reasons()]
            self._failed.setdefault(place, []).append(_marked(failed.tuples, place.source, reasons))

    def write(self) -> None:
        for (source, _), tables in self._late.items():
            self.report.late(source, write_out(self.epoch, self.task, f"late:{source}", pa.concat_tables(tables)))
        for place, tables in self._failed.items():
            self.report.put_aside(place.name, write_out(self.epoch, self.task, place.name, pa.concat_tables(tables)))
        self._late, self._failed = {}, {}

    def run_steps(self, table: pa.Table, steps: Sequence[p.Step], place: Place) -> pa.Table:
        """Steps in an operator of their own."""
        if not self.epoch.keep_failed:
            return run_steps(table, steps)
        for step in steps:
            table, failed = run_step_keeping(table, step)
            if failed is not None:
                self.failed(place, failed)
        return table


class Walk:
    """One table along the edges of its producer: what comes out of the steps of each, and at last who failed where.

    Steps that edges have in common are run once where failing tuples are kept; else, edges with the same steps share them.
    """

    def __init__(self, aside: Aside, table: pa.Table) -> None:
        self.aside, self.epoch = aside, aside.epoch
        self._done: dict[tuple[p.Step, ...], pa.Table] = {(): table}
        self._failed: dict[tuple[Any, ...], Failed] = {}

    def along(self, edge: p.Edge) -> pa.Table:
        if edge.steps not in self._done:
            if self.epoch.keep_failed:
                self._step_by_step(edge)
            else:
                self._done[edge.steps] = run_steps(self._done[()], edge.steps)
        return self._done[edge.steps]

    def _step_by_step(self, edge: p.Edge) -> None:
        for depth, step in enumerate(edge.steps):
            before, after = edge.steps[:depth], edge.steps[: depth + 1]
            if after in self._done:
                continue
            if p.is_pushed(step):  # part of a join's predicate
                self._done[after] = run_steps(self._done[before], [step])
                continue
            self._done[after], failed = run_step_keeping(self._done[before], step)
            if failed is not None:
                self._keep(key_of(edge, depth), failed)

    def _keep(self, key: tuple[Any, ...], failed: Failed) -> None:
        """Of a `case` the branch that asks most: who fails in an earlier one fails in it as well."""
        known = self._failed.get(key)
        if known is None or known.tuples.num_rows < failed.tuples.num_rows:
            self._failed[key] = failed

    def finish(self) -> None:
        for key, failed in self._failed.items():
            self.aside.failed(self.epoch.places[key], failed)


def _marked(table: pa.Table, source: str, reasons: list[str]) -> pa.Table:
    marked = table.append_column("_source", pa.array([source] * table.num_rows))
    return marked.append_column("_reason", pa.array(reasons))
