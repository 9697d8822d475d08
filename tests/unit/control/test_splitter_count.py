"""Splitters follow the load: the best there are, few changes, none for noise."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.columnar.types import TS_TYPE
from headrace.compile import compile_query
from headrace.control.gain import SECONDS
from headrace.control.policy import Policy
from headrace.control.splitter_count import (
    LARGEST_WINDOW,
    MORE,
    SMALLEST_WINDOW,
    USUAL,
    FixedSplitters,
    SplitLoad,
    Splitters,
    choose_splitters,
    splitter_seconds,
    window_size,
)
from headrace.driver.driver import Driver, Settings
from headrace.driver.layouts import _split_load
from headrace.sinks import memory
from headrace.state.store import StateStore
from headrace.stream import node_of
from headrace.testing import LocalRun, table_stream

WORTH = 0.1


def load(cpu: float, bytes: float = 1e8, tasks: int = 1) -> SplitLoad:
    return SplitLoad(tasks, 1e6, bytes, cpu, cpu / tasks)


LOADS = st.builds(load, st.floats(0, 1_000), st.floats(0, 1e12))
NOW = st.builds(Splitters, st.integers(1, 64), st.sampled_from([1 << power for power in range(20, 27)]))


@given(LOADS, NOW, st.integers(1, 64))
def test_what_is_chosen_is_as_good_as_any_but_for_what_is_not_worth_it(
    found: SplitLoad, now: Splitters, most: int
) -> None:
    p = choose_splitters(found, now, most, WORTH).count
    assert 1 <= p <= most
    for other in range(1, most + 1):
        assert splitter_seconds(found, p) * (1 - WORTH) <= (splitter_seconds(found, other) + SECONDS) * (1 + 1e-9)


@given(LOADS, NOW, st.integers(1, 64))
def test_what_was_chosen_stays_while_the_load_does(found: SplitLoad, now: Splitters, most: int) -> None:
    once = choose_splitters(found, now, most, WORTH)
    assert choose_splitters(found, once, most, WORTH) == once


@given(LOADS, NOW, st.integers(1, 64))
def test_new_windows_are_neither_small_nor_large_nor_far_off(found: SplitLoad, now: Splitters, most: int) -> None:
    chosen = choose_splitters(found, now, most, WORTH)
    if chosen == now:
        return
    assert SMALLEST_WINDOW <= chosen.window_bytes <= LARGEST_WINDOW and chosen.window_bytes.bit_count() == 1
    right = window_size(found.bytes / (4 * chosen.count))
    assert right / 4 < chosen.window_bytes < right * 4
    assert chosen.window_bytes == now.window_bytes or not right / 4 < now.window_bytes < right * 4


def test_few_tuples_want_one_splitter_and_many_one_for_each_slot() -> None:
    now = Splitters(8, 16 << 20)
    assert choose_splitters(load(0.001, tasks=8), now, 8, WORTH).count == 1
    assert choose_splitters(load(100.0, tasks=4), Splitters(4, 16 << 20), 8, WORTH).count == 8
    few, more = load(MORE * 36, tasks=8), load(MORE * 100, tasks=8)
    assert choose_splitters(few, now, 64, WORTH).count == choose_splitters(more, now, 64, WORTH).count == 8
    assert choose_splitters(load(MORE * 25), Splitters(1, 16 << 20), 64, WORTH).count == 5  # the root of S / x


def test_windows_that_are_too_large_to_be_dealt_evenly_become_smaller() -> None:
    one_has_all = SplitLoad(1, 1e6, 12 << 20, 1.0, 1.0)
    assert choose_splitters(one_has_all, Splitters(8, 16 << 20), 8, WORTH) == Splitters(8, 1 << 20)
    even = SplitLoad(8, 1e6, 12 << 20, 1.0, 1 / 8)
    assert choose_splitters(even, Splitters(8, 16 << 20), 8, WORTH) == Splitters(8, 16 << 20)


def test_fewer_slots_than_splitters_are_not_left_so() -> None:
    assert choose_splitters(load(MORE * 16), Splitters(4, 16 << 20), 3, WORTH).count == 3


def follow(loads: list[float], noise: float, most: int = 64) -> list[int]:
    chance, now, found = random.Random(3), Splitters(1, 16 << 20), []
    for each in loads:
        now = choose_splitters(load(each * chance.uniform(1 - noise, 1 + noise)), now, most, WORTH)
        found.append(now.count)
    return found


def test_noise_of_a_third_changes_nothing_once_it_is_chosen() -> None:
    for cpu in (0.05, 0.5, 5.0, 50.0):
        found = follow([cpu] * 300, noise=0.33)
        assert len(set(found[1:])) == 1, (cpu, set(found))


def test_a_ramp_up_and_down_is_followed_with_one_reversal() -> None:
    up = [0.02 * 5_000 ** (i / 60) for i in range(61)]
    found = follow([*up, *up[::-1]], noise=0.2)
    steps = [b - a for a, b in pairwise(found) if a != b]
    assert max(found) > 50 and found[-1] <= 7  # fewer would save less time than epochs differ by
    assert sum(a * b < 0 for a, b in pairwise(steps)) == 1
    assert len(steps) <= 2 * math.log(5_000, 2.2)


def test_an_epoch_that_reads_more_is_a_larger_load() -> None:
    assert SplitLoad(2, 100, 1_000, 1.0, 0.5).reading(3_000) == SplitLoad(2, 300, 3_000, 3.0, 1.5)


def test_loads_are_smoothed_but_for_the_number_of_tasks() -> None:
    before, now = SplitLoad(2, 100, 1_000, 1.0, 0.5), SplitLoad(4, 200, 3_000, 3.0, 1.5)
    assert now.smoothed(None, 0.5) == now
    assert now.smoothed(before, 0.5) == SplitLoad(4, 150, 2_000, 2.0, 1.0)
    assert now.seconds == 1.5 + 4 * MORE


def test_what_the_reports_of_an_epoch_say(tmp_path: Path) -> None:
    """Three splitters, then two slots; bytes, and which sources are files, are the driver's to say."""
    table = pa.table({"ts": pa.array(range(30), TS_TYPE), "k": list(range(30))})
    run = LocalRun(
        table_stream(table, name="s").aggregate(by=["k"], window="1 second", n="count(*)"), tmp_path / "s", slots=2
    )
    found: list[SplitLoad | None] = []
    decide = run.driver.layouts.decide

    def listen(epoch: Any, reports: Any, *others: Any) -> Any:
        found.extend(_split_load(reports, read) for read in ({}, {"s": 500}, {"t": 500}))
        cpu = [report.cpu for report in reports if report.task.stage == 0]
        assert found[1] == SplitLoad(3, 30, 500, sum(cpu), max(cpu)) and len(cpu) == 3
        return decide(epoch, reports, *others)

    run.driver.layouts.decide = listen  # type: ignore[method-assign]
    run.epoch(table, splitters=3)
    run.close()
    assert found[0] is found[2] is None and run.driver.control.splitting is None  # no files


# --- what a start gives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fixed",
    [FixedSplitters(3, 5_000), FixedSplitters(count=3), FixedSplitters(window_bytes=5_000), FixedSplitters()],
    ids=str,
)
def test_given_splitters_are_used_in_every_epoch_and_not_changed(tmp_path: Path, fixed: FixedSplitters) -> None:
    """One splitter takes 100 s of every epoch, which is worth a change if nothing is given."""
    query = table_stream(pa.table({"ts": pa.array([], TS_TYPE), "k": pa.array([], pa.int64())}), name="s")
    plan = compile_query([node_of(query.aggregate(by=["k"], window="1 second", n="count(*)"))])
    settings = Settings(2, policy=Policy(every=1), limit=8, splitters=fixed)
    with StateStore.open(tmp_path / "state") as store:
        driver = Driver(plan, {"operators": []}, store, dict.fromkeys(plan.results, memory()), settings).open()
        for slots in (2, 8):
            driver.layouts.set_slots(slots, None)
            assert driver.layouts.splitters(1 << 30) == Splitters(fixed.count or slots, fixed.window_bytes or USUAL)
            driver.control.observe({}, {}, [0.0] * slots, 1.0, load(100.0))
            decided = [decision.kind for decision in driver.control.reorganise(0, 64, {})]
            assert decided == ([] if fixed.is_fixed else ["splitters"])
            assert fixed.is_fixed or driver.layouts.splitters(1 << 30).count == slots
            driver.control.splitters = None
