"""Tables, `asof`, outer joins and sessions among all other operators: random queries, whose operators are counted.

Each goes through a cut, restarts, other slots, other strategies or layouts, and where it has tables, through their versions.
"""

from __future__ import annotations

import random

import pytest

from headrace.compile import STRATEGIES
from headrace.difference import difference
from headrace.reference import reference

from .driving import drive, random_layouts
from .mixing import meetings, mixed, occurrences, operators_of
from .strategies import cut
from .test_local import seeds
from .test_tables import drive_versions, held_by

TRIED = 20  # in make test
COUNTED = 60
LONG = 300


def trouble(seed: int) -> str | None:
    """What is wrong with the answer of a run; versions of tables that change, layouts that do, or strategies."""
    case = mixed(seed)
    arrived = cut(case.tables, random.Random(seed).choice([1, 2, 3, 4, 6]), seed)
    way = seed % 3
    if way == 0 and held_by(case.query):
        found, versions = drive_versions(case, arrived, seed)
        expected = reference(case.query, epochs=arrived, versions=versions)
    else:
        layouts = {"layouts": random_layouts(seed)} if way == 1 else {"strategies": STRATEGIES}
        found = drive(case.query, arrived, seed, reopen=0.4, change_slots=0.5, **layouts)
        expected = reference(case.query, epochs=arrived)
    assert found.schema.equals(expected.schema)
    text = difference(expected, found)
    return None if text is None else f"seed {seed}: {text}\n{case!r}"


@seeds(TRIED)
def test_any_mix(seed: int) -> None:
    assert (found := trouble(seed)) is None, found


@pytest.mark.thorough
def test_every_operator_is_among_them() -> None:
    counted = occurrences([mixed(seed).query for seed in range(COUNTED)])
    assert all(counted.values()), counted


def test_an_operator_that_is_never_there_is_missed() -> None:
    queries = [mixed(seed).query for seed in range(2)]
    there = set.union(*(operators_of(query) for query in queries))
    counted = occurrences(queries)
    assert {kind for kind, times in counted.items() if times} == there != set(counted)
    assert not all(meetings(queries).values())


@pytest.mark.long
def test_three_hundred_of_them_in_one_go() -> None:
    wrong = [found for seed in range(LONG) if (found := trouble(seed)) is not None]
    assert not wrong, "\n\n".join(wrong)
    queries = [mixed(seed).query for seed in range(LONG)]
    print(f"{LONG} queries: {dict(occurrences(queries))}")
    assert all(occurrences(queries).values()), occurrences(queries)
    assert all(meetings(queries).values()), meetings(queries)
