"""Operators of a plan, and `PLANNERS`: for each type of query node with state, the function that plans its operators.

Every operator implements the protocol of `headrace.operators.base`. These modules have no operator of their own:

    aggregates      base classes of aggregates
    joins           base classes of joins
    keyed_operator  the base class of operators that group their input by key
    time_aggregate  the planner that chooses between `pane_aggregate` and `tuple_aggregate`
    flow            what a planner receives and returns
    placement       whether a downstream operator can run in the same slots

The compiler itself plans the operators of `order` (results in sequence) and of `stateless` (the only one without
state), so these two have no planner.
"""

from collections.abc import Mapping

from headrace.operators import (
    apply,
    asof,
    count_aggregate,
    count_join,
    distinct,
    limit,
    nway_join,
    session_aggregate,
    time_aggregate,
    time_join,
    top,
)
from headrace.operators.apply import ApplyOperator
from headrace.operators.base import Operator, StateKind
from headrace.operators.count_aggregate import CountAggregateOperator
from headrace.operators.count_join import CountJoinOperator, RankOperator
from headrace.operators.flow import Planner
from headrace.operators.order import OrderOperator
from headrace.operators.pane_aggregate import PaneAggregateOperator
from headrace.operators.stateless import StatelessOperator
from headrace.operators.time_join import TimeJoinOperator
from headrace.operators.tuple_aggregate import TupleAggregateOperator
from headrace.query import nodes

# The planner of each type of query node.
PLANNERS: Mapping[type[nodes.Node], Planner] = {
    nodes.TimeJoin: time_join.plan,
    nodes.CountJoin: count_join.plan,
    nodes.NWayJoin: nway_join.plan,
    nodes.TimeAggregate: time_aggregate.plan,
    nodes.SessionAggregate: session_aggregate.plan,
    nodes.CountAggregate: count_aggregate.plan,
    nodes.TimeTop: top.plan_windows,
    nodes.SessionTop: top.plan_sessions,
    nodes.Distinct: distinct.plan,
    nodes.Limit: limit.plan,
    nodes.AsOf: asof.plan,
    nodes.Apply: apply.plan,
}

__all__ = [
    "PLANNERS",
    "ApplyOperator",
    "CountAggregateOperator",
    "CountJoinOperator",
    "Operator",
    "OrderOperator",
    "PaneAggregateOperator",
    "RankOperator",
    "StateKind",
    "StatelessOperator",
    "TimeJoinOperator",
    "TupleAggregateOperator",
]
