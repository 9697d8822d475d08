"""The stages of one epoch: which operators share the slots of another, given the layouts of the epoch.

The usual plan is the one that the compiler made (`coalesce`). An epoch differs from it in two cases:

- An operator that follows another in the usual plan (a join by phone, then a group by phone) has its own stage if the
  layout spreads a hot group of its leader over several slots, because the results of that group are in all of them.
- The tuples without a partner of an outer join (`Operator.colocate_with`) have their own stage in the usual plan. They
  share the slots of the join if each of its groups, on both sides, is in one slot. This saves an exchange.

An operator that got its own stage has its own layout. Operators that followed the same leader follow this operator if
all their producers in the latest stage do: their tuples have the groups that it has.

Invariant: only stages and leaders change, and state depends on neither, so the plan may change from one epoch to the
next, as layouts may. Operators that share slots have one leader and therefore one layout (`PhysicalPlan` checks this).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace import plan as p
from headrace.operators.base import Operator
from headrace.routing import Layout

LayoutOf = Callable[[str], Layout]  # the layout that an operator has if it follows no other


def share_slots(plan: p.PhysicalPlan, layout_of: LayoutOf) -> p.PhysicalPlan:
    """Return the plan of an epoch."""
    if not any(operator.colocate_with or operator.follows for operator in plan.operators):
        return plan
    usual = _staged(plan, None)
    if [operator.stage for operator in usual.operators] != [operator.stage for operator in plan.operators]:
        return plan  # its strategy runs operators in separate stages
    return _staged(plan, layout_of)


def _staged(plan: p.PhysicalPlan, layout_of: LayoutOf | None) -> p.PhysicalPlan:
    done: dict[str, Operator] = {}
    leaders: dict[str, str] = {}
    for operator in plan.operators:
        producers = [edge.producer for edge in plan.edges if edge.target == operator.name and edge.producer in done]
        stage = max((done[name].stage for name in producers), default=0)
        latest = {leaders[name] for name in producers if done[name].stage == stage}
        leader = _leader(plan, operator, latest, leaders, layout_of)
        done[operator.name] = replace(operator, stage=stage if leader else stage + 1, follows=leader)
        leaders[operator.name] = leader or operator.name
    return replace(plan, operators=tuple(done.values()))


def _leader(
    plan: p.PhysicalPlan,
    operator: Operator,
    latest: set[str],
    leaders: Mapping[str, str],
    layout_of: LayoutOf | None,
) -> str:
    """Return the leader whose slots the operator shares; empty: none.

    latest: the leaders of its producers in the latest stage. leaders: of the operators upstream, in this epoch.
    """
    if len(latest) != 1:
        return ""
    (leader,) = latest
    joined = operator.colocate_with
    if joined and layout_of and leader == leaders[joined] and layout_of(leader).whole:
        return leader
    if not operator.follows:
        return ""
    usual = {leaders[operator.follows], operator.follows}
    if leader not in usual and plan.leaders[leader] not in usual:
        return ""
    return leader if layout_of is None or layout_of(leader).gathers else ""
