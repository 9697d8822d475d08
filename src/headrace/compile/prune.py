"""Columns that nobody reads are dropped before the exchange, and so from state.

Invariant: what a query computes does not change, nor which of its expressions are evaluated on which tuples: only the
end of an edge is narrowed, and what a join puts out. Per input of an operator,

    held  =  what the operator reads of its tuples  +  what is read of the results that come from them
             +  what the inputs hold that share its blocks (a self-join is written once)

as the least sets for which this is true. Held whole is what depends on the whole content: the sequence of tuples (count
windows, `list`, `first`, results in order) and results themselves. The group of a tuple in a join without an equality is
the hash of its whole content: its producer puts out all columns, the hash goes along, and then columns are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.compile import plan as p
from headrace.expressions.tree import parse, walk
from headrace.query.types import TS

Names = frozenset[str]  # of columns, in lower case: SQL names them in any
Held = dict[tuple[str, int], Names]  # by operator and input


def prune(plan: p.Plan, like: p.Plan | None = None) -> p.Plan:
    """The narrowed plan; its stateful operators hold what they hold in the plan `like`, if that is given."""
    held = _held(plan, _held_in(like) if like else {})
    edges = tuple(
        replace(e, schema=_narrow(e.schema, held[e.target, e.input])) if e.target in plan.by_name else e
        for e in plan.edges
    )
    return replace(plan, operators=tuple(_narrowed(plan, o, held) for o in plan.operators), edges=edges)


def _held_in(plan: p.Plan) -> Held:
    return {(o.name, side): _names(schema.names) for o in plan.operators for side, schema in enumerate(o.schemas)}


def _held(plan: p.Plan, given: Held) -> Held:
    """From nothing upwards until nothing is missing any more; `given` is not touched."""
    inputs = [(operator, side) for operator in plan.operators for side in range(len(operator.schemas))]
    found: Held = {(o.name, side): given.get((o.name, side), frozenset()) for o, side in inputs}
    while True:
        needed = {(o.name, side): found[o.name, side] | _needed(plan, o, side, found) for o, side in inputs}
        more = {place: given.get(place, names) for place, names in _shared(plan, needed).items()}
        if more == found:
            return found
        found = more


def _needed(plan: p.Plan, operator: p.Operator, side: int, held: Held) -> Names:
    """What an operator needs of the tuples of one input."""
    match operator:
        case p.JoinOperator():
            live, me = _live(plan, operator.name, held), "lr"[side]
            passed = _names(column for out, of, column in operator.columns if of == me and out.lower() in live)
            ranks = _names(name for name in operator.schemas[side].names if name.startswith("__"))
            return passed | ranks | frozenset(path[1] for path in _paths(operator.sql) if path[0] == me and path[1:])
        case p.StatelessOperator():
            return _before(operator.steps, _live(plan, operator.name, held))
        case p.PaneAggregateOperator():
            return _names(operator.by) | _read(sql for part in operator.partials for _, sql, _ in part.columns)
        case p.TupleAggregateOperator(ordered=False):
            return _names(operator.by) | _read(sql for _, sql in operator.functions)
        case _:
            return _names(operator.schemas[side].names)


def _shared(plan: p.Plan, held: Held) -> Held:
    """Inputs whose tuples are written as one block hold all that any of them needs."""
    blocks: dict[Any, list[tuple[str, int]]] = {}
    for edge in plan.edges:
        operator = plan.by_name.get(edge.target)
        if isinstance(operator, p.JoinOperator | p.TupleAggregateOperator):
            key = (edge.producer, edge.output, edge.steps, operator.groupings[edge.input])
            blocks.setdefault(key, []).append((operator.name, edge.input))
    found = dict(held)
    for places in blocks.values():
        union = frozenset().union(*(found[place] for place in places))
        found.update(dict.fromkeys(places, union))
    return found


def _live(plan: p.Plan, producer: str, held: Held) -> Names:
    """What is read of a producer's results, wherever they go."""
    found: Names = frozenset()
    for edge in (edge for edge in plan.edges if edge.producer == producer):
        target = plan.by_name.get(edge.target)
        whole = target is None or (isinstance(target, p.JoinOperator) and not target.keys)  # a result, or hashed whole
        found |= _before(edge.steps, _names(edge.schema.names) if whole else held[edge.target, edge.input])
    return found


def _before(steps: Sequence[p.Step], names: Names) -> Names:
    """What must go into steps for these columns to come out. Every expression of a map is computed: it may fail."""
    for step in reversed(steps):
        names = _read(sql for _, sql in step.columns) if isinstance(step, p.MapStep) else names | _read([step.sql])
    return names


def _narrowed(plan: p.Plan, operator: p.Operator, held: Held) -> p.Operator:
    schemas = tuple(_narrow(schema, held[operator.name, side]) for side, schema in enumerate(operator.schemas))
    if isinstance(operator, p.JoinOperator):
        live = _live(plan, operator.name, held)
        columns = tuple(column for column in operator.columns if column[0].lower() in live)
        schema = _narrow(operator.schema, _names(out for out, _, _ in columns))
        return replace(operator, schemas=schemas, schema=schema, columns=columns)
    if isinstance(operator, p.StatelessOperator):  # has no state: its tuples lie by whatever they still have
        made = [step.schema for step in operator.steps if isinstance(step, p.MapStep)]
        groupings = (p.Grouping(tuple(schemas[0].names), None),)
        return replace(operator, schemas=schemas, schema=[*schemas, *made][-1], groupings=groupings)
    return replace(operator, schemas=schemas)


def _narrow(schema: pa.Schema, names: Names) -> pa.Schema:
    return pa.schema([field for field in schema if field.name == TS or field.name.lower() in names])


def _names(names: Iterable[str]) -> Names:
    return frozenset(name.lower() for name in names)


def _read(texts: Iterable[str]) -> Names:
    return frozenset(path[0] for sql in texts for path in _paths(sql))


@functools.lru_cache(maxsize=1024)
def _paths(sql: str) -> frozenset[tuple[str, ...]]:
    """Whatever looks like a column, the parameters of lambdas too: one too many does no harm, one too few does."""
    found = (node["column_names"] for node in walk(parse(sql, "sql")) if node["class"] == "COLUMN_REF")
    return frozenset(tuple(part.lower() for part in path) for path in found)
