"""The aggregate over time windows: in panes where its functions allow it, else over the tuples themselves."""

from __future__ import annotations

import math
from functools import partial

from headrace.operators.aggregates import plan_over_time
from headrace.operators.flow import Flow, PlanBuilder
from headrace.operators.pane_aggregate import PaneAggregateOperator
from headrace.operators.tuple_aggregate import TupleAggregateOperator
from headrace.query import nodes


def plan(node: nodes.TimeAggregate, sofar: PlanBuilder) -> Flow:
    in_panes = partial(PaneAggregateOperator, pane=math.gcd(node.window, node.every))
    return plan_over_time(node, sofar, in_panes, TupleAggregateOperator, window=node.window, every=node.every)
