"""A benchmark query in Spark Structured Streaming: `python -m headrace_bench.systems.spark_job task.json`."""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_bench.systems import jobs
from headrace_bench.task import PROCESSORS
from headrace_bench.workload import SECOND, ZONES

POLL = 0.2


def settings(task: dict[str, Any]) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": str(task["cores"]),
        "spark.driver.memory": task["heap"],
        "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        **task["spark"],
    }


def session(task: dict[str, Any]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of Spark's Python workers
    builder = SparkSession.builder.master(f"local[{task['cores']}]").appName("bench")
    for name, value in settings(task).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def source(spark: SparkSession, task: dict[str, Any], side: str) -> DataFrame:
    folder = f"{task['source']}/{side}"
    reader = spark.readStream.schema(spark.read.parquet(folder).schema)
    if task["files_per_epoch"]:
        reader = reader.option("maxFilesPerTrigger", task["files_per_epoch"])
    return reader.parquet(folder).withWatermark("ts", f"{task['delay']} seconds")


def build(task: dict[str, Any], streams: list[DataFrame]) -> DataFrame:
    if task["kind"] == "aggregate":
        window = F.window("ts", f"{task['window']} seconds", f"{task['every']} seconds").alias("window")
        found = streams[0].groupBy(window, "key").agg(F.count("*").alias("n"), F.avg("x").alias("mean"))
        return found.select(F.col("window.start").alias("window_start"), "key", "n", "mean")
    if task["kind"] == "session":  # a tuple exactly one gap later belongs to the session, as in headrace
        window = F.session_window("ts", f"{task['gap']} seconds").alias("window")
        found = streams[0].groupBy(window, "key")
        found = found.agg(F.max("ts").alias("window_end"), F.count("*").alias("n"), F.avg("x").alias("mean"))
        return found.select(F.col("window.start").alias("window_start"), "window_end", "key", "n", "mean")
    if task["kind"] == "table":
        return with_table(task, streams[0])
    if task["kind"] in PROCESSORS:
        from headrace_bench.systems import spark_processors

        return spark_processors.build(task, streams[0])
    if task["kind"] == "nway":
        return nway(task, streams)
    sides = [
        s.select(*(F.col(n).alias(f"{side}_{n}") for n in s.columns)) for side, s in zip("lr", streams, strict=True)
    ]
    reach = f"interval {task['within']} seconds"
    on = task["on"].replace("l.", "l_").replace("r.", "r_")
    return sides[0].join(sides[1], F.expr(f"{on} and r_ts between l_ts - {reach} and l_ts + {reach}"), task["how"])


def with_table(task: dict[str, Any], stream: DataFrame) -> DataFrame:
    """Return Spark's own join of a stream with a static table."""
    zones = stream.sparkSession.read.parquet(f"{task['source']}/{ZONES}")
    placed = stream.select("payload", *(F.expr(sql).alias(name) for name, sql in task["places"].items()))
    found = placed.alias("l").join(F.broadcast(zones).alias("r"), F.expr(task["on"]), task["how"])
    return found.select("payload", "zone")


def nway(task: dict[str, Any], streams: list[DataFrame]) -> DataFrame:
    """Return a chain of two joins. A third tuple must be near both of the others, not only near one.

    Spark allows one event time per stream, so that of b becomes a number before the second join.
    """
    a, b, c = (
        s.select(*(F.col(n).alias(f"{alias}_{n}") for n in s.columns)) for alias, s in zip("abc", streams, strict=True)
    )
    first, second = (re.sub(r"\b([abc])\.", r"\1_", condition) for condition in task["joins"])
    reach = f"interval {task['within']} seconds"
    near = "{0}_ts between a_ts - " + reach + " and a_ts + " + reach
    pairs = a.join(b, F.expr(f"{first} and {near.format('b')}"))
    pairs = pairs.withColumn("b_micros", F.expr("unix_micros(b_ts)")).drop("b_ts")
    late = f"abs(unix_micros(c_ts) - b_micros) <= {task['within'] * SECOND}"
    found = pairs.join(c, F.expr(f"{second} and {near.format('c')} and {late}"))
    return found.select(*(F.col(f"{alias}_payload").alias(alias) for alias in "abc"))


def states(batches: list[Any]) -> list[dict[str, float]]:
    """Return the bytes of state after each batch, in memory and in files, as Spark reports them."""
    done, found = 0, list[dict[str, float]]()
    for batch in batches:
        done += batch["numInputRows"]
        found.append({"tuples": done, "state": sum(map(_bytes, batch["stateOperators"]))})
    return found


def _bytes(operator: Any) -> int:
    return int(operator["memoryUsedBytes"]) + int(operator["customMetrics"].get("rocksdbSstFileSize", 0))


def follow(query: Any, task: dict[str, Any]) -> None:
    """Record the end of each batch, by Spark's own clock, until the query ends or must stop."""
    done, seen = 0, -1
    with jobs.points(task) as record:
        active = True
        while active:
            active = not query.awaitTermination(POLL) and not jobs.told_to_stop(task)
            for batch in query.recentProgress:
                if batch["batchId"] > seen and batch["numInputRows"]:
                    seen, done = batch["batchId"], done + batch["numInputRows"] * task.get("rows_per_input", 1)
                    record(done, _begun(batch) + batch["durationMs"]["triggerExecution"] / 1000)


def _begun(batch: Any) -> float:
    return datetime.datetime.fromisoformat(batch["timestamp"]).timestamp()


def begun(spark: SparkSession, task: dict[str, Any], work: Path) -> Any:
    """Start the query of a task on its source."""
    results = build(task, [source(spark, task, side) for side in task["sides"]])
    writer = results.writeStream.format("parquet").option("path", str(work / "out"))
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    live = task["epoch"] != "0 seconds"
    return (writer.trigger(processingTime=task["epoch"]) if live else writer.trigger(availableNow=True)).start()


def run(path: str, begun: Callable[[SparkSession, dict[str, Any], Path], Any]) -> None:
    """Run a query to its end, after a run on little data if requested."""
    task = jobs.load(path)
    with jobs.errors(task):
        spark, work = session(task), Path(task["work"])
        jobs.about(task, {"spark": spark.version}, settings(task))
        if "rehearsal" in task:
            begun(spark, {**task, **task["rehearsal"]}, work / "rehearsal").awaitTermination()
        query = begun(spark, task, work)
        follow(query, task)
        if task["kind"] == "nway":
            jobs.epochs(task, states([batch for batch in query.recentProgress if batch["numInputRows"]]))
        query.stop()
        spark.stop()


if __name__ == "__main__":
    run(sys.argv[1], begun)
