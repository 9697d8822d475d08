"""Areas in one buffer: where they are follows from their sizes, and none touches another."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.columnar import buffers


def sizes(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    return {f"area {n}": rng.choice([0, 1, 63, 64, 65, rng.randrange(1000)]) for n in range(rng.randrange(7))}


@pytest.mark.parametrize("seed", range(20))
def test_areas_are_aligned_apart_and_zero(seed: int) -> None:
    asked = sizes(seed)
    found = buffers.zeroed_areas(asked)
    assert {name: len(area) for name, area in found.items()} == asked
    assert all(area.ctypes.data % buffers.ALIGNED == 0 and not area.any() for area in found.values() if len(area))
    for number, area in enumerate(found.values(), 1):
        area[:] = number
    assert all((area == number).all() for number, area in enumerate(found.values(), 1))


@pytest.mark.parametrize("seed", range(20))
def test_whoever_has_buffer_and_sizes_has_the_areas(seed: int) -> None:
    asked = sizes(seed)
    buffer = np.zeros(buffers.total_bytes(asked), np.uint8)
    for number, area in enumerate(buffers.split_buffer(buffer, asked).values(), 1):
        area[:] = number
    again = buffers.split_buffer(buffer.copy(), asked)
    assert [set(area.tolist()) for area in again.values()] == [
        {number} if size else set() for number, size in enumerate(asked.values(), 1)
    ]
