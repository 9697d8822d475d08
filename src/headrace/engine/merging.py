"""Which runs of an operator's state are merged in an epoch."""

from __future__ import annotations

from collections.abc import Mapping

from headrace import plan as p
from headrace.engine.epoch import Merge
from headrace.operators.base import Operator, State
from headrace.state.blocks import Block
from headrace.state.manifest import OperatorState
from headrace.state.runs import mergeable_runs


def merges_of(plan: p.PhysicalPlan, state: Mapping[str, OperatorState], slots: int) -> tuple[tuple[Merge, ...], ...]:
    """What is merged in this epoch, dealt out to the slots."""
    planned = [m for o in plan.operators if o.state is State.APPENDED for m in plan_merges(o, state.get(o.name))]
    return tuple(tuple(planned[slot::slots]) for slot in range(slots))


def plan_merges(operator: Operator, state: OperatorState | None) -> list[Merge]:
    """Merges of every input; inputs that hold the same blocks in the same groups share theirs."""
    if state is None:
        return []
    found: dict[tuple[Block, ...], list[int]] = {}
    for side, blocks in enumerate(state.inputs):
        for run in mergeable_runs(blocks):
            found.setdefault(run, []).append(side)
    merges = []
    for run, sides in found.items():
        if len({operator.groupings[side] for side in sides}) == 1:
            merges.append(Merge(operator.name, tuple(sides), run))
        else:
            merges += [Merge(operator.name, (side,), run) for side in sides]
    return merges
