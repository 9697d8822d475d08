"""What splitting a hot group brings to a join alone, and to a join whose results are grouped by the same key.

    python benchmarks/hot_groups.py [--rounds 3] [--share 0.5] [--slots 2] [--rows 20000]

Two streams of 20,000 tuples (--rows) in each epoch, of which a share has one key. The predicate compares two numbers as well, so the
pairs of the hot key are most of the work. "one slot" has the policy `hot = false`. Both lines should show about the
same gain if epochs are so long that a split pays for its exchange (--rows 80000). With --share 0 neither should show a
loss.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from alternating import compare, measured

import headrace as hr

START = 1_700_000_000_000_000
WARM, EPOCHS = 9, 8


def write_input(folder: Path, rows: int, share: float, seed: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for number in range(WARM + EPOCHS):
        ts = START + number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows))
        keys = np.where(rng.random(rows) < share, 0, rng.integers(1, 100_000, rows))
        values = rng.random(rows)
        columns = {"ts": pa.array(ts, pa.timestamp("us", "UTC")), "key": keys, "value": values}
        pq.write_table(pa.table(columns), folder / f"part-{number:05d}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000, help="tuples of each stream per epoch, which is one second")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-hot-"))
    try:
        spark = hr.session(slots=2)
        for seed, name in enumerate(("left", "right")):
            write_input(folder / name, given.rows, given.share, seed)
        l, r = (hr.files(spark, folder / name, time="ts", name=name, files_per_epoch=1) for name in ("left", "right"))
        joined = l.join(r, on="l.key = r.key and l.value + r.value > 1.9999", within="4 seconds").map(key="l_key")
        queries = {
            "join": joined,
            "join and aggregate": joined.aggregate(by="key", window="2 seconds", n="count(*)"),
        }
        total, begin = 2 * given.rows * (WARM + EPOCHS), 2 * given.rows * WARM
        for name, query in queries.items():
            runs = {
                way: lambda query=query, hot=hot: measured(  # type: ignore[misc]
                    query, folder / "out", begin, total, slots=given.slots, policy={"hot": hot, "every": 2}
                )
                for way, hot in (("one slot", False), ("split", True))
            }
            compare(f"{name}, {given.share:.0%} on one key", runs, given.rounds)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
