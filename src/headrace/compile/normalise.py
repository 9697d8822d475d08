"""The pass that rewrites a query without changing its meaning: it moves conditions on one side of a time-window join, or
on one alias of a join of several streams, before the join, and lowers operators on substreams to ordinary operators (`headrace.compile.substreams`).

Conditions are not moved before a count-window join, whose windows count all tuples, nor to a side of an outer join
whose unmatched tuples are emitted. Only conditions that cannot fail are moved, because a tuple without a match must not
end a run. The join keeps its whole predicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from headrace.compile.substreams import SubstreamLowering
from headrace.query import nodes


def normalise(roots: Sequence[nodes.Node]) -> list[nodes.Node]:
    """Return the roots of the rewritten query. Shared nodes remain shared, and unchanged nodes are the same objects."""
    made: dict[int, nodes.Node] = {}
    splits = SubstreamLowering()
    for node in nodes.walk_nodes(*roots):
        made[id(node)] = _pushed(splits.lowered(_with_inputs(node, made), _pushed))
    return [made[id(root)] for root in roots]


def _with_inputs(node: nodes.Node, made: dict[int, nodes.Node]) -> nodes.Node:
    changed: dict[str, Any] = {}
    for name in (field.name for field in fields(node)):
        value = getattr(node, name)
        if isinstance(value, nodes.Node) and made[id(value)] is not value:
            changed[name] = made[id(value)]
        elif name == "streams" and any(made[id(stream)] is not stream for stream in value):
            changed[name] = tuple(made[id(stream)] for stream in value)
    return replace(node, **changed) if changed else node


def _pushed(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.NWayJoin) and node.on.one_sided:
        streams = list(node.streams)
        for place, condition in node.on.one_sided:
            streams[place] = nodes.Filter(streams[place], condition, pushed=True)
        return replace(node, streams=tuple(streams))
    if not isinstance(node, nodes.TimeJoin) or not node.on.one_sided:
        return node
    sides = {"l": node.left, "r": node.right}
    for side, condition in node.on.one_sided:
        if side not in node.kept:
            sides[side] = nodes.Filter(sides[side], condition, pushed=True)
    changed = sides["l"] is not node.left or sides["r"] is not node.right
    return replace(node, left=sides["l"], right=sides["r"]) if changed else node
