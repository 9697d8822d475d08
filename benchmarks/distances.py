"""Joins of places within 200 m, with and without the index of `haversine_km`, in one run.

    python benchmarks/distances.py [--rounds 3] [--epochs 6]

2,000 drivers per second and 2,000 requests per second in a city of 40 km, windows of 10 s, so that every request is
compared with 20,000 drivers. "all pairs" has the same condition in a form that no index recognises: a compiled loop
compares every pair.
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
RATE = 2_000  # tuples per second of event time in each stream
SECONDS = 5  # of event time per epoch
WARM = 3  # epochs until the windows are full
DISTANCE = "haversine_km(l.lat, l.lon, r.lat, r.lon)"
ON = {"all pairs": f"{DISTANCE} * 1.0 < 0.2", "index": f"{DISTANCE} < 0.2"}


def write_input(folder: Path, epochs: int, seed: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    rows = RATE * SECONDS
    for number in range(epochs):
        ts = START + (number * rows + np.arange(rows)) * (1_000_000 // RATE)
        table = pa.table(
            {
                "ts": pa.array(ts, pa.timestamp("us", "UTC")),
                "id": np.arange(rows) + number * rows,
                "lat": 48.0 + rng.random(rows) * 0.36,
                "lon": 11.3 + rng.random(rows) * 0.54,
            }
        )
        pq.write_table(table, folder / f"part-{number:05d}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    epochs = given.epochs + WARM
    folder = Path(tempfile.mkdtemp(prefix="headrace-distances-"))
    try:
        spark = hr.session(slots=2)
        for seed, name in enumerate(("drivers", "requests")):
            write_input(folder / name, epochs, seed)
        l, r = (
            hr.files(spark, folder / name, time="ts", name=name, files_per_epoch=1) for name in ("drivers", "requests")
        )
        queries = {name: l.join(r, on=on, within="10 seconds").map("l_id", "r_id") for name, on in ON.items()}
        total, begin = 2 * RATE * SECONDS * epochs, 2 * RATE * SECONDS * WARM
        runs = {
            name: lambda query=query: measured(query, folder / "out", begin, total, slots=2)  # type: ignore[misc]
            for name, query in queries.items()
        }
        compare(f"200 m, epochs of {2 * RATE * SECONDS:,} tuples", runs, given.rounds)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
