"""Analysis of aggregate expressions: partials per pane, their merge functions, and dependence on order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.columnar import duck
from headrace.errors import ExpressionError
from headrace.expressions.gates import allowed_functions, bind_type, checked_tree, duck_type
from headrace.expressions.syntax_tree import Tree, column_node, columns_of, to_sql, walk_tree, with_deep_recursion

ORDER_SENSITIVE = frozenset(
    [
        "any_value",
        "arbitrary",
        "arg_max",
        "arg_max_null",
        "arg_max_nulls_last",
        "arg_min",
        "arg_min_null",
        "arg_min_nulls_last",
        "argmax",
        "argmin",
        "array_agg",
        "first",
        "group_concat",
        "last",
        "list",
        "listagg",
        "lttb",
        "max_by",
        "min_by",
        "mode",
        "string_agg",
    ]
)
# DuckDB reads their second argument from one row only
READ_ONCE = frozenset(["histogram", "histogram_exact", "max", "min"])
# Types whose sums Arrow can represent. A sum of whole numbers is a HUGEINT, which Arrow receives as DECIMAL(38, 0).
# Sums of HUGEINTs may not fit, so they need the tuples themselves.
WHOLE_TYPES = ("tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint")
SUMMED = frozenset([*WHOLE_TYPES, "decimal", "float", "double"])
MERGEABLE = frozenset(["avg", "bool_and", "bool_or", "count", "count_star", "max", "mean", "min", "sum"])


@dataclass(frozen=True)
class Partial:
    """One aggregate call: the values that each pane keeps, and their merge functions."""

    columns: tuple[tuple[str, str, str], ...]  # (name, SQL over tuples, aggregate function that merges two values)
    merged: tuple[tuple[str, str], ...]  # (name, SQL over those columns)


@dataclass(frozen=True)
class Aggregate:
    """One checked aggregate expression, such as `sum(x) / count(*)`."""

    text: str
    sql: str  # over grouped tuples; order-sensitive functions are ordered by `__seq`
    type: pa.DataType
    ordered: bool
    partials: tuple[Partial, ...] | None  # None: the aggregate needs the tuples themselves
    merged_sql: str | None  # over the merged partials


@with_deep_recursion
def parse_aggregate(text: str, schema: pa.Schema, by: tuple[str, ...], what: str, number: int = 0) -> Aggregate:
    """Check an aggregate expression over one stream, grouped by `by`. `number` makes the names of its partials unique."""
    scopes = {"": schema}
    tree = checked_tree(text, scopes, what, aggregates=True)
    calls = list(_aggregate_calls(tree))
    if not calls:
        raise ExpressionError(f"{what} = {text!r} has no aggregate function; such as count(*) or avg(x)")
    _check_ungrouped(tree, by, text, what)
    for call in calls:
        _check_call(call, text, what)
    ordered = any(call["function_name"] in ORDER_SENSITIVE for call in calls)
    kind = bind_type(to_sql(tree), scopes, text, what, by=by)
    sql = to_sql(_with_order(tree)) if ordered else to_sql(tree)
    # raises if a function accepts no order
    duck_type(sql, {"": schema.append(pa.field("__seq", pa.int64()))}, text, what, by=by)
    partials = _partials(tree, schema, f"__f{number}m")
    return Aggregate(
        text=text,
        sql=sql,
        type=kind,
        ordered=ordered,
        partials=partials[0] if partials else None,
        merged_sql=partials[1] if partials else None,
    )


def _aggregate_calls(tree: Tree) -> Iterator[Tree]:
    for node in walk_tree(tree):
        if node["class"] == "FUNCTION" and allowed_functions()[node["function_name"].lower()] == {"aggregate"}:
            yield node


def _check_call(call: Tree, text: str, what: str) -> None:
    name = call["function_name"]
    if name.startswith(("arg_", "argm", "max_by", "min_by")) and len(call["arguments"]) > 2:
        msg = f"{what} = {text!r} requests several values from {name}, whose ties have no order; use list(... ORDER BY ...)"
        raise ExpressionError(msg)
    if name == "bitstring_agg" and len(call["arguments"]) != 3:
        raise ExpressionError(f"{what} = {text!r}: bitstring_agg needs the smallest and the largest value as arguments")
    if name in READ_ONCE and any(columns_of(call["arguments"][1:])):
        msg = f"{what} = {text!r}: the second argument of {name} must be the same for all tuples; use a constant instead of a column"
        raise ExpressionError(msg)
    if name != "count" and any(node["class"] == "COLLATE" for node in walk_tree(call["arguments"])):
        msg = f"{what} = {text!r}: different texts may be equal under a collation, so the result of {name} would depend on their order; use lower(...)"
        raise ExpressionError(msg)


def _check_ungrouped(tree: Any, by: tuple[str, ...], text: str, what: str) -> None:
    """Raise if a column outside aggregate calls is not in `by`: only those columns have one value per group."""
    grouped = {name.lower() for name in by}
    for path in columns_of(_without_aggregates(tree)):
        if path[0].lower() not in grouped:
            msg = (
                f"{what} = {text!r} uses {path[0]!r} outside an aggregate function; add it to by=[...] or aggregate it"
            )
            raise ExpressionError(msg)


def _without_aggregates(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_without_aggregates(value) for value in tree]
    if isinstance(tree, dict):
        if tree.get("class") == "FUNCTION" and allowed_functions()[tree["function_name"].lower()] == {"aggregate"}:
            return None
        return {key: _without_aggregates(value) for key, value in tree.items()}
    return tree


def _with_order(tree: Tree) -> Tree:
    """Return the tree with every order-sensitive call ordered by the user's order and then by the tuples' sequence."""
    tree = json.loads(json.dumps(tree))
    for call in _aggregate_calls(tree):
        if call["function_name"] in ORDER_SENSITIVE:
            # distinct values can be ordered only by themselves
            by = call["arguments"][0]["expression"] if call["distinct"] else column_node("__seq")
            order = {"type": "ORDER_DEFAULT", "null_order": "ORDER_DEFAULT", "expression": by}
            call["order_bys"]["orders"].append(order)
    return tree


def _partials(tree: Tree, schema: pa.Schema, prefix: str) -> tuple[tuple[Partial, ...], str] | None:
    """Return the partials of a pane and the expression over the merged partials, or None if a call cannot be merged."""
    calls = list(_aggregate_calls(tree))
    if not all(_mergeable(call, schema) for call in calls):
        return None
    partials = tuple(_partial(call, f"{prefix}{index}", schema) for index, call in enumerate(calls))
    return partials, to_sql(_replace_calls(tree, iter([f"{prefix}{index}" for index in range(len(calls))])))


def _mergeable(call: Tree, schema: pa.Schema) -> bool:
    name = call["function_name"]
    arguments = call["arguments"]
    if name not in MERGEABLE or call["distinct"] or call["order_bys"]["orders"] or len(arguments) > 1:
        return False
    if name in ("sum", "avg", "mean"):
        return duck_type(to_sql(arguments[0]["expression"]), {"": schema}, name, name).id in SUMMED
    return duck.arrives_unchanged(str(duck_type(to_sql(_bare(call)), {"": schema}, name, name)))


def _bare(call: Tree) -> Tree:
    """Return a call without its alias, which it has as a field of a struct."""
    return {**call, "alias": ""}


def _partial(call: Tree, out: str, schema: pa.Schema) -> Partial:
    call = _bare(call)
    name = call["function_name"]
    if name in ("avg", "mean"):
        total, count = (to_sql({**call, "function_name": f, "qualified_name": {"path": [f]}}) for f in ("sum", "count"))
        merged = f"CASE WHEN sum({out}c) > 0 THEN CAST(sum({out}s) AS DOUBLE) / sum({out}c) END"
        return Partial(((f"{out}s", total, "sum"), (f"{out}c", count, "sum")), ((out, merged),))
    merge = "sum" if name in ("count", "count_star") else name
    merged = f"CAST({merge}({out}v) AS {duck_type(to_sql(call), {'': schema}, name, name)})"
    return Partial(((f"{out}v", to_sql(call), merge),), ((out, merged),))


def _replace_calls(tree: Any, names: Iterator[str]) -> Any:
    if isinstance(tree, list):
        return [_replace_calls(value, names) for value in tree]
    if isinstance(tree, dict):
        if tree.get("class") == "FUNCTION" and allowed_functions()[tree["function_name"].lower()] == {"aggregate"}:
            return {**column_node(next(names)), "alias": tree["alias"]}
        return {key: _replace_calls(value, names) for key, value in tree.items()}
    return tree
