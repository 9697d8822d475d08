"""The maps behind `map`, `select`, `with_columns`, `rename` and `drop`, and the checks of column names.

Invariant: expressions refer only to columns of the input, and `ts` is never computed, renamed or dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace import expressions
from headrace.columnar.duck import quote
from headrace.columnar.types import EVENT_TIME, TS, refuse_added_names
from headrace.errors import QueryError, QueryTypeError
from headrace.expressions.sql_habits import column_hint, prefix_hint
from headrace.query import nodes
from headrace.support.argument_errors import argument_kind, describe_argument, is_foreign_expression

ALL = "*"
COMPUTING = ("map", "select")  # verbs that take column names and expressions
_ALIASED = re.compile(r"(.+?)\s+as\s+(\w+)\Z", re.IGNORECASE)


def computed_map(node: nodes.Node, keep: Sequence[str], new: Mapping[str, str], verb: str) -> nodes.Map:
    """Return the map of `map` and `select`: the columns `keep`, then the expressions `new`."""
    for name in keep:
        check_column(name, node.schema, verb)
    names = [name for name in keep if name != TS] + list(new)
    if len(set(names)) != len(names):
        raise QueryError(f"{verb} names a column twice; found {', '.join(names)}")
    return _map(node, {name: name for name in keep if name != TS}, new, verb)


def extended_map(node: nodes.Node, new: Mapping[str, str]) -> nodes.Map:
    """Return the map of `with_columns`: all columns, each new one in place of its namesake or at the end."""
    return _map(node, {name: name for name in _others(node)}, new, "with_columns")


def renamed_map(node: nodes.Node, names: Mapping[str, str]) -> nodes.Map:
    """Return the map of `rename`: all columns, in their places."""
    if not isinstance(names, Mapping):
        raise QueryTypeError(
            f"rename takes a dict from old to new names; found {describe_argument(names)}; such as rename({{'old': 'new'}})"
        )
    for old, new in names.items():
        check_column(old, node.schema, "rename")
        if old == TS:
            raise QueryError(f"rename cannot rename 'ts': it is {EVENT_TIME[TS]}; with_columns(new='ts') copies it")
        if not isinstance(new, str):
            raise QueryTypeError(f"rename takes column names as text; found {describe_argument(new)} for {old!r}")
    refuse_added_names(names.values(), EVENT_TIME, "rename")
    found = [names.get(name, name) for name in _others(node)]
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise QueryError(f"rename makes two columns called {twice[0]!r}; there are {', '.join(node.schema.names)}")
    return _map(node, dict(zip(found, _others(node), strict=True)), {}, "rename")


def reduced_map(node: nodes.Node, dropped: Sequence[str]) -> nodes.Map:
    """Return the map of `drop`: the columns that are not dropped."""
    for name in dropped:
        check_column(name, node.schema, "drop")
        if name == TS:
            raise QueryError(f"drop cannot drop 'ts': it is {EVENT_TIME[TS]}")
    return _map(node, {name: name for name in _others(node) if name not in dropped}, {}, "drop")


def unnested(node: nodes.Node, column: str, outer: bool, index: str | None) -> nodes.Unnest:
    """Check the arguments of `unnest` and return its node."""
    check_column(column, node.schema, "unnest")
    if not isinstance(outer, bool):
        raise QueryTypeError(f"outer must be True or False; found {describe_argument(outer)}")
    if index is not None and not isinstance(index, str):
        raise QueryTypeError(f"index must be the name of a new column; found {describe_argument(index)}; such as 'i'")
    return nodes.Unnest(node, column, outer, index)


def check_column(name: str, schema: pa.Schema, verb: str) -> None:
    """Raise if `name` is not a column of the schema."""
    if not isinstance(name, str):
        raise QueryTypeError(
            f"{verb} takes column names as text; found {describe_argument(name)}{_instead_of_name(name, verb)}"
        )
    if name in schema.names:
        return
    if name == ALL:
        raise QueryError(
            f"{verb} takes no '*'; use s.with_columns(new='a + 1') for all columns and a new one, s.drop('a') for all but some"
        )
    hint = _instead_of_side(name, schema) or _instead_of_text(name, verb) or prefix_hint(name, schema.names)
    raise QueryError(f"{verb} names an unknown column {name!r}; there are {', '.join(schema.names)}{hint}")


def passed_column(schema: pa.Schema, name: str) -> expressions.Expression:
    """Return the expression that passes a column on with its exact type."""
    found = expressions.parse_scalar(quote(name), schema, name)
    return expressions.Expression(name, found.sql, schema.field(name).type, found.columns)


def _map(node: nodes.Node, kept: Mapping[str, str], new: Mapping[str, str], verb: str) -> nodes.Map:
    """Return a map. `kept` maps names in the result to columns of the input."""
    refuse_added_names(new, EVENT_TIME, verb)
    columns = {name: passed_column(node.schema, old) for name, old in kept.items() if name not in new}
    made = {name: expressions.parse_scalar(text, node.schema, name) for name, text in new.items()}
    order = [*kept, *(name for name in new if name not in kept)]
    return nodes.Map(node, tuple((name, made.get(name) or columns[name]) for name in order))


def _others(node: nodes.Node) -> list[str]:
    return [name for name in node.schema.names if name != TS]


def _instead_of_side(name: str, schema: pa.Schema) -> str:
    """Return a hint for a column that is named with a side of an earlier join, such as l.id."""
    path = name.split(".")
    return column_hint(path, schema, name) if len(path) == 2 and all(map(_is_plain, path)) else ""


def _instead_of_text(name: str, verb: str) -> str:
    """Return a hint for a text that looks like several columns or an expression."""
    if names := listed_names(name):
        return _several(names, verb) or f"; pass each name as a separate argument: {', '.join(map(repr, names))}"
    if verb in COMPUTING and (found := _ALIASED.match(name)):
        return f"; a computed column is a keyword: s.{verb}({found[2]}={found[1]!r})"
    if verb in COMPUTING and not _is_plain(name):
        return f"; a computed column is a keyword: s.{verb}(new={name!r})"
    return ""


def listed_names(text: str) -> list[str]:
    """Return the names in a text such as "a, b", or an empty list if it is not a list of names."""
    names = [part.strip() for part in text.split(",")]
    return names if len(names) > 1 and all(map(_is_plain, names)) else []


def _several(names: Sequence[str], verb: str) -> str:
    """Return how a verb that takes no separate arguments takes several columns; empty for other verbs."""
    if verb == "by":
        return f"; write by={list(names)!r}"
    if verb == "unnest":
        return f"; write one unnest for each column: s{''.join(f'.unnest({name!r})' for name in names)}"
    if verb == "rename":
        entries = ", ".join(f"{name!r}: {'new_' + name!r}" for name in names)
        return f"; write one entry for each column: s.rename({{{entries}}})"
    return ""


def _is_plain(name: str) -> bool:
    return name.isidentifier()


def _instead_of_name(given: object, verb: str) -> str:
    """Return a hint for an argument that is not a column name."""
    if verb in COMPUTING and is_foreign_expression(given) and "explode" in repr(given):
        return "; use s.unnest('items') to get one tuple per element of a list"
    if verb in COMPUTING and is_foreign_expression(given):
        return f"; write the column's name, or a new column as a keyword with SQL text: s.{verb}(new='a + 1')"
    if is_foreign_expression(given):
        return "; write the column's name"
    if verb in COMPUTING and argument_kind(given) == "function":
        return (
            f"; new columns are keywords with SQL text: s.{verb}(new='a + 1'); code of your own is a processor:"
            " s.split(8, by='k').apply(processor)"
        )
    if verb in COMPUTING and isinstance(given, dict):
        return f"; new columns are keywords with SQL text: s.{verb}('kept', new='a + 1')"
    if isinstance(given, list | tuple) and given and all(isinstance(name, str) for name in given):
        return _several(given, verb) or f"; write the names without a list: {verb}({', '.join(map(repr, given))})"
    return "; such as 'caller'"
