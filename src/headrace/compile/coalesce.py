"""Coalescing: operators with the same partitioning share one stage, such as a join by phone and then a group by phone.

Invariant: an operator follows another (its leader) only if its grouping here assigns every tuple from the leader's
stage to the group that the leader's tuples came from. With one layout for both, a slot then has all of a group for
both. A grouping by some of the keys suffices, because tuples that agree in all keys agree in these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace import plan as p
from headrace.expressions.syntax_tree import parse
from headrace.operators.base import Operator
from headrace.operators.placement import Placement


def coalesce(plan: p.PhysicalPlan) -> p.PhysicalPlan:
    done: dict[str, Operator] = {}
    placements: dict[str, Placement] = {}
    for operator in plan.operators:
        behind = [edge for edge in plan.edges if edge.target == operator.name]
        latest = max((done[e.producer].stage for e in behind if e.producer in done), default=0)
        found = _follower(plan, operator, latest, done, placements) or replace(operator, stage=latest + 1)
        done[operator.name] = found
        if found.placement:
            placements[operator.name] = found.placement
    return replace(plan, operators=tuple(done.values()))


def _follower(
    plan: p.PhysicalPlan,
    operator: Operator,
    latest: int,
    done: Mapping[str, Operator],
    placements: Mapping[str, Placement],
) -> Operator | None:
    """Return the operator in the stage of its latest producers, if these share a leader and the operator can have their
    grouping.
    """
    if not operator.may_follow:
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
    groupings = operator.aligned([[placed for placed in side if placed] for side in handed])
    leader = next(placed.leader for placed in every if placed)
    return replace(operator, stage=latest, groupings=groupings, follows=leader) if groupings else None


def _through(placed: Placement | None, edge: p.Edge) -> Placement | None:
    """Return the placement after the steps of an edge, which keep only columns that they pass unchanged."""
    for step in edge.steps:
        if placed is not None and isinstance(step, p.MapStep):
            columns = placed.columns
            passed = [frozenset(new for new, sql in step.columns if _is_one_of(sql, names)) for names in columns]
            placed = Placement(placed.leader, tuple(passed), placed.types)
        elif placed is not None and isinstance(step, p.TableStep):
            mine = [(out, column) for out, side, column in step.columns if side == "l"]
            named = [frozenset(out for out, column in mine if column in names) for names in placed.columns]
            placed = Placement(placed.leader, tuple(named), placed.types)
        elif placed is not None and isinstance(step, p.UnnestStep):
            kept = tuple(names - {step.column} - step.made for names in placed.columns)
            placed = Placement(placed.leader, kept, placed.types)
    return placed


def _is_one_of(sql: str, names: frozenset[str]) -> bool:
    """Return whether an expression is one of these columns. A column may have a name that looks like an expression,
    such as 2023.
    """
    tree = parse(sql, "a column")
    return bool(tree["class"] == "COLUMN_REF" and len(path := tree["column_names"]) == 1 and path[0] in names)
