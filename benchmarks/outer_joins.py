"""Comparison of outer joins with the inner join of the same streams, in one run.

    python benchmarks/outer_joins.py [--rounds 5] [--how left] [--theta]

There are two streams of 10,000 tuples/s of event time, with windows of 60 s and epochs of 200,000 tuples, on two slots,
at full speed. In "few", one tuple in nine has a match; in "most", six in seven have. --theta joins by a band of numbers
instead of an equality, with windows of 4 s. The joins alternate. The script prints the seconds of each between the
epoch that filled the windows and the last one, the ratio of every round, their median, and the number of results.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from alternating import measured

import headrace as hr

START = 1_700_000_000_000_000
SLOTS = 2
RATE = 10_000  # tuples per second of event time in each stream


@dataclass(frozen=True)
class Case:
    name: str
    keys: int
    on: str
    within: int  # seconds
    rows: int  # rows of each stream per epoch
    epochs: int
    warm: int


FEW = Case("few have a partner", 10_000_000, "l.key = r.key", 60, 100_000, 20, 7)
MOST = Case("most have a partner", 600_000, "l.key = r.key", 60, 100_000, 20, 7)
THETA = Case("a band", 10_000_000, "r.x >= l.x and r.x <= l.x + 50", 4, 20_000, 12, 4)


def write_input(folder: Path, case: Case) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(case.epochs):
        ts = START + (number * case.rows + np.arange(case.rows)) * (1_000_000 // RATE)
        table = pa.table(
            {
                "ts": pa.array(ts, pa.timestamp("us", "UTC")),
                "key": pa.array(rng.integers(0, case.keys, case.rows)),
                "payload": pa.array(rng.integers(0, 1 << 40, case.rows)),
                "x": pa.array(rng.integers(0, 10_000_000, case.rows)),
            }
        )
        rng = np.random.default_rng([7, number, sum(map(ord, folder.name))])
        pq.write_table(table, folder / f"part-{number:05d}.parquet")


def run_joined(spark: Any, folder: Path, case: Case, how: str, out: Path) -> tuple[float, int]:
    """Return the seconds from full windows to the end, and the number of results."""
    l, r = (hr.files(spark, folder / name, time="ts", name=name, files_per_epoch=1) for name in ("left", "right"))
    query = l.join(r, on=case.on, within=f"{case.within} seconds", how=how)
    return measured(query, out, 2 * case.rows * case.warm, 2 * case.rows * case.epochs, slots=SLOTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--how", default="left", choices=["left", "right", "full"])
    parser.add_argument("--theta", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-outer-"))
    try:
        spark = hr.session(slots=SLOTS)
        for number, case in enumerate([THETA] if given.theta else [FEW, MOST]):
            for name in ("left", "right"):
                write_input(folder / str(number) / name, case)
            ratios = []
            for turn in range(-1, given.rounds):  # the first round is a warm-up
                took = {
                    how: run_joined(spark, folder / str(number), case, how, folder / "out")
                    for how in ("inner", given.how)
                }
                if turn >= 0:
                    ratios.append(took[given.how][0] / took["inner"][0])
                shown = ", ".join(
                    f"{how} {seconds:.2f} s ({results:,} results)" for how, (seconds, results) in took.items()
                )
                print(f"{case.name}: {shown}", flush=True)
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{case.name}: {given.how} / inner: {statistics.median(ratios):.2f} (median of {each})", flush=True)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
