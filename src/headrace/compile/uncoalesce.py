"""Operators that share the slots of another operator in some epochs, which saves an exchange.

Such an operator has the groups of another one (`Operator.colocate_with`). It can process that operator's results in the
same slot while each group is in one slot. If a layout spreads a hot group over several slots, it runs in a separate
stage.

Invariant: only stages and leaders change, and state depends on neither, so the plan may change from one epoch to the
next, as layouts may. An operator that follows another in the usual plan follows it here only if all its producers in
the latest stage have the same leader as the operator that it follows: an operator that moved to an earlier stage may
have producers with other layouts there. Otherwise the operator runs in a separate stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace import plan as p
from headrace.operators.base import Operator


def share_slots(plan: p.PhysicalPlan, is_whole: Callable[[str], bool]) -> p.PhysicalPlan:
    """Return the plan of an epoch. `is_whole` tells whether each group of an operator is in one slot."""
    if not any(operator.colocate_with for operator in plan.operators):
        return plan
    usual = _staged(plan, lambda _: False)
    if [operator.stage for operator in usual.operators] != [operator.stage for operator in plan.operators]:
        return plan  # its strategy runs operators in separate stages
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
