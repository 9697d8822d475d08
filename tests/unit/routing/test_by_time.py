"""Stretches of event time: they follow the tuples of the last epoch and never divide tuples of one `ts`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing import TimeRouter
from headrace.routing.by_time import (
    MOST_TIMES,
    TIMES_PER_SLOT,
    expected_times,
    fitted_stretches,
    merge_time_notes,
    sample_times,
)

SECOND = 1_000_000


@given(st.lists(st.integers(-(10**15), 10**15), max_size=300), st.integers(1, 40))
def test_a_sample_counts_every_tuple(times: list[int], most: int) -> None:
    found = sample_times(np.array(times, np.int64), most)
    assert sum(tuples for _, tuples in found) == len(times) and len(found) <= TIMES_PER_SLOT * most
    assert {time for time, _ in found} <= set(times)


@pytest.mark.parametrize("slots", [1, 2, 8, 64])
def test_slots_get_equally_many_tuples(slots: int) -> None:
    times = np.random.default_rng(3).integers(0, 60 * SECOND, 100_000)
    layout = fitted_stretches(TimeRouter().layout(64, slots, 1), sample_times(times, slots))
    assert layout.slots == slots + 1 and layout.first == 1
    assert np.bincount(layout.ranges_of(times)).max() < 1.25 * len(times) / slots


def test_tuples_of_one_time_need_one_slot() -> None:
    layout = fitted_stretches(TimeRouter().layout(64, 8), [[5 * SECOND, 1_000]])
    assert layout.slots == 1 and layout.bounds == ()


def test_the_next_tuples_follow_at_the_pace_of_the_watermark() -> None:
    slots = [
        {"waiting": [[9, 1]], "arrived": [[7, 2], [8, 3]], "advance": 5},
        {"waiting": [], "arrived": [[9, 4]], "advance": 0},
    ]
    assert sorted(expected_times(merge_time_notes(slots))) == [[9, 1], [12, 2], [13, 3], [14, 4]]


def test_notes_of_many_slots_stay_small() -> None:
    slots = [{"waiting": [[s * 100 + t, 10] for t in range(32)], "arrived": [], "advance": 0} for s in range(64)]
    waiting = merge_time_notes(slots)["waiting"]
    assert len(waiting) <= 64 * TIMES_PER_SLOT and sum(tuples for _, tuples in waiting) == 64 * 32 * 10


def test_notes_do_not_grow_with_the_square_of_the_slots() -> None:
    slots, times = 1_024, np.arange(20_000)
    noted = {"waiting": sample_times(times, slots), "arrived": [], "advance": 0}
    assert len(noted["waiting"]) == MOST_TIMES  # each slot reports as many
    merged = merge_time_notes([noted] * slots)
    assert len(merged["waiting"]) <= TIMES_PER_SLOT * slots
    assert sum(tuples for _, tuples in merged["waiting"]) == slots * len(times)
