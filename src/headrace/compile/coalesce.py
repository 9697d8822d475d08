"""Operators that are partitioned alike into one stage: a join by phone, then a group by phone, with no exchange between.

Invariant: an operator follows another (its leader) only if every tuple the leader's stage hands it is, by the grouping
given to it here, in the group that the leader's tuples came from. With one layout for both, a slot then holds all of a
group for both. A grouping by some of the keys is enough: tuples that agree in all keys agree in these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.compile import plan as p
from headrace.expressions import Key
from headrace.expressions.tree import parse

Types = tuple[pa.DataType, ...] | None


@dataclass(frozen=True)
class Placement:
    """How tuples lie in slots: by the values of some columns, each of which may stand under several names."""

    leader: str
    columns: tuple[frozenset[str], ...]
    types: Types


def coalesce(plan: p.Plan) -> p.Plan:
    done: dict[str, p.Operator] = {}
    placements: dict[str, Placement] = {}
    for operator in plan.operators:
        behind = [edge for edge in plan.edges if edge.target == operator.name]
        latest = max((done[e.producer].stage for e in behind if e.producer in done), default=0)
        found = _follower(plan, operator, latest, done, placements) or replace(operator, stage=latest + 1)
        done[operator.name] = found
        placed = _placement_of(found)
        if placed:
            placements[operator.name] = placed
    return replace(plan, operators=tuple(done.values()))


def _follower(
    plan: p.Plan, operator: p.Operator, latest: int, done: Mapping[str, p.Operator], placements: Mapping[str, Placement]
) -> p.Operator | None:
    """The operator in the stage of its latest producers, if those share a leader and it can be grouped as they are."""
    if not isinstance(operator, p.PaneAggregateOperator | p.TupleAggregateOperator | p.CountAggregateOperator) and not (
        isinstance(operator, p.TimeJoinOperator) and operator.keys
    ):
        return None
    handed: list[list[Placement | None]] = []
    for side in range(len(operator.schemas)):
        edges = [
            e for e in plan.entering(operator.name, side) if e.producer in done and done[e.producer].stage == latest
        ]
        handed.append([_through(placements.get(e.producer), e) for e in edges])
    every = [placed for side in handed for placed in side]
    if not every or any(placed is None for placed in every) or len({placed.leader for placed in every if placed}) != 1:
        return None
    groupings = _aligned(operator, [[placed for placed in side if placed] for side in handed])
    leader = next(placed.leader for placed in every if placed)
    return replace(operator, stage=latest, groupings=groupings, follows=leader) if groupings else None


def _placement_of(operator: p.Operator) -> Placement | None:
    """How the results of an operator are placed."""
    leader = operator.follows or operator.name
    grouping = operator.groupings[0]
    if isinstance(operator, p.JoinOperator) and operator.keys:
        pairs = list(zip(grouping.columns, operator.groupings[1].columns, strict=True))
        named = [{out for out, s, c in operator.columns if c == (l if s == "l" else r)} for l, r in pairs]
        return Placement(leader, tuple(map(frozenset, named)), grouping.types)
    by = getattr(operator, "by", ())
    return Placement(leader, tuple(frozenset([name]) for name in grouping.columns), grouping.types) if by else None


def _through(placed: Placement | None, edge: p.Edge) -> Placement | None:
    """The same behind the steps of an edge: only columns that pass as they are."""
    for step in edge.steps:
        if placed is not None and isinstance(step, p.MapStep):
            columns = placed.columns
            passed = [frozenset(new for new, sql in step.columns if _is_one_of(sql, names)) for names in columns]
            placed = Placement(placed.leader, tuple(passed), placed.types)
    return placed


def _is_one_of(sql: str, names: frozenset[str]) -> bool:
    """Whether an expression is one of these columns; a column may be called like an expression, such as 2023."""
    tree = parse(sql, "a column")
    return bool(tree["class"] == "COLUMN_REF" and len(path := tree["column_names"]) == 1 and path[0] in names)


def _aligned(operator: p.Operator, handed: Sequence[Sequence[Placement]]) -> tuple[p.Grouping, ...] | None:
    """Groupings of the inputs that put every handed tuple where it lies already; None: there are none."""
    places = len(next(placed for side in handed for placed in side).columns)
    if isinstance(operator, p.JoinOperator):
        chosen = [_key(operator, handed, place) for place in range(places)]
        keys = [key for key in chosen if key]
        if len(keys) != places or not keys:
            return None
        types = tuple(key.type for key in keys)
        return (
            p.Grouping(tuple(key.left for key in keys), types, drop_null=True),
            p.Grouping(tuple(key.right for key in keys), types, drop_null=True),
        )
    by: tuple[str, ...] = operator.by  # type: ignore[attr-defined]
    types_of = {placed.types for placed in handed[0]}
    names = [
        next((c for c in by if all(c in placed.columns[place] for placed in handed[0])), None)
        for place in range(places)
    ]
    if len(types_of) != 1 or not names or None in names:
        return None
    return (p.Grouping(tuple(name for name in names if name), types_of.pop()),)


def _key(operator: p.JoinOperator, handed: Sequence[Sequence[Placement]], place: int) -> Key | None:
    """The equality of a join whose columns hold, on every side that is handed over, the value at a place."""
    for key in operator.keys:
        sides = zip((key.left, key.right), operator.schemas, handed, strict=True)
        if all(
            _holds(column, schema, placed, place, key.type)
            for column, schema, handed_here in sides
            for placed in handed_here
        ):
            return key
    return None


def _holds(column: str, schema: pa.Schema, placed: Placement, place: int, kind: pa.DataType) -> bool:
    hashed_as = placed.types[place] if placed.types is not None else schema.field(column).type
    return column in placed.columns[place] and _hashes_like(hashed_as) == _hashes_like(kind)


def _hashes_like(kind: pa.DataType) -> pa.DataType:
    """Whole numbers of any width hash alike, and so do floating point numbers (`headrace.routing.hashing`)."""
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind
