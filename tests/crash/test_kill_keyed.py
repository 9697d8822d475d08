"""The kill matrix for sessions and `asof`, whose state is rows per key that are written anew in every epoch, and outer joins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from . import killing
from .killing import Nursery, Rows, check, survival
from .test_kill_matrix import GOOD, Matrix, _anywhere


@pytest.fixture(scope="module")
def wanted() -> dict[str, Rows]:
    found = killing.expected_of_keyed()
    assert all(rows.total() > 8 for rows in found.values())
    return found


@pytest.fixture(scope="module")
def matrix(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(killing.steps_of(nursery, tmp_path_factory.mktemp("keyed") / "run", keyed=True))


@pytest.fixture
def survives(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    return survival(nursery, tmp_path, wanted, keyed=True)


def test_an_unkilled_run_gives_the_reference_answer(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    assert check(nursery, tmp_path / "run", wanted, [], keyed=True) == GOOD


@pytest.mark.parametrize("when", ["before", "linked"])
def test_killed_around_a_manifest(matrix: Matrix, survives, when: str):
    survives("storage", when, matrix.publishes[1:])


def test_killed_around_a_block(matrix: Matrix, survives):
    survives("storage", "before", matrix.writes[4::29])
    survives("storage", "torn", matrix.writes[19::29])


def test_killed_around_a_delivery(matrix: Matrix, survives):
    survives("sink", "after", matrix.deliveries[1::7])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_killed_again_and_again(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], seed: int):
    """Ten runs in a row die, each somewhere."""
    kills = _anywhere(random.Random(seed))
    assert check(nursery, tmp_path / "run", wanted, kills, keyed=True) == GOOD, kills
