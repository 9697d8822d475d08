"""A run that another query continues, migrated or restarted in mid-stream, against a run that never stopped.

The adversary of `test_layouts` draws layouts, slots and strategies here too. A result that is kept must be exactly that of a run
that never stopped. A result that is new must be complete from the time on that the manifest names, and none of its windows
may be half filled.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from .successions import make_succession, trouble

TRIED = 40  # in make test
LONG = 300

made = functools.cache(make_succession)


def first_trouble(seeds: range, folder: Path) -> str | None:
    """What is wrong in the first of these cases in which something is."""
    return next((found for seed in seeds if (found := trouble(made(seed), folder / str(seed))) is not None), None)


@pytest.mark.parametrize(
    "tens", [pytest.param(tens, marks=pytest.mark.thorough if tens else ()) for tens in range(TRIED // 10)]
)
def test_one_query_after_another(tens: int, tmp_path: Path) -> None:
    found = first_trouble(range(tens * 10, tens * 10 + 10), tmp_path)
    assert found is None, found


@pytest.mark.long
def test_three_hundred_pairs(tmp_path: Path) -> None:
    found = first_trouble(range(LONG), tmp_path)
    assert found is None, found
