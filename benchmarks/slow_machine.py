"""A cluster of two machines, one of them slowed to a third of its speed: one slot per core compared with several.

Spark runs a slot on any free executor. With one slot per core an epoch waits for the slow machine; with several the
fast machine runs more of them. The script slows the second machine by stopping and continuing its processes.

    python benchmarks/slow_machine.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.cluster.standalone import Cluster, cluster, environment  # noqa: E402

EPOCHS, WARM, RATE = 12, 5, 24_000  # comparisons dominate the work: about a billion pairs
FEW, MANY = 2, 8  # slots: one per core, four per core
ON, PARTS = 0.02, 3  # the slow machine runs 20 ms of every 60


def window(rng: np.random.Generator, number: int) -> pa.Table:
    ts = np.sort(rng.integers(number * 1_000_000, (number + 1) * 1_000_000, RATE))
    return pa.table(
        {"ts": pa.array(ts, pa.timestamp("us", "UTC")), "x": rng.normal(size=RATE), "y": rng.normal(size=RATE)}
    )


def write(folder: Path) -> None:
    for seed, name in enumerate(("left", "right")):
        rng = np.random.default_rng(seed)
        (folder / name).mkdir(parents=True)
        for number in range(EPOCHS):
            pq.write_table(window(rng, number), folder / name / f"{number:03}.parquet")


def job(master: str, folder: Path, slots: int) -> None:
    """Run a join that compares every pair, in a separate process, and print tuples per second after the warm-up."""
    import headrace as hr

    config = {"spark__executor__cores": "1", "spark__executor__memory": "700m", "spark__locality__wait": "0"}
    spark = hr.session(slots=slots, master=master, **config)
    left, right = (hr.files(spark, folder / n, time="ts", name=n, files_per_epoch=1) for n in ("left", "right"))
    query = left.join(right, on="l.x * r.y + l.y * r.x > 30", within="4 seconds")
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        options: dict[str, Any] = {"slots": slots, "most_slots": 64, "epoch": "0 seconds", "show": False}
        with query.start(hr.sinks.memory(), checkpoint=Path(checkpoint) / "c", **options) as run:
            times: dict[int, float] = {}
            while run.progress.tuples_in < 2 * RATE * EPOCHS:
                run.wait(0.01)
                times.setdefault(run.progress.epoch, time.monotonic())
    seconds = times[EPOCHS - 1] - times[WARM]
    print("RESULT " + json.dumps({"tuples": 2 * RATE * (EPOCHS - 1 - WARM) / seconds}))
    spark.stop()


@contextlib.contextmanager
def slowed(place: Cluster) -> Iterator[None]:
    """Slow the second machine (its executor and Python processes) to a third of its speed until the context ends."""
    done = threading.Event()

    def pulse() -> None:
        while not done.is_set():
            tree = psutil.Process(place.workers[1].pid).children(recursive=True)
            for number, pause in ((signal.SIGCONT, ON), (signal.SIGSTOP, ON * (PARTS - 1))):
                for process in tree:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                time.sleep(pause)
        for process in psutil.Process(place.workers[1].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def measured(place: Cluster, folder: Path, slots: int) -> float:
    command = [sys.executable, __file__, "--job", place.master, str(folder), str(slots)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(folder), timeout=300, check=False)  # noqa: S603
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(done.stderr[-3000:])
    found: float = json.loads(lines[0].removeprefix("RESULT "))["tuples"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow-only", action="store_true", help="skip the runs on equal machines")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job(given.job[0], Path(given.job[1]), int(given.job[2]))
        return
    folder = Path(tempfile.mkdtemp(prefix="headrace-slow-"))
    try:
        write(folder)
        found: dict[tuple[str, int], list[float]] = {}
        with cluster(folder, environment(folder)) as place:
            for number in range(given.rounds):
                for slots in (FEW, MANY) if number % 2 else (MANY, FEW):
                    if not given.slow_only:
                        found.setdefault(("equal machines", slots), []).append(measured(place, folder, slots))
                    with slowed(place):
                        found.setdefault(("one at a third", slots), []).append(measured(place, folder, slots))
                    print(f"round {number + 1}: {slots} slots done", file=sys.stderr)
        for (machines, slots), rates in found.items():
            print(
                f"{machines}, {slots} slots: {statistics.median(rates):,.0f} tuples/s ({min(rates):,.0f} .. {max(rates):,.0f})"
            )
        ratio = statistics.median(found["one at a third", MANY]) / statistics.median(found["one at a third", FEW])
        print(f"{MANY // 2} slots per core instead of one, with one slow machine: {ratio:.2f} x")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
