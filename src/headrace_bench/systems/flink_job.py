"""A benchmark query in Flink SQL on a local mini cluster. It runs with the Python of Flink's environment, without
headrace.

    python flink_job.py task.json

It uses streaming mode, event time, one Parquet file per stream (several files of a folder would be read in any order),
and a Parquet sink that commits with each checkpoint. Progress is the number of tuples that the joins have received (for
an aggregate, that its sources have emitted), from Flink's own metrics. A checkpoint every 30 s is rare compared with
systems that commit every epoch, which favours Flink.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import socket
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment
from pyflink.version import __version__ as flink_version

TYPES = {"ts": "TIMESTAMP_LTZ(3)", "key": "BIGINT", "payload": "BIGINT", "part": "BIGINT"}  # other columns are doubles
POLL = 0.1
RARELY = 20  # polls between two questions about checkpoints
PATIENCE = 10  # seconds for an answer; a cluster that ends can leave a request without one
IN, OUT = "].numRecordsIn", "].numRecordsOut"
COUNTED = {"join": ("IntervalJoin", IN, 1), "nway": ("IntervalJoin", IN, 2), "aggregate": ("Source", OUT, 1)}
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


def nway(table: TableEnvironment, task: dict[str, Any]) -> str:
    """Return the SQL of two interval joins. An interval join compares one event time of each side, so a third tuple is
    near the other tuple of a pair by a second condition over plain times.
    """
    sink(table, task, [(alias, "BIGINT") for alias in "abc"])
    a, b, c = (f"(SELECT *, 1 AS same, {column('t', 'ts')} AS plain FROM `{name}` AS t)" for name in task["sides"])
    names = [name for name in task["columns"] if name != "ts"]
    kept = ", ".join(f"{side}.`{name}` AS `{side}_{name}`" for side in "ab" for name in names)
    first, second = task["joins"]
    second = re.sub(r"\b([ab])\.", r"p.\1_", second)
    one, two = ("", "") if task["equality"] else ("a.same = b.same AND ", "p.same = c.same AND ")
    within = interval(task["within"])
    pairs = (
        f"(SELECT {kept}, a.ts, a.same, b.plain AS other FROM {a} AS a, {b} AS b "
        f"WHERE {one}{first} AND b.ts BETWEEN a.ts - {within} AND a.ts + {within})"
    )
    return (
        f"INSERT INTO results SELECT p.a_payload, p.b_payload, c.payload FROM {pairs} AS p, {c} AS c "
        f"WHERE {two}{second} AND c.ts BETWEEN p.ts - {within} AND p.ts + {within} "
        f"AND c.plain BETWEEN p.other - {within} AND p.other + {within}"
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
        self.begins, self.ends, self.number = COUNTED[kind]
        self.counters: list[tuple[str, str, int]] = []  # vertex, metric, 1 or -1

    def get(self, path: str = "") -> Any:
        with urllib.request.urlopen(f"{self.jobs}{path}", timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)

    def find(self) -> None:
        found = [
            (vertex["id"], metric["id"])
            for vertex in self.get()["vertices"]
            for metric in self.get(f"/vertices/{vertex['id']}/subtasks/metrics")
            if metric["id"].startswith(self.begins) and metric["id"].endswith(self.ends)
        ]
        if len(found) >= self.number:
            self.counters = counters(found)

    def tuples(self) -> int:
        return sum(sign * self.count(vertex, name) for vertex, name, sign in self.counters)

    def count(self, vertex: str, name: str) -> int:
        found = self.get(f"/vertices/{vertex}/subtasks/metrics?get={name}&agg=sum")
        return int(sum(metric["sum"] for metric in found))

    def checkpoint(self) -> Any:
        """Return the latest completed checkpoint, or None."""
        return self.get("/checkpoints")["latest"]["completed"]


def counters(found: list[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """Return what is added and subtracted. The second of two joins also receives the pairs of the first."""
    number = re.compile(r"\[(\d+)\]")
    found = sorted(found, key=lambda each: int(number.search(each[1]).group(1)))  # type: ignore[union-attr]
    pairs = [(vertex, name.replace(IN, OUT), -1) for vertex, name in found[:-1] if name.endswith(IN)]
    return [(vertex, name, 1) for vertex, name in found] + pairs


def follow(metrics: Metrics, points: Any) -> tuple[int, list[dict[str, float]]]:
    """Record the progress of the job until the job and its cluster end. Return the last count, and the tuples and bytes
    of state at each checkpoint.
    """
    last, polls, states = -1, 0, dict[int, dict[str, float]]()
    with contextlib.suppress(OSError):
        while metrics.get()["state"] not in ENDED:
            if not metrics.counters:
                metrics.find()
            if (count := metrics.tuples()) > last:
                record(points, count)
                last = count
            if polls % RARELY == 0 and (made := metrics.checkpoint()):
                states.setdefault(made["id"], {"tuples": last, "state": made["state_size"]})
            polls += 1
            time.sleep(POLL)
    return last, list(states.values())


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
    query = {"join": join, "nway": nway, "aggregate": aggregate}[task["kind"]](table, task)
    result = table.execute_sql(query)
    metrics = Metrics(
        f"http://localhost:{chosen['rest.bind-port']}", str(result.get_job_client().get_job_id()), task["kind"]
    )
    with (work / "points").open("a") as points:
        last, states = follow(metrics, points)
        result.wait()  # raises the error that ended the job
        if last < task["tuples"]:
            record(points, task["tuples"])  # the job ended between two polls
    (work / "epochs.json").write_text(json.dumps(states))


if __name__ == "__main__":
    main(sys.argv[1])
