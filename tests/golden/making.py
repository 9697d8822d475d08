"""The golden folders: what one version of headrace left on the disk, kept so that the next versions are held against it.

    python -m tests.golden.making tests/golden/format-N

runs `query` over the first windows on Spark and leaves the checkpoint of the run there; `format-N-beside` is that of
`beside.query`, with another version of its table after a restart. That is done once for every
format of the state; once that format is released, the folder is never changed. Nothing of the machine is in it: the source is known by the
name of its folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.sources.files import FilesOrigin
from headrace.state.folder import LOCK
from headrace.state.store import StateStore
from tests.golden import beside
from tests.golden.longest import Longest

SECOND = 1_000_000
EPOCHS = 4  # that a golden folder has
SLOTS = 2
RESULTS = ("pairs", "busy", "recent", "longest")


def window(number: int) -> pa.Table:
    """The input of one epoch: twelve calls in two seconds, and one that comes too late (not in the first epoch)."""
    times = [2 * number * SECOND + 160_000 * place for place in range(12)] + [2 * (number - 1) * SECOND]
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "caller": ["abcde"[(7 * number + place * place) % 5] for place in range(13)],
            "seconds": [(number * 31 + place * 17) % 60 for place in range(13)],
        }
    )


def put(folder: Path, number: int) -> None:
    """The window as a file of the source."""
    (folder / "calls").mkdir(exist_ok=True)
    pq.write_table(window(number), folder / "calls" / f"_{number}")
    (folder / "calls" / f"_{number}").rename(folder / "calls" / f"{number:03d}.parquet")


def query(spark: Any, folder: Path) -> dict[str, hr.Stream]:
    """State of every kind: windows of a join, panes, tuples that are written anew in every epoch, and keyed tables."""
    calls = hr.files(spark, folder / "calls", time="ts", lateness="1 second", files_per_epoch=1, name="calls")
    pairs = calls.join(calls, on="l.caller = r.caller and l.ts < r.ts and l.seconds < r.seconds", within="3 seconds")
    busy = calls.aggregate(by=["caller"], window="4 seconds", every="2 seconds", n="count(*)", s="sum(seconds)")
    recent = calls.aggregate(by=["caller"], last=3, longest="max(seconds)")
    longest = calls.split(3, by=["caller"], broadcast="seconds > 55").apply(Longest())
    return dict(zip(RESULTS, (pairs, busy, recent, longest), strict=True))


def run(spark: Any, folder: Path, tuples: int, query: Callable[[Any, Path], dict[str, hr.Stream]] = query) -> None:
    """Start in this folder, or continue there, until so many tuples were taken in all."""
    results = [(stream, hr.sinks.parquet(folder / name)) for name, stream in query(spark, folder).items()]
    still = {"splitters": False}  # what is decided by how long tasks take differs from one run to the next
    options = {
        "checkpoint": folder / "checkpoint",
        "epoch": "0 seconds",
        "slots": SLOTS,
        "policy": still,
        "show": False,
    }
    with hr.start(results, **options) as started:
        while started.progress.tuples_in < tuples:
            started.wait(0.05)


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name, mock.patch.object(FilesOrigin, "place", "calls"):
        folder = Path(name)
        (_make_beside if target.name.endswith("-beside") else _make)(hr.session(slots=SLOTS), folder)
        with StateStore.open(folder / "checkpoint" / "state") as store:
            store.clean(keep=2)
        (folder / "checkpoint" / "state" / LOCK).unlink()  # it names the machine
        shutil.copytree(folder / "checkpoint", target)


def _make(spark: Any, folder: Path) -> None:
    for number in range(EPOCHS):
        put(folder, number)
    run(spark, folder, EPOCHS * window(0).num_rows)


def _make_beside(spark: Any, folder: Path) -> None:
    for version, epochs in enumerate((range(beside.CHANGES_AT), range(beside.CHANGES_AT, EPOCHS))):
        beside.hold(folder, version)
        for number in epochs:
            put(folder, number)
        run(spark, folder, epochs.stop * window(0).num_rows, beside.query)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
