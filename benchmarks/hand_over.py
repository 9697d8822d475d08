"""Processor time per tuple of split, exchange and processor calls, by phase, in one process and without Spark.

    python benchmarks/hand_over.py [--rows 2000000] [--substreams 8] [--epochs 4] [--slots 2] [--profile]

The tuples are like Linear Road's reports: a time and 14 whole numbers, shuffled within seconds, routed by expressway;
0.5 % go to all substreams, 1 % to none. A processor receives all columns in sequence and counts tuples by type. The
script compares the counts with the generated tuples. For each epoch it prints nanoseconds of processor time per input
tuple: `split` (stage 0), `process` (stage 1) and `commit` (the driver). Alternate the runs that you compare, because
other load affects the figures.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.columnar.types import TS_TYPE
from headrace.task import in_process
from headrace.testing import LocalRun, table_stream

START = 1_700_000_000
PER_SECOND = 200_000
TYPES = 5
NAMES = ("type", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid", "sinit", "send", "dow", "tod", "day")
MOST = (TYPES, 1 << 20, 100, 0, 5, 2, 100, 528_000, 1 << 20, 100, 100, 7, 1440, 69)
BROADCAST, OMITTED = 0.005, 0.01


def reports(first: int, rows: int, substreams: int, rng: np.random.Generator) -> pa.Table:
    """Return `rows` rows of the stream from number `first` on."""
    seconds = (first + np.arange(rows)) // PER_SECOND
    columns = {name: rng.integers(0, max(most, 1), rows, np.int32) for name, most in zip(NAMES, MOST, strict=True)}
    columns["xway"] = rng.integers(0, substreams, rows, np.int32)
    chance = rng.random(rows)
    columns["type"] = np.where(chance < BROADCAST, 3, np.where(columns["type"] == 3, 0, columns["type"])).astype(
        np.int32
    )
    columns["lane"] = np.where(chance > 1 - OMITTED, -1, columns["lane"]).astype(np.int32)
    times = pa.array((START + seconds) * 1_000_000, pa.int64()).cast(TS_TYPE)
    return pa.table({"ts": times, **columns})


class ByType(hr.Processor):
    """A processor that counts tuples by type, and emits the counts at the end."""

    schema = pa.schema([("ts", TS_TYPE), ("type", pa.int64()), ("n", pa.int64())])
    tables: ClassVar = {
        "counts": hr.StateTable(key=["type"], columns=pa.schema([("type", pa.int64()), ("n", pa.int64())]))
    }

    def process(self, tuples: pa.Table, state: Any) -> None:
        found = np.bincount(tuples["type"].to_numpy(), minlength=TYPES)
        rows = state["counts"].numbers(np.arange(TYPES))
        state["counts"].columns["n"][rows] += found
        state["counts"].touched(rows)

    def end(self, time: Any, state: Any) -> pa.Table:
        rows = state["counts"].rows()
        return rows.add_column(0, "ts", pa.array([time] * len(rows), TS_TYPE))


class Phases:
    """Processor seconds by phase, measured by wrapping the engine's functions."""

    def __init__(self) -> None:
        self.seconds = {"split": 0.0, "process": 0.0}

    def __enter__(self) -> Phases:
        self._own = {name: getattr(in_process, name) for name in self.seconds}
        for name, function in self._own.items():
            setattr(in_process, name, self._timed(name, function))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._own.items():
            setattr(in_process, name, function)

    def _timed(self, name: str, function: Any) -> Any:
        def timed(*given: Any) -> Iterator[Any]:
            begin = time.process_time()
            found: Iterable[Any] = list(function(*given))
            self.seconds[name] += time.process_time() - begin
            return iter(found)

        return timed


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=2_000_000, help="rows per epoch")
    arguments.add_argument("--substreams", type=int, default=8)
    arguments.add_argument("--epochs", type=int, default=4, help="number of epochs, at least 2; the first is a warm-up")
    arguments.add_argument("--slots", type=int, default=2)
    arguments.add_argument("--profile", action="store_true", help="also print the time by function")
    given = arguments.parse_args()
    rng = np.random.default_rng(7)
    route, broadcast = "CASE WHEN lane >= 0 THEN xway END", "type = 3"
    stream = table_stream(reports(0, 1, given.substreams, rng), name="reports")
    query = stream.split(given.substreams, route=route, broadcast=broadcast).apply(ByType())
    expected, best = 0, dict.fromkeys(("split", "process", "commit"), float("inf"))
    profile = cProfile.Profile() if given.profile else None
    with tempfile.TemporaryDirectory(prefix="headrace-hand-over-") as folder, Phases() as phases:
        run = LocalRun(query, Path(folder) / "state", slots=given.slots)
        for epoch in range(given.epochs):
            table = reports(epoch * given.rows, given.rows, given.substreams, rng)
            everywhere, somewhere = table["type"].to_numpy() == 3, table["lane"].to_numpy() >= 0
            expected += int(everywhere.sum()) * given.substreams + int((somewhere & ~everywhere).sum())
            phases.seconds = {"split": 0.0, "process": 0.0}
            begin = time.process_time()
            if profile and epoch:
                profile.enable()
            run.epoch(table, splitters=given.slots)
            if profile:
                profile.disable()
            total = time.process_time() - begin
            found = {**phases.seconds, "commit": total - sum(phases.seconds.values())}
            print(
                f"epoch {epoch}", *(f"{name} {seconds / given.rows * 1e9:6.0f} ns" for name, seconds in found.items())
            )
            if epoch:
                best = {name: min(best[name], seconds) for name, seconds in found.items()}
        run.end()
        counted = int(np.sum(run.results()["n"].to_numpy()))
        run.close()
    print("smallest", *(f"{name} {seconds / given.rows * 1e9:6.0f} ns" for name, seconds in best.items()))
    print(f"the processor received {counted:,} tuples; expected {expected:,}")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    if counted != expected:
        raise SystemExit("the numbers of tuples differ")


if __name__ == "__main__":
    main()
