"""Costs in, slots out: in proportion to the work, whole numbers, at least one; what is left is idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compile.allocate import slot_shares
from headrace.compile.subqueries import Plan
from headrace.plan.figures import Figures

from . import queries
from .test_route import left, right

COSTS = Figures(
    rates={"calls": 1000, "suspects": 10},
    matching={"join-1": 0.01},
    costs={"aggregate-1": 4.0, "join-1": 2.0, "aggregate-2": 10.0},
    results={"aggregate-1": 500.0, "aggregate-2": 1.0},
)


def allocation(plan: Plan) -> str:
    return "\n".join(f"{s.name}: {s.slots} from {s.first}, share {s.share}" for s in plan.subqueries)


def test_shares_are_shown_and_every_subquery_has_all_slots() -> None:
    assert (
        allocation(queries.figure_8().plan(slots=30, figures=COSTS))
        == """\
subquery-1: 30 from 0, share 3
subquery-2: 30 from 0, share 27"""
    )


def test_with_slots_for_every_operator_shares_bind() -> None:
    assert (
        allocation(queries.figure_8().plan(slots=30, strategy="operator", figures=COSTS))
        == """\
subquery-1: 2 from 0, share 2
subquery-2: 1 from 0, share 1
subquery-3: 3 from 0, share 3
subquery-4: 24 from 0, share 24"""
    )


def test_branches_side_by_side_have_slots_of_their_own() -> None:
    l, r = left(), right()
    joined = l.join(r, on="l.n = r.n", within="10 seconds").map("l_x")
    query = joined.union(l.join(r, on="l.x < r.x", within="1 second").map("l_x"))
    figures = Figures(rates={"left": 100, "right": 100}, costs={"join-1": 1.0, "join-2": 7.0})
    plan = query.plan(slots=8, figures=figures)
    assert (
        allocation(plan)
        == """\
subquery-1: 1 from 0, share 1
subquery-2: 7 from 1, share 7"""
    )
    assert sum(plan.subqueries[1].router.shape) == 7
    assert allocation(query.plan(slots=8)).count("8 from 0, share None") == 2  # nothing is known: all for both


def test_the_next_slot_goes_to_whom_the_others_wait_for() -> None:
    found = slot_shares([3.0, 1.0], 8)
    assert found is not None and found.slots == (6, 2) and found.idle == pytest.approx(0)
    found = slot_shares([3.0, 1.0], 3)
    assert found is not None and found.slots == (2, 1)
    assert found.busy == pytest.approx((1.0, 2 / 3)) and found.idle == pytest.approx(1 / 3) and found.bottleneck == 0
    assert slot_shares([1.0, 1.0, 1.0], 2) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8), st.integers(1, 70))
def test_shares_are_whole_at_least_one_and_no_more_than_there_are(work: list[float], slots: int) -> None:
    found = slot_shares(work, slots)
    if len(work) > slots:
        assert found is None
        return
    assert found is not None and min(found.slots) >= 1 and sum(found.slots) == slots
    assert -1e-6 <= found.idle <= slots and max(found.busy) <= 1 + 1e-9
