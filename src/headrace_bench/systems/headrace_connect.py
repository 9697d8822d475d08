"""headrace between other systems: `python -m headrace_bench.systems.headrace_connect task.json`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace_bench.systems import headrace_job, jobs

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("key", pa.int64()), ("payload", pa.int64()), ("x", pa.float64())]
)


def source(spark: Any, task: dict[str, Any], side: str) -> hr.Stream:
    if not task["reads_kafka"]:
        folder = Path(task["source"]) / side
        return hr.files(spark, folder, time="ts", files_per_epoch=task["files_per_epoch"], name=side)
    return hr.kafka(
        spark,
        task["servers"],
        task["topics"][side],
        time="ts",
        schema=SCHEMA,
        format=task["format"],
        messages_per_epoch=task["messages_per_epoch"],
        name=side,
    )


def sink(task: dict[str, Any], work: Path) -> hr.sinks.AnySink:
    if task["writes"] == "kafka":
        return hr.sinks.kafka(task["servers"], task["out"])
    if task["writes"] == "postgres":
        return hr.sinks.database(task["url"], task["out"])
    return hr.sinks.parquet(work / "out")


def build(task: dict[str, Any], sources: list[hr.Stream]) -> hr.Stream:
    if task["kind"] == "copy":
        return sources[0].map("key", "payload", "x")
    found = headrace_job.build(task, sources)
    return found.map("l_payload", "r_payload") if task["kind"] == "join" else found


def main(path: str) -> None:
    task = jobs.load(path)
    with jobs.errors(task):
        spark, work = hr.session(slots=task["cores"]), Path(task["work"])
        jobs.about(task, {"headrace": hr.__version__, "spark": spark.version}, headrace_job.settings(task))
        query = build(task, [source(spark, task, side) for side in task["sides"]])
        given = {"checkpoint": work / "checkpoint", "show": False, **headrace_job.settings(task)}
        with query.start(sink(task, work), **given) as run:
            headrace_job.follow(run, task)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
