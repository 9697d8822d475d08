"""kill -9 while results are delivered: nothing is twice in the store, and nothing is missing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.sinks import dying
from tests.sinks.dying import ROWS, Kill
from tests.sinks.stores import DATABASES, KINDS, Store

MAKE = Callable[[str], Store]


def check(store: Store, folder: Path) -> None:
    """One more run to the end; then what a reader finds."""
    dying.run(store, folder, seed=99)
    assert store.values() == list(range(ROWS))


def by_another(store: Store, folder: Path, random_: random.Random, kills: int) -> int:
    return sum(dying.killed(store, folder, random_) for _ in range(kills))


def by_itself(store: Store, folder: Path, steps: Iterable[int]) -> int:
    return sum(dying.run(store, folder, seed=step, kill=Kill(step)) is None for step in steps)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_now_and_then(kind: str, a_store: MAKE, tmp_path: Path):
    """Once when the first rows are written and not committed, once by another process."""
    store, folder = a_store(kind), tmp_path / "state"
    assert by_itself(store, folder, [6 if kind in DATABASES else 2]) == 1
    assert by_another(store, folder, random.Random(kind), 1)
    check(store, folder)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_killed_ten_times_by_another_process(kind: str, seed: int, a_store: MAKE, tmp_path: Path):
    store, folder = a_store(kind), tmp_path / "state"
    assert by_another(store, folder, random.Random(f"{kind}-{seed}"), 10) > 3
    check(store, folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_step(kind: str, a_store: MAKE, tmp_path: Path):
    """Of a delivery of the first epoch, of a later one, and of one that comes again."""
    store, folder = a_store(kind), tmp_path / "state"
    assert by_itself(store, folder, range(16)) > 10
    check(store, folder)


def test_one_that_keeps_no_record_is_seen(a_store: MAKE, tmp_path: Path):
    """A canary: killed after the commit, it has the epoch twice."""
    store = a_store("sqlite")
    assert dying.run(store, tmp_path / "state", kill=Kill(8), broken=True) is None
    dying.run(store, tmp_path / "state", broken=True)
    assert len(store.values()) > ROWS
    assert sorted(set(store.values())) == list(range(ROWS))
