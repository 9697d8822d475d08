"""The golden folder: a checkpoint that one version of headrace wrote, from which later versions must continue.

    python -m tests.golden.making tests/golden/format-N

runs `query` over the first windows on Spark, restarts once with another content of its table, and leaves the checkpoint
there. Nothing of the machine is in it: the source is known by the name of its folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import headrace as hr
from headrace.sources.files import FilesOrigin
from headrace.state.checkpoint_folder import LOCK
from headrace.state.store import StateStore
from tests.golden.longest import Longest
from tests.helpers import write_whole

SECOND = 1_000_000
EPOCHS = 4  # that a golden folder has
CHANGES_AT = 2  # the first epoch that has the second content of the table
SLOTS = 2


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


def tariffs(number: int) -> pa.Table:
    """One version of the table; each lacks another caller."""
    callers = [caller for place, caller in enumerate("abcde") if place != number]
    return pa.table({"caller": callers, "tariff": [f"{caller}-{number}" for caller in callers]})


def put(folder: Path, number: int) -> None:
    """Add the input of one epoch as a file of the source."""
    write_whole(folder / "calls" / f"{number:03d}.parquet", window(number))


def hold(folder: Path, number: int) -> None:
    """Replace the content of the table."""
    write_whole(folder / "tariffs" / "tariffs.parquet", tariffs(number))


def query(spark: Any, folder: Path) -> dict[str, hr.Stream]:
    """Every kind of state, by the name of its result."""
    calls = hr.files(spark, folder / "calls", time="ts", lateness="1 second", files_per_epoch=1, name="calls")
    prices = hr.table(folder / "tariffs", name="tariffs")
    short, long = calls.case("seconds < 30")
    sessions = calls.aggregate(by=["caller"], session="0.5 seconds", n="count(*)", s="sum(seconds)")
    values = calls.map("caller", x="seconds::DOUBLE")
    tuples = calls.aggregate(by=["caller"], session="1 second", said="list(seconds)")
    return {
        # windows of a join, panes, and tuples that are written again in every epoch
        "pairs": calls.join(
            calls, on="l.caller = r.caller and l.ts < r.ts and l.seconds < r.seconds", within="3 seconds"
        ),
        "busy": calls.aggregate(by=["caller"], window="4 seconds", every="2 seconds", n="count(*)", s="sum(seconds)"),
        "recent": calls.aggregate(by=["caller"], last=3, longest="max(seconds)"),
        # keyed tables of a processor
        "longest": calls.split(3, by=["caller"], broadcast="seconds > 55").apply(Longest()),
        # open sessions, as one row each and as tuples
        "sessions": sessions,
        "said": tuples.map("caller", said="said::VARCHAR"),
        # tuples that wait for changes, with the changes; tuples of both sides that have no match yet
        "known": short.asof(long, by=["caller"], within="4 seconds", how="left"),
        "unanswered": short.join(long, on="l.caller = r.caller and l.ts < r.ts", within="0.5 seconds", how="full"),
        # a version of a table, before and after an operator
        # a band join, and tuples that wait for their number or for their turn
        "near": values.join(values, on="abs(l.x - r.x) <= 2 and l.ts < r.ts", within="3 seconds"),
        "numbered": short.join(long, on="l.caller = r.caller", last=4),
        "sequence": calls.filter("seconds > 40"),
        "priced": calls.join(prices, on="l.caller = r.caller", how="left").map("seconds", "tariff", caller="l_caller"),
        "billed": sessions.join(prices, on="l.caller = r.caller").map("n", "s", "tariff"),
    }


def run(spark: Any, folder: Path, tuples: int) -> None:
    """Start in this folder, or continue there, until this many tuples were taken in all."""
    results = [
        (stream, hr.sinks.parquet(folder / name, ordered=name == "sequence"))
        for name, stream in query(spark, folder).items()
    ]
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
        spark = hr.session(slots=SLOTS)
        for version, epochs in enumerate((range(CHANGES_AT), range(CHANGES_AT, EPOCHS))):
            hold(folder, version)
            for number in epochs:
                put(folder, number)
            run(spark, folder, epochs.stop * window(0).num_rows)
        with StateStore.open(folder / "checkpoint" / "state") as store:
            store.clean(keep=2)
        (folder / "checkpoint" / "state" / LOCK).unlink()  # it names the machine
        shutil.copytree(folder / "checkpoint", target)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
