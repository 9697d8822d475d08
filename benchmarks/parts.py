"""Results as large as the input: parquet(parts=True) compared with two plain processes that write the same rows.

    python benchmarks/parts.py [--rows 20000000] [--files 20] [--rounds 5] [--file-sink]

The query is a stateless map over Parquet files with a few columns of numbers, on two slots. "plain" is two processes,
each of which reads half of the files with pyarrow, computes the same columns and writes them to Parquet: the minimum
work for these rows. The two alternate. The script prints the seconds of each, the ratio of every round, their median,
and the driver's memory over time. --file-sink also runs parquet(parts=False), for which the driver reads all results.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr

START = 1_700_000_000_000_000
SLOTS = 2


def write_input(folder: Path, rows: int, files: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(7)
    count = rows // files
    for number in range(files):
        ts = START + (number * count + np.arange(count)) * 10
        table = pa.table(
            {
                "ts": pa.array(ts, pa.timestamp("us", "UTC")),
                "id": pa.array(rng.integers(0, 1 << 40, count)),
                "x": pa.array(rng.random(count)),
                "y": pa.array(rng.random(count)),
            }
        )
        pq.write_table(table, folder / f"_{number}")
        (folder / f"_{number}").rename(folder / f"part-{number:05d}.parquet")


def plain_half(folder: Path, out: Path, which: int, ready: Any) -> None:
    """Read every other file, compute the columns and write them."""
    pa.set_cpu_count(1)
    ready.wait()
    for path in sorted(folder.iterdir())[which::SLOTS]:
        table = pq.ParquetFile(path).read(use_threads=False)
        both = pc.add(table["x"], table["y"])
        table = pa.table({"ts": table["ts"], "id": table["id"], "x": table["x"], "both": both})
        pq.write_table(table, out / path.name)


def plain(folder: Path, out: Path) -> float:
    out.mkdir()
    ready = multiprocessing.Barrier(SLOTS + 1)
    halves = [multiprocessing.Process(target=plain_half, args=(folder, out, which, ready)) for which in range(SLOTS)]
    for half in halves:
        half.start()
    ready.wait()  # imports are not measured
    begun = time.perf_counter()
    for half in halves:
        half.join()
        assert half.exitcode == 0
    return time.perf_counter() - begun


def headrace(spark: Any, folder: Path, out: Path, rows: int, *, parts: bool) -> tuple[float, list[int]]:
    """Return the seconds, and the driver's resident memory over time in MiB."""
    calls = hr.files(spark, folder, time="ts", name="calls", files_per_epoch=2 * SLOTS)
    query = calls.map("id", "x", both="x + y")
    memory, driver = [], psutil.Process()
    begun = time.perf_counter()
    sink = hr.sinks.parquet(out, parts=parts)
    with query.start(sink, checkpoint=f"{out}.checkpoint", epoch="0 seconds", slots=SLOTS, show=False) as run:
        while run.progress.tuples_in < rows:
            run.wait(0.05)
            memory.append(driver.memory_info().rss >> 20)
        took = time.perf_counter() - begun
    return took, memory


def counted(out: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in out.rglob("[!_]*.parquet"))


def report(name: str, took: float, rows: int, memory: list[int]) -> None:
    third = max(1, len(memory) // 3)
    print(
        f"{name}: {took:.2f} s, {rows / took:,.0f} rows/s; the driver held {max(memory[:third])} MiB in the first third of"
        f" the run, {max(memory[-third:])} in the last, {max(memory)} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file-sink", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-parts-"))
    multiprocessing.set_start_method("spawn")
    try:
        write_input(folder / "in", given.rows, given.files)
        spark = hr.session(slots=SLOTS)
        warm = folder / "warm"
        write_input(warm, 10_000, 2)
        headrace(spark, warm, folder / "warm-out", 10_000, parts=True)  # warm-up: starts the session and workers
        kinds = [True, False] if given.file_sink else [True]
        ratios: dict[bool, list[float]] = {parts: [] for parts in kinds}
        for turn in range(given.rounds):
            found = plain(folder / "in", folder / f"plain-{turn}")
            print(f"plain: {found:.2f} s, {given.rows / found:,.0f} rows/s")
            for parts in kinds:
                out = folder / f"out-{turn}-{parts}"
                took, memory = headrace(spark, folder / "in", out, given.rows, parts=parts)
                assert counted(out) == counted(folder / f"plain-{turn}") == given.rows
                report(f"parquet(parts={parts})", took, given.rows, memory)
                ratios[parts].append(took / found)
                shutil.rmtree(out)
            shutil.rmtree(folder / f"plain-{turn}")
        for parts, found_ratios in ratios.items():
            each = ", ".join(f"{ratio:.2f}" for ratio in found_ratios)
            print(f"parquet(parts={parts}) / plain: {statistics.median(found_ratios):.2f} (median of {each})")
        spark.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
