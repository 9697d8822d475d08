"""The three checks that an expression must pass before it is executed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from headrace.columnar import duck
from headrace.columnar.types import plain_type
from headrace.errors import ExpressionError
from headrace.expressions.geography import expand_distances
from headrace.expressions.reserved_words import quote_columns, quoting_hint
from headrace.expressions.sql_habits import UNNESTING, column_hint, function_hint, syntax_hint
from headrace.expressions.syntax_tree import (
    CACHED_ANSWERS,
    Tree,
    columns_of,
    parse,
    to_sql,
    walk_tree,
    with_deep_recursion,
)
from headrace.support.argument_errors import describe_argument, instead_of_text
from headrace.support.habits import USAGES

_OF_THE_MOMENT = ("hash", "version", "current_localtime", "current_localtimestamp", "getenv", "query")
# these plan SQL that can read the clock
_SQL_AS_TEXT = ("json_serialize_plan", "json_serialize_sql", "json_deserialize_sql")
_OF_THE_SPELLING = ("alias", "index_key", "combine", "finalize", "to_aggregate_state", "variant_bytes_to_variant")
NOT_REPEATABLE = frozenset([*_OF_THE_MOMENT, *_SQL_AS_TEXT, *_OF_THE_SPELLING])
APPROXIMATE = frozenset(
    ["approx_count_distinct", "approx_quantile", "approx_top_k", "list_approx_count_distinct", "reservoir_quantile"]
)
# functions that apply the function named in their argument
BY_NAME = frozenset(["aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"])
# Types that Arrow cannot represent, or represents as another type. Nanoseconds do not fit into microseconds.
ALTERED = frozenset(
    [
        *("bit", "geometry", "time with time zone", "time_ns", "uhugeint", "variant"),
        # timestamp_ms and timestamp_s because microseconds lack their infinities
        *("timestamp_ns", "timestamp_ms", "timestamp_s"),
    ]
)

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
    exp.JSONPath,
    exp.JSONPathPart,
    exp.JSONKeyValue,
    exp.AtTimeZone,
    exp.Comprehension,
)
_FORBIDDEN = {
    exp.Window: "a window function",
    exp.Alias: "an alias",
    exp.Query: "a subquery",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.Command: "a statement",
    exp.DDL: "a statement",
    exp.DML: "a statement",
}


@dataclass(frozen=True)
class Expression:
    """A checked scalar expression."""

    text: str  # as the user wrote it
    sql: str  # as DuckDB prints the checked tree
    type: pa.DataType
    columns: frozenset[tuple[str, ...]]  # ("x",) or, in a join, ("l", "x")


def parse_scalar(text: str, schema: pa.Schema, what: str) -> Expression:
    """Check a scalar expression over one stream."""
    return checked_scalar(text, {"": schema}, what)


def parse_condition(text: str, schema: pa.Schema, what: str) -> Expression:
    """Check a predicate over one stream."""
    found = parse_scalar(text, schema, what)
    demand_boolean(found.type, text, what)
    return found


@with_deep_recursion
def checked_scalar(text: str, scopes: Mapping[str, pa.Schema], what: str) -> Expression:
    tree = checked_tree(text, scopes, what, aggregates=False)
    sql = to_sql(tree)
    return Expression(text, sql, bind_type(sql, scopes, text, what), frozenset(columns_of(tree)))


def checked_tree(text: str, scopes: Mapping[str, pa.Schema], what: str, *, aggregates: bool) -> Tree:
    if not isinstance(text, str):
        example = "count(*)" if aggregates else "x > 1"
        msg = f"{what} must be an expression as text; found {describe_argument(text)}; {instead_of_text(text, example)}"
        raise ExpressionError(msg)
    tree: Tree = expand_distances(_parsed(text, scopes, what), text, what)
    for node in walk_tree(tree):
        _check_node(node, text, what, aggregates=aggregates)
    _check_columns(tree, scopes, text, what)
    return tree


def _parsed(text: str, scopes: Mapping[str, pa.Schema], what: str) -> Tree:
    """Parse a text. Columns that are SQL keywords, such as `end`, need no quotes if they are unambiguous."""
    try:
        _check_shape(text, text, what)
        return parse(text, what)
    except ExpressionError as error:
        quoted, names = quote_columns(text, scopes)
        told = f"{error}{quoting_hint(names)}"
        if names:
            try:
                _check_shape(quoted, text, what)
                return parse(quoted, what)
            except _ForbiddenShape as refused:  # quotes do not help
                told = str(refused)
            except ExpressionError:
                pass
        raise ExpressionError(f"{told}{syntax_hint(text)}") from None


class _ForbiddenShape(ExpressionError):
    """SQL that is not a scalar expression, such as a window function."""


def _check_shape(sql: str, text: str, what: str) -> None:
    """Raise if the SQL is not one scalar expression. `text`: the SQL as the user wrote it."""
    try:
        parsed = sqlglot.parse(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise ExpressionError(f"{what} = {text!r} is not an expression: {reason}") from None
    if len(parsed) != 1 or parsed[0] is None:
        raise ExpressionError(f"{what} = {text!r} must be exactly one expression")
    for node in parsed[0].walk():
        if isinstance(node, tuple(_FORBIDDEN)) or not isinstance(node, _SHAPES):
            raise _ForbiddenShape(f"{what} = {text!r} is refused: it contains {_refused_part(node)}")


def _refused_part(node: object) -> str:
    """Return what a forbidden part is, and what to write instead."""
    if isinstance(node, exp.Window):
        return (
            "a window function (OVER), which expressions do not have; use `top` for ranks, such as"
            f" {USAGES['top']}, or `aggregate` for sums"
        )
    kind = type(node).__name__.lower()
    found = next((name for shape, name in _FORBIDDEN.items() if isinstance(node, shape)), f"the SQL clause {kind!r}")
    return (
        f"{found}; an expression may use columns, literals, operators and functions, but no subquery, alias, statement,"
        " parameter or window function"
    )


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
        name = node["function_name"].lower()
        if name in UNNESTING:
            column = next(columns_of(node), ("items",))[-1]
            raise ExpressionError(
                f"{what} = {text!r} uses a function {name!r} that does not exist; write s.unnest({column!r}) to get one"
                " tuple for each element"
            )
        _check_function(name, text, what, aggregates=aggregates)
        if name in BY_NAME:
            _check_named(node, text, what)
        if name == "age" and len(node["arguments"]) == 1:
            msg = f"{what} = {text!r} uses 'age' with one argument, which depends on today's date; give it two times"
            raise ExpressionError(msg)


def _check_function(name: str, text: str, what: str, *, aggregates: bool) -> None:
    kinds = allowed_functions().get(name)
    if kinds is None:
        raise ExpressionError(f"{what} = {text!r} uses a function {name!r} that does not exist{function_hint(name)}")
    if name in NOT_REPEATABLE or name.startswith("__internal") or not _repeatable(name):
        reason = "is a macro over aggregates or is" if "macro" in kinds else "is"
        msg = f"{what} = {text!r} uses {name!r}, which {reason} not a function of its arguments alone; it is refused"
        raise ExpressionError(msg)
    if name in APPROXIMATE:
        raise ExpressionError(f"{what} = {text!r} uses {name}, whose answer is approximate; use an exact function")
    if kinds == {"aggregate"} and not aggregates:
        msg = f"{what} = {text!r} uses the aggregate function {name!r}; aggregates belong in .aggregate(...)"
        raise ExpressionError(msg)


def _check_named(call: Tree, text: str, what: str) -> None:
    """Check the function that a list function applies, like any other function."""
    literals = [argument["expression"].get("literal") or {} for argument in call["arguments"]]
    named = literals[1].get("text") if len(literals) > 1 and literals[1].get("kind") == "STRING" else None
    if named is None:
        msg = f"{what} = {text!r}: {call['function_name']} needs the name of a function, as text; such as 'max'"
        raise ExpressionError(msg)
    _check_function(named.lower(), text, what, aggregates=True)


def _check_columns(tree: Tree, scopes: Mapping[str, pa.Schema], text: str, what: str) -> None:
    for path in columns_of(tree):
        if "" in scopes:
            _check_column(path, scopes[""], text, what)
        elif path[0].lower() not in scopes or len(path) < 2:
            written = " or ".join(f"{side}.column" for side in scopes)
            msg = f"{what} = {text!r} names {'.'.join(path)!r}; in a join write {written}"
            raise ExpressionError(f"{msg}{_sides_hint(path, scopes)}")
        else:
            _check_column(path[1:], scopes[path[0].lower()], text, what, path[0])


def _sides_hint(path: Sequence[str], scopes: Mapping[str, pa.Schema]) -> str:
    """Return how to write a column without a side, or with another name for the side, or an empty text."""
    for rest in (path, path[1:]):
        sides = [side for side, schema in scopes.items() if rest and _has_column(schema, rest[0])]
        if sides:
            return f", here {' or '.join('.'.join((side, *rest)) for side in sides)}"
    return ""


def _has_column(schema: pa.Schema, name: str) -> bool:
    return name.lower() in {column.lower() for column in schema.names}


def _check_column(path: Sequence[str], schema: pa.Schema, text: str, what: str, side: str = "") -> None:
    name = path[0]
    if not _has_column(schema, name):
        of = f" of {side}" if side else ""
        raise ExpressionError(
            f"{what} = {text!r} names an unknown column {name!r}{of}; there are {', '.join(schema.names)}"
            f"{column_hint(path, schema, text)}"
        )


def bind_type(
    sql: str, scopes: Mapping[str, pa.Schema], text: str, what: str, *, by: tuple[str, ...] = ()
) -> pa.DataType:
    """Return the type of a value in a stream. Nothing is evaluated, because a constant may exceed the memory."""
    kind = duck_type(sql, scopes, text, what, by=by)
    if not ALTERED.isdisjoint(kind.kinds):
        msg = f"{what} = {text!r} has type {kind}, which streams do not carry; cast it to a number, a time or text"
        raise ExpressionError(msg)
    try:
        found = duck.arrow_type(str(kind))
    except (duckdb.Error, pa.ArrowException):
        raise ExpressionError(f"{what} = {text!r} has type {kind}, which streams do not carry") from None
    return plain_type(found, what)


def duck_type(
    sql: str, scopes: Mapping[str, pa.Schema], text: str, what: str, *, by: tuple[str, ...] = ()
) -> duck.DuckType:
    try:
        return _bound_type(sql, tuple(scopes.items()), by)
    except duckdb.Error as error:
        reason = str(error).split("\n\n")[0].split("\tCandidate")[0].replace("\n", " ").strip()
        columns = "; ".join(f"{a + ': ' if a else ''}{_listing(s)}" for a, s in scopes.items())
        raise ExpressionError(f"{what} = {text!r} does not fit the stream: {reason}; columns: {columns}") from None


@functools.lru_cache(maxsize=CACHED_ANSWERS)
def _bound_type(sql: str, scopes: tuple[tuple[str, pa.Schema], ...], by: tuple[str, ...]) -> duck.DuckType:
    tables = {alias or duck.TUPLES: schema.empty_table() for alias, schema in scopes}
    group = " GROUP BY " + ", ".join(duck.quote(name) for name in by) if by else ""
    return duck.type_of(f"SELECT {sql} AS c FROM {', '.join(map(duck.quote, tables))}{group}", tables)


def _listing(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def demand_boolean(kind: pa.DataType, text: str, what: str) -> None:
    if not pa.types.is_boolean(kind):
        raise ExpressionError(f"{what} = {text!r} must be true or false; its type is {kind}; compare it with something")


# --- what DuckDB knows about functions -------------------------------------------------------------------------------


@functools.cache
def allowed_functions() -> dict[str, set[str]]:
    """Return the functions that an expression may contain, with their kinds (scalar, aggregate, macro)."""
    rows = duck.fetch_rows(
        "SELECT function_name, function_type FROM duckdb_functions()"
        " WHERE function_type IN ('scalar', 'aggregate', 'macro')"
    )
    found: dict[str, set[str]] = {}
    for name, kind in rows:
        found.setdefault(name, set()).add(kind)
    return found


@functools.cache
def _repeatable(name: str) -> bool:
    rows = duck.fetch_rows(
        "SELECT stability, function_type, macro_definition, parameters FROM duckdb_functions()"
        " WHERE function_name = ? AND function_type IN ('scalar', 'aggregate', 'macro')",
        [name],
    )
    return all(
        _macro_repeatable(definition, parameters) if kind == "macro" else stability == "CONSISTENT"
        for stability, kind, definition, parameters in rows
    )


def _macro_repeatable(definition: str, parameters: list[str]) -> bool:
    tree = parse(definition, "macro")
    names = {p.lower() for p in parameters}
    for node in walk_tree(tree):
        if node.get("class") in _KINDS_REFUSED:
            return False
        if node.get("class") == "COLUMN_REF" and node["column_names"][0].lower() not in names:
            return False
        if node.get("class") == "FUNCTION":
            called = node["function_name"].lower()
            if (
                allowed_functions().get(called, {"aggregate"}) == {"aggregate"}
                or called in NOT_REPEATABLE
                or not _repeatable(called)
            ):
                return False
    return True
