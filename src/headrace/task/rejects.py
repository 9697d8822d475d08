"""Late, rejected and failed tuples of one task: counted, and written for the sink `late` if the run keeps them.

Invariant: a tuple that fails in a step is counted once for that step, however many edges lead through the step.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.columnar.types import SUBSTREAM
from headrace.kernels.stateless.steps import FailedTuples
from headrace.sources.protocol import UnreadMessages
from headrace.task.epoch import Epoch
from headrace.task.failure_points import LATE, FailurePoint
from headrace.task.outbox_writer import write_output
from headrace.task.reports import ReportBuilder
from headrace.task.task import Task


class Rejects:
    """The tuples that one task rejects, until `write` puts them into the outbox."""

    def __init__(self, epoch: Epoch, task: Task, report: ReportBuilder) -> None:
        self.epoch, self.task, self.report = epoch, task, report
        self._late: dict[tuple[str, str], list[pa.Table]] = {}
        self._failed: dict[FailurePoint, list[pa.Table]] = {}

    def add_late(self, source: str, reason: str, table: pa.Table) -> None:
        """Keep tuples of a source that are late or rejected. The caller counts them."""
        if table.num_rows and self.epoch.keep_late:
            self._late.setdefault((source, reason), []).append(_with_reasons(table, source, [reason] * table.num_rows))

    def add_failed(self, point: FailurePoint, failed: FailedTuples | UnreadMessages) -> None:
        """Count tuples that failed at `point`, and keep them."""
        self.report.failed(point.source, point.summary, failed.tuples.num_rows)
        if self.epoch.keep_late:
            reasons = [f"failed: {point.summary}: {why}" for why in failed.reasons()]
            self._failed.setdefault(point, []).append(_with_reasons(failed.tuples, point.source, reasons))

    def write(self) -> None:
        for (source, _), tables in self._late.items():
            self._write(f"{LATE}{source}", pa.concat_tables(tables))
        for point, tables in self._failed.items():
            self._write(point.name, pa.concat_tables(tables))
        self._late, self._failed = {}, {}

    def _write(self, result: str, table: pa.Table) -> None:
        self.report.rejected(result, write_output(self.epoch, self.task, result, table))


def _with_reasons(table: pa.Table, source: str, reasons: list[str]) -> pa.Table:
    if SUBSTREAM in table.column_names:  # the user's step never saw this column
        table = table.drop_columns([SUBSTREAM])
    table = table.append_column("_source", pa.array([source] * table.num_rows))
    return table.append_column("_reason", pa.array(reasons))
