"""Bounds of ranges: the busiest slot reads little more than the mean, and no option that was not chosen is better."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.control.group_load import NumbersOfBlock
from headrace.control.range_bounds import MOST_SAMPLED, NumberSample, choose_ranges, read_by_busiest


def sample(values: np.ndarray, extent: float = 0.0, blocks: int = 10) -> NumberSample:
    found = NumberSample()
    for part in np.array_split(values, blocks):
        ordered = np.sort(part)
        at = np.arange(128) * len(ordered) // 128
        found.add([NumbersOfBlock(len(part), extent, ordered[at].tolist())], float(len(values)))
    return found


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 64])
def test_narrow_bands_give_every_slot_an_equal_range(slots: int) -> None:
    rng = np.random.default_rng(1)
    sides = [sample(rng.normal(size=20_000)), sample(rng.normal(size=20_000), extent=0.001)]
    layout = choose_ranges(sides, 0, 0.0, slots)
    assert layout.slots == slots and set(layout.grids) == {(1, 1)}
    assert read_by_busiest(layout, sides, 0.0) <= 1.3 * 40_000 / slots


def test_bands_as_wide_as_the_data_give_a_grid() -> None:
    rng = np.random.default_rng(1)
    sides = [sample(rng.random(10_000)), sample(rng.random(10_000), extent=5.0)]
    layout = choose_ranges(sides, 0, 0.0, 16)
    assert layout.grids == ((4, 4),)


def test_a_value_that_half_of_the_tuples_have_is_in_several_slots() -> None:
    rng = np.random.default_rng(1)
    values = np.where(rng.random(20_000) < 0.5, 7.0, rng.normal(7, 3, 20_000))
    sides = [sample(values), sample(values)]
    layout = choose_ranges(sides, 0, 0.0, 8)
    assert layout.slots <= 8 and max(rows * columns for rows, columns in layout.grids) >= 3
    assert read_by_busiest(layout, sides, 0.0) <= 1.5 * 40_000 / 8 * np.sqrt(4)


def test_a_sample_forgets_what_has_left_the_windows() -> None:
    found = NumberSample()
    for epoch in range(50):
        values = np.linspace(epoch, epoch + 1, 64)
        found.add([NumbersOfBlock(1_000, 0.0, values.tolist())], 3_000.0)
    assert len(found.values) <= MOST_SAMPLED and abs(found.weights.sum() - 3_000) < 1
    assert found.between(47.0, None) > 1_800 and found.between(None, 30.0) < 10


def test_values_that_are_not_finite_do_not_count() -> None:
    found = NumberSample()
    found.add([NumbersOfBlock(9, 0.0, [])], 9.0)
    assert not len(found.values)


@pytest.mark.parametrize("extent", [0.0, 1e308, float(np.finfo(np.float64).max), -1e308])
def test_bounds_are_finite_for_the_largest_doubles(extent: float) -> None:
    """They end open intervals in the data of some users. A manifest has no infinite numbers."""
    largest = float(np.finfo(np.float64).max)
    values = np.sort(np.random.default_rng(1).choice([-largest, -1.0, 0.0, 1.0, largest], 1_000))
    sides = [sample(values), sample(values, extent=extent)]
    for points in (0, 1):
        layout = choose_ranges(sides, points, 1e308, 8)
        assert np.isfinite(layout.bounds).all()
