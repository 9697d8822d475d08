"""Columns that nobody reads are dropped before the exchange, and so from state; those of a source are not even read.

Invariant: what a query computes does not change, nor which of its expressions are evaluated on which tuples: only the
end of an edge is narrowed, what a join puts out (one with a table, too), and what is read of a source. Per input of an operator,

    held  =  what the operator reads of its tuples  +  what is read of the results that come from them
             +  what the inputs hold that share its blocks (a self-join is written once)

as the least sets for which this is true. Held whole is what depends on the whole content: the sequence of tuples (count
windows, `list`, `first`, results in order) and results themselves. The group of a tuple in a join without an equality is
the hash of its whole content: its producer puts out all columns, the hash goes along, and then columns are dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace import plan as p
from headrace.operators.base import Operator, StateKind
from headrace.plan.columns_read import (
    Names,
    columns_before,
    names_of,
    narrow_step,
    narrow_table_steps,
    table_columns_needed,
)

Held = dict[tuple[str, int], Names]  # by operator and input


def prune(plan: p.PhysicalPlan, given: Held | None = None) -> p.PhysicalPlan:
    """The narrowed plan; inputs of operators hold what is given for them, which must be enough."""
    held = _held(plan, given or {})
    edges = tuple(
        replace(e, schema=narrow_step(e.schema, held[e.target, e.input])) if e.target in plan.by_name else e
        for e in _with_tables_narrowed(plan, held)
    )
    sources = tuple(
        replace(
            s, read=narrow_step(s.schema, _live(plan, s.name, held)), needed=_live(plan, s.name, held, hashed=False)
        )
        for s in plan.sources
    )
    operators = tuple(_narrowed(plan, o, held) for o in plan.operators)
    return replace(plan, sources=sources, operators=operators, edges=edges)


def _with_tables_narrowed(plan: p.PhysicalPlan, held: Held) -> list[p.Edge]:
    """The edges, with joins of tables that put out what is read behind them. Edges that begin alike run these steps once, so
    there they put out what any of them reads; of another producer nobody has asked for it."""
    places = [list(table_columns_needed(edge.steps, _read_at_end(plan, edge, held))) for edge in plan.edges]
    live: dict[Any, Names] = {}
    for edge, found in zip(plan.edges, places, strict=True):
        for place, names in found:
            live[_begins(edge, place)] = live.get(_begins(edge, place), frozenset()) | names
    return [
        replace(edge, steps=narrow_table_steps(edge.steps, {place: live[_begins(edge, place)] for place, _ in found}))
        for edge, found in zip(plan.edges, places, strict=True)
    ]


def _begins(edge: p.Edge, place: int) -> Any:
    """An edge up to one of its steps."""
    return edge.producer, edge.output, edge.steps[: place + 1]


def columns_held_in(plan: p.PhysicalPlan) -> Held:
    return {(o.name, side): names_of(schema.names) for o in plan.operators for side, schema in enumerate(o.schemas)}


def columns_missing(plan: p.PhysicalPlan, given: Held) -> Held:
    """What is read of inputs beyond the columns that are given for them, where something is."""
    held = _held(plan, given)
    needed = {(name, side): plan.by_name[name].needs(side, _live(plan, name, held)) for name, side in given}
    return {place: names - given[place] for place, names in needed.items() if not names <= given[place]}


def _held(plan: p.PhysicalPlan, given: Held) -> Held:
    """From nothing upwards until nothing is missing any more; `given` is not touched."""
    inputs = [(operator, side) for operator in plan.operators for side in range(len(operator.schemas))]
    found: Held = {(o.name, side): given.get((o.name, side), frozenset()) for o, side in inputs}
    while True:
        needed = {(o.name, side): found[o.name, side] | o.needs(side, _live(plan, o.name, found)) for o, side in inputs}
        more = {place: given.get(place, names) for place, names in _shared(plan, needed).items()}
        if more == found:
            return found
        found = more


def _shared(plan: p.PhysicalPlan, held: Held) -> Held:
    """Inputs whose tuples are written as one block hold all that any of them needs."""
    blocks: dict[Any, list[tuple[str, int]]] = {}
    for edge in plan.edges:
        operator = plan.by_name.get(edge.target)
        if operator is not None and operator.state is StateKind.APPENDED and operator.holds_tuples:
            key = (edge.producer, edge.output, edge.steps, operator.groupings[edge.input])
            blocks.setdefault(key, []).append((operator.name, edge.input))
    found = dict(held)
    for places in blocks.values():
        union = frozenset().union(*(found[place] for place in places))
        found.update(dict.fromkeys(places, union))
    return found


def _live(plan: p.PhysicalPlan, producer: str, held: Held, *, hashed: bool = True) -> Names:
    """What is read of a producer's results, wherever they go; hashed: also what only says to which group a tuple goes."""
    found: Names = frozenset()
    for edge in (edge for edge in plan.edges if edge.producer == producer):
        found |= columns_before(edge.steps, _read_at_end(plan, edge, held, hashed=hashed))
    return found


def _read_at_end(plan: p.PhysicalPlan, edge: p.Edge, held: Held, *, hashed: bool = True) -> Names:
    target = plan.by_name.get(edge.target)
    whole = target is None or (hashed and target.takes_whole)  # a result, or hashed whole
    return names_of(edge.schema.names) if whole else held[edge.target, edge.input]


def _narrowed(plan: p.PhysicalPlan, operator: Operator, held: Held) -> Operator:
    schemas = tuple(narrow_step(schema, held[operator.name, side]) for side, schema in enumerate(operator.schemas))
    return operator.narrowed(schemas, _live(plan, operator.name, held))
