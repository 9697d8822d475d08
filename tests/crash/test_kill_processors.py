"""The kill matrix for processors: SIGKILL in the middle of a call, and around everything that is stored of their tables.

What must be right in the end: what they put out and what is made of it, and every row of their tables.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from . import killing
from .killing import Nursery, Outcome, Rows, check, survival
from .test_kill_matrix import GOOD, Matrix


@pytest.fixture(scope="module")
def wanted() -> dict[str, Rows]:
    found = killing.expected_of_processors()
    assert all(found.values())
    return found


@pytest.fixture(scope="module")
def steps(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return killing.steps_of(nursery, tmp_path_factory.mktemp("processors") / "run", processors=True)


@pytest.fixture(scope="module")
def matrix(steps: list[str]) -> Matrix:
    return Matrix([step for step in steps if not step.startswith("call")])


@pytest.fixture
def survives(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    return survival(nursery, tmp_path, wanted, processors=True)


def calls(steps: list[str], what: str) -> list[int]:
    """The numbers of the calls of one kind among all calls."""
    every = [step for step in steps if step.startswith("call")]
    return [k for k, step in enumerate(every) if step == f"call {what}"]


def test_the_matrix_has_every_kind_of_step(steps: list[str], matrix: Matrix):
    assert all(len(calls(steps, what)) > 10 for what in ("process", "tick", "end"))
    assert len(matrix.publishes) == 4
    assert len(matrix.writes) > 30
    assert len(matrix.clean_ups) > 8


def test_an_unkilled_run_gives_the_model_s_answer(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    assert check(nursery, tmp_path / "run", wanted, [], processors=True) == GOOD


@pytest.mark.parametrize("what", ["process", "tick", "end"])
def test_killed_in_the_middle_of_a_call(steps: list[str], survives, what: str):
    numbers = calls(steps, what)
    survives("call", "within", [numbers[0], numbers[len(numbers) // 3], numbers[-2]])


def test_killed_around_a_block(matrix: Matrix, survives):
    survives("storage", "before", matrix.writes[3::17])
    survives("storage", "torn", matrix.writes[9::17])


@pytest.mark.parametrize("when", ["before", "torn", "unlinked", "linked", "after"])
def test_killed_around_a_manifest(matrix: Matrix, survives, when: str):
    survives("storage", when, matrix.publishes[1:3] if when == "torn" else matrix.publishes)


def test_killed_around_a_delivery(matrix: Matrix, survives):
    survives("sink", "before", matrix.deliveries[1::5])
    survives("sink", "after", matrix.deliveries[3::5])


def test_killed_during_clean_up(matrix: Matrix, survives):
    survives("storage", "before", matrix.clean_ups[::9])


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], seed: int):
    """Ten runs in a row die, each somewhere."""
    rng = random.Random(seed)
    kinds = {
        "call": (40, ["within"]),
        "storage": (40, ["before", "after", "torn", "linked", "unlinked"]),
        "sink": (3, ["before", "within", "after"]),
    }
    kills = []
    for _ in range(10):
        kind = rng.choice(list(kinds))
        kills.append((kind, rng.randrange(kinds[kind][0]), rng.choice(kinds[kind][1])))
    assert check(nursery, tmp_path / "run", wanted, kills, processors=True) == GOOD, kills


# what is broken -> (where to die, what the check must report)
CANARIES = {
    "never deliver again": (lambda m: ("storage", m.publishes[1], "linked"), "lost"),
    "sink appends": (lambda m: ("sink", 4, "after"), "duplicated"),
    "older rows win": (lambda m: ("storage", m.publishes[1], "after"), "wrong"),
}


@pytest.mark.parametrize("broken", CANARIES)
def test_canary(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], matrix: Matrix, broken: str):
    where, reported = CANARIES[broken]
    moment = where(matrix)
    assert check(nursery, tmp_path / "sound", wanted, [moment], processors=True) == GOOD, "the sound system must pass"
    outcome = check(nursery, tmp_path / "broken", wanted, [moment], broken=broken, processors=True)
    assert outcome != Outcome(0, 0), f"nobody noticed: {broken}"
    assert getattr(outcome, reported), outcome
