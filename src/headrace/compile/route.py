"""How tuples find the slots of each subquery, with what every alternative would have cost.

The alternative is taken whose busiest slot reads least: new tuples and the windows they meet. An equality is hashed; a
join without one is a grid of rectangles; one that keeps two numbers near each other can be routed by ranges, once a
sample has said where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace import plan as p
from headrace.compile.describe import describe
from headrace.compile.draft import Draft
from headrace.compile.subqueries import CONTENT, GRID, HASH, ONE, RANGES, Numbers, Option, Router
from headrace.operators.base import Operator, Routing
from headrace.plan.figures import Figures, Load, forecast
from headrace.routing.layout import reads, shapes

Bounds = Mapping[str, tuple[float, ...]]  # of the ranges of a join, by its name


def route(draft: Draft) -> Draft:
    """The plan as a user sees it."""
    figures = draft.figures or Figures()
    expected = forecast(draft.physical, figures)
    return replace(
        draft, plan=describe(draft, expected, lambda o, slots: ranked(o, expected.loads[o.name], slots, figures))
    )


def by_ranges(plan: p.Plan, bounds: Bounds) -> p.Plan:
    """The plan with some band joins grouped by ranges of values instead of hashes."""
    operators = tuple(_ranged(o, bounds[o.name]) if o.name in bounds else o for o in plan.operators)
    return replace(plan, operators=operators)


def can_be_ranged(operator: Operator) -> bool:
    """Whether ranges can route it. A condition that can fail must meet the same pairs however slots are cut."""
    return operator.band is not None


def _ranged(operator: Operator, bounds: tuple[float, ...]) -> Operator:
    band = operator.band
    assert band is not None
    point = p.Grouping((band.point[1],), None, drop_null=True, bounds=bounds)
    interval = p.Grouping(band.interval, None, drop_null=True, bounds=bounds, width=band.width)
    return replace(operator, groupings=(point, interval) if band.point[0] == "l" else (interval, point))


# --- what each way costs -------------------------------------------------------------------------------------------


def ranked(operator: Operator, load: Load, slots: int, figures: Figures) -> list[Option]:
    """The ways to route an operator's input, the best first."""
    match operator.routing:
        case Routing.ONE:
            return [_one(load)]
        case Routing.ANYWHERE:
            return [_spread(Router(CONTENT), load, slots)]
        case Routing.KEY:
            if not operator.key_words:
                return [_one(load)]
            grids = sorted(_grids(load, slots), key=_cost)[:1] if len(load.sending) == 2 else []
            return [_spread(Router(HASH, operator.key_words), load, slots), *grids, _one(load)]
        case Routing.PAIRS:
            ways = [*_grids(load, slots), *_ranges(operator, load, slots, figures), _one(load)]
            return _without_twins(sorted(ways, key=_cost))


def _cost(option: Option) -> tuple[float, float, bool, bool, bool, int]:
    """What the busiest slot reads; at a draw a grid, whose shape can change later, before ranges, which are for good."""
    router, numbers = option.router, option.numbers
    kinds = router.kind == ONE, router.kind == RANGES
    return numbers.opened, numbers.sent, *kinds, router.transposed, len(router.shape)


def _without_twins(options: list[Option]) -> list[Option]:
    """Of the grids only the best and the two that replicate one side whole: the others lie between."""
    grids = [o for o in options if o.router.kind == GRID]
    kept = grids[:1] + [o for o in grids[1:] if len(o.router.shape) == 1]
    return [o for o in options if o.router.kind != GRID or o in kept]


def _numbers(load: Load, sent: float, opened: float, compared: float) -> Numbers:
    return Numbers(sum(load.arriving), sent, sum(load.state), opened, compared, load.results)


def _spread(router: Router, load: Load, slots: int) -> Option:
    """Every tuple to one slot, evenly; only pairs of one group are compared, of which the results are a part."""
    sent = sum(load.sending)
    return Option(router, _numbers(load, sent, (sent + sum(load.state)) / slots, load.results / slots))


def _one(load: Load) -> Option:
    sent = sum(load.sending)
    return Option(Router(ONE), _numbers(load, sent, sent + sum(load.state), load.pairs or load.results))


def _grids(load: Load, slots: int) -> Iterator[Option]:
    left, right = (a + b for a, b in zip(load.sending, load.state, strict=True))
    for rows in shapes(slots):
        across, down = sum(cells * cells for cells in rows) / slots, len(rows)  # copies of a tuple by rows, by columns
        for transposed in (False, True):
            by_rows, by_columns = load.sending[::-1] if transposed else load.sending
            opened = reads(rows, right, left) if transposed else reads(rows, left, right)
            numbers = _numbers(load, by_rows * across + by_columns * down, opened, load.pairs / slots)
            yield Option(Router(GRID, (), rows, transposed), numbers)


def _ranges(operator: Operator, load: Load, slots: int, figures: Figures) -> Iterator[Option]:
    band, bounds = operator.band, figures.bounds.get(operator.name)
    if band is None or not bounds:
        return
    side = 0 if band.point[0] == "l" else 1
    used = len(bounds) + 1
    parts = [((used * s // slots), (used * (s + 1) // slots)) for s in range(slots)]
    reach = figures.reach.get(operator.name, 0)
    # an interval that begins in a range before a slot's own may extend into it
    point = [(stop - start) / used for start, stop in parts]
    interval = [(stop - max(start - reach, 0)) / used if stop > start else 0.0 for start, stop in parts]
    whole = [a + b for a, b in zip(load.sending, load.state, strict=True)]
    opened = max(p * whole[side] + i * whole[1 - side] for p, i in zip(point, interval, strict=True))
    sent = load.sending[side] + sum(interval) * load.sending[1 - side]
    numbers = _numbers(load, sent, opened, max(a * b for a, b in zip(point, interval, strict=True)) * load.pairs)
    yield Option(Router(RANGES, operator.key_words, bounds=bounds), numbers)
