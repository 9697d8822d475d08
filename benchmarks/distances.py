"""Joins of places within 200 m, with and without an index, in one run.

    python benchmarks/distances.py [--rounds 3] [--epochs 6] [--only table]

A city of 40 km, with 2,000 requests per second of event time:

    streams          2,000 drivers per second, windows of 10 s, so that every request is compared with 20,000 drivers
    table            the same beside a table of 20,000 stops
    table of bounds  200,000 stops with a radius; `l.lat between r.lat - r.radius / 111 and r.lat + r.radius / 111`

"all pairs" has the same condition in a form that no index recognises: a compiled loop compares every pair.
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
STOPS = {"stops": 20_000, "many stops": 200_000}  # rows of the tables
DISTANCE = "haversine_km(l.lat, l.lon, r.lat, r.lon)"
ON = {"all pairs": f"{DISTANCE} * 1.0 < 0.2", "index": f"{DISTANCE} < 0.2"}
ASIDE = "abs(l.lon - r.lon) * 1.0 < 0.003"  # no index recognises this part
BOUNDS = {
    "all pairs": f"l.lat - r.lat between 0 - r.radius / 111 and r.radius / 111 and {ASIDE}",
    "index": f"l.lat between r.lat - r.radius / 111 and r.lat + r.radius / 111 and {ASIDE}",
}


def places(rng: np.random.Generator, first: int, rows: int) -> dict[str, np.ndarray]:
    columns = {"id": np.arange(rows) + first, "lat": 48.0 + rng.random(rows) * 0.36}
    return {**columns, "lon": 11.3 + rng.random(rows) * 0.54}


def write_input(folder: Path, epochs: int, seed: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    rows = RATE * SECONDS
    for number in range(epochs):
        ts = START + (number * rows + np.arange(rows)) * (1_000_000 // RATE)
        table = pa.table({"ts": pa.array(ts, pa.timestamp("us", "UTC")), **places(rng, number * rows, rows)})
        pq.write_table(table, folder / f"part-{number:05d}.parquet")


def write_stops(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(2)
    columns = {**places(rng, 0, rows), "radius": 0.1 + 0.2 * rng.random(rows)}
    pq.write_table(pa.table(columns), folder / "stops.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    given = parser.parse_args()
    epochs = given.epochs + WARM
    folder = Path(tempfile.mkdtemp(prefix="headrace-distances-"))
    try:
        spark = hr.session(slots=2)
        for seed, name in enumerate(("drivers", "requests")):
            write_input(folder / name, epochs, seed)
        for name, rows in STOPS.items():
            write_stops(folder / name, rows)
        drivers, requests = (
            hr.files(spark, folder / name, time="ts", name=name, files_per_epoch=1) for name in ("drivers", "requests")
        )
        stops, many = (hr.table(folder / name, name=name) for name in STOPS)
        cases = {
            "streams": {name: drivers.join(requests, on=on, within="10 seconds") for name, on in ON.items()},
            "table": {name: requests.join(stops, on=on) for name, on in ON.items()},
            "table of bounds": {name: requests.join(many, on=on) for name, on in BOUNDS.items()},
        }
        for case, queries in cases.items():
            rows = (2 if case == "streams" else 1) * RATE * SECONDS  # per epoch
            runs = {
                name: lambda query=query, rows=rows: measured(  # type: ignore[misc]
                    query.map("l_id", "r_id"), folder / "out", rows * WARM, rows * epochs, slots=2
                )
                for name, query in queries.items()
            }
            if given.only in case:
                compare(f"{case}, epochs of {rows:,} tuples", runs, given.rounds)
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
