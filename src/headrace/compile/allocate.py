"""Allocation of slots: the number of slots of each subquery if each had separate slots, in proportion to cost x tuples.

Each subquery gets at least one slot. Each further slot goes to the subquery that limits the throughput; the time that
the others wait for it is idle capacity. Spark's dependent stages take turns, so a run gives all slots to each stage.
The shares matter only where subqueries run in parallel (branches of one stage) and under the strategy that gives every
operator separate slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import accumulate

from headrace.compile.draft import PlanDraft
from headrace.compile.route import route
from headrace.compile.subqueries import Plan, Subquery


@dataclass(frozen=True)
class SlotShares:
    """The slots of each subquery, how busy each is at the highest common rate, and the idle capacity."""

    slots: tuple[int, ...]
    busy: tuple[float, ...]
    idle: float
    bottleneck: int  # index of the subquery that limits the throughput


def slot_shares(work: Sequence[float], slots: int) -> SlotShares | None:
    """Return the shares by the papers' rule, or None if there are fewer slots than subqueries."""
    if not work or len(work) > slots:
        return None
    even = [1 / len(work)] * len(work) if sum(work) == 0 else [w / sum(work) for w in work]
    given = [1] * len(work)
    waited_for = [(-part, i) for i, part in enumerate(even)]
    heapify(waited_for)
    for _ in range(slots - len(work)):  # the next slot goes to the subquery that limits the throughput
        i = waited_for[0][1]
        given[i] += 1
        heapreplace(waited_for, (-even[i] / given[i], i))
    speed = min((g / part for g, part in zip(given, even, strict=True) if part > 0), default=0.0)
    busy = [part * speed / g for g, part in zip(given, even, strict=True)]
    slowest = max(range(len(busy)), key=lambda i: busy[i])
    return SlotShares(tuple(given), tuple(busy), slots - sum(part * speed for part in even), slowest)


def allocate(draft: PlanDraft) -> PlanDraft:
    """Compute the shares of all subqueries. Where shares matter, choose the routes again for these slots."""
    assert draft.plan is not None
    plan = _with_costs(draft.plan, draft.costs)
    found = slot_shares([work_per_second(s) for s in plan.subqueries], plan.slots)
    if found is None or draft.figures is None:
        return replace(draft, plan=plan)
    given = {s.name: count for s, count in zip(plan.subqueries, found.slots, strict=True)}
    confined = {name: (0, count) for name, count in given.items()} if draft.strategy == "operator" else {}
    for stage in sorted({s.stage for s in plan.subqueries if s.stage}):
        confined |= _side_by_side([s for s in plan.subqueries if s.stage == stage], plan.slots)
    again = route(replace(draft, confined=confined)).plan
    assert again is not None
    plan = _with_costs(again, draft.costs)
    return replace(
        draft, plan=replace(plan, subqueries=tuple(replace(s, share=given[s.name]) for s in plan.subqueries))
    )


def work_per_second(subquery: Subquery) -> float:
    """Return the microseconds of work per second."""
    return (subquery.cost if subquery.cost is not None else 1.0) * subquery.numbers.arriving


def _with_costs(plan: Plan, costs: Mapping[str, float]) -> Plan:
    """Replace measured costs by given costs."""
    given = [replace(s, cost=costs.get(s.name, s.cost)) for s in plan.subqueries]
    return replace(plan, subqueries=tuple(given))


def _side_by_side(branches: Sequence[Subquery], slots: int) -> dict[str, tuple[int, int]]:
    """Give the subqueries of one stage separate, consecutive slots."""
    found = slot_shares([work_per_second(s) for s in branches], slots) if len(branches) > 1 else None
    if found is None:
        return {}
    firsts = accumulate(found.slots, initial=0)
    return {s.name: (first, count) for s, first, count in zip(branches, firsts, found.slots, strict=False)}
