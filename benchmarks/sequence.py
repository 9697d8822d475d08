"""What a second slot brings to queries that take their tuples in sequence: a join over count windows, an ordered sink.

    python benchmarks/sequence.py [--rounds 3] [--rows 200000] [--slots 2]

Two streams of 200,000 tuples (--rows) in each epoch. The times are of whole epochs, reading and writing included. A last
table counts, in process, what the busiest slot reads of an epoch at 2, 8 and 64 slots, beside the mean.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from alternating import compare, measured

import headrace as hr
from headrace.task.slots import EpochSlot
from headrace.testing import LocalRun, table_stream

START = 1_700_000_000_000_000
WARM, EPOCHS = 3, 8


def window(number: int, rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng((seed, number))
    ts = START + number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, rows))
    times = pa.array(ts, pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "key": rng.integers(0, 100_000, rows), "value": rng.random(rows)})


def busiest(slots: int, rows: int) -> tuple[float, float]:
    """Return the tuples of an epoch that the busiest slot and the mean slot read."""
    read: Counter[int] = Counter()
    original = EpochSlot.waiting_rows

    def counted(slot: EpochSlot, *given: Any) -> pa.Table:
        found = original(slot, *given)
        read[slot.number] += found.num_rows
        return found

    with tempfile.TemporaryDirectory(prefix="headrace-sequence-") as folder:
        l, r = (table_stream(window(0, 1, seed), lateness="0.1 seconds", name=f"s{seed}") for seed in (0, 1))
        run = LocalRun(l.join(r, on="l.key = r.key", last=10), Path(folder), slots=slots)
        try:
            for epoch in range(4):
                read.clear()
                EpochSlot.waiting_rows = counted  # type: ignore[method-assign]
                run.epoch({f"s{seed}": window(epoch, rows, seed) for seed in (0, 1)})
        finally:
            EpochSlot.waiting_rows = original  # type: ignore[method-assign]
            run.close()
    return max(read.values()), sum(read.values()) / slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--slots", type=int, default=2)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-sequence-"))
    try:
        spark = hr.session(slots=max(given.slots, 2))
        for seed, name in enumerate(("left", "right")):
            (folder / name).mkdir()
            for number in range(WARM + EPOCHS):
                pq.write_table(window(number, given.rows, seed), folder / name / f"part-{number:05d}.parquet")
        l, r = (
            hr.files(spark, folder / name, time="ts", name=name, files_per_epoch=1, lateness="0.1 seconds")
            for name in ("left", "right")
        )
        queries = {
            "count windows": (l.join(r, on="l.key = r.key", last=1_000), False),
            "ordered sink": (l.union(r).filter("value < 0.9"), True),
        }
        total, begin = 2 * given.rows * (WARM + EPOCHS), 2 * given.rows * WARM
        for name, (query, ordered) in queries.items():
            runs = {
                f"{slots} slots": lambda query=query, slots=slots, ordered=ordered: measured(  # type: ignore[misc]
                    query, folder / "out", begin, total, slots=slots, ordered=ordered
                )
                for slots in (1, given.slots)
            }
            compare(name, runs, given.rounds)
        spark.stop()
    finally:
        shutil.rmtree(folder)
    for slots in (2, 8, 64):
        most, mean = busiest(slots, 20_000)
        print(
            f"{slots} slots: the busiest slot reads {most:,.0f} tuples of an epoch, the mean {mean:,.0f}: {most / mean:.2f}"
        )


if __name__ == "__main__":
    main()
