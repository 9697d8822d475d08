"""Stateful operators of a plan: one module for each, all with the protocol of `headrace.operators.base`."""

from collections.abc import Mapping

from headrace.operators import (
    apply,
    asof,
    count_aggregate,
    count_join,
    distinct,
    limit,
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
