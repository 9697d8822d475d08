"""Operators that share the slots of another only in epochs in which all of each group is in one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.compile import compile_query
from headrace.compile.uncoalesce import share_slots
from headrace.errors import EngineError
from headrace.plan import PhysicalPlan
from headrace.routing import Diagonal, HotGroup, Layout
from headrace.stream import Stream, node_of

from . import queries


def plan_of(query: Stream, strategy: str = "subquery") -> PhysicalPlan:
    return compile_query([node_of(query)], strategy=strategy)


def whole(name: str) -> Layout:
    return Diagonal.even(4, 2)


def spread(name: str) -> Layout:
    """A layout with a hot group, for the operators that can have one."""
    grids = (HotGroup(1, 2, 1, (0, 1)),) if name.startswith("join") else ()
    return Diagonal((0, 0, 1, 1), 2, grids)


def stages(plan: PhysicalPlan) -> dict[str, int]:
    return {operator.name: operator.stage for operator in plan.operators}


def outer(on: str = "l.caller = r.phone", how: str = "left") -> Stream:
    return queries.calls().join(queries.suspects(), on=on, within="60 seconds", how=how)


@pytest.mark.parametrize(("how", "alone"), [("left", 1), ("right", 1), ("full", 2)])
def test_tuples_without_a_partner_are_found_where_pairs_are_met(how: str, alone: int) -> None:
    plan = plan_of(outer(how=how))
    names = [f"alone-{number + 1}" for number in range(alone)]
    assert stages(plan) == {"join-1": 1, **dict.fromkeys(names, 2)}
    shared = share_slots(plan, whole)
    assert stages(shared) == {"join-1": 1, **dict.fromkeys(names, 1)}
    assert {shared.by_name[name].follows for name in names} == {"join-1"}
    assert stages(share_slots(plan, spread)) == stages(plan)
    assert plan.edges == shared.edges


def test_what_is_behind_moves_up() -> None:
    plan = plan_of(outer().aggregate(by=["callee"], window="1 minute", n="count(*)"))
    assert stages(plan) == {"join-1": 1, "alone-1": 2, "aggregate-1": 3}
    assert stages(share_slots(plan, whole)) == {"join-1": 1, "alone-1": 1, "aggregate-1": 2}


@pytest.mark.parametrize(
    ("query", "strategy"),
    [
        (outer("l.caller <> r.phone"), "subquery"),  # without an equality pairs of a group are met everywhere
        (queries.figure_1(), "subquery"),
    ],
)
def test_others_stay_as_they_are(query: Stream, strategy: str) -> None:
    plan = plan_of(query, strategy)
    assert stages(share_slots(plan, whole)) == stages(plan)


def test_a_producer_with_another_layout_keeps_an_exchange() -> None:
    """When the outer join's second part moves up, the operator downstream meets a producer that has other slots."""
    counted = queries.calls("others").aggregate(by=["caller"], window="1 minute", n="count(*)").map("caller")
    plan = plan_of(outer().map("caller").union(counted).distinct(by=["caller"], within="1 minute"))
    assert plan.by_name["distinct-1"].follows == "alone-1"
    shared = share_slots(plan, whole)
    assert stages(shared) == {"join-1": 1, "alone-1": 1, "aggregate-1": 1, "distinct-1": 2}
    assert not shared.by_name["distinct-1"].follows


def test_a_plan_that_hands_tuples_to_another_layout_cannot_be_made() -> None:
    plan = plan_of(outer().aggregate(by=["caller"], window="1 minute", n="count(*)"))
    apart = [replace(o, stage=1, follows="" if o.name == "aggregate-1" else o.follows) for o in plan.operators]
    with pytest.raises(EngineError, match="within stage 1, but the two have different layouts"):
        replace(plan, operators=tuple(apart))


# --- a hot group of a leader -----------------------------------------------------------------------------------------


def test_operators_downstream_of_a_hot_group_get_one_stage_of_their_own() -> None:
    joined = queries.calls().join(queries.suspects(), on="l.caller = r.phone", within="60 seconds").map("caller")
    counted = joined.aggregate(by=["caller"], window="1 minute", n="count(*)")
    plan = plan_of(counted.distinct(by=["caller"], within="1 minute"))
    assert stages(plan) == {"join-1": 1, "aggregate-1": 1, "distinct-1": 1}
    assert stages(share_slots(plan, whole)) == stages(plan)
    apart = share_slots(plan, spread)
    assert stages(apart) == {"join-1": 1, "aggregate-1": 2, "distinct-1": 2}
    assert apart.leaders == {"join-1": "join-1", "aggregate-1": "aggregate-1", "distinct-1": "aggregate-1"}
    assert apart.edges == plan.edges


def test_each_join_of_a_chain_may_have_a_hot_group() -> None:
    a, b, c = (queries.calls(name).map("caller") for name in "abc")
    first = a.join(b, on="l.caller = r.caller", within="60 seconds").map(caller="l_caller")
    second = first.join(c, on="l.caller = r.caller", within="60 seconds").map(caller="l_caller")
    plan = plan_of(second.aggregate(by=["caller"], window="1 minute", n="count(*)"))
    assert set(stages(plan).values()) == {1}
    assert stages(share_slots(plan, spread)) == {"join-1": 1, "join-2": 2, "aggregate-1": 3}
    only_first = share_slots(plan, lambda name: spread(name) if name == "join-1" else whole(name))
    assert stages(only_first) == {"join-1": 1, "join-2": 2, "aggregate-1": 2}
    assert only_first.leaders["aggregate-1"] == "join-2"


def test_results_that_meet_from_two_stages_are_exchanged() -> None:
    """A union of the join's results with those of an operator that got its own stage: only the latest stage is shared."""
    joined = queries.calls().join(queries.suspects(), on="l.caller = r.phone", within="60 seconds").map("caller")
    kept = joined.distinct(by=["caller"], within="1 minute")
    plan = plan_of(joined.union(kept).aggregate(by=["caller"], window="1 minute", n="count(*)"))
    assert set(stages(plan).values()) == {1}
    apart = share_slots(plan, spread)
    assert stages(apart) == {"join-1": 1, "distinct-1": 2, "aggregate-1": 2}
    assert apart.leaders["aggregate-1"] == "distinct-1"
