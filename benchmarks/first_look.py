"""A first comparison of speed with Spark's stream-stream join: same files, same epochs, one machine, one run.

    python benchmarks/first_look.py [--epochs 18] [--rounds 1] [--only join|theta|memory]

join    equality join, 60 s windows, two streams of 10,000 tuples/s, 10 million keys, epochs of 200,000 tuples,
local[2].
        Throughput is measured once the windows are full. The row counts of both systems are compared.
theta   a distance predicate (no equality) over two streams of 2,000 tuples/s with 10 s windows: whether headrace keeps
up.
        Spark rejects this query; its error message is printed.
memory  500 small epochs of a join: resident memory of driver, JVM and workers, and files on disk, over time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def write_stream(folder: Path, epochs: int, rate: int, seconds: float, keys: int, seed: int) -> None:
    """Write one file per epoch, with the columns ts, key, payload, x and y."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    count = int(rate * seconds)
    for epoch in range(epochs):
        begin = START + int(epoch * seconds * SECOND)
        ts = begin + np.sort(rng.integers(0, int(seconds * SECOND), count))
        table = pa.table(
            {
                "ts": pa.array(ts, pa.timestamp("us", "UTC")),
                "key": pa.array(rng.integers(0, keys, count)),
                "payload": pa.array(rng.integers(0, 1 << 60, count)),
                "x": pa.array(rng.random(count) * 10_000),
                "y": pa.array(rng.random(count) * 10_000),
            }
        )
        path = folder / f"part-{epoch:05d}.parquet"
        pq.write_table(table, folder / f"_{path.name}")
        (folder / f"_{path.name}").rename(path)


def follow(run, tuples: int) -> list[tuple[float, int, int]]:
    """Return (time, tuples in, results out) after every epoch, until all tuples are in."""
    seen = [(time.perf_counter(), run.progress.tuples_in, run.progress.results_out)]
    while run.progress.tuples_in < tuples:
        if not run.active:
            run.wait(0)
        if run.progress.tuples_in != seen[-1][1]:
            seen.append((time.perf_counter(), run.progress.tuples_in, run.progress.results_out))
        time.sleep(0.002)
    seen.append((time.perf_counter(), run.progress.tuples_in, run.progress.results_out))
    return seen


def steady_rate(seen: list[tuple[float, int, int]], warm: int) -> float:
    """Return the tuples per second after the first `warm` tuples."""
    late = [point for point in seen if point[1] >= warm]
    return (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])


def headrace_join(spark, work: Path, epochs: int, slots: int) -> dict:
    left, right = (hr.files(spark, work / side, time="ts", files_per_epoch=1, name=side) for side in ("left", "right"))
    query = left.join(right, on="l.key = r.key", within="60 seconds")
    cpu = cpu_seconds()
    run = query.start(hr.sinks.parquet(work / "out"), checkpoint=work / "ckpt", epoch="0 seconds", slots=slots)
    seen = follow(run, epochs * 200_000)
    run.stop()
    return {
        "tuples_per_second": round(steady_rate(seen, 7 * 200_000)),
        "results": run.progress.results_out,
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
        "memory_mb": memory_mb(),
    }


def spark_join(spark, work: Path, epochs: int) -> dict:
    from pyspark.sql import functions as F

    schema = spark.read.parquet(str(work / "left")).schema

    def source(side: str):
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(work / side)).withWatermark("ts", "0 seconds")
        return frame.select(*(F.col(name).alias(f"{side}_{name}") for name in frame.columns))

    on = "left_key = right_key and right_ts between left_ts - interval 60 seconds and left_ts + interval 60 seconds"
    joined = source("left").join(source("right"), F.expr(on))
    cpu = cpu_seconds()
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(work / "spark-out"))
        .option("checkpointLocation", str(work / "spark-ckpt"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [b for b in query.recentProgress if b.numInputRows]
    late = [b for b in batches if b.batchId >= 7]
    seconds = sum(b.durationMs["triggerExecution"] for b in late) / 1000
    return {
        "tuples_per_second": round(sum(b.numInputRows for b in late) / seconds),
        "results": spark.read.parquet(str(work / "spark-out")).count(),
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
        "memory_mb": memory_mb(),
    }


def processes() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds() -> float:
    return sum(sum(p.cpu_times()[:2]) for p in processes())


def memory_mb() -> int:
    return round(sum(p.memory_info().rss for p in processes()) / 2**20)


def join(spark, work: Path, epochs: int, rounds: int) -> dict:
    for seed, side in enumerate(("left", "right")):
        write_stream(work / side, epochs, 10_000, 10, 10_000_000, seed)
    found: dict[str, list[dict]] = {"headrace": [], "spark": []}
    for turn in range(rounds):
        order = ["headrace", "spark"] if turn % 2 == 0 else ["spark", "headrace"]
        for system in order:
            for name in ("out", "ckpt", "spark-out", "spark-ckpt"):
                shutil.rmtree(work / name, ignore_errors=True)
            result = headrace_join(spark, work, epochs, 2) if system == "headrace" else spark_join(spark, work, epochs)
            print(f"  join round {turn + 1} {system}: {result}", flush=True)
            found[system].append(result)
    counts = {r["results"] for results in found.values() for r in results}
    rates = {s: statistics.median(r["tuples_per_second"] for r in results) for s, results in found.items()}
    return {
        "rates": rates,
        "ratio": round(rates["headrace"] / rates["spark"], 2),
        "same_results": len(counts) == 1,
        "rounds": found,
    }


def theta(spark, work: Path, epochs: int = 30) -> dict:
    for seed, side in enumerate(("left", "right")):
        write_stream(work / side, epochs, 2_000, 1, 1_000_000, seed)
    left, right = (hr.files(spark, work / side, time="ts", files_per_epoch=1, name=side) for side in ("left", "right"))
    distance = "(l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y) < 25"
    run = left.join(right, on=distance, within="10 seconds").start(
        hr.sinks.parquet(work / "out"), checkpoint=work / "ckpt", epoch="0 seconds", slots=2
    )
    seen = follow(run, epochs * 4_000)
    run.stop()
    rate = steady_rate(seen, 12 * 4_000)
    return {
        "tuples_per_second": round(rate),
        "needed": 4_000,
        "keeps_up": rate > 4_000,
        "pairs_per_second": round(rate * 20_000),
        "spark_says": spark_refuses(spark, work),
    }


def spark_refuses(spark, work: Path) -> str:
    from pyspark.sql import functions as F

    schema = spark.read.parquet(str(work / "left")).schema
    sides = [
        spark.readStream.schema(schema).parquet(str(work / s)).withWatermark("ts", "0 seconds").alias(s)
        for s in ("left", "right")
    ]
    on = F.expr("abs(left.x - right.x) < 5 and right.ts between left.ts and left.ts + interval 10 seconds")
    try:
        query = sides[0].join(sides[1], on).writeStream.format("noop")
        query.option("checkpointLocation", str(work / "refused")).start().processAllAvailable()
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return "accepted"


def memory(spark, work: Path, epochs: int = 500) -> dict:
    write_stream(work / "left", epochs, 2_000, 0.5, 10_000, 1)
    stream = hr.files(spark, work / "left", time="ts", files_per_epoch=1, name="s")
    query = stream.join(stream, on="l.key = r.key and l.payload < r.payload", within="20 seconds")
    run = query.start(hr.sinks.foreach(lambda table, epoch: None), checkpoint=work / "ckpt", epoch="0 seconds", slots=2)
    points: list[dict] = []
    while run.progress.epoch < epochs - 1 and run.active:
        if run.progress.epoch >= 50 * len(points):
            state = work / "ckpt" / "state"
            points.append(
                {
                    "epoch": run.progress.epoch,
                    "memory_mb": memory_mb(),
                    "python_mb": round(psutil.Process().memory_info().rss / 2**20),
                    "open_files": psutil.Process().num_fds(),
                    "blocks": run.progress.blocks,
                    "block_files": len(list((state / "blocks").iterdir())),
                    "state_mb": round(run.progress.state_bytes / 2**20, 2),
                    "epoch_seconds": round(run.progress.last.seconds, 3) if run.progress.last else None,
                }
            )
            print(f"  memory {points[-1]}", flush=True)
        time.sleep(0.01)
    run.stop()
    return {"points": points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=18, help="epochs of the join; the first 7 fill the windows")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of the join, which alternate between the systems")
    parser.add_argument("--only", choices=("join", "theta", "memory"))
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    spark = hr.session(slots=2, spark__driver__memory="6g", spark__sql__shuffle__partitions="2")
    found = {}
    for name in [options.only] if options.only else ["join", "theta", "memory"]:
        work = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
        print(f"{name}: in {work}", flush=True)
        try:
            if name == "join":
                found[name] = join(spark, work, options.epochs, options.rounds)
            else:
                found[name] = {"theta": theta, "memory": memory}[name](spark, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
