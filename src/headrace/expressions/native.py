"""Predicates over plain numbers and times as source of a compiled loop.

Invariant: where a predicate has native source, and the columns it uses hold no null and, as doubles, finite numbers of
at most `LARGEST`, the source gives DuckDB's answer on every pair: the same operations on the same doubles, none of which
can fail or leave the finite numbers (so the two ways to compare NaN never matter), and comparisons of whole numbers or
times as they stand. Anything else has no native source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from headrace import duck
from headrace.expressions.tree import Tree, columns_of
from headrace.types import TS_TYPE

LARGEST = 1e30
DEEPEST = 6  # products of this many factors of LARGEST are still finite

Column = tuple[str, str]  # side, name


@dataclass(frozen=True)
class Native:
    """`source` over variables named by `variables`: one number of the l tuple or the r tuple each."""

    source: str
    variables: tuple[tuple[str, Column], ...]


class _Unsupported(Exception):
    """This predicate has no native source."""


def native(tree: Tree, schemas: dict[str, pa.Schema]) -> Native | None:
    """Native source of a join predicate, if it has any; one without columns is not worth a loop."""
    translator = _Translator(schemas)
    try:
        source = translator.boolean(tree)
    except _Unsupported:
        return None
    if not translator.variables:
        return None
    return Native(source, tuple((name, column) for column, name in translator.variables.items()))


def native_part(parts: Iterable[Tree], schemas: dict[str, pa.Schema]) -> Native | None:
    """Native source of those of several conditions that have it."""
    found = [part for part in parts if native(part, schemas)]
    return native({"type": "CONJUNCTION_AND", "children": found}, schemas) if found else None


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
            left, right = self._compared(tree["left"], tree["right"])
            return f"({left} {_COMPARISONS[kind]} {right})"
        if kind == "COMPARE_BETWEEN":
            value, low, high = self._compared(tree["input"], tree["lower"], tree["upper"])
            return f"(({value} >= {low}) & ({value} <= {high}))"
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            sign = " & " if kind.endswith("AND") else " | "
            return "(" + sign.join(self.boolean(child) for child in tree["children"]) + ")"
        if kind == "OPERATOR_NOT":
            return f"(not {self.boolean(tree['children'][0])})"
        raise _Unsupported

    def _compared(self, *trees: Tree) -> list[str]:
        """Times, whole numbers as they stand, or doubles: never one kind with another."""
        kinds = {_kind(field.type) for field in map(self._field, trees) if field is not None}
        if kinds == {"time"} and all(map(self._field, trees)):
            return [self._variable(tree) for tree in trees]
        if kinds == {"whole"}:
            return [self._variable(tree) if self._field(tree) else _whole(tree) for tree in trees]
        return [self.number(tree) for tree in trees]

    def _field(self, tree: Tree) -> pa.Field | None:
        """The field that this column is, if it is one."""
        path = tree["column_names"] if tree.get("class") == "COLUMN_REF" else []
        if len(path) != 2:
            return None
        return next((f for f in self.schemas[path[0].lower()] if f.name.lower() == path[1].lower()), None)

    def _variable(self, tree: Tree) -> str:
        side, field = tree["column_names"][0].lower(), self._field(tree)
        assert field is not None
        return self.variables.setdefault((side, field.name), f"{side}{len(self.variables)}")

    def number(self, tree: Tree) -> str:
        if _factors(tree) > DEEPEST:
            raise _Unsupported
        if tree["class"] == "COLUMN_REF":
            field = self._field(tree)
            if field is None or not pa.types.is_float64(field.type):
                raise _Unsupported
            return self._variable(tree)
        if tree["class"] == "CONSTANT":
            return repr(constant(tree))
        if tree["class"] == "FUNCTION":
            return self._function(tree["function_name"], [a["expression"] for a in tree["arguments"]])
        raise _Unsupported

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


def _kind(type: pa.DataType) -> str:
    if pa.types.is_signed_integer(type):
        return "whole"
    return "time" if type == TS_TYPE else "other"


def _whole(tree: Tree) -> str:
    """A whole number as it is written; unsupported when it is none, or too large."""
    literal = tree.get("literal") or {}
    text = literal.get("text", "")
    if literal.get("kind") != "INTEGER" or not _WHOLE.fullmatch(text):
        raise _Unsupported
    return str(int(text))


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


_WHOLE = re.compile(r"-?[0-9]{1,18}")
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
