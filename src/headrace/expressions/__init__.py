"""Expressions: SQL text in DuckDB's dialect that is checked, typed and analysed when a query is built.

An expression passes three checks, in this order. sqlglot checks that the text is one scalar expression. DuckDB's own
syntax tree shows which functions and columns it uses, and each function must depend on its arguments alone. DuckDB
binds it on an empty table, which determines names and types. All analysis and rewriting uses the checked tree, so the
expression that runs is the one that was checked.
"""

from headrace.expressions.aggregates import Aggregate, Partial, parse_aggregate
from headrace.expressions.gates import Expression, parse_condition, parse_scalar
from headrace.expressions.nway_predicates import NWayPredicate, check_alias, nway_predicate
from headrace.expressions.orders import OrderTerm, parse_order
from headrace.expressions.predicates import JoinPredicate, KeyEquality, join_predicate

__all__ = [
    "Aggregate",
    "Expression",
    "JoinPredicate",
    "KeyEquality",
    "NWayPredicate",
    "OrderTerm",
    "Partial",
    "check_alias",
    "join_predicate",
    "nway_predicate",
    "parse_aggregate",
    "parse_condition",
    "parse_order",
    "parse_scalar",
]
