"""The Spark job of the comparison: it follows a folder of Parquet files, one per second, and writes answers epoch by
epoch.

    python -m headrace_linearroad.beside.spark_job JOB    (JSON: input, like, out, checkpoint, slots, [once], [files])

The answers of an epoch are one folder, `epoch-<n>-/what=<kind>`, which is overwritten if the epoch is repeated, so each
answer exists once. The job prints a line of JSON for every epoch: its number, and when its answers became visible
(monotonic clock).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_linearroad.beside.spark_processors import ALERT, ASKED, BALANCE, EVENTS, TOLL, Accounts, Roads

MODULE = "headrace_linearroad.beside.spark_job"
STORES = "org.apache.spark.sql.execution.streaming.state"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": f"{STORES}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}
FIELDS = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid")
CARS = 16
OUTPUTS = {
    "tolls": (TOLL, ("vid", "time", "lav", "toll", "xway", "dir", "seg")),
    "accidents": (ALERT, ("vid", "time", "xway", "dir", "seg")),
    "balances": (BALANCE, ("qid", "time", "resulttime", "vid", "bal")),
}


def answers(tuples: DataFrame) -> DataFrame:
    reports = tuples.filter("type = 0").withColumn("road", F.expr("xway * 2 + dir"))
    told = reports.groupBy("road").transformWithStateInPandas(Roads(), EVENTS, "Append", "None")
    asked = tuples.filter("type = 2").selectExpr(
        f"{ASKED}L AS what",
        *(f"{name}::BIGINT" if name in ("vid", "time", "qid") else f"0L AS {name}" for name in EVENTS.names[1:]),
    )
    by_car = told.unionByName(asked).withColumn("some", F.expr(f"vid % {CARS}")).groupBy("some")
    return by_car.transformWithStateInPandas(Accounts(), EVENTS, "Append", "None")


def writing(out: Path) -> Any:
    def write(told: DataFrame, epoch: int) -> None:
        told.write.partitionBy("what").mode("overwrite").parquet(str(out / f"epoch-{epoch}-"))
        print(json.dumps({"epoch": epoch, "at": time.monotonic()}), flush=True)

    return write


def run(job: dict[str, Any]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    slots = job["slots"]
    builder = SparkSession.builder.master(f"local[{slots}]").config("spark.sql.shuffle.partitions", slots)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.schema(spark.read.parquet(job["like"]).schema)
    if job.get("files"):
        reader = reader.option("maxFilesPerTrigger", job["files"])
    told = answers(reader.parquet(job["input"]).select(*FIELDS))
    writer = told.writeStream.foreachBatch(writing(Path(job["out"]))).option("checkpointLocation", job["checkpoint"])
    query = (writer.trigger(availableNow=True) if job.get("once") else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
