"""Random queries in which tables, `asof`, outer joins and sessions stand among all other operators; and what is in a query."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator

from headrace.query import nodes
from headrace.stream import Stream, node_of

from .strategies import SECOND, SPLITS, STATELESS, Case, make_case

NEW = {  # what makes an operator, and what `operators_of` calls it
    "table_join": ("table inner", "table left"),
    "asof": ("asof inner", "asof left"),
    "outer_join": ("join left", "join right", "join full"),
    "session_aggregate": ("sessions of rows", "sessions of tuples"),
}
OTHERS = {
    **{name: (name,) for name in (*STATELESS, "distinct", "limit", "top", *SPLITS)},
    "columns": ("map",),
    "time_join": ("join inner",),
    "using_join": ("join inner", "join left", "join right", "join full", "count join"),
    "count_join": ("count join",),
    "nway_join": ("join of several",),
    "time_aggregate": ("windows",),
    "count_aggregate": ("count windows",),
}
ALL = {**NEW, **OTHERS}


@functools.cache
def mixed(seed: int, late: bool = True) -> Case:
    """One of the new operators and a partner, each pair in its turn, perhaps with a third; late: one in four has tuples that
    come too late."""
    new = list(NEW)[seed % len(NEW)]
    partners = [name for name in ALL if name != new]
    partner = partners[(seed // len(NEW) + 3 * (seed % len(NEW))) % len(partners)]
    third = random.Random(seed).choice(partners)
    return make_case(
        f"mixed-{seed}",
        (new, partner, new, partner, third),
        most=60,
        depth=(2, 3, 3, 4),
        disorder=9 * SECOND if late and seed % 4 == seed // 4 % 4 else None,
        suitable=lambda case: {new, partner} <= present(case.query),
    )


def present(query: Stream) -> set[str]:
    there = operators_of(query)
    return {name for name, kinds in ALL.items() if there & set(kinds)}


def operators_of(query: Stream) -> set[str]:
    """What is in it, on substreams too."""
    return {_kind(node) for node in _all(node_of(query))} - {""}


def _all(root: nodes.Node) -> Iterator[nodes.Node]:
    for node in nodes.walk_nodes(root):
        yield node
        if isinstance(node, nodes.Splitting):
            yield from _all(node.body.root)


def _kind(node: nodes.Node) -> str:
    match node:
        case nodes.TableJoin():
            return f"table {'left' if node.keep else 'inner'}"
        case nodes.AsOf():
            return f"asof {'left' if node.keep else 'inner'}"
        case nodes.TimeJoin():
            return f"join {node.how}"
        case nodes.SessionAggregate():
            rows = all(function.partials is not None for _, function in node.functions)
            return f"sessions of {'rows' if rows else 'tuples'}"
        case nodes.CountJoin():
            return "count join"
        case nodes.NWayJoin():
            return "join of several"
        case nodes.TimeAggregate():
            return "windows"
        case nodes.Top():
            return "top"
        case nodes.CountAggregate():
            return "count windows"
        case (
            nodes.Map()
            | nodes.Filter()
            | nodes.Case()
            | nodes.Sample()
            | nodes.Unnest()
            | nodes.Union()
            | nodes.Distinct()
            | nodes.Limit()
            | nodes.Each()
            | nodes.Apply()
        ):
            return type(node).__name__.lower()
    return ""


def occurrences(queries: list[Stream]) -> Counter[str]:
    """In how many queries each operator stands, 0 where it is in none."""
    found = Counter({kind: 0 for kinds in ALL.values() for kind in kinds})
    for query in queries:
        found.update(operators_of(query))
    return found


def meetings(queries: list[Stream]) -> Counter[tuple[str, str]]:
    """In how many queries each of the new operators meets each other one."""
    found = Counter({(new, other): 0 for new in NEW for other in ALL if new != other})
    for query in queries:
        there = present(query)
        found.update((new, other) for new in NEW for other in there if new in there and new != other)
    return found
