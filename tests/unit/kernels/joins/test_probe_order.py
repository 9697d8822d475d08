"""The order in which an n-way join probes: from the counts of probes, and what they say of probes that were never made."""

from __future__ import annotations

import json

import pytest

from headrace.kernels.joins.probe_order import KEPT, Probe, ProbeCounts, ProbeKind, choose_order, order_cost


def probe(bound: str, alias: int) -> Probe:
    return Probe(frozenset(map(int, bound)), alias)


def counted(**probes: tuple[float, float, float]) -> ProbeCounts:
    """Counts by names such as `p01_2`: the alias 2 was probed for combinations of 0 and 1."""
    found = ProbeCounts()
    for name, counts in probes.items():
        bound, alias = name[1:].split("_")
        found.add(probe(bound, int(alias)), *counts)
    return found


def indexed(rows: int = 1_000) -> ProbeKind:
    return ProbeKind(indexed=True, decides=True, rows=rows)


def test_the_stream_with_the_fewest_matches_comes_first() -> None:
    counts = counted(p0_1=(100, 800, 800), p0_2=(100, 5, 5))
    assert choose_order(0, 3, counts, lambda probe: indexed()) == (2, 1)
    counts = counted(p0_1=(100, 5, 5), p0_2=(100, 800, 800))
    assert choose_order(0, 3, counts, lambda probe: indexed()) == (1, 2)


def test_without_counts_a_lookup_by_key_comes_before_a_search_along_the_time() -> None:
    kinds = {1: ProbeKind(False, False, 5_000), 2: indexed(), 3: ProbeKind(False, True, 5_000)}
    assert choose_order(0, 4, ProbeCounts(), lambda probe: kinds[probe.alias]) == (2, 3, 1)


def test_more_bound_aliases_only_take_matches_away() -> None:
    counts = counted(p0_2=(10, 40, 30))
    assert counts.per_combination(probe("01", 2), ProbeKind(False, False, 1_000)) == (4.0, 3.0)
    assert counts.per_combination(probe("1", 2), ProbeKind(False, False, 1_000)) == (1_000.0, 1_000.0)
    assert counts.per_combination(probe("0", 2), indexed()) == (4.0, 3.0)


def test_candidates_that_are_compared_in_vain_cost_too() -> None:
    """Both leave one combination in ten, but one of them looks at every tuple of the window."""
    counts = counted(p0_1=(100, 100_000, 10), p0_2=(100, 10, 10))
    assert choose_order(0, 3, counts, lambda probe: indexed()) == (2, 1)


def test_counts_come_back_from_json_and_fade() -> None:
    counts = counted(p0_1=(10, 20, 30), p01_2=(4, 4, 0.001))
    again = ProbeCounts.from_json(json.loads(json.dumps(counts.to_json())))
    assert again.counts == counts.counts
    assert again.faded().counts[probe("0", 1)] == [10 * KEPT, 20 * KEPT, 30 * KEPT]
    for _ in range(40):
        again = again.faded()
    assert not again.counts, "what has not happened for long is forgotten"


@pytest.mark.parametrize("aliases", [2, 3, 8])
def test_every_alias_is_probed_once(aliases: int) -> None:
    for start in range(aliases):
        order = choose_order(start, aliases, ProbeCounts(), lambda probe: indexed(probe.alias))
        assert sorted([start, *order]) == list(range(aliases))


def test_the_chosen_order_costs_least() -> None:
    counts = counted(p0_1=(10, 30, 20), p0_2=(10, 10, 5), p0_3=(10, 90, 80), p02_1=(10, 4, 4), p01_2=(5, 1, 1))
    orders = [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)]
    costs = {order: order_cost(0, order, counts, lambda probe: indexed()) for order in orders}
    assert choose_order(0, 4, counts, lambda probe: indexed()) == min(costs, key=lambda order: (costs[order], order))
    assert costs[1, 2, 3] == pytest.approx(1 + 3 + 2 * (1 + 0.2 + 0.2 * (1 + 1 + 1)))
