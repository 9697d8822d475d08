"""Joins by columns with one name on both sides: an ordinary join, then a map that keeps each of these columns once.

columns  =  ts, the columns of `using`, then the other columns of both sides, named as in any join
value    =  the left value (inner, left), the right one (right), or the one that is not null (full), in the common type
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headrace import expressions
from headrace.columnar.duck import quote
from headrace.columnar.types import TS
from headrace.errors import QueryError, QueryTypeError
from headrace.query import nodes
from headrace.query.column_verbs import listed_names, passed_column
from headrace.support.argument_errors import describe_argument, is_foreign_expression

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z", re.IGNORECASE)
_EQUAL = re.compile(r"(\w+)\s*==?\s*\1")
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_CASTS = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE"}  # the common types of columns of different types


def using_columns(using: str | Sequence[str] | None, left: pa.Schema, right: pa.Schema) -> tuple[str, ...]:
    """Check the argument `using` and return its columns, or an empty tuple for None."""
    if using is None:
        return ()
    names = (using,) if isinstance(using, str) else using
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise QueryTypeError(
            f"using takes the name of a column of both sides, or a list of names; found {describe_argument(using)};"
            " such as using='k' or using=['k', 'day']"
        )
    for name in names:
        for side, schema in (("left", left), ("right", right)):
            if name not in schema.names:
                listed = listed_names(name)
                rename = "rename one of them with rename, or write the condition: on='l.a = r.b'"
                raise QueryError(
                    f"using names a column {name!r} that the {side} side lacks; it has {', '.join(schema.names)};"
                    f" {f'write using={listed!r}' if listed else rename}"
                )
        if name == TS:
            raise QueryError(
                "using cannot contain 'ts', the event time; use within= to limit how far apart times may be"
            )
        nodes.common_type("using", name, left, right)
    if len(set(names)) != len(names):
        raise QueryError(f"using names a column twice; found {list(names)!r}")
    return tuple(names)


def join_condition(
    on: str | None, using: Sequence[str], left: pa.Schema, right: pa.Schema
) -> expressions.JoinPredicate:
    """Return the predicate of a join with `on`, `using` or both."""
    if not using:
        _check_on(on, left, right)
        return expressions.join_predicate(on, left, right)  # type: ignore[arg-type]
    equal = " AND ".join(f"l.{quote(name)} = r.{quote(name)}" for name in using)
    shown = " and ".join(f"l.{_shown(name)} = r.{_shown(name)}" for name in using)
    if on is None:
        return replace(expressions.join_predicate(equal, left, right), text=shown)
    text = expressions.join_predicate(on, left, right).text
    # the line break ends a comment in the user's text
    found = expressions.join_predicate(f"{equal} AND ({text}\n)", left, right)
    return replace(found, text=f"{shown} and ({text})")


def _check_on(on: str | None, left: pa.Schema, right: pa.Schema) -> None:
    """Raise if `on` is missing, is not SQL text, or is a list of column names."""
    if on is None:
        raise QueryError("join needs a condition: on='l.a < r.b', or using='k' for columns that both sides have")
    if is_foreign_expression(on):
        raise QueryTypeError(
            f"on is SQL text over l and r; found {describe_argument(on)}; such as on='l.a = r.b', or using='k'"
        )
    names = list(on) if isinstance(on, list | tuple) else _equal_names(on) or [on]
    shared = (set(left.names) & set(right.names)) - {TS}
    if names and all(isinstance(name, str) and name in shared for name in names):
        equal = " and ".join(f"l.{_shown(name)} = r.{_shown(name)}" for name in names)
        wanted = names[0] if len(names) == 1 else names
        raise QueryError(f"on is a condition over l and r; found {on!r}; write using={wanted!r}, or on={equal!r}")


def _equal_names(on: str) -> list[str]:
    """Return the names in a condition such as "a = a and b = b", or an empty list for any other condition."""
    parts = [_EQUAL.fullmatch(part) for part in _AND.split(on.strip())] if isinstance(on, str) else []
    return [part[1] for part in parts if part] if all(parts) else []


def once(node: nodes.Join | nodes.TableJoin, using: Sequence[str], how: str) -> nodes.Node:
    """Return the join with each column of `using` once, or the join itself if there are none."""
    if not using:
        return node
    left, right = (node.left, node.right) if isinstance(node, nodes.Join) else (node.input, node.table)
    called = {(side, column): name for name, side, column in node.columns}
    rest = nodes.join_columns(*([n for n in side.schema.names if n not in using] for side in (left, right)))
    if twice := sorted({name for name, _, _ in rest} & set(using)):
        raise QueryError(
            f"using names {twice[0]!r}, which is also what the join calls another column; rename the column on both sides"
        )
    values = [(name, _value(node, called["l", name], called["r", name], how, name)) for name in using]
    others = [(name, passed_column(node.schema, called[side, column])) for name, side, column in rest]
    return nodes.Map(node, (*values, *others))


def _value(node: nodes.Join | nodes.TableJoin, left: str, right: str, how: str, name: str) -> expressions.Expression:
    kinds = [node.schema.field(column).type for column in (left, right)]
    kind = kinds[0] if kinds[0] == kinds[1] else nodes.wider_type(*kinds)
    text = f"coalesce({quote(left)}, {quote(right)})" if how == "full" else quote(right if how == "right" else left)
    if kinds[0] != kinds[1]:
        text = f"CAST({text} AS {_CASTS[kind]})"
    return replace(expressions.parse_scalar(text, node.schema, name), type=kind)


def _shown(name: str) -> str:
    return name if _PLAIN.match(name) else quote(name)
