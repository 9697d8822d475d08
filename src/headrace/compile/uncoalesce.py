"""Operators that may share the slots of another in this epoch, though not in every one: an exchange less.

    beside   an operator whose tuples lie in the groups of another (`Operator.colocate_with`), and that may take over its results in the
             same slot as long as all of a group is in one: where a layout splits a hot group, it is a stage of its own

Invariant: the plan is the same but for stages and for who follows whom, neither of which state depends on. So it may be another
from one epoch to the next, as layouts may. An operator that follows another in the usual plan does so here only if all its
producers in the latest stage have the leader of the operator that it follows: an operator that moved up may meet producers
with other layouts in its new stage. Otherwise it has a stage of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace import plan as p
from headrace.operators.base import Operator


def share_slots(plan: p.PhysicalPlan, is_whole: Callable[[str], bool]) -> p.PhysicalPlan:
    """The plan of an epoch in which all of each group of an operator is in one slot, or not."""
    if not any(operator.colocate_with for operator in plan.operators):
        return plan
    usual = _staged(plan, lambda _: False)
    if [operator.stage for operator in usual.operators] != [operator.stage for operator in plan.operators]:
        return plan  # its strategy keeps operators apart
    return _staged(plan, is_whole)


def _staged(plan: p.PhysicalPlan, is_whole: Callable[[str], bool]) -> p.PhysicalPlan:
    done: dict[str, Operator] = {}
    leaders: dict[str, str] = {}
    for operator in plan.operators:
        behind = [edge.producer for edge in plan.edges if edge.target == operator.name]
        stage = max((done[name].stage for name in behind if name in done), default=0)
        last = {leaders[name] for name in behind if name in done and done[name].stage == stage}
        follows = (
            operator.colocate_with if operator.colocate_with and is_whole(operator.colocate_with) else operator.follows
        )
        if follows and last == {leaders[follows]}:
            done[operator.name] = replace(operator, stage=stage, follows=follows)
            leaders[operator.name] = leaders[follows]
        else:
            done[operator.name] = replace(operator, stage=stage + 1, follows="")
            leaders[operator.name] = operator.name
    return replace(plan, operators=tuple(done.values()))
