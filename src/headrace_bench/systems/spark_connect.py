"""Spark between other systems, with its own connectors: `python -m headrace_bench.systems.spark_connect task.json`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_bench.systems import spark_job

COLUMNS = "ts timestamp, key bigint, payload bigint, x double"
AT_ONCE = 10_000  # rows per INSERT over JDBC; ten times Spark's default


def source(spark: SparkSession, task: dict[str, Any], side: str) -> DataFrame:
    if not task["reads_kafka"]:
        return spark_job.source(spark, task, side)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", task["servers"])
    reader = reader.option("subscribe", task["topics"][side]).option("startingOffsets", "earliest")
    if task["messages_per_epoch"]:
        reader = reader.option("maxOffsetsPerTrigger", task["messages_per_epoch"])
    return decoded(reader.load(), task["format"]).withWatermark("ts", f"{task['delay']} seconds")


def decoded(messages: DataFrame, format: str) -> DataFrame:
    if format == "json":
        return messages.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("v")).select("v.*")
    return messages.select("value").mapInArrow(_opened, COLUMNS)


def _opened(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for value in batch.column(0):
            yield from pa.ipc.open_stream(value.as_buffer())


def begun(spark: SparkSession, task: dict[str, Any], work: Path) -> Any:
    streams = [source(spark, task, side) for side in task["sides"]]
    results = streams[0] if task["kind"] == "copy" else spark_job.build(task, streams)
    if task["kind"] == "join":
        results = results.select("l_payload", "r_payload")
    live = task["epoch"] != "0 seconds" or task["follows"]
    writer = written(results, task, work).option("checkpointLocation", str(work / "checkpoint"))
    return (writer.trigger(processingTime=task["epoch"]) if live else writer.trigger(availableNow=True)).start()


def written(results: DataFrame, task: dict[str, Any], work: Path) -> Any:
    if task["writes"] == "kafka":
        values = results.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
        return values.option("kafka.bootstrap.servers", task["servers"]).option("topic", task["out"])
    if task["writes"] == "postgres":
        return results.writeStream.foreachBatch(lambda rows, number: _insert(rows, task))
    return results.writeStream.format("parquet").option("path", str(work / "out"))


def _insert(rows: DataFrame, task: dict[str, Any]) -> None:
    writer = rows.write.format("jdbc").option("url", task["jdbc"]).option("dbtable", task["out"])
    writer = writer.option("user", task["user"]).option("password", task["password"]).option("batchsize", AT_ONCE)
    writer.mode("append").save()


if __name__ == "__main__":
    spark_job.run(sys.argv[1], begun)
