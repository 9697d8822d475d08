"""The sources of a query with the columns that they had when a state began: those that came later are ignored.

A source learns its columns from what is there when the query is built, which after a restart may have more of them, fewer,
or in another order. An operator that needs sequence reads every column of its input, in order, so its state goes on only
with those that it began with. Of later columns the ones stay that the query names; columns that are gone stay gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from headrace.query import nodes
from headrace.query.naming import named_in
from headrace.types import TS


def as_begun(roots: Sequence[nodes.Node], graph: Sequence[Mapping[str, Any]]) -> tuple[list[nodes.Node], list[str]]:
    """The query over those columns, and what is to be said of it; graph: the query that the state was made by."""
    known = {node["name"]: [name for name, _ in node["schema"]] for node in graph if node["operator"] == "source"}
    named = named_in(roots)
    made: dict[int, nodes.Node] = {}
    said: list[str] = []
    for name, source in nodes.named_sources(*roots).items():
        kept = _kept(source, known.get(name, source.schema.names), named)
        if ignored := [each for each in source.schema.names if each not in kept]:
            said.append(f"source {name}: columns that came since the state began are ignored: {', '.join(ignored)}")
        if gone := [each for each in known.get(name, ()) if each not in source.schema.names]:
            said.append(f"source {name}: columns that it had when the state began are gone: {', '.join(gone)}")
        made[id(source)] = source if kept == source.schema.names else _narrowed(source, kept)
    return _over(roots, made), said


def _kept(source: nodes.Source, known: Sequence[str], named: frozenset[str]) -> list[str]:
    there = source.schema.names
    return [name for name in known if name in there] + [
        name for name in there if name not in known and name.lower() in named
    ]


def _narrowed(source: nodes.Source, names: Sequence[str]) -> nodes.Source:
    schema = pa.schema([source.schema.field(name) for name in names])
    raw = pa.schema([source.raw_schema.field(source.time if name == TS else name) for name in names])
    return replace(source, schema_=schema, raw_schema=raw)


def _over(roots: Sequence[nodes.Node], made: dict[int, nodes.Node]) -> list[nodes.Node]:
    """The same query over other sources; a node that was shared stays shared."""
    for node in nodes.walk(*roots):
        if id(node) not in made:
            changed = {
                field.name: found
                for field in fields(node)
                if (found := _made(getattr(node, field.name), made)) is not getattr(node, field.name)
            }
            made[id(node)] = replace(node, **changed) if changed else node
    return [made[id(root)] for root in roots]


def _made(value: Any, made: Mapping[int, nodes.Node]) -> Any:
    if isinstance(value, nodes.Node):
        return made[id(value)]
    if isinstance(value, tuple) and any(isinstance(each, nodes.Node) for each in value):
        found = tuple(made[id(each)] for each in value)
        return value if all(one is two for one, two in zip(found, value, strict=True)) else found
    return value
