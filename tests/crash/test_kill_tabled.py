"""The kill matrix beside tables: a run that comes back reads other contents, and what was committed stays what it was.

What each epoch used is known from notes that the runs leave, not from the manifests: an epoch that was committed and is
delivered after the kill has the versions that it had; one that was not has those that are read now.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from . import killing
from .killing import Nursery, check, survival
from .test_kill_matrix import GOOD, Matrix, _anywhere

EVERY_STEP = [
    *[("storage", when) for when in ("before", "torn", "after", "linked", "unlinked")],
    *[("sink", when) for when in ("before", "within", "after")],
]


@pytest.fixture(scope="module")
def steps(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return killing.steps_of(nursery, tmp_path_factory.mktemp("tabled") / "run", tabled=True)


@pytest.fixture
def survives(nursery: Nursery, tmp_path: Path):
    return survival(nursery, tmp_path, None, tabled=True)


def test_versions_change_between_epochs_and_a_run_that_is_not_killed_is_right(nursery: Nursery, tmp_path: Path):
    assert check(nursery, tmp_path / "run", None, [], tabled=True) == GOOD
    found = killing.expected_of_tabled(tmp_path / "run")
    assert all(rows.total() > 8 for rows in found.values())
    last = killing.StateStore.open(tmp_path / "run" / "state", read_only=True).last
    assert last is not None
    assert {name: version.number for name, version in last.tables.items()} == {"prices": 4, "ranges": 4}


def test_killed_around_a_manifest(steps: list[str], survives):
    survives("storage", "before", Matrix(steps).publishes[1:3])
    survives("storage", "linked", Matrix(steps).publishes)


def test_killed_around_a_block(steps: list[str], survives):
    """Those of the tables are written before the tasks begin."""
    matrix = Matrix(steps)
    survives("storage", "after", matrix.first_writes[1:2])
    survives("storage", "torn", matrix.writes[7::31])


def test_killed_around_a_delivery(steps: list[str], survives):
    survives("sink", "before", Matrix(steps).deliveries[2::9])


@pytest.mark.long
@pytest.mark.parametrize(("kind", "when"), EVERY_STEP)
def test_killed_at_every_step(steps: list[str], survives, kind: str, when: str):
    matrix = Matrix(steps)
    at = {"torn": [*matrix.writes, *matrix.publishes], "linked": matrix.publishes, "unlinked": matrix.publishes}
    of_storage = at.get(when, range(sum(step.startswith("storage") for step in steps)))
    survives(kind, when, of_storage if kind == "storage" else matrix.deliveries)


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 9)]])
def test_killed_again_and_again(nursery: Nursery, tmp_path: Path, seed: int):
    """Ten runs in a row die, each somewhere, each beside other contents."""
    kills = _anywhere(random.Random(seed))
    assert check(nursery, tmp_path / "run", None, kills, tabled=True) == GOOD, kills


@pytest.mark.parametrize(
    ("broken", "reported"),
    [("tables not read again", "lost"), ("versions mixed up", "lost"), ("tables are garbage", "trouble")],
)
def test_canary(nursery: Nursery, tmp_path: Path, steps: list[str], broken: str, reported: str):
    moment = ("storage", Matrix(steps).publishes[2], "linked")
    outcome = check(nursery, tmp_path / "broken", None, [moment], tabled=True, broken=broken)
    assert getattr(outcome, reported), outcome
