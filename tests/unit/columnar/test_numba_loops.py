"""Compiled loops over plain arrays, held against NumPy and plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columnar import numba_loops


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(0, 63), st.integers(0, 2**32))
def test_keys_are_put_in_order_by_some_of_their_bits_and_stay_as_they_stand_otherwise(
    data: st.DataObject, low: int, seed: int
) -> None:
    bits = data.draw(st.integers(0, 64 - low))
    many = data.draw(st.integers(0, 3_000))
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 1 << 63, many, np.int64).view(np.uint64) << np.uint64(1) | rng.integers(
        0, 2, many, np.uint64
    )
    keys >>= np.uint64(min(64 - low - bits, 63))
    if low + bits == 0:
        keys[:] = 0
    expected = [int(keys[row]) for row in sorted(range(many), key=lambda row: int(keys[row]) >> low)]
    assert numba_loops.order_by_bits(keys.copy(), low, bits).tolist() == expected


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 3_000), st.sampled_from([64, 40, 12, 3, 0]), st.integers(0, 60), st.integers(0, 2**32))
def test_rows_by_hash_are_those_of_a_stable_sort(many: int, bits: int, shift: int, seed: int) -> None:
    """Also where the high bits tell few of them apart, or many hashes are one."""
    keys = np.random.default_rng(seed).integers(0, (1 << bits) - 1, many, np.uint64, endpoint=True)
    hashed = keys << np.uint64(min(shift, 64 - max(bits, 1)))
    hashed.flags.writeable = False  # as those of a block that is mapped
    assert numba_loops.order_by_hash(hashed).tolist() == np.argsort(hashed, kind="stable").tolist()


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50)), st.lists(st.integers(-50, 50)))
def test_two_ascending_lists_become_one(one: list[int], two: list[int]) -> None:
    both = np.empty(len(one) + len(two), np.int64)
    numba_loops.merge_sorted(np.array(sorted(one), np.int64), np.array(sorted(two), np.int64), both)
    assert both.tolist() == sorted(one + two)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 1 << 40), min_size=1),
    st.sampled_from([1, 1_000, 1_000_000]),
    st.integers(-(1 << 61), 1 << 61),
    st.integers(0, 2),
)
def test_whole_units_above_the_least_are_told_from_others(counts: list[int], unit: int, least: int, off: int) -> None:
    values = np.array([least + count * unit for count in counts], np.int64)
    values[len(values) // 2] += off
    apart = [(int(value) - least) % unit == 0 for value in values]
    found = numba_loops.whole_units(values, least, unit)
    assert (found is not None) == all(apart)
    if found is not None:
        assert found.tolist() == [(int(value) - least) // unit for value in values]


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("number", [np.int64, np.uint32])
def test_values_are_gathered_by_number(kind: str, number: type) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, 1_000).astype(kind)
    values.flags.writeable = False
    rows = rng.integers(0, 1_000, 5_000).astype(number)
    target = np.empty(5_000, kind)
    numba_loops.gather(values, rows, target)
    assert np.array_equal(target, values[rows])
