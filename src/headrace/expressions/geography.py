"""The SQL function `haversine_km(lat1, lon1, lat2, lon2)`: the distance of two points on the Earth, a sphere here.

A call is replaced by plain SQL when an expression is checked, so the reference, DuckDB and compiled loops evaluate the
same text. Latitudes and longitudes are in degrees.

    haversine_km = 2 R asin(sqrt(a)),    a = sin((lat2 - lat1) / 2)^2 + |cos(lat1) cos(lat2)| sin((lon2 - lon1) / 2)^2

Invariant: for latitudes from -90 to 90, a distance of at most d means that the latitudes differ by at most d / R, and
that the straight line between the points is at most 2 sin(d / 2R) long on a sphere of radius 1. Both follow within
rounding if longitudes are not huge; `headrace.kernels.joins.band` widens both by more than that.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from headrace.errors import ExpressionError
from headrace.expressions.syntax_tree import Tree, parse, to_sql

NAME = "haversine_km"
RADIUS_KM = 6371.0088
ARGUMENTS = ("lat1", "lon1", "lat2", "lon2")
_SQL = (
    "12742.0176 * asin(sqrt(least(1.0, pow(sin((radians(lat2) - radians(lat1)) / 2), 2)"
    " + abs(cos(radians(lat1)) * cos(radians(lat2))) * pow(sin((radians(lon2) - radians(lon1)) / 2), 2))))"
)


def expand_distances(tree: Any, text: str, what: str) -> Any:
    """Return the tree with the SQL of every call of `haversine_km` in its place."""
    if isinstance(tree, list):
        return [expand_distances(value, text, what) for value in tree]
    if not isinstance(tree, dict):
        return tree
    found = {name: expand_distances(value, text, what) for name, value in tree.items()}
    if found.get("class") != "FUNCTION" or found["function_name"].lower() != NAME:
        return found
    given = [argument["expression"] for argument in found["arguments"]]
    expected = f"{what} = {text!r}: {NAME} takes {', '.join(ARGUMENTS)}, in degrees"
    if len(given) != len(ARGUMENTS):
        raise ExpressionError(f"{expected}; found {len(given)} arguments")
    if not _is_plain(found):
        raise ExpressionError(f"{expected}; found a call with a schema, argument names, DISTINCT, FILTER or ORDER BY")
    return _substitute(_template(), dict(zip(ARGUMENTS, given, strict=True)))


def _is_plain(call: Tree) -> bool:
    """Return whether a call has nothing but its arguments, in order."""
    named = any(argument["name"] for argument in call["arguments"])
    changed = any(call[name] for name in ("schema", "catalog", "filter", "distinct", "export_state"))
    return not (named or changed or call["order_bys"]["orders"])


def distance_arguments(tree: Tree) -> dict[str, Tree] | None:
    """Return the four arguments if the tree is an expanded call of `haversine_km`, else None."""
    found: dict[str, Tree] = {}
    _bind(_template(), tree, found)
    is_call = found.keys() == set(ARGUMENTS) and to_sql(_substitute(_template(), found)) == to_sql(tree)
    return found if is_call else None


@functools.cache
def _template() -> Tree:
    return parse(to_sql(parse(_SQL, NAME)), NAME)  # printed once, as every checked expression is


def _parameter(tree: Any) -> str | None:
    """Return the name of the argument that a node of the template stands for."""
    is_column = isinstance(tree, dict) and tree.get("class") == "COLUMN_REF"
    return tree["column_names"][0] if is_column else None


def _substitute(tree: Any, given: Mapping[str, Tree]) -> Any:
    if (name := _parameter(tree)) is not None:
        return given[name]
    if isinstance(tree, list):
        return [_substitute(value, given) for value in tree]
    if isinstance(tree, dict):
        return {name: _substitute(value, given) for name, value in tree.items()}
    return tree


def _bind(template: Any, tree: Any, found: dict[str, Tree]) -> None:
    """Add the parts of a tree that are in the places of the template's parameters."""
    if (name := _parameter(template)) is not None:
        found[name] = tree
    elif isinstance(template, dict) and isinstance(tree, dict):
        for key in template.keys() & tree.keys():
            _bind(template[key], tree[key], found)
    elif isinstance(template, list) and isinstance(tree, list):
        for one, other in zip(template, tree, strict=False):
            _bind(one, other, found)
