"""Comparison of two versions of headrace: processor seconds of all processes, in alternating pairs.

    git worktree add ../before SOME_COMMIT
    python benchmarks/versions.py --before ../before --pairs 11

Each measurement is a separate process with the sources of one version. It runs an equality join, a theta join, an
aggregate, and a join whose results are grouped by its key (no key is hot), with epochs of 200 and of 200,000 tuples, over
the same files. The script prints the ratio of this version to
the one before, per case: the geometric mean of the pairs, and its 95 % bootstrap interval. Run it on an idle machine,
because other load affects the figures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SIZES = {200: 80, 200_000: 12}  # tuples per epoch: number of epochs
REPEATS = 2  # repetitions of every case in one process
KINDS = ("equality join", "theta join", "aggregate", "join and group")
BEYOND = 1.05  # an interval that ends above this counts as a loss
RESAMPLED = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument(
        "--only",
        default="",
        help="only cases whose name contains this text, such as 'aggregate, epochs of 200,000'",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.only)))
        return
    if given.before is None or not (given.before / "src" / "headrace").is_dir():
        parser.error("--before must be a checkout of headrace")
    if not cases(given.only):
        parser.error(f"no case contains --only {given.only!r}; the cases are: {'; '.join(cases(''))}")
    raise SystemExit(compare(given.before.resolve(), given.pairs, given.only, given.json))


def cases(only: str) -> dict[str, tuple[str, int]]:
    """Return the cases by name: the kind of query, and the tuples per epoch."""
    every = {f"{kind}, epochs of {size:,}": (kind, size) for size in SIZES for kind in KINDS}
    return {name: case for name, case in every.items() if only in name}


def compare(before: Path, pairs: int, only: str, out: Path | None) -> int:
    data = Path(tempfile.mkdtemp(prefix="headrace-versions-"))
    try:
        write_files(data)
        found: dict[str, list[tuple[float, float]]] = {}
        for pair in range(pairs):
            sides = {"before": before, "after": HERE}
            order = ("before", "after") if pair % 2 else ("after", "before")
            seconds = {side: one(sides[side], data, only) for side in order}
            for case in seconds["before"]:
                found.setdefault(case, []).append((seconds["before"][case], seconds["after"][case]))
            print(f"pair {pair + 1} of {pairs} done", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    figures = {case: ratio(measured) for case, measured in found.items()}
    show(figures)
    if out:
        out.write_text(json.dumps({"pairs": pairs, "seconds": found, "ratios": figures}, indent=1))
    return int(any(figure["high"] > BEYOND for figure in figures.values()))


def one(checkout: Path, data: Path, only: str) -> dict[str, float]:
    """Return the processor seconds of every case with the sources of one version."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(data), "--only", only]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{checkout} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def ratio(measured: list[tuple[float, float]]) -> dict[str, float]:
    """Return the geometric mean of after / before, and its bootstrap interval."""
    logs = [math.log(after / before) for before, after in measured]
    draw = random.Random(1)  # noqa: S311
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLED))
    low, high = means[int(RESAMPLED * 0.025)], means[int(RESAMPLED * 0.975)]
    return {"mean": math.exp(statistics.fmean(logs)), "low": math.exp(low), "high": math.exp(high)}


def show(figures: dict[str, dict[str, float]]) -> None:
    print("processor seconds, this version / the one before")
    for case, found in figures.items():
        verdict = "" if found["high"] <= BEYOND else f"   above {BEYOND}"
        print(f"  {case:<32} {found['mean']:.3f}   ({found['low']:.3f} .. {found['high']:.3f}){verdict}")


# --- one version -----------------------------------------------------------------------------------------------------


def write_files(data: Path) -> None:
    """Write two sources for every size. A file is an epoch and a second of event time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    r = np.random.default_rng(1)
    for size, epochs in SIZES.items():
        for source in "ab":
            folder = data / str(size) / source
            folder.mkdir(parents=True)
            for number in range(epochs):
                ts = np.sort(r.integers(number * 1_000_000, (number + 1) * 1_000_000, size // 2))
                columns = {"ts": pa.array(ts).cast(pa.timestamp("us", "UTC")), "k": r.integers(0, 50_000, size // 2)}
                columns |= {"x": r.random(size // 2), "v": r.integers(0, 1_000, size // 2)}
                pq.write_table(pa.table(columns), folder / f"{number:05d}.parquet", compression="none")


def measure(data: Path, only: str) -> dict[str, float]:
    import headrace as hr

    spark = hr.session(slots=2)
    found = {}
    for name, (kind, size) in cases(only).items():
        drain(query(spark, data / str(size), kind), size // 2 * 2, SIZES[size])  # warm-up
        before = processor_seconds()
        for _ in range(REPEATS):
            drain(query(spark, data / str(size), kind), size // 2 * 2, SIZES[size])
        found[name] = processor_seconds() - before
    spark.stop()
    return found


def query(spark: Any, folder: Path, kind: str) -> Any:
    import headrace as hr

    a, b = (hr.files(spark, folder / side, time="ts", files_per_epoch=1, name=side) for side in "ab")
    if kind == "equality join":
        return a.join(b, on="l.k = r.k and l.v < r.v", within="3 seconds")
    if kind == "join and group":
        joined = a.join(b, on="l.k = r.k and l.v < r.v", within="3 seconds").map(k="l_k", v="r_v")
        return joined.aggregate(by=["k"], window="2 seconds", n="count(*)", most="max(v)")
    if kind == "theta join":
        return a.join(b, on="l.x + r.x > 1.9999", within="3 milliseconds")
    return a.union(b).aggregate(by=["v"], window="3 seconds", every="1 second", n="count(*)", mean="avg(x)")


def drain(asked: Any, size: int, epochs: int) -> None:
    import headrace as hr

    folder = Path(tempfile.mkdtemp(prefix="headrace-versions-"))
    try:
        sink = hr.sinks.foreach(lambda table, epoch: None)
        run = asked.start(sink, checkpoint=folder / "checkpoint", epoch="0 seconds", slots=2, show=False)
        while run.progress.tuples_in < size * epochs:
            if run.wait(0.05):
                break
            time.sleep(0.01)
        run.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def processor_seconds() -> float:
    """Return the processor seconds of this process and all its descendants, including ended ones."""
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    main()
