"""Names of tables that the user did not name: two queries may have two names for one table.

    query["places"][name]  =  the place that an unnamed table reads; its name, `table-1`, only reflects its position in the query

Invariant: state and versions belong to a table by its place. If a query has another name for the table at a place, the
manifest is read as if it had that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.driver.fingerprint import OF_TABLE, Json
from headrace.query import nodes
from headrace.state.manifest import Manifest

FORMER_TABLE = " of the former query"  # suffix of a table that the query does not have


def unnamed_table_places(roots: Sequence[nodes.Node]) -> dict[str, str]:
    """Return, by unnamed table, the place that it reads."""
    return {name: table.origin.place for name, table in nodes.named_tables(*roots).items() if table.name is None}


def joined_tables(section: Mapping[str, Any]) -> list[str]:
    """Return the tables along the edges of operators and results."""
    sides = [side for each in section["means"].values() for side in each["inputs"]]
    sides += [each["inputs"] for each in section["results"].values()]
    return [step["table"] for side in sides for edge in side for step in edge["steps"] if "table" in step]


def rename_tables(last: Manifest, roots: Sequence[nodes.Node]) -> Manifest:
    """Return the manifest with the names that the query gives to the tables at its places."""
    names = dict(_renamed(last.query.get("places", {}), unnamed_table_places(roots)))
    if all(old == new for old, new in names.items()):
        return last
    tables = {names.get(name, name): version for name, version in last.tables.items()}
    return replace(last, tables=tables, query=_renamed_query(last.query, names))


def _renamed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (old name, new name): by place, in order for several tables at one place, and the others by name."""
    free = dict(after)
    left = []
    for old, place in before.items():
        new = next((name for name, there in free.items() if there == place), None)
        if new is None:
            left.append(old)
        else:
            del free[new]
            yield old, new
    for old in left:
        yield old, old if old in free else f"{old}{FORMER_TABLE}"


def _renamed_query(query: Mapping[str, Any], names: Mapping[str, str]) -> Json:
    means = {
        name: {**each, "inputs": [_edges(side, names) for side in each["inputs"]]}
        for name, each in query["means"].items()
    }
    results = {name: {**each, "inputs": _edges(each["inputs"], names)} for name, each in query["results"].items()}
    places = {names[name]: place for name, place in query["places"].items()}
    return {**query, "means": means, "results": results, "places": places}


def _edges(edges: Sequence[Json], names: Mapping[str, str]) -> list[Json]:
    return [_edge(edge, names) for edge in edges]


def _edge(edge: Json, names: Mapping[str, str]) -> Json:
    steps = [{**s, "table": names.get(s["table"], s["table"])} if "table" in s else s for s in edge["steps"]]
    if "passes" not in edge:
        return {**edge, "steps": steps}
    return {**edge, "steps": steps, "passes": [[column, _origin(of, names)] for column, of in edge["passes"]]}


def _origin(of: str, names: Mapping[str, str]) -> str:
    """Return the origin of a column with the new name of its table, if the column belongs to one."""
    column, is_of, table = of.rpartition(OF_TABLE)
    return f"{column}{is_of}{names[table]}" if is_of and table in names else of
