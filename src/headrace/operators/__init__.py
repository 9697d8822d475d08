"""One file per operator, each behind the protocol of `headrace.operators.base`."""

from headrace.operators.base import Operator, Routing, State
from headrace.operators.count_aggregate import CountAggregateOperator
from headrace.operators.count_join import CountJoinOperator, RankOperator
from headrace.operators.order import OrderOperator
from headrace.operators.pane_aggregate import PaneAggregateOperator
from headrace.operators.stateless import StatelessOperator
from headrace.operators.time_join import TimeJoinOperator
from headrace.operators.tuple_aggregate import TupleAggregateOperator

REGISTER: tuple[type[Operator], ...] = (
    StatelessOperator,
    TimeJoinOperator,
    RankOperator,
    CountJoinOperator,
    PaneAggregateOperator,
    TupleAggregateOperator,
    CountAggregateOperator,
    OrderOperator,
)

__all__ = [
    "REGISTER",
    "CountAggregateOperator",
    "CountJoinOperator",
    "Operator",
    "OrderOperator",
    "PaneAggregateOperator",
    "RankOperator",
    "Routing",
    "State",
    "StatelessOperator",
    "TimeJoinOperator",
    "TupleAggregateOperator",
]
