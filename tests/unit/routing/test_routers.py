"""Every way to route gives all its answers, and what it sends is what its layout reads."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CorruptState
from headrace.plan.figures import OperatorLoad
from headrace.routing import (
    EVERYWHERE,
    NOWHERE,
    ROUTERS,
    ContentRouter,
    Diagonal,
    GridRouter,
    Grouping,
    HashRouter,
    Layout,
    OneSlotRouter,
    PartHashRouter,
    RangeGrouping,
    Ranges,
    RangesRouter,
    Rectangles,
    RoundRobinRouter,
    Router,
    SubstreamGrouping,
    SubstreamRouter,
    TimeRouter,
    router_from_json,
)

ALL: list[Router] = [
    RoundRobinRouter(),
    HashRouter(("a", "b")),
    GridRouter((2, 1)),
    GridRouter((1, 1, 1), transposed=True),
    RangesRouter(("l.x",), (1.0, 2.5, 7.0), points=0),
    TimeRouter(),
    OneSlotRouter(),
    ContentRouter(),
    SubstreamRouter(8, "xway"),
    PartHashRouter(("a.x = b.x",), (1,)),
]
LOAD = OperatorLoad((10.0, 20.0), (10.0, 20.0), (100.0, 200.0), 500.0, 50.0)


def test_the_register_has_every_way() -> None:
    assert {router.kind for router in ALL} == set(ROUTERS)


@pytest.mark.parametrize("router", ALL, ids=str)
def test_a_router_comes_back_from_json(router: Router) -> None:
    assert router_from_json(json.loads(json.dumps(router.to_json()))) == router


@pytest.mark.parametrize("router", ALL, ids=str)
def test_json_with_more_or_less_is_refused(router: Router) -> None:
    data = router.to_json()
    with pytest.raises(CorruptState, match="router should be an object with"):
        router_from_json({**data, "colour": "red"})
    for name in data:
        with pytest.raises(CorruptState, match="router should be an object with"):
            router_from_json({key: value for key, value in data.items() if key != name})


@pytest.mark.parametrize("router", ALL, ids=str)
@pytest.mark.parametrize("first", [0, 2])
def test_it_lays_out_the_slots_it_says_and_costs_no_less_than_its_share(router: Router, first: int) -> None:
    slots = router.slots(3)
    assert router.wrong(slots) is None
    layout = router.layout(16, slots, first)
    assert layout.fits(16) and layout.slots == first + slots
    assert all(not layout.groups(slot, side) for slot in range(first) for side in (0, 1))
    assert router.cost(LOAD, slots).opened >= sum(LOAD.sending) / 3


def test_ways_that_cannot_route_to_so_many_slots_say_why() -> None:
    assert "with the sum 4" in (GridRouter((2, 1)).wrong(4) or "")
    assert "set slots to 1" in (OneSlotRouter().wrong(2) or "")
    assert "increasing bounds" in (RangesRouter(("x",), (2.0, 1.0), 0).wrong(2) or "")


LAYOUTS: list[Layout] = [
    Diagonal.even(16, 5),
    Diagonal.even(16, 3, first=1),
    Diagonal.even(1, 1),
    Rectangles(16, (2, 1, 2)),
    Rectangles(16, (3,), transposed=True, first=1),
    Ranges.even((1.0, 2.0, 3.0), 4, points=0),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("special", [(), (NOWHERE,), (EVERYWHERE,), (NOWHERE, EVERYWHERE)])
def test_tuples_go_to_the_slots_that_read_their_group(layout: Layout, special: tuple[int, ...]) -> None:
    """To one, several, all or no slots; held against one tuple after the other."""
    rng, total = np.random.default_rng(7), max(g for slot in range(layout.slots) for g in layout.groups(slot, 0)) + 1
    groups = rng.choice([*range(total), *(s for s in special for _ in range(9))], 200).astype(np.int32)
    for side in (0, 1):
        found = {slot: np.flatnonzero(mine).tolist() for slot, mine in layout.shares(groups, side)}
        for slot in range(layout.slots):
            reads = layout.groups(slot, side)
            expected = [row for row, group in enumerate(groups) if group in reads or group == EVERYWHERE]
            assert found.get(slot, []) == expected


def test_a_way_that_lacks_an_answer_cannot_be_made() -> None:
    @dataclass(frozen=True)
    class Half(Grouping):
        def groups(self, table: pa.Table, total: int) -> np.ndarray:
            return np.zeros(table.num_rows, np.int32)

    with pytest.raises(TypeError, match="abstract"):
        Half(("a",))  # type: ignore[abstract]


def test_the_extent_is_the_length_of_the_longest_interval() -> None:
    table = pa.table({"a": [0.0, 1.0, 5.0], "b": [0.5, 9.0, 5.0]})
    assert 8.0 < RangeGrouping(("a", "b")).extent(table) < 8.001
    assert RangeGrouping(("a",)).extent(table) == 0.0


@pytest.mark.parametrize(("q", "total"), [(1, 1), (1, 64), (3, 64), (8, 8), (64, 64), (1000, 64), (7, 5)])
def test_every_substream_is_in_one_group_and_found_there(q: int, total: int) -> None:
    grouping = SubstreamGrouping(("__substream",), q)
    every = pa.table({"__substream": pa.array([*range(q), EVERYWHERE], pa.int32())})
    groups = grouping.groups(every, total).tolist()
    assert groups.pop() == EVERYWHERE
    assert all(0 <= group < total for group in groups) and len(set(groups)) == min(q, total)
    assert [s for g in range(total) for s in grouping.members([g], total)] == list(range(q))
    assert all(s in grouping.members([g], total) for s, g in enumerate(groups))
