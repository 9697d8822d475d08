"""A benchmark query in Flink SQL on a local mini cluster. It runs with the Python of Flink's environment, without
headrace.

    python flink_job.py task.json

It uses streaming mode, event time, one Parquet file per stream (several files of a folder would be read in any order),
and a Parquet sink that commits with each checkpoint. Progress is the number of tuples that the join has received (for
an aggregate, that its sources have emitted), from Flink's own metrics. A checkpoint every 30 s is rare compared with
systems that commit every epoch, which favours Flink.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment
from pyflink.version import __version__ as flink_version

TYPES = {"ts": "TIMESTAMP_LTZ(3)", "key": "BIGINT", "payload": "BIGINT"}  # other columns are doubles
POLL = 0.1
PATIENCE = 10  # seconds for an answer; a cluster that ends can leave a request without one
COUNTED = {"join": ("IntervalJoin", "].numRecordsIn"), "aggregate": ("Source", "].numRecordsOut")}
OWN = ("execution.checkpointing.dir", "rest.bind-port")  # settings that differ between runs
ENDED = ("FINISHED", "FAILED", "CANCELED")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def settings(task: dict[str, Any]) -> dict[str, str]:
    return {
        "parallelism.default": str(task["cores"]),
        "taskmanager.numberOfTaskSlots": str(task["cores"]),
        "execution.runtime-mode": "STREAMING",
        "execution.checkpointing.interval": f"{task['checkpoint_ms']} ms",
        "execution.checkpointing.dir": f"file://{task['work']}/checkpoints",
        "state.backend.type": "hashmap",
        "table.local-time-zone": "UTC",
        "table.exec.source.idle-timeout": "0 ms",
        "pipeline.object-reuse": "true",
        "rest.bind-port": str(free_port()),
        "metrics.fetcher.update-interval": "100",
    }


def declare(table: TableEnvironment, task: dict[str, Any]) -> None:
    columns = ", ".join(f"`{name}` {TYPES.get(name, 'DOUBLE')}" for name in task["columns"])
    for side in task["sides"]:
        table.execute_sql(
            f"CREATE TABLE `{side}` ({columns}, WATERMARK FOR ts AS ts - INTERVAL '{task['delay']}' SECOND) WITH ("
            f"'connector' = 'filesystem', 'path' = 'file://{task['source']}/{side}', 'format' = 'parquet',"
            f"'parquet.utc-timezone' = 'true' {task['follow']})"
        )


def sink(table: TableEnvironment, task: dict[str, Any], columns: list[tuple[str, str]]) -> None:
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns)
    table.execute_sql(
        f"CREATE TABLE results ({declared}) WITH ('connector' = 'filesystem', 'path' = 'file://{task['work']}/out',"
        "'format' = 'parquet', 'parquet.utc-timezone' = 'true', 'parquet.compression' = 'SNAPPY')"
    )


def interval(seconds: int) -> str:
    """Return an interval of up to a day, because INTERVAL '600' SECOND exceeds Flink's two digits."""
    return f"INTERVAL '0 {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}' DAY TO SECOND"


def column(side: str, name: str) -> str:
    """Return a column of a side. Both event times become plain timestamps, because a sink accepts only one."""
    return f"CAST({side}.ts AS {TYPES['ts']})" if name == "ts" else f"{side}.`{name}`"


def join(table: TableEnvironment, task: dict[str, Any]) -> str:
    """Return the SQL of an interval join, which needs an equality: without one, it joins on a constant, in a single
    task.
    """
    names = task["columns"]
    sink(table, task, [(f"{side}_{name}", TYPES.get(name, "DOUBLE")) for side in "lr" for name in names])
    sides = [f"(SELECT *, 1 AS same FROM `{name}`)" for name in task["sides"]]
    equality = "" if task["equality"] else "l.same = r.same AND "
    within = interval(task["within"])
    return (
        f"INSERT INTO results SELECT {', '.join(column(side, name) for side in 'lr' for name in names)} "
        f"FROM {sides[0]} AS l, {sides[1]} AS r "
        f"WHERE {equality}{task['on']} AND r.ts BETWEEN l.ts - {within} AND l.ts + {within}"
    )


def aggregate(table: TableEnvironment, task: dict[str, Any]) -> str:
    columns = [("window_start", "TIMESTAMP(3)"), ("key", "BIGINT"), ("n", "BIGINT"), ("mean", "DOUBLE")]
    sink(table, task, columns)
    hop = f"{interval(task['every'])}, {interval(task['window'])}"
    return (
        "INSERT INTO results SELECT window_start, `key`, COUNT(*), AVG(x) "
        f"FROM TABLE(HOP(TABLE `{task['sides'][0]}`, DESCRIPTOR(ts), {hop})) GROUP BY window_start, window_end, `key`"
    )


class Metrics:
    """The number of processed tuples, from the REST interface of the mini cluster."""

    def __init__(self, url: str, job: str, kind: str) -> None:
        self.jobs = f"{url}/jobs/{job}"
        self.begins, self.ends = COUNTED[kind]
        self.counters: dict[str, str] = {}

    def get(self, path: str = "") -> Any:
        with urllib.request.urlopen(f"{self.jobs}{path}", timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)

    def find(self) -> None:
        for vertex in self.get()["vertices"]:
            for metric in self.get(f"/vertices/{vertex['id']}/subtasks/metrics"):
                if metric["id"].startswith(self.begins) and metric["id"].endswith(self.ends):
                    self.counters[vertex["id"]] = metric["id"]

    def tuples(self) -> int:
        counts = [
            self.get(f"/vertices/{vertex}/subtasks/metrics?get={name}&agg=sum")
            for vertex, name in self.counters.items()
        ]
        return int(sum(metric["sum"] for found in counts for metric in found))


def follow(metrics: Metrics, points: Any) -> int:
    """Record the progress of the job until the job and its cluster end."""
    last = -1
    with contextlib.suppress(OSError):
        while metrics.get()["state"] not in ENDED:
            if not metrics.counters:
                metrics.find()
            if (count := metrics.tuples()) != last:
                record(points, count)
                last = count
            time.sleep(POLL)
    return last


def record(points: Any, count: int) -> None:
    points.write(f"{time.time()} {count}\n")
    points.flush()


def main(path: str) -> None:
    task = json.loads(Path(path).read_text())
    work, chosen = Path(task["work"]), settings(task)
    configuration = Configuration()
    for name, value in chosen.items():
        configuration.set_string(name, value)
    table = TableEnvironment.create(EnvironmentSettings.new_instance().with_configuration(configuration).build())
    versions = {"flink": flink_version, "python": platform.python_version()}
    shown = {name: value for name, value in chosen.items() if name not in OWN} | {"heap": task["heap"]}
    (work / "about.json").write_text(json.dumps({"versions": versions, "settings": shown}))
    declare(table, task)
    query = {"join": join, "aggregate": aggregate}[task["kind"]](table, task)
    result = table.execute_sql(query)
    metrics = Metrics(
        f"http://localhost:{chosen['rest.bind-port']}", str(result.get_job_client().get_job_id()), task["kind"]
    )
    with (work / "points").open("a") as points:
        last = follow(metrics, points)
        result.wait()  # raises the error that ended the job
        if last < task["tuples"]:
            record(points, task["tuples"])  # the job ended between two polls


if __name__ == "__main__":
    main(sys.argv[1])
