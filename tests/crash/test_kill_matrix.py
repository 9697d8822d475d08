"""SIGKILL at every step of a run: nothing lost, nothing twice, nothing damaged.

The steps are those of a run that is left alone: writes, syncs, publications and deletions of the state, deliveries to
the sink. Every step belongs to one kind of fault, which a test below is named after; together they die at each (at some
of the many that are alike). The run that follows has other slots and cuts the rest of the rows otherwise.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.state.head import head_name, head_number

from . import killing
from .killing import Nursery, Outcome, Rows, check, survival

GOOD = Outcome(0, 0)


class Matrix:
    """The moments of a run by what they do."""

    def __init__(self, steps: Sequence[str]) -> None:
        storage = [step for step in steps if step.startswith("storage")]
        self.heads = [
            k for k, step in enumerate(storage) if head_number(step.split()[-1]) is not None and "write" in step
        ]
        self.writes = [k for k in _numbers(storage, "write") if k not in self.heads]
        self.publishes = _numbers(storage, "publish")
        self.deliveries = list(range(len(steps) - len(storage)))
        self.first_writes = [k for k in self.writes if k == 0 or k - 1 not in self.writes]
        self.commits = [k - 1 for k in self.publishes]  # the sync of the blocks, right before
        head_syncs = [k + 1 for k in self.heads]
        known = {*self.writes, *self.publishes, *self.commits, *self.heads, *head_syncs}
        self.clean_ups = [k for k in range(len(storage)) if k not in known]


def _numbers(steps: Sequence[str], what: str) -> list[int]:
    return [k for k, step in enumerate(steps) if step.split()[1] == what]


@pytest.fixture(scope="module")
def matrix(steps: list[str]) -> Matrix:
    return Matrix(steps)


@pytest.fixture
def survives(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    return survival(nursery, tmp_path, wanted)


def test_the_matrix_has_every_kind_of_step(matrix: Matrix):
    assert len(matrix.publishes) == 4
    assert matrix.heads == [k + 1 for k in matrix.publishes], "each right after its commit"
    assert len(matrix.first_writes) >= 4
    assert len(matrix.writes) > 20
    assert len(matrix.deliveries) > 6
    assert len(matrix.clean_ups) > 8


def test_an_unkilled_run_gives_the_reference_answer(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    assert check(nursery, tmp_path / "run", wanted, []) == GOOD


def test_killed_before_any_block(matrix: Matrix, survives):
    survives("storage", "before", matrix.first_writes)


def test_killed_after_some_blocks(matrix: Matrix, survives):
    survives("storage", "before", [k for k in matrix.writes if k not in matrix.first_writes][::5])


def test_killed_within_a_block(matrix: Matrix, survives):
    survives("storage", "torn", matrix.writes[1::8])


def test_killed_after_all_blocks_before_the_manifest(matrix: Matrix, survives):
    survives("storage", "before", matrix.commits)
    survives("storage", "after", matrix.commits[:2])


@pytest.mark.parametrize("when", ["before", "torn", "unlinked"])
def test_killed_while_the_manifest_is_written(matrix: Matrix, survives, when: str):
    survives("storage", when, matrix.publishes)


@pytest.mark.parametrize("when", ["linked", "after"])
def test_killed_after_the_commit_before_delivery(matrix: Matrix, survives, when: str):
    survives("storage", when, matrix.publishes)


def test_killed_between_the_commit_and_its_head(matrix: Matrix, survives):
    survives("storage", "before", matrix.heads)


def test_killed_after_the_head_before_delivery(matrix: Matrix, survives):
    survives("storage", "after", matrix.heads)
    survives("storage", "after", [k + 1 for k in matrix.heads][:2])  # the sync of the head


def test_killed_before_a_delivery(matrix: Matrix, survives):
    survives("sink", "before", matrix.deliveries[::2])


def test_killed_within_a_delivery(matrix: Matrix, survives):
    survives("sink", "within", matrix.deliveries[::2])


def test_killed_after_a_delivery(matrix: Matrix, survives):
    survives("sink", "after", matrix.deliveries[1::2])


def test_killed_during_clean_up(matrix: Matrix, survives):
    survives("storage", "before", matrix.clean_ups[::4])
    survives("storage", "after", matrix.clean_ups[2::8])


# --- a run that takes what is there, and ends -------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "torn", "linked", "after"])
def test_a_run_over_a_list_of_files_survives_a_kill_at_every_manifest(
    nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], listed_steps: list[str], when: str
):
    """Before the first manifest the list is made anew; from then on it is kept, though more files come."""
    for k in Matrix(listed_steps).publishes:
        folder = tmp_path / f"{when}-{k}"
        assert check(nursery, folder, wanted, [("storage", k, when)], listed=True) == GOOD, f"killed {when} step {k}"
        assert _closed(folder)
        shutil.rmtree(folder)


@pytest.mark.parametrize("when", ["before", "torn", "after"])
def test_so_it_does_at_every_block_of_the_first_epoch(
    nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], listed_steps: list[str], when: str
):
    """The last of them is the list."""
    matrix = Matrix(listed_steps)
    for k in [k for k in matrix.writes if k < matrix.publishes[0]][-4:]:
        folder = tmp_path / f"{when}-{k}"
        assert check(nursery, folder, wanted, [("storage", k, when)], listed=True) == GOOD, f"killed {when} step {k}"
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(2))
def test_so_it_does_again_and_again(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], seed: int):
    kills = _anywhere(random.Random(seed))
    assert check(nursery, tmp_path / "run", wanted, kills, listed=True) == GOOD, kills
    assert _closed(tmp_path / "run")


def _closed(folder: Path) -> bool:
    found = killing.StateStore.open(folder / "state", read_only=True).last
    return found is not None and found.closed


# --- the recovery dies as well --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], seed: int):
    """Ten runs in a row die, each somewhere: before a step, within it, after it."""
    kills = _anywhere(random.Random(seed))
    assert check(nursery, tmp_path / "run", wanted, kills) == GOOD, kills


def _anywhere(rng: random.Random) -> list[tuple[str, int, str]]:
    return [
        ("storage", rng.randrange(25), rng.choice(["before", "after", "torn", "linked", "unlinked"]))
        if rng.random() < 0.8
        else ("sink", rng.randrange(3), rng.choice(["before", "within", "after"]))
        for _ in range(10)
    ]


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_tenth_recovery_equals_the_first(
    nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], matrix: Matrix, when: str
):
    """A recovery that dies in its first delivery changes neither state nor results, however often."""
    kills = [("storage", matrix.publishes[1], "linked")] + [("sink", 0, when)] * 10
    folder = tmp_path / "run"
    folder.mkdir()
    seen = []
    for kill in kills:
        assert nursery.run(folder=folder, slots=2, cut=40, kill=kill) == -9
        assert killing.state_trouble(folder / "state") is None
        seen.append((_files(folder / "state" / "manifests"), _files(folder / "state" / "blocks"), _tables(folder)))
    assert seen[1:] == [seen[1]] * 10
    assert nursery.run(folder=folder, slots=1, cut=29) == 0
    assert killing.compare(wanted, folder / "out") == GOOD


def _files(folder: Path) -> dict[str, bytes]:
    """What counts in a folder; temporary files are left by whoever dies and go with the next clean-up."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("_")}


def _tables(folder: Path) -> dict[str, object]:
    return {str(path): pq.read_table(path).to_pylist() for path in sorted((folder / "out").rglob("[!_]*.parquet"))}


def test_what_a_kill_leaves_behind_is_cleaned_up(nursery: Nursery, tmp_path: Path, matrix: Matrix):
    """Orphan blocks and temporary manifests are gone once later epochs have been committed."""
    folder = tmp_path / "run"
    folder.mkdir()
    for kill in [("storage", matrix.writes[9], "torn"), ("storage", 12, "torn"), ("storage", 5, "before")]:
        nursery.run(folder=folder, slots=2, cut=40, kill=kill)
    assert nursery.run(folder=folder, slots=2, cut=40) == 0
    store = killing.StateStore.open(folder / "state", read_only=True)
    names = [name for kind in ("blocks", "manifests") for name in store.storage.list(kind)]
    assert not [name for name in names if killing.storage_module.is_temporary(name)]
    assert len(store.storage.list("manifests")) <= 3
    retained = [killing.Manifest.from_bytes(store.storage.read(name), name) for name in store.storage.list("manifests")]
    needed = {block.name for manifest in retained for block in manifest.live_blocks()}
    assert set(store.storage.list("blocks")) == needed | {head_name(store.last.number)}
