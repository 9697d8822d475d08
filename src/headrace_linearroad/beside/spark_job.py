"""The competitor as a process: follows a folder of Parquet files, one for each second, and writes three folders of answers.

    python -m headrace_linearroad.beside.spark_job --input DIR --out DIR --checkpoint DIR [--once] [--files N]

A line of JSON on its output for every epoch: the seconds it has, and when its answers became visible (seconds since 1970).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace_linearroad.beside.spark_processors import ALERT, ASKED, BALANCE, EVENTS, TOLL, Accounts, Roads

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}
FIELDS = "type, time, vid, spd, xway, lane, dir, seg, pos, qid"
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
    by_car = told.unionByName(asked).withColumn("bucket", F.expr(f"vid % {CARS}")).groupBy("bucket")
    return by_car.transformWithStateInPandas(Accounts(), EVENTS, "Append", "None")


def write(out: Path) -> Any:
    def put_out(told: DataFrame, epoch: int) -> None:
        told.persist()
        seconds = told.agg(F.min("time"), F.max("time")).first()
        for name, (what, columns) in OUTPUTS.items():
            rows = told.filter(told.what == what).select(F.timestamp_seconds("time").alias("ts"), *columns)
            rows.write.mode("append").parquet(str(out / name))
        told.unpersist()
        print(json.dumps({"epoch": epoch, "seconds": list(seconds), "visible": time.time()}), flush=True)

    return put_out


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("--input", "--out", "--checkpoint"):
        options.add_argument(name, type=Path, required=True)
    options.add_argument("--once", action="store_true", help="end when the files that are there are answered")
    options.add_argument("--files", type=int, help="per epoch; without it, those that are there")
    options.add_argument("--cores", type=int, default=2)
    given = options.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{given.cores}]").config("spark.sql.shuffle.partitions", given.cores)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.schema(spark.read.parquet(str(sorted(given.input.glob("*.parquet"))[0])).schema)
    if given.files:
        reader = reader.option("maxFilesPerTrigger", given.files)
    tuples = reader.parquet(str(given.input)).selectExpr(*FIELDS.split(", "))
    writer = answers(tuples).writeStream.foreachBatch(write(given.out)).outputMode("append")
    writer = writer.option("checkpointLocation", str(given.checkpoint))
    query = (writer.trigger(availableNow=True) if given.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
