"""A benchmark query in headrace: `python -m headrace_bench.systems.headrace_job task.json`."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.run.run import Run
from headrace.telemetry.progress import EpochSummary
from headrace_bench.systems import counting, headrace_nway, jobs
from headrace_bench.systems.headrace_processors import CountByType, RunningCount, RunningCountInPlace, Sessions
from headrace_bench.task import PROCESSORS
from headrace_bench.workload import ZONES

POLL = 0.005


def build(task: dict[str, Any], sources: list[hr.Stream]) -> hr.Stream:
    """Return the query of a task. With several operators, joins of the result with a source follow the first one."""
    if task["kind"] == "aggregate":
        window, every = f"{task['window']} seconds", f"{task['every']} seconds"
        return sources[0].aggregate(by=["key"], window=window, every=every, n="count(*)", mean="avg(x)")
    if task["kind"] == "session":
        return sources[0].aggregate(by=["key"], session=f"{task['gap']} seconds", n="count(*)", mean="avg(x)")
    if task["kind"] == "table":
        zones = hr.table(Path(task["source"]) / ZONES, name=ZONES)
        placed = sources[0].map("key", "payload", **task["places"])
        return placed.join(zones, on=task["on"], how=task["how"]).map("payload", "zone")
    if task["kind"] in (*PROCESSORS, "split"):
        return split(task, sources[0])
    if task["kind"] == "nway":
        join = headrace_nway.chain if task.get("chain") else headrace_nway.several
        return join(sources, task["joins"], task["within"], "payload")
    within = f"{task['within']} seconds"
    if task["kind"] == "figure-8":
        return figure_8(sources[0], sources[1], f"{task['window']} seconds", within)
    query = sources[0].join(sources[1], on=task["on"], within=within, how=task["how"])
    for _ in range(task["operators"] - 1):
        query = query.map(key="l_key", payload="l_payload", x="l_x").join(sources[1], on=task["on"], within=within)
    return query


def split(task: dict[str, Any], stream: hr.Stream) -> hr.Stream:
    """Split the stream by the rules of the task, or by key."""
    rules = {"route": task["route"], "broadcast": task["broadcast"]} if task["kind"] == "split" else {"by": ["key"]}
    applied: hr.Stream = stream.split(task["substreams"], **rules).apply(processor(task))
    return applied


def processor(task: dict[str, Any]) -> hr.Processor:
    every = dt.timedelta(seconds=task["every"])
    if task["kind"] == "split":
        return CountByType(every)
    if task["kind"] == "count":
        return RunningCountInPlace() if task.get("in_place") else RunningCount()
    return Sessions(dt.timedelta(seconds=task["gap"]), every)


def figure_8(left: hr.Stream, right: hr.Stream, window: str, within: str) -> hr.Stream:
    """Return eight operators over whole numbers, three of them stateful and two of these by the same key."""
    counted = (
        left.map("key", value="payload % 1000")
        .filter("value >= 100")
        .aggregate(by=["key"], window=window, n="count(*)", most="max(value)")
        .filter("most >= 200")
    )
    return (
        counted.join(right, on="l.key = r.key", within=within)
        .map(part="l_key % 1000", product="n * (payload % 1000)")
        .filter("product >= 100")
        .aggregate(by=["part"], window=window, pairs="count(*)", most="max(product)")
    )


@dataclass(frozen=True)
class Seen:
    """The state of a run after one of its epochs."""

    tuples: int  # tuples in so far
    last: EpochSummary
    busy: tuple[float, ...]  # recent share of time in which each slot works
    at: float  # wall-clock time when it was first seen
    state: int = 0  # bytes of the state


def follow(run: Run, task: dict[str, Any]) -> list[Seen]:
    """Record the progress after each epoch until all tuples are in or the run must stop. Return all epochs."""
    seen: dict[int, Seen] = {}

    def look() -> int:
        progress = run.progress
        if progress.last is not None and progress.last.epoch not in seen:
            seen[progress.last.epoch] = Seen(
                progress.tuples_in, progress.last, tuple(progress.busy), time.time(), progress.state_bytes
            )
        return progress.tuples_in

    with jobs.points(task) as record:
        while look() < task["tuples"] and not jobs.told_to_stop(task):
            if not run.active:
                run.wait(0)
            record(look())
            time.sleep(POLL)
        record(look())
    return list(seen.values())


def watched(seen: list[Seen], decisions: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return for each epoch the slots, the busiest slot relative to the mean, tuples, times and the decisions that took
    effect.
    """
    decided = Counter(decision["epoch"] + 1 for decision in decisions)
    return [
        {
            "epoch": each.last.epoch,
            "at": each.at,
            "tuples": each.tuples,
            "taken": each.last.tuples_in,
            "milliseconds": 1000 * each.last.seconds,
            "task_milliseconds": 1000 * each.last.cpu_seconds,
            "slots": len(each.busy),
            "busiest": max(each.busy) * len(each.busy) / (sum(each.busy) or 1.0),
            "decided": decided[each.last.epoch],
        }
        for each in seen
    ]


def begun(spark: Any, task: dict[str, Any], work: Path) -> Run:
    """Start the query of a task on its source."""
    folder, per_epoch = Path(task["source"]), task["files_per_epoch"]
    sources = [hr.files(spark, folder / s, time="ts", files_per_epoch=per_epoch, name=s) for s in task["sides"]]
    return build(task, sources).start(
        hr.sinks.parquet(work / "out"),
        checkpoint=work / "checkpoint",
        most_slots=task.get("most_slots"),
        show=False,
        **settings(task),
    )


def settings(task: dict[str, Any]) -> dict[str, Any]:
    slots, strategy = task.get("slots", task["cores"]), task.get("strategy", "subquery")
    more: dict[str, Any] = {name: task[name] for name in ("policy", "splitters") if name in task}
    return {"slots": slots, "epoch": task["epoch"], "strategy": strategy, **more}


def rehearse(spark: Any, task: dict[str, Any]) -> None:
    """Run the query on little data first, if requested, so that the code is compiled before the measurement."""
    if (little := task.get("rehearsal")) is not None:
        with begun(spark, {**task, **little}, Path(task["work"]) / "rehearsal") as run:
            while run.progress.tuples_in < little["tuples"]:
                if not run.active:
                    run.wait(0)
                time.sleep(POLL)


def main(path: str) -> None:
    task = jobs.load(path)
    with jobs.errors(task):
        counted = task.get("count", False)
        spark = hr.session(slots=task["cores"], **(counting.REMEMBER if counted else {}))
        heap = spark.sparkContext.getConf().get("spark.driver.memory")
        jobs.about(task, {"headrace": hr.__version__, "spark": spark.version}, {**settings(task), "heap": heap})
        rehearse(spark, task)
        with begun(spark, task, Path(task["work"])) as run:
            seen = follow(run, task)
        if counted:
            jobs.epochs(task, counting.epochs(spark.sparkContext, [(each.tuples, each.last) for each in seen]))
        elif task.get("watch"):
            jobs.epochs(task, watched(seen, run.decisions))
        elif task["kind"] == "nway":
            jobs.epochs(task, [{"tuples": each.tuples, "state": each.state} for each in seen])
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
