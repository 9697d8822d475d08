"""A dozen queries on a given master, compared with the reference; prints one JSON object.

Run as a program of its own: a process has one SparkContext. `python job.py MASTER FOLDER [NAME ...]`, all queries
without names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.difference import difference
from headrace.reference import reference
from headrace.stream import Stream

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.oracle.strategies import SECOND, make_table

TABLES = {
    "a": make_table(101, 300, odd=True, lateness=SECOND, span=60 * SECOND),
    "b": make_table(102, 150, small=True, span=60 * SECOND),
}


def queries(a: Stream, b: Stream) -> dict[str, Stream]:
    equal = a.join(b, on="l.k = r.k", within="2 seconds")
    first, second, rest = a.case("x > 30", "x > 10")
    return {
        "map and filter": a.filter("x % 2 = 0").map("k", "s", y="x * 2"),
        "case and union": first.union(rest).map("x", n="length(s)"),
        "equality join": equal,
        "equality and more": a.join(b, on="l.k = r.k and l.x < r.x", within=("3 seconds", "1 second")),
        "inequality join": a.join(b, on="l.x <= r.x and r.x < l.x + 5", within="2 seconds"),
        "any predicate": a.join(b, on="(l.x + 2 * r.x) % 7 = 1 or l.f = r.f", within="1 second"),
        "self-join": second.join(second, on="l.s = r.s", within="4 seconds"),
        "count join": a.join(b, on="l.k = r.k", last=(20, 10)),
        "panes": a.aggregate(
            by=["k"], window="10 seconds", every="4 seconds", n="count(*)", t="sum(x)", m="avg(x)", z="min(f)"
        ),
        "tuples": a.aggregate(by=["s"], window="7 seconds", every="3 seconds", m="median(x)", l="list(x)", o="mode(k)"),
        "count aggregate": a.aggregate(by=["k"], last=10, every=4, l="list(x)", d="count(DISTINCT s)"),
        "join, then aggregate": equal.aggregate(by=["l_k"], window="5 seconds", n="count(*)", t="sum(r_x)"),
    }


def compared(expected: pa.Table, found: pa.Table) -> str | None:
    if not expected.num_rows:
        return "the reference has no result: nothing was tested"
    return difference(expected, found)


def run_over_files(spark: Any, folder: Path) -> str | None:
    """Two starts with other slots; the blocks of one executor are read by the other."""
    for name, table in TABLES.items():
        (folder / name).mkdir(parents=True)
        for number in range(4):
            start, stop = (table.num_rows * i // 4 for i in (number, number + 1))
            path = folder / name / f"{number}.parquet"
            pq.write_table(table.slice(start, stop - start), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    sources = [
        hr.files(spark, folder / n, time="ts", lateness=f"{late} seconds", name=n, files_per_epoch=1)
        for n, late in (("a", 1), ("b", 0))
    ]
    query = queries(*sources)["join, then aggregate"]
    total = sum(t.num_rows for t in TABLES.values())
    for slots, enough in ((2, total // 3), (3, total)):
        sink = hr.sinks.parquet(folder / "out")
        with query.start(sink, checkpoint=folder / "checkpoint", epoch="0 seconds", slots=slots) as run:
            deadline = time.monotonic() + 120
            while run.progress.tuples_in < enough and time.monotonic() < deadline:
                run.wait(0.05)
    found = pa.concat_tables(pq.read_table(p, partitioning=None) for p in sorted((folder / "out").glob("*.parquet")))
    return compared(reference(query, epochs=[TABLES], end=False), found.cast(query.schema))


def main(master: str, folder: str, *names: str) -> None:
    spark = hr.session(slots=2, master=master, spark__executor__cores="1", spark__ui__enabled="false")
    try:
        workers = 2
        deadline = time.monotonic() + 60
        tracker = spark.sparkContext._jsc.sc().statusTracker()
        while len(tracker.getExecutorInfos()) < workers + 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        executors = len(tracker.getExecutorInfos()) - 1  # without the driver
        sources = [
            hr.stream(spark.createDataFrame(t).repartition(3), time="ts", name=n, lateness="1 second")
            for n, t in TABLES.items()
        ]
        asked = {n: q for n, q in queries(*sources).items() if not names or n in names}
        found = {name: compared(reference(query), query.collect(slots=3)) for name, query in asked.items()}
        found["run over files"] = run_over_files(spark, Path(folder))
        seen = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getpid()).distinct().count()
        print("RESULT " + json.dumps({"executors": executors, "processes": seen, "differences": found}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
