"""Predicates over plain numbers as source of a compiled loop.

Invariant: where a predicate has native source, and the columns it uses hold finite doubles of at most `LARGEST` and no
null, the source gives DuckDB's answer on every pair: the same operations on the same doubles, none of which can fail or
leave the finite numbers (so the two ways to compare NaN never matter). Anything else has no native source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace import duck
from headrace.expressions.tree import Tree, columns_of

LARGEST = 1e30
DEEPEST = 6  # products of this many factors of LARGEST are still finite

Column = tuple[str, str]  # side, name


@dataclass(frozen=True)
class Native:
    """`source` over variables named by `variables`: one double of the l tuple or the r tuple each."""

    source: str
    variables: tuple[tuple[str, Column], ...]


class _Unsupported(Exception):
    """This predicate has no native source."""


def native(tree: Tree, schemas: dict[str, pa.Schema]) -> Native | None:
    """Native source of a join predicate, if it has any."""
    translator = _Translator(schemas)
    try:
        source = translator.boolean(tree)
    except _Unsupported:
        return None
    return Native(source, tuple((name, column) for column, name in translator.variables.items()))


_COMPARISONS = {
    "COMPARE_EQUAL": "==",
    "COMPARE_NOTEQUAL": "!=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}


class _Translator:
    def __init__(self, schemas: dict[str, pa.Schema]) -> None:
        self.schemas = schemas
        self.variables: dict[Column, str] = {}

    def boolean(self, tree: Tree) -> str:
        kind = tree.get("type", "")
        if kind in _COMPARISONS:
            return f"({self.number(tree['left'])} {_COMPARISONS[kind]} {self.number(tree['right'])})"
        if kind == "COMPARE_BETWEEN":
            value, low, high = (self.number(tree[part]) for part in ("input", "lower", "upper"))
            return f"(({value} >= {low}) & ({value} <= {high}))"
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            sign = " & " if kind.endswith("AND") else " | "
            return "(" + sign.join(self.boolean(child) for child in tree["children"]) + ")"
        if kind == "OPERATOR_NOT":
            return f"(not {self.boolean(tree['children'][0])})"
        raise _Unsupported

    def number(self, tree: Tree) -> str:
        if _factors(tree) > DEEPEST:
            raise _Unsupported
        if tree["class"] == "COLUMN_REF":
            return self._column(tree["column_names"])
        if tree["class"] == "CONSTANT":
            return repr(constant(tree))
        if tree["class"] == "FUNCTION":
            return self._function(tree["function_name"], [a["expression"] for a in tree["arguments"]])
        raise _Unsupported

    def _column(self, path: list[str]) -> str:
        if len(path) != 2:
            raise _Unsupported
        side = path[0].lower()
        field = next((f for f in self.schemas[side] if f.name.lower() == path[1].lower()), None)
        if field is None or not pa.types.is_float64(field.type):
            raise _Unsupported
        return self.variables.setdefault((side, field.name), f"{side}{len(self.variables)}")

    def _function(self, name: str, arguments: list[Tree]) -> str:
        make = _FUNCTIONS.get((name, len(arguments)))
        if make is None or (name == "sqrt" and not _never_negative(arguments[0])):
            raise _Unsupported
        if name == "/" and not _not_zero(arguments[1]):
            raise _Unsupported
        if not any(True for _ in columns_of(arguments)):  # DuckDB computes with literals as decimals
            raise _Unsupported
        return make(*(self.number(argument) for argument in arguments))


_FUNCTIONS: dict[tuple[str, int], Callable[..., str]] = {
    ("+", 2): "({} + {})".format,
    ("-", 2): "({} - {})".format,
    ("*", 2): "({} * {})".format,
    ("/", 2): "({} / {})".format,
    ("-", 1): "(-{})".format,
    ("abs", 1): "abs({})".format,
    ("sqrt", 1): "math.sqrt({})".format,
}


def constant(tree: Tree) -> float:
    """The value of a plain number; unsupported when it is none, or too large."""
    literal = tree.get("literal") or {}
    text = literal.get("text", "")
    if literal.get("kind") not in ("INTEGER", "NUMERIC") or not _NUMBER.fullmatch(text):
        raise _Unsupported
    value = _as_double(text)
    if abs(value) > LARGEST:
        raise _Unsupported
    return value


_NUMBER = re.compile(r"-?[0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?")


@functools.lru_cache(maxsize=1024)
def _as_double(text: str) -> float:
    """A literal as DuckDB has it beside a double: one with many digits is a decimal first."""
    return float(duck.rows(f"SELECT CAST({text} AS DOUBLE)")[0][0])


def is_constant(tree: Tree) -> bool:
    try:
        constant(tree)
    except _Unsupported:
        return False
    return True


def _factors(tree: Tree) -> int:
    """How many factors the largest product in a term has."""
    if tree.get("class") != "FUNCTION":
        return 1
    parts = [_factors(a["expression"]) for a in tree["arguments"]]
    return sum(parts) if tree["function_name"] == "*" else max(parts)


def _not_zero(tree: Tree) -> bool:
    """A constant that makes nothing larger than it was."""
    return is_constant(tree) and abs(constant(tree)) >= 1


def _never_negative(tree: Tree) -> bool:
    if tree.get("class") == "CONSTANT":
        return is_constant(tree) and constant(tree) >= 0
    if tree.get("class") != "FUNCTION":
        return False
    name, parts = tree["function_name"], [a["expression"] for a in tree["arguments"]]
    if name == "+" and len(parts) == 2:
        return all(_never_negative(part) for part in parts)
    if name == "*":
        return _same(parts[0], parts[1]) or all(_never_negative(part) for part in parts)
    return bool(name == "abs")


def _same(one: Tree, other: Tree) -> bool:
    return _shape(one) == _shape(other)


def _shape(tree: object) -> object:
    """A tree without where it stood in the text."""
    if isinstance(tree, dict):
        return {k: _shape(v) for k, v in tree.items() if not k.startswith("query_location")}
    return [_shape(v) for v in tree] if isinstance(tree, list) else tree
