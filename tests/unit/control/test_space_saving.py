"""Space-Saving: counts are never too small, by no more than their error too large, and no heavy key is missed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.control.space_saving import SpaceSavingSketch


@given(st.lists(st.integers(0, 30), max_size=400), st.integers(2, 12))
def test_bounds(keys: list[int], capacity: int) -> None:
    sketch, true = SpaceSavingSketch(capacity), Counter(keys)
    for key in keys:
        sketch.add(key)
    assert sketch.total == len(keys) and len(sketch.counts) <= capacity
    for key, count in sketch.counts.items():
        assert count - sketch.errors[key] <= true[key] <= count
        assert sketch.errors[key] <= len(keys) / capacity
    for key, count in true.items():
        if count > len(keys) / capacity:
            assert key in sketch.counts


def test_what_is_past_fades() -> None:
    sketch = SpaceSavingSketch(4)
    for epoch in range(40):
        sketch.fade(0.8)
        sketch.add(1 if epoch < 20 else 2, 50)
        sketch.rest(50)
    assert [key for key, _ in sketch.heavy(0.3)] == [2]
