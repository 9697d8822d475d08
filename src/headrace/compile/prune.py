"""The pass that drops columns that no operator reads, before an exchange and so from state, or when a source is read.

Invariant: neither the results change nor which expressions are evaluated on which tuples. The pass narrows only the end
of an edge, the output of a join (also with a table) and the columns read from a source. For each input of an operator,

    held  =  columns that the operator reads  +  columns that are read from its results
             +  columns of the inputs that share its blocks (a self-join is written once)

as the smallest sets that satisfy this. All columns are held where the whole content matters: for the sequence of tuples
(count windows, `list`, `first`, ordered results) and for results themselves. The group of a tuple in a join without an
equality is the hash of its whole content: the producer emits all columns, the hash is added, and then columns are
dropped.
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

Held = dict[tuple[str, int], Names]  # (operator, input) -> columns


def prune(plan: p.PhysicalPlan, given: Held | None = None) -> p.PhysicalPlan:
    """Return the narrowed plan. Inputs in `given` hold the given columns, which must suffice."""
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
    """Return the edges with joins of tables narrowed to the columns that later steps read.

    Edges that begin with the same steps run them once, so those steps emit the columns that any of the edges reads.
    """
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
    """Return the key of an edge up to one of its steps."""
    return edge.producer, edge.output, edge.steps[: place + 1]


def columns_held_in(plan: p.PhysicalPlan) -> Held:
    return {(o.name, side): names_of(schema.names) for o in plan.operators for side, schema in enumerate(o.schemas)}


def columns_missing(plan: p.PhysicalPlan, given: Held) -> Held:
    """Return the columns that are read from inputs beyond those in `given`."""
    held = _held(plan, given)
    needed = {(name, side): plan.by_name[name].needs(side, _live(plan, name, held)) for name, side in given}
    return {place: names - given[place] for place, names in needed.items() if not names <= given[place]}


def _held(plan: p.PhysicalPlan, given: Held) -> Held:
    """Compute the held columns as a least fixed point. Inputs in `given` keep their columns."""
    inputs = [(operator, side) for operator in plan.operators for side in range(len(operator.schemas))]
    found: Held = {(o.name, side): given.get((o.name, side), frozenset()) for o, side in inputs}
    while True:
        needed = {(o.name, side): found[o.name, side] | o.needs(side, _live(plan, o.name, found)) for o, side in inputs}
        more = {place: given.get(place, names) for place, names in _shared(plan, needed).items()}
        if more == found:
            return found
        found = more


def _shared(plan: p.PhysicalPlan, held: Held) -> Held:
    """Give inputs whose tuples are written as one block the columns that any of them needs."""
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
    """Return the columns of a producer's results that are read anywhere. hashed: include columns that only determine a
    tuple's group.
    """
    found: Names = frozenset()
    for edge in (edge for edge in plan.edges if edge.producer == producer):
        found |= columns_before(edge.steps, _read_at_end(plan, edge, held, hashed=hashed))
    return found


def _read_at_end(plan: p.PhysicalPlan, edge: p.Edge, held: Held, *, hashed: bool = True) -> Names:
    target = plan.by_name.get(edge.target)
    whole = target is None or (hashed and target.takes_whole)  # a result, or the hash of the whole tuple
    return names_of(edge.schema.names) if whole else held[edge.target, edge.input]


def _narrowed(plan: p.PhysicalPlan, operator: Operator, held: Held) -> Operator:
    schemas = tuple(narrow_step(schema, held[operator.name, side]) for side, schema in enumerate(operator.schemas))
    return operator.narrowed(schemas, _live(plan, operator.name, held))
