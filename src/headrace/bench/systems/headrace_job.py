"""A benchmark query in headrace: `python -m headrace.bench.systems.headrace_job task.json`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.bench.systems import jobs
from headrace.engine.run import Run

POLL = 0.005


def build(task: dict[str, Any], sources: list[hr.Stream]) -> hr.Stream:
    """The query of a task; with more than one operator, the first is followed by joins of its result with a source."""
    if task["kind"] == "aggregate":
        window, every = f"{task['window']} seconds", f"{task['every']} seconds"
        return sources[0].aggregate(by=["key"], window=window, every=every, n="count(*)", mean="avg(x)")
    within = f"{task['within']} seconds"
    query = sources[0].join(sources[1], on=task["on"], within=within)
    for _ in range(task["operators"] - 1):
        query = query.map(key="l_key", payload="l_payload", x="l_x").join(sources[1], on=task["on"], within=within)
    return query


def follow(run: Run, task: dict[str, Any]) -> None:
    """Write down how far the run is after each epoch, until all is in or we are told to stop."""
    with jobs.points(task) as record:
        while run.progress.tuples_in < task["tuples"] and not jobs.told_to_stop(task):
            if not run.active:
                run.wait(0)
            record(run.progress.tuples_in)
            time.sleep(POLL)
        record(run.progress.tuples_in)


def main(path: str) -> None:
    task = jobs.load(path)
    with jobs.errors(task):
        settings = {"slots": task["cores"], "epoch": task["epoch"]}
        spark = hr.session(slots=task["cores"])
        heap = spark.sparkContext.getConf().get("spark.driver.memory")
        jobs.about(task, {"headrace": hr.__version__, "spark": spark.version}, {**settings, "heap": heap})
        folder, per_epoch = Path(task["source"]), task["files_per_epoch"]
        sources = [hr.files(spark, folder / s, time="ts", files_per_epoch=per_epoch, name=s) for s in task["sides"]]
        work = Path(task["work"])
        out = hr.sinks.parquet(work / "out")
        run = build(task, sources).start(
            out, checkpoint=work / "checkpoint", epoch=task["epoch"], slots=task["cores"], show=False
        )
        with run:
            follow(run, task)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
