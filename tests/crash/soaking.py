"""A streaming run on real Spark, as a program: reads what the parent puts into a folder until it is killed.

    python soaking.py FOLDER SLOTS MODE TOTAL      MODE: files | stream; ends by itself once TOTAL rows are processed
                                                   once: files beside a stream, takes what is there and ends
                                                   processors: files through splits, slots change while it runs;
                                                   processors-end: takes what is there and ends
                                                   steady: the same, a file in every epoch, slots stay

It says "epoch N ROWS" after every epoch, so that the parent knows how far it is. In used.txt stands, of every epoch of a
processor, how it came by its tables: epoch, process, operator, how many were found in place, and why others were not.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace import sinks
from headrace.testing import table_stream
from tests.crash import watching
from tests.helpers import write_whole

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])
PER_FILE = 60
TRIES = 16  # of a task, where workers are killed


def rows(number: int, beside: bool = False) -> pa.Table:
    """The rows of file number n: one second of event time per file, up to a second of disorder."""
    rng = random.Random(number)
    first = (number + 1_000_000 * beside) * PER_FILE
    times = [number * SECOND + rng.randrange(-SECOND // 2, SECOND // 2) for _ in range(PER_FILE)]
    return pa.table(
        [
            pa.array(times, pa.int64()).cast(SCHEMA.field("ts").type),
            pa.array([rng.randrange(20) for _ in times], pa.int64()),
            pa.array([first + i for i in range(PER_FILE)], pa.int64()),
        ],
        schema=SCHEMA,
    )


def put(folder: Path, number: int, beside: bool = False, table: pa.Table | None = None) -> None:
    """Add a file whole: written under a hidden name, then renamed."""
    modified = 1_700_000_000 + number if beside else None  # Spark orders files by whole milliseconds
    write_whole(folder / f"{number:06d}.parquet", rows(number, beside) if table is None else table, modified)


FAILING = 7  # the remainder by 50 of a value on which the filter fails


def results(source: hr.Stream) -> list[hr.Stream]:
    source = source.filter(f"CASE WHEN v % 50 = {FAILING} THEN ('x' || v)::int ELSE 1 END = 1")
    joined = source.join(source, on="l.k = r.k", within="2 seconds").filter("l_v < r_v").map("l_v", "r_v", k="l_k")
    counted = source.aggregate(by=["k"], window="5 seconds", every="2 seconds", n="count(*)", total="sum(v)")
    return [joined, counted]


def stream_of(spark: Any, folder: Path, mode: str) -> hr.Stream:
    if mode == "once":
        return stream_of(spark, folder, "files").union(stream_of(spark, folder.parent / "beside", "stream"))
    if mode != "stream":
        many = 1 if mode == "steady" else 3
        return hr.files(
            spark, folder, time="ts", lateness="1 second", files_per_epoch=many, name="events", schema=SCHEMA
        )
    df = spark.readStream.schema("ts timestamp, k bigint, v bigint").option("maxFilesPerTrigger", 3)
    return hr.stream(df.parquet(str(folder)), time="ts", lateness="1 second", name=folder.name)


def local(table: pa.Table) -> list[hr.Stream]:
    """The same queries on a table, for the reference."""
    return results(table_stream(table, lateness="1 second", name="events"))


def _delivered(record: Any) -> int:
    return sum(source.delivered for source in record.sources.values())


def _used(record: Any) -> Iterator[str]:
    for name, use in record.table_use.items():
        yield f"{record.epoch} {os.getpid()} {name} {use.found} {_whys(use)}\n"


def _whys(use: Any) -> str:
    return ",".join(why.replace(" ", "-") for why in use.built) or "-"


def _heap(spark: Any) -> float:
    """What the virtual machine holds, in MB."""
    spark._jvm.java.lang.System.gc()
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    return (runtime.totalMemory() - runtime.freeMemory()) / (1 << 20)


def main(folder: Path, slots: int, mode: str, total: int) -> None:
    watched = mode.startswith("processors") or mode == "steady"
    spark = hr.session(slots=slots, master=f"local[{slots},{TRIES}]" if watched else None)
    source = stream_of(spark, folder / "in", mode)
    streams = watching.results(source, watching.FastWatch) if watched else results(source)
    outs = [sinks.parquet(folder / "out" / str(number), parts=number == 0) for number in range(len(streams))]
    run = hr.start(
        list(zip(streams, outs, strict=True)),
        checkpoint=folder / "ckpt",
        epoch="0 seconds",
        slots=slots,
        once=mode in ("once", "processors-end"),
        errors="keep",
        late=sinks.parquet(folder / "out" / "late"),
    )
    heard = os.open(folder / "heard.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run.listen(lambda r: os.write(heard, f"{r.epoch} {int(r.repeated)} {_delivered(r)}\n".encode()))
    used = os.open(folder / "used.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run.listen(lambda r: os.write(used, "".join(_used(r)).encode()))
    said = None
    while run.active and run.progress.tuples_in < total:
        if run.progress.epoch != said:
            said = run.progress.epoch
            print("epoch", said, run.progress.tuples_in, flush=True)
            if mode == "processors":
                run.set_slots(1 + (slots + said) % 3)
            if mode == "steady" and said is not None and said % 25 == 1:
                (folder / "heap.txt").write_text(f"{_heap(spark)}")
        time.sleep(0.02)
    if run.exception is not None:
        raise run.exception
    run.stop()
    print("done", run.progress.epoch, run.progress.tuples_in, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
