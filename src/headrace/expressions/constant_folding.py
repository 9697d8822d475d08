"""Arithmetic of numbers alone, such as `2 * 6371` or `pi() / 180`, replaced by its value in a syntax tree.

Invariant: what is replaced was computed by DuckDB without an error and is finite, so it cannot fail on any tuple. The
value is a literal of the same kind: a double is written with an exponent, which DuckDB reads back as the same double.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from typing import Any

import duckdb

from headrace.columnar import duck
from headrace.expressions.syntax_tree import Tree, to_sql


def fold_constants(tree: Any, functions: Collection[str]) -> Any:
    """Return the tree with the value of every call of these functions that has only numbers as arguments."""
    constant: set[int] = set()
    _find_constant_calls(tree, functions, constant)
    return _folded(tree, constant) if constant else tree


def _find_constant_calls(tree: Any, functions: Collection[str], found: set[int]) -> bool:
    """Add the ids of such calls to `found`; return whether this node is one, or a number."""
    if isinstance(tree, list):
        for value in tree:
            _find_constant_calls(value, functions, found)
        return False
    if not isinstance(tree, dict):
        return False
    if tree.get("class") == "CONSTANT":
        return (tree.get("literal") or {}).get("kind") in ("INTEGER", "NUMERIC")
    if tree.get("class") != "FUNCTION":
        _find_constant_calls(list(tree.values()), functions, found)
        return False
    arguments = [_find_constant_calls(each["expression"], functions, found) for each in tree["arguments"]]
    if tree["function_name"] not in functions or not all(arguments):
        return False
    found.add(id(tree))
    return True


def _folded(tree: Any, constant: set[int]) -> Any:
    if isinstance(tree, list):
        return [_folded(value, constant) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if id(tree) in constant and (value := _value(to_sql(tree))) is not None:
        literal = {"kind": "INTEGER" if value.lstrip("-").isdigit() else "NUMERIC", "text": value}
        return _literal_node(literal)
    return {name: _folded(value, constant) for name, value in tree.items()}


def _literal_node(literal: dict[str, str]) -> Tree:
    return {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "literal": literal}


@functools.lru_cache(maxsize=1024)
def _value(sql: str) -> str | None:
    """Return the number as a literal; None if it fails, is null, not finite or no number."""
    try:
        [(value, text)] = duck.fetch_rows(f"SELECT v, CAST(v AS VARCHAR) FROM (SELECT {sql} AS v)")
    except duckdb.Error:
        return None
    if value is None or isinstance(value, bool) or not math.isfinite(value):
        return None
    return f"{value:.16e}" if isinstance(value, float) else str(text)
