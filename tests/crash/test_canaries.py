"""Systems that are broken on purpose: the kill matrix must see each of them, or it sees nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.state import StateStore

from . import killing
from .killing import Nursery, Rows, check
from .test_kill_matrix import GOOD, Matrix

# what is broken -> (where to die, what the check must report)
CANARIES = {
    "deliver before commit": (lambda m: ("storage", m.publishes[1], "unlinked"), "trouble"),
    "commit forgotten": (lambda m: ("sink", 5, "after"), "trouble"),
    "never deliver again": (lambda m: ("storage", m.publishes[1], "linked"), "lost"),
    "clean-up too eager": (lambda m: ("sink", 4, "after"), "trouble"),
    "sink appends": (lambda m: ("sink", 4, "after"), "duplicated"),
    "sink not atomic": (lambda m: ("sink", 4, "within"), "trouble"),
}


@pytest.fixture(scope="module")
def matrix(steps: list[str]) -> Matrix:
    return Matrix(steps)


@pytest.mark.parametrize("broken", CANARIES)
def test_canary(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], matrix: Matrix, broken: str):
    where, reported = CANARIES[broken]
    moment = where(matrix)
    assert check(nursery, tmp_path / "sound", wanted, [moment]) == GOOD, "the sound system must pass there"
    outcome = check(nursery, tmp_path / "broken", wanted, [moment], broken=broken)
    assert not outcome.good, f"nobody noticed: {broken}"
    assert getattr(outcome, reported), outcome


def test_canary_list_forgotten(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows], listed_steps: list[str]):
    moment = ("storage", Matrix(listed_steps).publishes[1], "linked")
    assert check(nursery, tmp_path / "sound", wanted, [moment], listed=True) == GOOD
    broken = check(nursery, tmp_path / "broken", wanted, [moment], listed=True, broken="list forgotten")
    assert broken.duplicated, broken


def damaged(nursery: Nursery, wanted: dict[str, Rows], folder: Path, **job: str) -> killing.Outcome:
    """Die, have a bit of every value of a live block flipped, come back: a stop that names the block, or a wrong answer."""
    folder.mkdir()
    nursery.run(folder=folder, slots=2, cut=40, kill=("sink", 6, "after"), **job)
    store = StateStore.open(folder / "state", read_only=True)
    assert store.last is not None
    blocks = store.last.operators["join-1"].inputs[0]
    assert blocks
    for block in blocks:
        path = folder / "state" / block.name
        data = bytearray(path.read_bytes())
        values = pa.ipc.open_file(path).read_all()["v"].combine_chunks().to_numpy()
        start = data.find(values.tobytes())
        assert start > 0
        for row in range(len(values)):
            data[start + 8 * row] ^= 1 << 6
        path.write_bytes(data)
    code = nursery.run(folder=folder, slots=3, cut=29, **job)
    if code:
        return killing.Outcome(0, 0, (folder / "error.txt").read_text())
    return killing.compare(wanted, folder / "out")


def test_canary_blocks_not_verified(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    sound = damaged(nursery, wanted, tmp_path / "sound")
    assert sound.trouble is not None
    assert sound.trouble.startswith("CorruptState: block blocks/")
    broken = damaged(nursery, wanted, tmp_path / "broken", broken="blocks not verified")
    assert broken.trouble is None
    assert broken.lost and broken.duplicated, "the flipped bit was meant to reach a result"


def test_canary_starts_empty_when_in_doubt(nursery: Nursery, tmp_path: Path, wanted: dict[str, Rows]):
    """The newest manifest is gone: the sound system goes on from the one before, a lenient one from nothing if torn."""
    for name, job in (("sound", {}), ("broken", {"broken": "starts empty in doubt"})):
        folder = tmp_path / name
        folder.mkdir()
        nursery.run(folder=folder, slots=2, cut=40, kill=("sink", 6, "after"), **job)
        newest = max((folder / "state" / "manifests").glob("[!_]*.json"))
        newest.write_bytes(newest.read_bytes()[:-40])
        code = nursery.run(folder=folder, slots=3, cut=29, **job)
        if name == "sound":
            assert code == 3
            assert (folder / "error.txt").read_text().startswith("CorruptState: ")
        else:
            assert code != 0 or not killing.compare(wanted, folder / "out").good
