"""A join predicate as DuckDB binds it: each value with its type, and each implicit cast.

Parts that concern one side only are extracted first. DuckDB computes each of them once per tuple (`SideColumn`), and
the remaining expression concerns pairs.

Invariant: a `BoundNode` represents everything in DuckDB's plan. Syntax, types and attributes that this module does not
list raise `UnknownExpression`, so no part of a plan is ignored.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.columnar import duck
from headrace.expressions.syntax_tree import Tree, columns_of, to_sql, walk_tree

SIDE_COLUMN = "__given"


@dataclass(frozen=True)
class ValueType:
    """A DuckDB type. `width` and `scale` are set for decimals."""

    name: str
    width: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.width},{self.scale})" if self.name == "DECIMAL" else self.name


@dataclass(frozen=True)
class BoundNode:
    """A bound expression. `name` is a function, or one of column, constant, cast, case, and, or, not, in, coalesce, is
    null, is not null.

    value: for a constant, the value in DuckDB's plan; for a column, (side, name). `lenient`: a failing cast gives null.
    """

    name: str
    kind: ValueType
    children: tuple[BoundNode, ...] = ()
    value: Any = None
    lenient: bool = False

    def walk(self) -> Iterator[BoundNode]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class SideColumn:
    """An expression over one side's tuples that DuckDB computes as an additional column."""

    side: str
    name: str
    sql: str


class UnknownExpression(Exception):
    """A part of an expression that this module does not support. The text names the part."""


def bind_expression(
    tree: Tree, schemas: Mapping[str, pa.Schema], kinds: frozenset[str], functions: frozenset[str]
) -> tuple[BoundNode, tuple[SideColumn, ...]]:
    """Bind an expression over columns and side columns of these types. Parts about both sides may use only these
    functions.

    DuckDB evaluates constants while it makes a plan, and other functions could exceed the memory there.
    """
    taking = _SideExtractor(schemas, kinds)
    left = taking.out_of(tree)
    for node in walk_tree(left):
        if node["class"] not in _SYNTAX:
            raise UnknownExpression(_words(node["class"]))
        if node["class"] == "FUNCTION" and node["function_name"].lower() not in functions:
            raise UnknownExpression(node["function_name"])
    columns = [(side, name, kind) for side in "lr" for name, kind in taking.columns[side].items()]
    blank = {side: ", ".join(f"NULL::{k} AS {duck.quote(n)}" for s, n, k in columns if s == side) for side in "lr"}
    rows = ", ".join(f"(SELECT {blank[side] or '1'}) {side}" for side in "lr")
    ones = 0 if blank["l"] else 1  # a side without columns gets a dummy column
    refs = [("", "")] * ones + [(side, name) for side, name, _ in columns]
    return _node(_planned(f"SELECT {to_sql(left)} AS c FROM {rows}"), refs), tuple(taking.given)


def _planned(sql: str) -> Mapping[str, Any]:
    """Return the only expression of a SELECT from DuckDB's plan."""
    shown = "SELECT json_serialize_plan(?, skip_null := true, skip_empty := true, optimize := false)"
    try:
        plan = json.loads(duck.fetch_rows(shown, [sql])[0][0])
    except json.JSONDecodeError:  # DuckDB prints some constants, such as -NaN and bits, as invalid JSON
        raise UnknownExpression("a constant that DuckDB does not show") from None
    if plan.get("error"):
        raise UnknownExpression(
            str(plan.get("error_message", "an expression that DuckDB does not show")).split("\n")[0]
        )
    expression: Mapping[str, Any] = plan["plans"][0]["expressions"][0]
    return expression


class _SideExtractor:
    """Extracts the parts of a tree that concern one side only, and records the remaining columns."""

    def __init__(self, schemas: Mapping[str, pa.Schema], kinds: frozenset[str]) -> None:
        self.schemas, self.kinds = schemas, kinds
        self.columns: dict[str, dict[str, str]] = {"l": {}, "r": {}}
        self.given: list[SideColumn] = []

    def out_of(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.out_of(value) for value in tree]
        if not isinstance(tree, dict):
            return tree
        if "class" in tree:
            side = _side(tree)
            if side and (taken := self._taken(tree, side)):
                return taken
        return {name: self.out_of(value) for name, value in tree.items()}

    def _taken(self, tree: Tree, side: str) -> Tree | None:
        schema = self.schemas[side]
        if tree["class"] == "COLUMN_REF" and len(tree["column_names"]) == 2:
            wanted = tree["column_names"][1].lower()
            name, kind = next((name, kind) for name, kind in _kinds(schema).items() if name.lower() == wanted)
        else:
            sql = to_sql(tree)
            kind = str(duck.type_of(f"SELECT {sql} AS c FROM {side}", {side: schema.empty_table()}))
            if kind.partition("(")[0] not in self.kinds or (kind == "VARCHAR" and _is_collated(tree)):
                return None
            name = self._as_given(sql, side)
        self.columns[side][name] = kind
        return {**_blank_column(tree), "column_names": [side, name]}

    def _as_given(self, sql: str, side: str) -> str:
        found = next((each for each in self.given if (each.side, each.sql) == (side, sql)), None)
        if found is None:
            found = SideColumn(side, f"{SIDE_COLUMN}{len(self.given)}", sql)
            self.given.append(found)
        return found.name


@functools.lru_cache(maxsize=256)
def _kinds(schema: pa.Schema) -> dict[str, str]:
    """Return the columns with DuckDB's names of their types."""
    texts = (f"typeof({duck.quote(name)})" for name in schema.names)
    table = pa.table([pa.nulls(1, field.type) for field in schema], schema.names)
    found = duck.run_select(f"SELECT [{', '.join(texts)}] AS kinds FROM {duck.TUPLES}", {duck.TUPLES: table})
    return dict(zip(schema.names, found.column(0)[0].as_py(), strict=True))


def _side(tree: Tree) -> str:
    """Return the only side that a tree refers to. Empty: both sides, none, or unknown names."""
    sides = {path[0].lower() if len(path) > 1 else "" for path in columns_of(tree)}
    return sides.pop() if len(sides) == 1 else ""


def _is_collated(tree: Tree) -> bool:
    """Return whether a text may have a collation. Types do not show it, and functions pass on their arguments'
    collation.
    """
    return any(node["class"] == "COLLATE" for node in walk_tree(tree))


def _words(name: str) -> str:
    return name.replace("_", " ").lower()


def _blank_column(tree: Tree) -> Tree:
    location = {name: value for name, value in tree.items() if name.startswith("query_location")}
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", **location}


# --- DuckDB's plan ---------------------------------------------------------------------------------------------------


_SYNTAX = frozenset(
    ["BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR", "TYPE"]
)
_PLACE = frozenset(["alias", "query_location", "query_location_length"])  # attributes without effect on the value
_ATTRIBUTES = _PLACE | frozenset(
    [
        *("expression_class", "type", "return_type", "children", "index", "value", "case_checks", "else_expr"),
        *("qname", "arguments", "function_data", "has_serialize", "is_operator"),
    ]
)
_OF_FUNCTIONS = frozenset(["try_cast", "is_default_cast", "check_overflow", "return_type", "arguments"])
_OPERATORS = {
    "OPERATOR_NOT": "not",
    "OPERATOR_IS_NULL": "is null",
    "OPERATOR_IS_NOT_NULL": "is not null",
    "OPERATOR_COALESCE": "coalesce",
    "COMPARE_IN": "in",
    "COMPARE_NOT_IN": "not in",
    "CONJUNCTION_AND": "and",
    "CONJUNCTION_OR": "or",
}


def _node(json_: Mapping[str, Any], refs: list[tuple[str, str]]) -> BoundNode:
    _refuse_unknown(json_, _ATTRIBUTES)
    _refuse_unknown(json_.get("function_data", {}), _OF_FUNCTIONS)
    kind = _kind(json_.get("return_type", {"id": ""}))  # a plan omits the type of constants and conjunctions
    children = tuple(_node(child, refs) for child in json_.get("children", ()))
    match json_["expression_class"]:
        case "BOUND_CONSTANT":
            value = json_["value"]
            return BoundNode(
                "constant", _kind(value["type"]), value=None if value["is_null"] else _frozen(value["value"])
            )
        case "BOUND_REF":
            return BoundNode("column", kind, value=refs[json_.get("index", 0)])
        case "BOUND_FUNCTION" if json_["type"] == "OPERATOR_CAST" and not json_["function_data"]["is_default_cast"]:
            return BoundNode("cast", kind, children, lenient=json_["function_data"]["try_cast"])
        case "BOUND_FUNCTION":
            return BoundNode(json_["qname"]["path"][-1].lower(), kind, children)
        case "BOUND_CONJUNCTION":
            return BoundNode(_OPERATORS[json_["type"]], ValueType("BOOLEAN"), children)
        case "BOUND_OPERATOR" if json_["type"] in _OPERATORS:
            return BoundNode(_OPERATORS[json_["type"]], kind, children)
        case "BOUND_CASE":
            checks = [_node(check[part], refs) for check in json_["case_checks"] for part in ("when_expr", "then_expr")]
            return BoundNode("case", kind, (*checks, _node(json_["else_expr"], refs)))
    raise UnknownExpression(_words(str(json_.get("type", json_["expression_class"]))))


def _kind(json_: Mapping[str, Any]) -> ValueType:
    _refuse_unknown(json_, frozenset(["id", "type_info"]))
    info = json_.get("type_info", {})
    _refuse_unknown(info, frozenset(["type", "width", "scale"]), f"{json_['id']} with ")  # for example a collation
    return ValueType(json_["id"], info.get("width", 0), info.get("scale", 0))


def _refuse_unknown(json_: Mapping[str, Any], known: frozenset[str], what: str = "") -> None:
    if not known.issuperset(json_):
        raise UnknownExpression(what + ", ".join(map(_words, sorted(json_.keys() - known))))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(each)) for name, each in value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# --- constants -------------------------------------------------------------------------------------------------------


def is_constant_node(node: BoundNode) -> bool:
    return not any(each.name == "column" for each in node.walk())


def constant_sql(node: BoundNode, functions: frozenset[str]) -> str:
    """Return the SQL of a constant. Raise UnknownExpression if it uses other functions than these."""
    if node.name == "constant":
        return "NULL" if node.value is None else f"CAST({_literal(node)} AS {node.kind})"
    parts = [constant_sql(child, functions) for child in node.children]
    if node.name == "cast":
        return f"{'TRY_CAST' if node.lenient else 'CAST'}({parts[0]} AS {node.kind})"
    if node.name not in functions:
        raise UnknownExpression(node.name)
    if node.name.isidentifier():
        return f"{node.name}({', '.join(parts)})"
    return f"({parts[0]} {node.name} {parts[1]})" if len(parts) == 2 else f"({node.name} {parts[0]})"


def _literal(node: BoundNode) -> str:
    value = node.value
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, tuple):
        named = dict(value)
        if node.kind.name == "INTERVAL":
            return f"'{named['months']} months {named['days']} days {named['micros']} microseconds'"
        whole = (named["upper"] << 64) + named["lower"]
        return _scaled(whole, node.kind)
    if node.kind.name == "DECIMAL":
        return _scaled(value, node.kind)
    return f"'{value!r}'" if isinstance(value, float) else str(value)


def _scaled(whole: int, kind: ValueType) -> str:
    """
    >>> _scaled(-5, ValueType("DECIMAL", 4, 2)), _scaled(1234, ValueType("DECIMAL", 4, 0))
    ('-0.05', '1234')
    """
    if not kind.scale:
        return str(whole)
    digits = str(abs(whole)).rjust(kind.scale + 1, "0")
    return f"{'-' if whole < 0 else ''}{digits[: -kind.scale]}.{digits[-kind.scale :]}"
