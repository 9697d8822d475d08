"""How many slots every subquery would get if each had slots of its own: in proportion to cost x tuples.

Whole numbers, at least one each, the next slot always to the subquery that the others wait for; what they then wait is
idle capacity. Spark's dependent stages take turns, so a run gives all slots to each; shares bind where subqueries
run side by side (branches in one stage) and under the strategy that gives every operator slots of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.compile.draft import Draft
from headrace.compile.subqueries import GRID, ONE, Plan, Subquery
from headrace.routing.layout import best_rectangles


@dataclass(frozen=True)
class Shares:
    """Slots of every subquery, how busy each is when all run as fast as they can, and the capacity left idle."""

    slots: tuple[int, ...]
    busy: tuple[float, ...]
    idle: float
    bottleneck: int  # the one that all others wait for


def shares(work: Sequence[float], slots: int) -> Shares | None:
    """The paper's rule; None when there are fewer slots than subqueries."""
    if not work or len(work) > slots:
        return None
    even = [1 / len(work)] * len(work) if sum(work) == 0 else [w / sum(work) for w in work]
    given = [1] * len(work)
    while sum(given) < slots:  # the next slot to whoever the others wait for
        given[max(range(len(given)), key=lambda i: (even[i] / given[i], -i))] += 1
    speed = min((g / part for g, part in zip(given, even, strict=True) if part > 0), default=0.0)
    busy = [part * speed / g for g, part in zip(given, even, strict=True)]
    slowest = max(range(len(busy)), key=lambda i: busy[i])
    return Shares(tuple(given), tuple(busy), slots - sum(part * speed for part in even), slowest)


def allocate(draft: Draft) -> Draft:
    """Shares of all subqueries; slots by share where they bind."""
    assert draft.plan is not None
    plan = _with_costs(draft.plan, draft)
    found = shares([work(s) for s in plan.subqueries], plan.slots)
    if found is None or draft.figures is None:
        return replace(draft, plan=plan)
    given = [replace(s, share=n) for s, n in zip(plan.subqueries, found.slots, strict=True)]
    if draft.strategy == "operator":
        given = [_confined(s, 0, s.share or 1) for s in given]
    for stage in {s.stage for s in given if s.stage}:
        given = _side_by_side(given, stage, plan.slots)
    return replace(draft, plan=replace(plan, subqueries=tuple(given)))


def work(subquery: Subquery) -> float:
    """Microseconds of work per second."""
    return (subquery.cost if subquery.cost is not None else 1.0) * subquery.numbers.arriving


def _with_costs(plan: Plan, draft: Draft) -> Plan:
    """Given costs instead of measured ones."""
    given = [replace(s, cost=draft.costs.get(s.name, s.cost)) for s in plan.subqueries]
    return replace(plan, subqueries=tuple(given))


def _side_by_side(subqueries: list[Subquery], stage: int, slots: int) -> list[Subquery]:
    """Subqueries of one stage on slots of their own, one behind the other."""
    branches = [s for s in subqueries if s.stage == stage]
    found = shares([work(s) for s in branches], slots) if len(branches) > 1 else None
    if found is None:
        return subqueries
    placed, first = {}, 0
    for branch, count in zip(branches, found.slots, strict=True):
        placed[branch.name] = _confined(branch, first, count)
        first += count
    return [placed.get(s.name, s) for s in subqueries]


def _confined(subquery: Subquery, first: int, slots: int) -> Subquery:
    router = subquery.router
    count = 1 if router.kind == ONE else slots
    if router.kind == GRID:
        sides = subquery.numbers.sides or (1.0, 1.0)
        layout = best_rectangles(count, count, *sides)
        router = replace(router, shape=layout.rows, transposed=layout.transposed)
    return replace(subquery, first=first, slots=count, router=router)
