"""The planner of aggregates over time windows: in panes where the functions allow it, else over the tuples."""

from __future__ import annotations

from headrace.kernels.windows.time_windows import LocalDayWindows, RegularWindows, WindowGrid
from headrace.operators.aggregates import plan_over_time
from headrace.operators.flow import Flow, PlanBuilder
from headrace.operators.pane_aggregate import PaneAggregateOperator
from headrace.operators.tuple_aggregate import TupleAggregateOperator
from headrace.query import nodes
from headrace.support.local_days import DAY, local_days


def plan(node: nodes.TimeAggregate, sofar: PlanBuilder) -> Flow:
    given = {"windows": time_windows(node.over), "window_text": node.over.summary}
    return plan_over_time(node, sofar, PaneAggregateOperator, TupleAggregateOperator, **given)


def time_windows(over: nodes.TimeWindows) -> WindowGrid:
    """Return the windows that a query asks for, as kernels compute them; with a time zone, they know where its days
    begin."""
    if over.zone is not None:
        return LocalDayWindows(over.window // DAY, over.offset // DAY, local_days(over.zone))
    return RegularWindows(over.window, over.every, over.offset)
