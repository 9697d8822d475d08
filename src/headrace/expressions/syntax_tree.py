"""DuckDB's syntax tree of an expression: parsed from SQL, traversed, and printed as SQL."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from headrace.columnar import duck
from headrace.errors import ExpressionError

Tree = dict[str, Any]
P = ParamSpec("P")
R = TypeVar("R")

CACHED_ANSWERS = 1_024  # cached results per text, because a query parses the same texts repeatedly
DEEPEST_TREE = 20_000  # nested calls; a sum of a thousand terms is a tree of a thousand levels
_recursing = threading.RLock()  # protects the interpreter's global recursion limit


def with_deep_recursion(check: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that recurses over an expression's tree: raise the recursion limit, and turn RecursionError
    into ExpressionError.
    """

    @functools.wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _recursing:
            usual = sys.getrecursionlimit()
            sys.setrecursionlimit(max(usual, DEEPEST_TREE))
            try:
                return check(*args, **kwargs)
            except RecursionError:
                msg = f"an expression is nested too deeply: {str(args[0])[:60]!r}...; compute parts of it as columns with with_columns"
                raise ExpressionError(msg) from None
            finally:
                sys.setrecursionlimit(usual)

    return checked


def parse(text: str, what: str) -> Tree:
    statement = json.loads(_serialised(text))
    if statement.get("error"):
        raise ExpressionError(f"{what} = {text!r} is not an expression: {statement.get('error_message')}")
    node = statement["statements"][0]["node"]
    if len(statement["statements"]) != 1 or len(node.get("select_list", ())) != 1 or _has_clauses(node):
        raise ExpressionError(f"{what} = {text!r} must be exactly one expression")
    tree: Tree = node["select_list"][0]
    return tree


@functools.lru_cache(maxsize=CACHED_ANSWERS)
def _serialised(text: str) -> str:
    found: str = duck.fetch_rows("SELECT json_serialize_sql(?)", [f"SELECT {text}\n"])[0][0]
    return found


def _has_clauses(node: Tree) -> bool:
    plain_from = node["from_table"].get("type") == "EMPTY"
    clauses = ("where_clause", "having", "qualify", "sample")
    return not plain_from or any(node.get(c) for c in clauses) or bool(node["group_expressions"] or node["modifiers"])


def walk_tree(tree: Any) -> Iterator[Tree]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from walk_tree(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from walk_tree(value)


def columns_of(tree: Any, bound: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the columns used. Parameters of lambdas are not columns."""
    if isinstance(tree, list):
        for value in tree:
            yield from columns_of(value, bound)
        return
    if not isinstance(tree, dict):
        return
    if tree.get("class") == "COLUMN_REF":
        if tree["column_names"][0].lower() not in bound:
            yield tuple(tree["column_names"])
        return
    if tree.get("class") == "LAMBDA":
        bound = bound | _lambda_parameters(tree)
    for value in tree.values():
        yield from columns_of(value, bound)


def _lambda_parameters(tree: Tree) -> frozenset[str]:
    names = {node["column_names"][0] for node in walk_tree(tree.get("lhs")) if node["class"] == "COLUMN_REF"}
    return frozenset(name.lower() for name in names | set(tree.get("named_parameters") or ()))


def to_sql(tree: Tree) -> str:
    return _printed(json.dumps({"error": False, "statements": [{"node": _select(tree), "named_param_map": []}]}))


@functools.lru_cache(maxsize=CACHED_ANSWERS)
def _printed(text: str) -> str:
    sql: str = duck.fetch_rows("SELECT json_deserialize_sql(?::JSON)", [text])[0][0]
    return f"({sql.removeprefix('SELECT ')})"


@functools.cache
def _blank_select() -> str:
    text = duck.fetch_rows("SELECT json_serialize_sql('SELECT 1')")[0][0]
    return json.dumps(json.loads(text)["statements"][0]["node"])


def _select(tree: Tree) -> Tree:
    node: Tree = json.loads(_blank_select())
    node["select_list"] = [tree]
    return node


def conjuncts(tree: Tree) -> Iterator[Tree]:
    if tree.get("type") == "CONJUNCTION_AND":
        for child in tree["children"]:
            yield from conjuncts(child)
    else:
        yield tree


def column_node(name: str) -> Tree:
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}
