"""The query as it is better run, with the same meaning: conditions on one side of a time-window join go below it, and
what runs on substreams becomes ordinary operators (`headrace.compile.substreams`).

Never below a count-window join, whose windows count all tuples; never on a side whose tuples come without a partner, too;
and only conditions that cannot fail, since a tuple that meets nobody must not end a run. The join keeps its whole predicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from headrace.compile.substreams import SubstreamLowering
from headrace.query import nodes


def normalise(roots: Sequence[nodes.Node]) -> list[nodes.Node]:
    """The roots of the rewritten query; a node that was shared stays shared, one that did not change is the same."""
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
    if not isinstance(node, nodes.TimeJoin) or not node.on.one_sided:
        return node
    sides = {"l": node.left, "r": node.right}
    for side, condition in node.on.one_sided:
        if side not in node.kept:
            sides[side] = nodes.Filter(sides[side], condition, pushed=True)
    changed = sides["l"] is not node.left or sides["r"] is not node.right
    return replace(node, left=sides["l"], right=sides["r"]) if changed else node
