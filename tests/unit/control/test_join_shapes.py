"""Rates in, shapes out: ragged never reads more than the paper's algorithm, and changes only for something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.join_shapes import choose_shape, read_by_busiest

RATES = st.tuples(st.floats(1, 1e6), st.floats(1, 1e6))


@given(RATES, RATES, st.integers(1, 24))
def test_ragged_reads_least(new: tuple[float, float], held: tuple[float, float], slots: int) -> None:
    cost = {
        name: read_by_busiest(choose_shape(name, 64, slots, new, held), new, held)
        for name in ("ragged", "grid", "ssp", "adaptive-ssp")
    }
    assert cost["ragged"] <= min(cost.values()) * (1 + 1e-6) + 2


@pytest.mark.parametrize(
    ("policy", "new", "rows"),
    [
        ("ssp", (1, 100), (1, 1, 1, 1)),  # the left stream is partitioned, whatever the rates
        ("adaptive-ssp", (100, 1), (1, 1, 1, 1)),  # the faster one is partitioned, the slower one replicated
        ("adaptive-ssp", (1, 100), (4,)),
        ("grid", (5, 5), (2, 2)),
    ],
)
def test_shapes_of_the_papers(policy: str, new: tuple[float, float], rows: tuple[int, ...]) -> None:
    assert choose_shape(policy, 64, 4, new, (0.0, 0.0)).rows == rows


def test_the_papers_grid_leaves_slots_idle() -> None:
    assert choose_shape("grid", 64, 8, (1, 1), (1, 1)).rows == (2, 2)
