"""A join of three streams beside a chain of two joins that has the same answer.

    python benchmarks/nway.py [--rows 20000] [--epochs 12] [--queries one-key,rare,two-keys,band,refined]

Each query runs in this process, without Spark: epochs of --step seconds with --rows tuples of each stream, over windows of
60 seconds that fill up. A line has the results, tuples per second, CPU seconds per million tuples and bytes of state.
The chain needs a further condition to mean the same: the tuple of the third stream is within 60 seconds of the later one
of the first two. `headrace bench nway` compares the first, third and fourth query with Spark and Flink.

    one-key   every tuple has about one match in each other stream
    rare      the same, with eight matches in the second stream, and a third stream that has a hundredth of the tuples
    two-keys  a.id = b.id and b.part = c.part, with eight matches in each
    band      numbers that are near each other
    refined   every tuple has 32 matches in each other stream, but few pairs of the first two satisfy a further condition;
              the chain stores these pairs, and the join finds them again for each tuple of the third stream
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.columnar.types import TS_TYPE
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream
from headrace_bench.systems.headrace_nway import chain, several

START = 1_700_000_000_000_000
SECONDS = 60


@dataclass
class Workload:
    """Three streams of one second per epoch, and the two ways to join them."""

    name: str
    joins: tuple[str, str]  # the condition of a and b, and that of c with them
    ids: int
    parts: int
    share: float  # of the tuples, that the third stream has

    def table(self, stream: str, epoch: int, rows: int, step: int) -> pa.Table:
        r = np.random.default_rng((ord(stream), epoch))
        rows = max(1, int(rows * self.share)) if stream == "c" else rows
        ts = START + epoch * step * 1_000_000 + np.sort(r.integers(0, step * 1_000_000, rows))
        columns = {"id": r.integers(0, self.ids, rows), "part": r.integers(0, self.parts, rows), "x": r.random(rows)}
        return pa.table({"ts": pa.array(ts).cast(TS_TYPE), **columns})

    def queries(self) -> dict[str, Stream]:
        empty = {name: self.table(name, 0, 1, 1).slice(0, 0) for name in "abc"}
        streams = [table_stream(table, name=name) for name, table in empty.items()]
        ways = {"chain": chain, "n-way": several}
        return {name: way(streams, self.joins, SECONDS, "x") for name, way in ways.items()}


def workloads(rows: int, step: int) -> list[Workload]:
    window = rows * SECONDS // step  # tuples of a stream in a window
    first, second = one_key = ("a.id = b.id", "a.id = c.id")
    near = 0.5 / window
    return [
        Workload("one-key", one_key, window, 1, 1.0),
        Workload("rare", one_key, max(1, window // 8), 1, 0.01),
        Workload("two-keys", (first, "b.part = c.part"), max(1, window // 8), max(1, window // 8), 1.0),
        Workload("band", (f"abs(a.x - b.x) <= {near}", f"abs(b.x - c.x) <= {near}"), 1, 1, 1.0),
        Workload("refined", (f"{first} and a.x + b.x < 0.05", second), max(1, window // 32), 1, 1.0),
    ]


def measure(work: Workload, way: str, rows: int, step: int, epochs: int) -> str:
    query = work.queries()[way]
    with tempfile.TemporaryDirectory(prefix="headrace-nway-") as folder:
        run = LocalRun(query, Path(folder) / "state", slots=2)
        warm = SECONDS // step
        tuples = wall = cpu = 0.0
        for epoch in range(warm + epochs):
            tables = {name: work.table(name, epoch, rows, step) for name in "abc"}
            began, clock = time.process_time(), time.perf_counter()
            run.epoch(tables)
            if epoch >= warm:
                cpu, wall = cpu + time.process_time() - began, wall + time.perf_counter() - clock
                tuples += sum(table.num_rows for table in tables.values())
        last = run.store.last
        assert last is not None
        state = sum(block.bytes for operator in last.operators.values() for side in operator.inputs for block in side)
        results = sum(last.totals.results.values())
        run.close()
    return (
        f"{work.name:9} {way:6} {results:>12,} results {tuples / wall:>10,.0f} tuples/s"
        f" {cpu * 1e6 / tuples:>8.2f} CPU s per million {state / 2**20:>8.1f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="tuples of a stream in an epoch")
    parser.add_argument("--step", type=int, default=5, help="seconds of event time of an epoch")
    parser.add_argument("--epochs", type=int, default=12, help="epochs that are measured, after one window of others")
    parser.add_argument("--queries", default="one-key,rare,two-keys,band,refined")
    given = parser.parse_args()
    for work in workloads(given.rows, given.step):
        if work.name in given.queries.split(","):
            for way in ("chain", "n-way"):
                print(measure(work, way, given.rows, given.step, given.epochs), flush=True)


if __name__ == "__main__":
    main()
