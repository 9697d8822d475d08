"""The aggregate over sessions: one row of partials per open session if its functions allow it, else the tuples.

Invariant: a row stays until its session is complete. This depends only on the session's last `ts`, not on its start.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.kernels.windows import sessions
from headrace.operators.aggregates import WITHHELD, OverPartials, OverTuples, WithholdingOperator, plan_over_time
from headrace.operators.base import ReplacingOperator, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.support.durations import format_duration
from headrace.support.event_time import FOREVER, move_back


@dataclass(frozen=True)
class SessionOperator(ReplacingOperator, WithholdingOperator):
    """An aggregate over sessions: its state is rewritten in every epoch."""

    gap: int

    @property
    def withholds_before(self) -> int | None:
        """Return the earliest start of a session that is certainly whole: the input is complete over the gap before it."""
        return None if self.whole_from is None else min(self.whole_from + self.gap, FOREVER)

    def watermark(self, inputs: Sequence[int]) -> int:
        return move_back(inputs[0], self.gap)

    @property
    def longest_window(self) -> int:
        return self.gap

    @property
    def looks_back(self) -> None:
        return None  # a session may have begun at any time

    @property
    @abstractmethod
    def held_schema(self) -> pa.Schema:
        """Return the schema of the state before any row exists."""

    @abstractmethod
    def closed(self, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
        """Return the results of complete sessions and the rows to keep for the open ones."""

    def run(self, slot: Slot) -> Results:
        if not (groups := slot.groups(0)):
            return
        held = slot.waiting_rows(0, self.held_schema, groups)
        if held.num_rows:
            results, kept = self.closed(held, min(slot.watermarks_after))  # the same under best effort
            slot.replace_rows(0, kept)
            if self.withholds_before is not None:
                whole = np.asarray(results.column("window_start").cast(pa.int64())) >= self.withholds_before
                slot.note(**{WITHHELD: self.windows_in(results.filter(pa.array(~whole)))})
                results = results.filter(pa.array(whole))
            yield 0, results

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rate, behind = inputs[0].rate, inputs[0].lag + self.gap / 1e6
        sending = rate * figures.partials.get(self.name, 1.0)
        held = figures.held.get(self.name, sending * max(behind - inputs[0].delay, 0.0))
        results = figures.results.get(self.name, sending)
        return OperatorLoad((rate,), (sending,), (held,), 0.0, results), StreamPace(results, behind, behind)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        found = {"results": counted.out / counted.span, "held": counted.held}
        if counted.sent is not None and counted.arrived[0]:  # tuples handed over inside a slot are not sent
            found["partials"] = counted.sent / counted.arrived[0]
        return found

    @property
    def summary(self) -> str:
        return self._describe(f"session {format_duration(self.gap)}")


@dataclass(frozen=True)
class PartialSessionsOperator(OverPartials, SessionOperator):
    """A session aggregate that keeps partials of open sessions."""

    @property
    def held_schema(self) -> pa.Schema:
        return pa.schema([])

    def stored(self, side: int) -> set[str]:
        return {sessions.FIRST, "ts", *self.by, *self.made}

    def as_sent(self, side: int, tuples: pa.Table) -> pa.Table:
        return sessions.stretches_of(self, tuples)

    def closed(self, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
        return sessions.close_partial_sessions(self, held, bound)


@dataclass(frozen=True)
class TupleSessionsOperator(OverTuples, SessionOperator):
    """A session aggregate that keeps the tuples of open sessions, because its functions have no partials."""

    @property
    def held_schema(self) -> pa.Schema:
        return self.schemas[0]

    def closed(self, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
        return sessions.close_tuple_sessions(self, held, bound)


def plan(node: nodes.SessionAggregate, sofar: PlanBuilder) -> Flow:
    return plan_over_time(node, sofar, PartialSessionsOperator, TupleSessionsOperator, gap=node.gap)
