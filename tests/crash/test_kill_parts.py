"""The kill matrix for results that tasks write in parts: SIGKILL while a part is written, and while it is published."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from . import killing
from .killing import Nursery, Rows, check, survival
from .test_kill_matrix import GOOD, Matrix


@pytest.fixture(scope="module")
def steps(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return killing.steps_of(nursery, tmp_path_factory.mktemp("parts") / "run", parts=True)


@pytest.fixture
def survives(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    return survival(nursery, tmp_path, wanted, parts=True)


def numbers(steps: list[str], kind: str) -> list[int]:
    return list(range(sum(step.startswith(kind) for step in steps)))


def with_results(steps: list[str]) -> list[int]:
    """Publications of an epoch that has some."""
    publications = [step for step in steps if step.startswith("sink")]
    return [k for k, step in enumerate(publications) if not step.endswith(" 0")]


def test_the_matrix_has_every_kind_of_step(steps: list[str]):
    assert len(numbers(steps, "part")) > 10
    results = {step.split()[3] for step in steps if step.startswith("sink")}
    assert results > set(killing.RESULTS), "late and failed tuples too"
    assert len(numbers(steps, "sink")) == 4 * len(results), "four epochs"
    assert len(with_results(steps)) > 6
    assert not [step for step in steps if "outbox" in step]


def test_an_unkilled_run_gives_the_reference_answer(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    assert check(nursery, tmp_path / "run", wanted, [], parts=True) == GOOD


@pytest.mark.parametrize("when", ["before", "torn", "within", "after"])
def test_killed_around_a_part(steps: list[str], survives, when: str):
    survives("part", when, numbers(steps, "part")[1::7])


@pytest.mark.parametrize("when", ["before", "unlinked", "linked", "after"])
def test_killed_around_the_commit(steps: list[str], survives, when: str):
    survives("storage", when, Matrix([s for s in steps if not s.startswith("part")]).publishes[::2])


@pytest.mark.parametrize("when", ["before", "moving", "gathered", "renamed", "after"])
def test_killed_around_a_publication(steps: list[str], survives, when: str):
    survives("sink", when, with_results(steps)[::4])


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], seed: int):
    """Ten runs in a row die, each somewhere."""
    rng = random.Random(seed)
    moments = {
        "storage": ["before", "after", "torn", "linked", "unlinked"],
        "part": ["before", "torn", "within", "after"],
        "sink": ["before", "moving", "gathered", "renamed", "after"],
    }
    kills = []
    for _ in range(10):
        kind = rng.choice(list(moments))
        kills.append((kind, rng.randrange(12 if kind == "storage" else 6), rng.choice(moments[kind])))
    assert check(nursery, tmp_path / "run", wanted, kills, parts=True) == GOOD, kills


# what is broken -> (where to die, what the check must report)
CANARIES = {
    "parts of anybody": (("part", 3, "after"), "duplicated"),
    "parts never swept": (("part", 3, "after"), "trouble"),
    "never deliver again": (("sink", 3, "before"), "lost"),
    "deliver before commit": (("storage", 9, "unlinked"), "trouble"),
}


@pytest.mark.parametrize("broken", CANARIES)
def test_canary(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], steps: list[str], broken: str):
    moment, reported = CANARIES[broken]
    if moment[0] == "storage":
        moment = ("storage", Matrix([s for s in steps if not s.startswith("part")]).publishes[1], moment[2])
    assert check(nursery, tmp_path / "sound", wanted, [moment], parts=True) == GOOD, "the sound system must pass there"
    outcome = check(nursery, tmp_path / "broken", wanted, [moment], broken=broken, parts=True)
    assert not outcome.good, f"nobody noticed: {broken}"
    assert getattr(outcome, reported), outcome
