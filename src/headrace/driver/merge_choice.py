"""The choice of the blocks that an epoch merges, and of the bases of state tables that it renews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from headrace import plan as p
from headrace.operators.base import AppendingOperator, Operator, StateKind
from headrace.state import bases
from headrace.state.blocks import Block
from headrace.state.manifest import OperatorState
from headrace.state.merge_planning import large_run, merge_pieces, mergeable_runs
from headrace.task.epoch import Merge
from headrace.task.state_table_groups import StateTableGroups


def merges_for_slots(
    plan: p.PhysicalPlan, state: Mapping[str, OperatorState], slots: int, last: int
) -> tuple[tuple[Merge, ...], ...]:
    """Return for each slot the merges that it makes in the epoch after `last`."""
    planned = _shared(
        plan, [m for o in plan.operators if o.state is StateKind.APPENDED for m in plan_merges(o, state.get(o.name))]
    )
    for name, known in state.items():
        planned += [
            Merge(name, (), run, table)
            for table, each in known.tables.items()
            for run in bases.runs_to_merge(each, last)
        ]
    return tuple(tuple(planned[slot::slots]) for slot in range(slots))


def _shared(plan: p.PhysicalPlan, merges: Sequence[Merge]) -> list[Merge]:
    """Return the merges, with one instead of several that merge the same blocks of one operator in the same groups."""
    found: dict[object, Merge] = {}
    for merge in merges:
        operator = plan.by_name[merge.operator]
        key = (operator.owner, merge.blocks, merge.piece, operator.groupings[merge.inputs[0]])
        first = found.get(key)
        also = tuple((merge.operator, side) for side in merge.inputs)
        found[key] = replace(first, also=(*first.also, *also)) if first else merge
    return list(found.values())


def bases_to_renew(
    plan: p.PhysicalPlan, state: Mapping[str, OperatorState], last: int, groups: int
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return by operator and state table the groups whose bases the epoch after `last` renews."""
    planned = {
        name: {
            table: bases.groups_to_renew(each, last, StateTableGroups.of(plan.by_name[name], each, groups).parts)
            for table, each in known.tables.items()
        }
        for name, known in state.items()
    }
    return {name: found for name, tables in planned.items() if (found := {t: g for t, g in tables.items() if g})}


def plan_merges(operator: Operator, state: OperatorState | None) -> list[Merge]:
    """Return the merges of all inputs. Inputs that hold the same blocks in the same groups share a merge."""
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
    if isinstance(operator, AppendingOperator) and operator.trims_by_merging:
        taken = {block.name for run in found for block in run}
        merges += [trim for side, blocks in enumerate(state.inputs) for trim in _trims(operator, side, blocks, taken)]
    return merges


def _trims(operator: Operator, side: int, blocks: Sequence[Block], taken: Set[str]) -> list[Merge]:
    """Return merges of the blocks that are in no planned merge, which drop rows that are no longer needed."""
    run = large_run([block for block in blocks if block.name not in taken])
    many = merge_pieces(run)
    return [Merge(operator.name, (side,), run, piece=(which, many)) for which in range(many)]
