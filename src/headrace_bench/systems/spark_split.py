"""A split in Spark, micro-batch by micro-batch: `python -m headrace_bench.systems.spark_split task.json`.

A tuple gets an array of its substreams (one, all or none) and is exploded by it. `repartitionById` brings the tuples of
a substream together, and `mapInArrow` passes all their columns to Python, which counts them by type. If requested, they
are sorted by time first, as headrace passes them. Spark has no state and no commits here except its own log of batches
and the sink's files, which favours Spark.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_bench.systems import spark_job

TYPES = 5  # 0 to 4
COUNTS = "ts timestamp, substream long, type long, n long"
Batches = Iterator[pa.RecordBatch]


def divided(task: dict[str, Any], tuples: DataFrame) -> DataFrame:
    """Return the tuples with every substream in a separate partition."""
    every = F.sequence(F.lit(0), F.lit(task["substreams"] - 1))
    goes = F.when(F.expr(task["broadcast"]), every).otherwise(F.array(F.expr(task["route"])))
    sent = tuples.withColumn("substream", F.explode(goes)).where("substream is not null")
    found = sent.repartitionById(task["substreams"], "substream")
    return found.sortWithinPartitions("ts") if task["in_sequence"] else found


def counting(every: int) -> Callable[[Batches], Batches]:
    """Return a function that counts a partition by substream and type. A micro-batch is within one period."""

    def count(batches: Batches) -> Batches:
        found, end = np.zeros(0, np.int64), None
        for batch in batches:
            numbers = batch["substream"].to_numpy() * TYPES + batch["type"].to_numpy()
            more = np.bincount(numbers, minlength=len(found))
            more[: len(found)] += found
            found, end = more, end or _end(batch["ts"][0].as_py(), every)
        there = np.flatnonzero(found)
        columns = {"ts": [end] * len(there), "substream": there // TYPES, "type": there % TYPES, "n": found[there]}
        yield pa.record_batch({**columns, "ts": pa.array(columns["ts"], pa.timestamp("us", "UTC"))})

    return count


def _end(time: dt.datetime, every: int) -> dt.datetime:
    """Return the first multiple of `every` after a time."""
    return dt.datetime.fromtimestamp((int(time.timestamp()) // every + 1) * every, dt.UTC)


def begun(spark: SparkSession, task: dict[str, Any], work: Path) -> Any:
    """Start a query that writes the counts of every micro-batch to a folder of Parquet files."""
    count = counting(task["every"])

    def deliver(batch: DataFrame, number: int) -> None:
        counts = divided(task, batch).mapInArrow(count, COUNTS)
        counts.coalesce(task["cores"]).write.mode("append").parquet(str(work / "out"))

    folder = f"{task['source']}/{task['sides'][0]}"
    reader = spark.readStream.schema(spark.read.parquet(folder).schema)
    stream = reader.option("maxFilesPerTrigger", task["files_per_epoch"]).parquet(folder)
    writer = stream.writeStream.foreachBatch(deliver).option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(availableNow=True).start()


if __name__ == "__main__":
    spark_job.run(sys.argv[1], begun)
