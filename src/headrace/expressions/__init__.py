"""Expressions: SQL text in DuckDB's dialect, checked, typed and taken apart when a query is built.

Three gates, in this order: sqlglot says whether the text is one scalar expression at all; DuckDB's own syntax tree
says which functions and columns it really uses, and each function must be one whose answer depends on its arguments
alone; DuckDB binds it on an empty table, which settles names and types. The tree that passed is also the only thing
that is ever taken apart or rewritten, so what was checked is what runs.
"""

from headrace.expressions.aggregates import Aggregate, Partial, parse_aggregate
from headrace.expressions.gates import Expression, parse_condition, parse_scalar
from headrace.expressions.orders import OrderTerm, parse_order
from headrace.expressions.predicates import JoinPredicate, KeyEquality, join_predicate

__all__ = [
    "Aggregate",
    "Expression",
    "JoinPredicate",
    "KeyEquality",
    "OrderTerm",
    "Partial",
    "join_predicate",
    "parse_aggregate",
    "parse_condition",
    "parse_order",
    "parse_scalar",
]
