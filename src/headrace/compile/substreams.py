"""The lowering of operators on substreams to ordinary operators over tuples with a column for their substream.

    Apply(input, body)  ->  Apply(body over Split(input))
    Each(input, body)   ->  body over Split(input), with the substream as a further key of every operator in it

Invariant: every tuple has the column `__substream` from the split to the end of the body. It affects results only in
that tuples of different substreams are never combined. Within one substream the column is constant, so
the sequence of its tuples is that of the user's columns, whatever the position of the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace import expressions
from headrace.columnar.types import SUBSTREAM
from headrace.errors import QueryError
from headrace.query import nodes
from headrace.stream import Stream, node_of

Made = dict[int, nodes.Node]  # id of the original node -> its replacement
Rewrite = Callable[[nodes.Node], nodes.Node]


class SubstreamLowering:
    """The splits of one query, numbered in order. A split that is used twice is created once."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, bool], nodes.Split] = {}

    def lowered(self, node: nodes.Node, rewrite: Rewrite) -> nodes.Node:
        """Return the node without a nested body. The operators of its body are rewritten like any other."""
        match node:
            case nodes.Apply():
                split = self._split(node, replicate=False)
                root = _keyed(node.body, split, rewrite)
                leaf = nodes.Substream(root.schema)
                return replace(node, input=root, body=nodes.Body(leaf, leaf), split=split.name)
            case nodes.Each():
                root = _keyed(node.body, self._split(node, replicate=True), rewrite)
                visible = [name for name in root.schema.names if name != SUBSTREAM]
                return node_of(Stream(root).map(*visible, substream=f"CAST({SUBSTREAM} AS BIGINT)"))
        return node

    def _split(self, node: nodes.Splitting, *, replicate: bool) -> nodes.Split:
        key = (id(node.input), id(node.rule), replicate)
        if key not in self._made:
            self._made[key] = nodes.Split(node.input, node.rule, replicate, f"split-{len(self._made) + 1}")
        return self._made[key]


def _keyed(body: nodes.Body, split: nodes.Split, rewrite: Rewrite) -> nodes.Node:
    made: Made = {id(body.leaf): split}
    for node in nodes.walk_nodes(body.root):
        if node is not body.leaf:
            made[id(node)] = rewrite(_with_substream(node, made))
    return made[id(body.root)]


def _with_substream(node: nodes.Node, made: Made) -> nodes.Node:
    """Return the operator with the substream as a further key and with replaced inputs."""
    match node:
        case nodes.Map():
            below = made[id(node.input)]
            return replace(node, input=below, columns=(*node.columns, _substream_of(below.schema)))
        case nodes.Filter() | nodes.Case() | nodes.Sample() | nodes.Unnest() | nodes.TableJoin():
            return replace(node, input=made[id(node.input)])
        case nodes.Union():
            return replace(node, streams=tuple(_ordered(made[id(s)], node.schema) for s in node.streams))
        case nodes.Join():
            left, right = made[id(node.left)], made[id(node.right)]
            return replace(node, left=left, right=right, on=_within_substreams(node.on, left.schema, right.schema))
        case nodes.NWayJoin():
            streams = tuple(made[id(stream)] for stream in node.streams)
            return replace(node, streams=streams, on=_all_in_one_substream(node, streams))
        case nodes.AsOf():
            return replace(node, left=made[id(node.left)], right=made[id(node.right)], by=(*node.by, SUBSTREAM))
        case nodes.Aggregation() | nodes.Top() | nodes.Distinct() | nodes.Limit():
            return replace(node, input=made[id(node.input)], by=(*node.by, SUBSTREAM))
    raise QueryError(
        f"{node.summary!r} cannot run on the substreams of a split; apply it to the stream before the split"
    )


def _substream_of(schema: pa.Schema) -> tuple[str, expressions.Expression]:
    return SUBSTREAM, expressions.parse_scalar(SUBSTREAM, schema, SUBSTREAM)


def _ordered(node: nodes.Node, schema: pa.Schema) -> nodes.Node:
    """Return the node with the user's columns first and the substream last, because united streams must have the same
    schema.
    """
    names = [*schema.names, SUBSTREAM]
    return node if node.schema.names == names else node_of(Stream(node).map(*names))


def _within_substreams(on: expressions.JoinPredicate, left: pa.Schema, right: pa.Schema) -> expressions.JoinPredicate:
    """Restrict a join predicate to tuples of one substream. The line break ends a comment in the user's text."""
    found = expressions.join_predicate(f"l.{SUBSTREAM} = r.{SUBSTREAM} AND ({on.text}\n)", left, right)
    return replace(found, text=on.text)


def _all_in_one_substream(node: nodes.NWayJoin, streams: Sequence[nodes.Node]) -> expressions.NWayPredicate:
    """Restrict the predicate of a join of several streams to tuples of one substream."""
    first, *others = node.on.aliases
    equal = " AND ".join(f"{first}.{SUBSTREAM} = {alias}.{SUBSTREAM}" for alias in others)
    text = f"{equal} AND ({node.on.text}\n)"
    found = expressions.nway_predicate(text, node.aliases, [stream.schema for stream in streams])
    return replace(found, text=node.on.text)
