"""Chains of joins of two streams that look like a join of several streams, for a hint in `explain`."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.query import nodes
from headrace.support.durations import format_duration

FEWEST_STREAMS = 3
_NAMES = "abcdefgh"


def chain_hints(*roots: nodes.Node) -> list[str]:
    """Return a hint for each longest chain of inner joins over time windows, on substreams too."""
    found = []
    for root in roots:
        chained = {id(below) for node in nodes.walk_nodes(root) for below in _joined_by(node)}
        for node in nodes.walk_nodes(root):
            if isinstance(node, nodes.Splitting):
                found += chain_hints(node.body.root)
            streams = _streams(node)
            if id(node) not in chained and FEWEST_STREAMS <= streams <= len(_NAMES):
                found.append(_hint(streams, sorted({w for join in _chain(node) for w in (join.w1, join.w2)})))
    return list(dict.fromkeys(found))


def _hint(streams: int, windows: list[int]) -> str:
    named = ", ".join(f"{name!r}: {name}" for name in _NAMES[:streams])
    return (
        f"hint: this is a chain of {streams - 1} joins of two streams, which stores the pairs of each join as state; if all"
        f" tuples of a result should lie within one window, write hr.join({{{named}}}, on=...,"
        f" within={format_duration(windows[-1])!r}), which stores no pairs"
    )


def _joined_by(node: nodes.Node) -> Iterator[nodes.TimeJoin]:
    """Yield the inner joins whose pairs a join takes, unchanged but for stateless steps."""
    if _is_inner(node):
        for side in node.inputs:
            while isinstance(side, nodes.Map | nodes.Filter):
                side = side.input
            if _is_inner(side) and isinstance(side, nodes.TimeJoin):
                yield side


def _is_inner(node: nodes.Node) -> bool:
    return isinstance(node, nodes.TimeJoin) and not node.kept


def _chain(node: nodes.Node) -> Iterator[nodes.TimeJoin]:
    """Yield a join and those of its chain."""
    if isinstance(node, nodes.TimeJoin) and not node.kept:
        yield node
        for below in _joined_by(node):
            yield from _chain(below)


def _streams(node: nodes.Node) -> int:
    """Return the number of streams that a chain joins; 0 for a node that is no join."""
    joins = sum(1 for _ in _chain(node))
    return joins + 1 if joins else 0
