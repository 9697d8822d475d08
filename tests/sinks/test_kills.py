"""kill -9 while results are delivered: nothing is twice in the store, and nothing is missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sinks import dying
from tests.sinks.dying import ROWS, Kill
from tests.sinks.stores import KINDS, Store

MAKE = Callable[[str], Store]


def check(store: Store, folder: Path) -> None:
    """One more run to the end; then what a reader finds."""
    dying.run(store, folder, seed=99)
    assert store.values() == list(range(ROWS))


@pytest.mark.parametrize("kind", KINDS)
def test_killed_by_another_process(kind: str, a_store: MAKE, tmp_path: Path, kills: int = 2):
    store, random_ = a_store(kind), random.Random(kind)
    died = sum(dying.killed(store, tmp_path / "state", random_) for _ in range(kills))
    assert died, "nobody was there to be killed"
    check(store, tmp_path / "state")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_killed_ten_times(kind: str, seed: int, a_store: MAKE, tmp_path: Path):
    test_killed_by_another_process(kind, a_store, tmp_path, kills=10)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_a_step(kind: str, a_store: MAKE, tmp_path: Path, every: int = 4):
    """A delivery of the first epoch, of a later one, and one that comes again."""
    store = a_store(kind)
    first, died = 3 if kind == "postgres" else 0, 0
    for step in range(first, 16, every):
        died += dying.run(store, tmp_path / "state", seed=step, kill=Kill(step)) is None
    assert died
    check(store, tmp_path / "state")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_step(kind: str, a_store: MAKE, tmp_path: Path):
    test_killed_at_a_step(kind, a_store, tmp_path, every=1)


def test_one_that_keeps_no_record_is_seen(a_store: MAKE, tmp_path: Path):
    """A canary: killed after the commit, it has the epoch twice."""
    store = a_store("sqlite")
    steps = dying.run(a_store("sqlite"), tmp_path / "sound")
    assert steps and store.values() == list(range(ROWS))
    store = Store("sqlite", str(tmp_path), "broken")
    for step in range(12):
        dying.run(store, tmp_path / "broken", kill=Kill(step), broken=True)
    dying.run(store, tmp_path / "broken", broken=True)
    assert len(store.values()) > ROWS
    assert sorted(set(store.values())) == list(range(ROWS))
