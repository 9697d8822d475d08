"""The first tuples of each group and window in a given order: over panes for time windows, over the tuples for
sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.windows import top
from headrace.kernels.windows.aggregate import PANE
from headrace.kernels.windows.sessions import FIRST
from headrace.operators.aggregates import OverTuples, WindowAggregate
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.session_aggregate import SessionOperator
from headrace.operators.time_aggregate import time_windows
from headrace.query import nodes
from headrace.routing import HashGrouping


@dataclass(frozen=True)
class RankingOperator(OverTuples):
    """An operator whose results are tuples with their ranks. It needs whole tuples, because their sequence decides
    ties."""

    n: int
    order_sql: tuple[str, ...]

    def _describe(self, window: str) -> str:
        return nodes.top_summary(self.n, self.by, window, ", ".join(self.texts))

    def windows_in(self, results: pa.Table) -> int:
        """Return the number of windows in `results`, counted once per group."""
        return int(pc.sum(pc.equal(results.column("rank"), 1)).as_py() or 0)


@dataclass(frozen=True)
class WindowTopOperator(RankingOperator, WindowAggregate):
    """The first tuples of time windows; its state is the best tuples of each group and pane."""

    @property
    def holds_tuples(self) -> bool:
        return False  # rows also have columns of their panes, so other operators cannot share the blocks

    @property
    def expiry_column(self) -> str:
        return PANE

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return top.best_of_panes(self, tuples.select(names))

    def stored(self, side: int) -> set[str]:
        return {*self.schemas[side].names, PANE, FIRST}

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        return top.merge_panes(self, state)

    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        return top.close_panes(self, held, before, after)


@dataclass(frozen=True)
class SessionTopOperator(RankingOperator, SessionOperator):
    """The first tuples of sessions; its state is the tuples of open sessions."""

    @property
    def held_schema(self) -> pa.Schema:
        return self.schemas[0]

    def closed(self, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
        return top.close_sessions(self, held, bound)


def plan_windows(node: nodes.TimeTop, sofar: PlanBuilder) -> Flow:
    return _plan(node, sofar, WindowTopOperator, windows=time_windows(node.over), window_text=node.over.summary)


def plan_sessions(node: nodes.SessionTop, sofar: PlanBuilder) -> Flow:
    return _plan(node, sofar, SessionTopOperator, gap=node.gap)


def _plan(node: nodes.Top, sofar: PlanBuilder, kind: type[RankingOperator], **window: Any) -> Flow:
    flows = sofar.flows(node.input)
    operator = kind(
        name=sofar.name("top"),
        stage=stage_after(flows),
        schemas=(node.input.schema,),
        schema=node.schema,
        groupings=(HashGrouping(node.by),),
        by=node.by,
        functions=(),
        texts=tuple(term.text for term in node.order),
        ordered=True,
        n=node.n,
        order_sql=tuple(term.sql for term in node.order),
        **window,
    )
    return sofar.add(operator, flows)
