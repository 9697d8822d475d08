"""Expressions: SQL text in DuckDB's dialect, checked, typed and taken apart when a query is built.

Three gates, in this order: sqlglot says whether the text is one scalar expression at all; DuckDB's own syntax tree
says which functions and columns it really uses, and each function must be one whose answer depends on its arguments
alone; DuckDB binds it on an empty table, which settles names and types. The tree that passed is also the only thing
that is ever taken apart or rewritten, so what was checked is what runs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from headrace import duck
from headrace.errors import ExpressionError
from headrace.query.types import has_float, plain_type

Tree = dict[str, Any]

# Marked CONSISTENT by DuckDB, yet dependent on the machine, the clock or the version of DuckDB.
NOT_REPEATABLE = frozenset({"hash", "version", "current_localtime", "current_localtimestamp", "getenv", "query"})
APPROXIMATE = frozenset({"approx_count_distinct", "approx_quantile", "approx_top_k", "reservoir_quantile"})
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
MERGEABLE = frozenset(["avg", "bool_and", "bool_or", "count", "count_star", "max", "mean", "min", "sum"])

_SHAPES = (
    exp.Condition,
    exp.Identifier,
    exp.DataType,
    exp.DataTypeParam,
    exp.Ordered,
    exp.Order,
    exp.Interval,
    exp.Var,
    exp.Lambda,
    exp.Kwarg,
    exp.Distinct,
    exp.Where,
    exp.Tuple,
    exp.Struct,
    exp.Star,
    exp.Slice,
    exp.WithinGroup,
    exp.Filter,
    exp.If,
    exp.IgnoreNulls,
    exp.RespectNulls,
)
_FORBIDDEN = (exp.Query, exp.Window, exp.Placeholder, exp.Parameter, exp.Alias, exp.Command, exp.DDL, exp.DML)


@dataclass(frozen=True)
class Expression:
    """One checked scalar expression."""

    text: str  # as the user wrote it
    sql: str  # as DuckDB prints the checked tree
    type: pa.DataType
    columns: frozenset[tuple[str, ...]]  # ("x",) or, in a join, ("l", "x")


@dataclass(frozen=True)
class Key:
    """One equality `l.left = r.right` between two columns that hash alike."""

    left: str
    right: str
    type: pa.DataType  # what both are brought to before they are hashed


@dataclass(frozen=True)
class Predicate:
    """A join predicate: equalities that routing can use, and the whole of it."""

    text: str
    sql: str
    keys: tuple[Key, ...]
    safe: bool  # cannot fail on any pair, so it may be evaluated in any order
    ranges: bool  # nothing but inequalities between the two sides: a range join can serve it
    plain_keys: bool  # nothing but equalities of types that Arrow compares as DuckDB does
    columns: frozenset[tuple[str, ...]]


@dataclass(frozen=True)
class Partial:
    """One aggregate call: what each pane keeps, and how the kept values are merged."""

    columns: tuple[tuple[str, str, str], ...]  # (name, SQL over tuples, function that merges two of them)
    merged: tuple[tuple[str, str], ...]  # (name, SQL over those columns)


@dataclass(frozen=True)
class Aggregate:
    """One checked aggregate expression, such as `sum(x) / count(*)`."""

    text: str
    sql: str  # over tuples, grouped; functions that depend on order are ordered by `__seq`
    type: pa.DataType
    ordered: bool
    partials: tuple[Partial, ...] | None  # None: needs the tuples themselves
    merged_sql: str | None  # over the merged partials


def scalar(text: str, schema: pa.Schema, what: str) -> Expression:
    """Check a scalar expression over one stream."""
    return _scalar(text, {"": schema}, what)


def condition(text: str, schema: pa.Schema, what: str) -> Expression:
    """Check a predicate over one stream."""
    found = scalar(text, schema, what)
    _demand_boolean(found.type, text, what)
    return found


def join_predicate(text: str, left: pa.Schema, right: pa.Schema) -> Predicate:
    """Check the predicate of a join over `l.*` and `r.*` and find its equalities."""
    what = "on"
    found = _scalar(text, {"l": left, "r": right}, what)
    _demand_boolean(found.type, text, what)
    tree = _tree(text, what)
    parts = list(_conjuncts(tree))
    keys = [key for key in (_key(part, left, right) for part in parts) if key]
    return Predicate(
        text=text,
        sql=found.sql,
        keys=tuple(keys),
        safe=_safe(tree, {"l": left, "r": right}),
        ranges=all(_is_range(part) for part in parts),
        plain_keys=len(keys) == len(parts) and not any(_compares_its_own_way(key.type) for key in keys),
        columns=found.columns,
    )


def aggregate(text: str, schema: pa.Schema, by: tuple[str, ...], what: str, number: int = 0) -> Aggregate:
    """Check an aggregate expression over one stream, grouped by `by`; `number` keeps its partials apart."""
    scopes = {"": schema}
    tree = _checked_tree(text, scopes, what, aggregates=True)
    calls = list(_aggregate_calls(tree))
    if not calls:
        raise ExpressionError(f"{what} = {text!r} has no aggregate function; such as count(*) or avg(x)")
    _check_ungrouped(tree, by, text, what)
    for call in calls:
        _check_call(call, text, what)
    ordered = any(call["function_name"] in ORDER_SENSITIVE for call in calls)
    kind = _bind(_print(tree), scopes, text, what, by=by)
    partials = _partials(tree, schema, f"__f{number}m")
    return Aggregate(
        text=text,
        sql=_print(_with_order(tree)) if ordered else _print(tree),
        type=kind,
        ordered=ordered,
        partials=partials[0] if partials else None,
        merged_sql=partials[1] if partials else None,
    )


# --- the gates -----------------------------------------------------------------------------------------------------


def _scalar(text: str, scopes: Mapping[str, pa.Schema], what: str) -> Expression:
    tree = _checked_tree(text, scopes, what, aggregates=False)
    sql = _print(tree)
    return Expression(text, sql, _bind(sql, scopes, text, what), frozenset(_columns(tree)))


def _checked_tree(text: str, scopes: Mapping[str, pa.Schema], what: str, *, aggregates: bool) -> Tree:
    if not isinstance(text, str):
        raise ExpressionError(f"{what} must be an expression as text; found {text!r}")
    _check_shape(text, what)
    tree = _tree(text, what)
    for node in _walk(tree):
        _check_node(node, text, what, aggregates=aggregates)
    _check_columns(tree, scopes, text, what)
    return tree


def _check_shape(text: str, what: str) -> None:
    try:
        parsed = sqlglot.parse(text, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise ExpressionError(f"{what} = {text!r} is not an expression: {reason}") from None
    if len(parsed) != 1 or parsed[0] is None:
        raise ExpressionError(f"{what} = {text!r} must be exactly one expression")
    for node in parsed[0].walk():
        if isinstance(node, _FORBIDDEN) or not isinstance(node, _SHAPES):
            kind = type(node).__name__.lower()
            msg = (
                f"{what} = {text!r} is refused: it contains a {kind}; an expression may use columns, literals, operators"
                " and functions, but no subquery, alias, statement, parameter or window function"
            )
            raise ExpressionError(msg)


def _tree(text: str, what: str) -> Tree:
    statement = json.loads(duck.rows("SELECT json_serialize_sql(?)", [f"SELECT {text}\n"])[0][0])
    if statement.get("error"):
        raise ExpressionError(f"{what} = {text!r} is not an expression: {statement.get('error_message')}")
    node = statement["statements"][0]["node"]
    if len(statement["statements"]) != 1 or len(node.get("select_list", ())) != 1 or _has_clauses(node):
        raise ExpressionError(f"{what} = {text!r} must be exactly one expression")
    tree: Tree = node["select_list"][0]
    return tree


def _has_clauses(node: Tree) -> bool:
    plain_from = node["from_table"].get("type") == "EMPTY"
    clauses = ("where_clause", "having", "qualify", "sample")
    return not plain_from or any(node.get(c) for c in clauses) or bool(node["group_expressions"] or node["modifiers"])


_KINDS_REFUSED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a positional reference",
    "STAR": "a star",
    "DEFAULT": "DEFAULT",
}


def _check_node(node: Tree, text: str, what: str, *, aggregates: bool) -> None:
    kind = node.get("class")
    if kind in _KINDS_REFUSED:
        raise ExpressionError(f"{what} = {text!r} is refused: it contains {_KINDS_REFUSED[kind]}")
    if kind == "FUNCTION":
        _check_function(node["function_name"].lower(), text, what, aggregates=aggregates)
        if node["function_name"].lower() == "age" and len(node["arguments"]) == 1:
            msg = f"{what} = {text!r} uses 'age' of one time, which is not a function of its arguments alone: it is taken from today; give it two times"
            raise ExpressionError(msg)


def _check_function(name: str, text: str, what: str, *, aggregates: bool) -> None:
    kinds = functions().get(name)
    if kinds is None:
        raise ExpressionError(f"{what} = {text!r} uses a function {name!r} that does not exist")
    if name in NOT_REPEATABLE or not _repeatable(name):
        reason = "is a macro over aggregates or is" if "macro" in kinds else "is"
        msg = f"{what} = {text!r} uses {name!r}, which {reason} not a function of its arguments alone; it is refused"
        raise ExpressionError(msg)
    if kinds == {"aggregate"} and not aggregates:
        msg = f"{what} = {text!r} uses the aggregate function {name!r}; aggregates belong in .aggregate(...)"
        raise ExpressionError(msg)


def _check_columns(tree: Tree, scopes: Mapping[str, pa.Schema], text: str, what: str) -> None:
    for path in _columns(tree):
        if "" in scopes:
            _check_column(path[0], scopes[""], text, what)
        elif path[0].lower() not in scopes or len(path) < 2:
            msg = f"{what} = {text!r} names {'.'.join(path)!r}; in a join write l.column or r.column"
            raise ExpressionError(msg)
        else:
            _check_column(path[1], scopes[path[0].lower()], text, what)


def _check_column(name: str, schema: pa.Schema, text: str, what: str) -> None:
    if name.lower() not in {column.lower() for column in schema.names}:
        raise ExpressionError(
            f"{what} = {text!r} names an unknown column {name!r}; there are {', '.join(schema.names)}"
        )


def _bind(sql: str, scopes: Mapping[str, pa.Schema], text: str, what: str, *, by: tuple[str, ...] = ()) -> pa.DataType:
    tables = {alias or duck.TUPLES: schema.empty_table() for alias, schema in scopes.items()}
    group = " GROUP BY " + ", ".join(duck.quote(name) for name in by) if by else ""
    try:
        found = duck.run(f"SELECT {sql} AS c FROM {', '.join(tables)}{group}", tables)
    except duckdb.Error as error:
        reason = str(error).split("\n\n")[0].split("\tCandidate")[0].replace("\n", " ").strip()
        columns = "; ".join(f"{a + ': ' if a else ''}{_listing(s)}" for a, s in scopes.items())
        raise ExpressionError(f"{what} = {text!r} does not fit the stream: {reason}; columns: {columns}") from None
    return plain_type(found.schema.field(0).type, what)


def _listing(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _demand_boolean(kind: pa.DataType, text: str, what: str) -> None:
    if not pa.types.is_boolean(kind):
        raise ExpressionError(f"{what} = {text!r} must be true or false; its type is {kind}; compare it with something")


# --- what DuckDB knows about functions -----------------------------------------------------------------------------


@functools.cache
def functions() -> dict[str, set[str]]:
    """Name of every function that may stand in an expression -> what it is (scalar, aggregate, macro)."""
    rows = duck.rows(
        "SELECT function_name, function_type FROM duckdb_functions()"
        " WHERE function_type IN ('scalar', 'aggregate', 'macro')"
    )
    found: dict[str, set[str]] = {}
    for name, kind in rows:
        found.setdefault(name, set()).add(kind)
    return found


@functools.cache
def _repeatable(name: str) -> bool:
    rows = duck.rows(
        "SELECT stability, function_type, macro_definition, parameters FROM duckdb_functions()"
        " WHERE function_name = ? AND function_type IN ('scalar', 'aggregate', 'macro')",
        [name],
    )
    return all(
        _macro_repeatable(definition, parameters) if kind == "macro" else stability == "CONSISTENT"
        for stability, kind, definition, parameters in rows
    )


def _macro_repeatable(definition: str, parameters: list[str]) -> bool:
    tree = _tree(definition, "macro")
    names = {p.lower() for p in parameters}
    for node in _walk(tree):
        if node.get("class") in _KINDS_REFUSED:
            return False
        if node.get("class") == "COLUMN_REF" and node["column_names"][0].lower() not in names:
            return False
        if node.get("class") == "FUNCTION":
            called = node["function_name"].lower()
            if (
                functions().get(called, {"aggregate"}) == {"aggregate"}
                or called in NOT_REPEATABLE
                or not _repeatable(called)
            ):
                return False
    return True


# --- trees ---------------------------------------------------------------------------------------------------------


def _walk(tree: Any) -> Iterator[Tree]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _walk(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _walk(value)


def _columns(tree: Any, bound: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Paths of the columns used; the parameters of lambdas are not columns."""
    if isinstance(tree, list):
        for value in tree:
            yield from _columns(value, bound)
        return
    if not isinstance(tree, dict):
        return
    if tree.get("class") == "COLUMN_REF":
        if tree["column_names"][0] not in bound:
            yield tuple(tree["column_names"])
        return
    if tree.get("class") == "LAMBDA":
        bound = bound | _lambda_parameters(tree)
    for value in tree.values():
        yield from _columns(value, bound)


def _lambda_parameters(tree: Tree) -> frozenset[str]:
    names = {node["column_names"][0] for node in _walk(tree.get("lhs")) if node["class"] == "COLUMN_REF"}
    return frozenset(names | set(tree.get("named_parameters") or ()))


def _print(tree: Tree) -> str:
    text = json.dumps({"error": False, "statements": [{"node": _select(tree), "named_param_map": []}]})
    sql: str = duck.rows("SELECT json_deserialize_sql(?::JSON)", [text])[0][0]
    return f"({sql.removeprefix('SELECT ')})"


@functools.cache
def _blank_select() -> str:
    text = duck.rows("SELECT json_serialize_sql('SELECT 1')")[0][0]
    return json.dumps(json.loads(text)["statements"][0]["node"])


def _select(tree: Tree) -> Tree:
    node: Tree = json.loads(_blank_select())
    node["select_list"] = [tree]
    return node


def _conjuncts(tree: Tree) -> Iterator[Tree]:
    if tree.get("type") == "CONJUNCTION_AND":
        for child in tree["children"]:
            yield from _conjuncts(child)
    else:
        yield tree


# --- joins ---------------------------------------------------------------------------------------------------------


def _key(tree: Tree, left: pa.Schema, right: pa.Schema) -> Key | None:
    """The equality of a left and a right column, if this conjunct is one that hashing can serve."""
    if tree.get("type") != "COMPARE_EQUAL":
        return None
    sides = [tree["left"], tree["right"]]
    if any(side.get("class") != "COLUMN_REF" or len(side["column_names"]) != 2 for side in sides):
        return None
    named = {side["column_names"][0].lower(): side["column_names"][1] for side in sides}
    if set(named) != {"l", "r"}:
        return None
    l, r = _own_name(left, named["l"]), _own_name(right, named["r"])
    common = _common_type(left.field(l).type, right.field(r).type)
    return Key(l, r, common) if common is not None else None


def _compares_its_own_way(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


_INEQUALITIES = frozenset(
    ("COMPARE_LESSTHAN", "COMPARE_GREATERTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO")
)


def _is_range(tree: Tree) -> bool:
    """An inequality with one side of the join on each side of it."""
    if tree.get("type") not in _INEQUALITIES:
        return False
    sides = [{path[0].lower() for path in _columns(tree[part])} for part in ("left", "right")]
    return sides in ([{"l"}, {"r"}], [{"r"}, {"l"}])


def _own_name(schema: pa.Schema, name: str) -> str:
    return str(next(column for column in schema.names if column.lower() == name.lower()))


def _common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which two key columns are equal exactly when DuckDB finds them equal; None: do not hash."""
    t = pa.types
    if t.is_integer(left) and t.is_integer(right):
        return None if t.is_uint64(left) or t.is_uint64(right) else pa.int64()
    if t.is_floating(left) and t.is_floating(right):
        return pa.float64()
    if t.is_nested(left) and has_float(left):
        return None
    return left if left == right else None


_SAFE_COMPARISONS = frozenset(
    [
        "COMPARE_EQUAL",
        "COMPARE_NOTEQUAL",
        "COMPARE_LESSTHAN",
        "COMPARE_GREATERTHAN",
        "COMPARE_LESSTHANOREQUALTO",
        "COMPARE_GREATERTHANOREQUALTO",
        "COMPARE_BETWEEN",
        "COMPARE_DISTINCT_FROM",
        "COMPARE_NOT_DISTINCT_FROM",
    ]
)
_SAFE_KINDS = frozenset(["COLUMN_REF", "CONSTANT", "CONJUNCTION", "COMPARISON", "BETWEEN"])
_SAFE_OPERATORS = frozenset(["OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"])
_SAFE_ON_FLOATS = frozenset(["+", "-", "*", "/", "abs"])


def _safe(tree: Tree, scopes: Mapping[str, pa.Schema]) -> bool:
    """True only when no pair of tuples whatever can make the predicate raise an error."""
    types = {scopes[p[0].lower()].field(_own_name(scopes[p[0].lower()], p[1])).type for p in _columns(tree)}
    numbers = all(pa.types.is_floating(t) or pa.types.is_integer(t) for t in types)
    floats = bool(types) and all(pa.types.is_floating(t) for t in types)
    same = len(types) <= 1
    return all(_safe_node(node, floats=floats, comparable=numbers or same) for node in _walk(tree))


def _safe_node(node: Tree, *, floats: bool, comparable: bool) -> bool:
    kind = node["class"]
    if kind == "OPERATOR":
        return node["type"] in _SAFE_OPERATORS
    if kind == "FUNCTION":
        return floats and node["function_name"] in _SAFE_ON_FLOATS
    if kind == "CONSTANT":
        literal: Tree = node.get("literal") or {}
        return literal.get("kind") in ("INTEGER", "DECIMAL", "FLOAT", "BOOLEAN")
    if kind in ("COMPARISON", "BETWEEN"):
        return comparable and node["type"] in _SAFE_COMPARISONS
    return kind in _SAFE_KINDS


# --- aggregates ----------------------------------------------------------------------------------------------------


def _aggregate_calls(tree: Tree) -> Iterator[Tree]:
    for node in _walk(tree):
        if node["class"] == "FUNCTION" and functions()[node["function_name"].lower()] == {"aggregate"}:
            yield node


def _check_call(call: Tree, text: str, what: str) -> None:
    name = call["function_name"]
    if name in APPROXIMATE:
        raise ExpressionError(f"{what} = {text!r} uses {name}, whose answer is approximate; use an exact function")
    if name.startswith(("arg_", "argm", "max_by", "min_by")) and len(call["arguments"]) > 2:
        msg = f"{what} = {text!r} asks {name} for several values, whose ties have no order; use list(... ORDER BY ...)"
        raise ExpressionError(msg)


def _check_ungrouped(tree: Any, by: tuple[str, ...], text: str, what: str) -> None:
    """Outside aggregate calls only the columns of `by` have one value per group."""
    grouped = {name.lower() for name in by}
    for path in _columns(_without_aggregates(tree)):
        if path[0].lower() not in grouped:
            msg = (
                f"{what} = {text!r} uses {path[0]!r} outside an aggregate function; add it to by=[...] or aggregate it"
            )
            raise ExpressionError(msg)


def _without_aggregates(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_without_aggregates(value) for value in tree]
    if isinstance(tree, dict):
        if tree.get("class") == "FUNCTION" and functions()[tree["function_name"].lower()] == {"aggregate"}:
            return None
        return {key: _without_aggregates(value) for key, value in tree.items()}
    return tree


def _with_order(tree: Tree) -> Tree:
    """The tree with every order-sensitive call ordered by the tuples' sequence, after the user's own order."""
    tree = json.loads(json.dumps(tree))
    for call in _aggregate_calls(tree):
        if call["function_name"] in ORDER_SENSITIVE:
            # distinct values can only be ordered by themselves
            by = call["arguments"][0]["expression"] if call["distinct"] else _column_node("__seq")
            order = {"type": "ORDER_DEFAULT", "null_order": "ORDER_DEFAULT", "expression": by}
            call["order_bys"]["orders"].append(order)
    return tree


def _column_node(name: str) -> Tree:
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}


def _partials(tree: Tree, schema: pa.Schema, prefix: str) -> tuple[tuple[Partial, ...], str] | None:
    """Per-pane partials and the expression over them once merged, if every call allows it."""
    calls = list(_aggregate_calls(tree))
    if not all(_mergeable(call, schema) for call in calls):
        return None
    partials = tuple(_partial(call, f"{prefix}{index}", schema) for index, call in enumerate(calls))
    return partials, _print(_replace_calls(tree, iter([f"{prefix}{index}" for index in range(len(calls))])))


def _mergeable(call: Tree, schema: pa.Schema) -> bool:
    name = call["function_name"]
    arguments = call["arguments"]
    if name not in MERGEABLE or call["distinct"] or call["order_bys"]["orders"] or len(arguments) > 1:
        return False
    if name in ("sum", "avg", "mean"):
        return _is_number(_bind(_print(arguments[0]["expression"]), {"": schema}, name, name))
    return True


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _partial(call: Tree, out: str, schema: pa.Schema) -> Partial:
    name = call["function_name"]
    if name in ("avg", "mean"):
        total, count = (_print({**call, "function_name": f, "qualified_name": {"path": [f]}}) for f in ("sum", "count"))
        merged = f"CASE WHEN sum({out}c) > 0 THEN CAST(sum({out}s) AS DOUBLE) / sum({out}c) END"
        return Partial(((f"{out}s", total, "sum"), (f"{out}c", count, "sum")), ((out, merged),))
    merge = "sum" if name in ("count", "count_star") else name
    merged = f"CAST({merge}({out}v) AS {_duck_type(_print(call), schema)})"
    return Partial(((f"{out}v", _print(call), merge),), ((out, merged),))


def _replace_calls(tree: Any, names: Iterator[str]) -> Any:
    if isinstance(tree, list):
        return [_replace_calls(value, names) for value in tree]
    if isinstance(tree, dict):
        if tree.get("class") == "FUNCTION" and functions()[tree["function_name"].lower()] == {"aggregate"}:
            return _column_node(next(names))
        return {key: _replace_calls(value, names) for key, value in tree.items()}
    return tree


def _duck_type(sql: str, schema: pa.Schema) -> str:
    found = duck.run(f"SELECT typeof({sql}) AS t FROM __tuples", {duck.TUPLES: schema.empty_table()})
    return str(found.column(0)[0].as_py())
