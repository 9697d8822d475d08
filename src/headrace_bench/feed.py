"""Runs that are fed in real time: files appear in a folder on schedule, and the age of results is derived from the
sink's files.

The latency of a result is the time at which its file became visible at the sink, minus the time at which the file of
its later tuple appeared. A Parquet file becomes visible when it is renamed (headrace, Flink) or recorded in Spark's log
of the sink.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_bench import workload
from headrace_bench.answers import COLUMNS, questions
from headrace_bench.running import points_in, process, scratch
from headrace_bench.systems import System
from headrace_bench.task import Case
from headrace_bench.workload import Streams

TAIL = 1.5  # seconds at the end that are fed but not measured
GRACE = 12.0  # seconds that a system may take to catch up after the last file
START_LIMIT = 120.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Latency:
    """The latency in seconds of the results whose tuples arrived in the measured time."""

    results: int
    missing: int  # results missing after the grace period
    p50: float
    p95: float
    p99: float


def words(age: Latency | None) -> str:
    return "it gave no result" if age is None else f"p50 {age.p50:.2f} s, p99 {age.p99:.2f} s, {age.missing:,} missing"


def figures(age: Latency | None) -> dict[str, Any]:
    return {} if age is None else {"p50": age.p50, "p95": age.p95, "p99": age.p99, "missing": age.missing}


def run_live(system: System, case: Case, epoch: str) -> Latency | None:
    """Feed a system in real time. Return None if it did not start or gave no result."""
    with scratch("live") as folder, scratch("run") as work:
        staged, shown = folder / "staged", folder / "shown"
        workload.write(case.streams, staged)
        _begin(staged, shown, case.streams)
        options = {"epoch": epoch, "files_per_epoch": None, "delay": 5, "checkpoint_ms": milliseconds(epoch)}
        options |= {"follow": ", 'source.monitor-interval' = '100 ms'", "tuples": case.streams.tuples}
        with process(system, case, shown, work, **options) as (started, _):
            if (
                not wait(lambda: done(work) > 0 or started.poll() is not None, START_LIMIT)
                or started.poll() is not None
            ):
                return None
            arrivals = _feed(staged, shown, case.streams)
            wait(lambda: done(work) >= case.streams.tuples or started.poll() is not None, GRACE)
            time.sleep(2 * milliseconds(epoch) / 1000)  # lets processed results become visible
            (work / "stop").touch()
            wait(lambda: started.poll() is not None, 5.0)
        return latency(case, shown, _visible(work / "out", COLUMNS[case.query.kind]), arrivals)


def milliseconds(epoch: str) -> int:
    return int(epoch.split()[0])


def done(work: Path) -> int:
    points = points_in(work)
    return points[-1][1] if points else 0


def wait(enough: Any, limit: float) -> bool:
    end = time.monotonic() + limit
    while not enough():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def last_line(work: Path) -> str:
    """Return the last line that a failed process wrote."""
    path = work / "error" if (work / "error").exists() else work / "log"
    return (path.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]


# --- feeding -------------------------------------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _begin(staged: Path, shown: Path, streams: Streams) -> None:
    """Make the first file of each stream visible before a system starts."""
    for side in streams.sides:
        (shown / side).mkdir(parents=True)
        (staged / side / _name(0)).rename(shown / side / _name(0))
    if streams.zones:
        (staged / workload.ZONES).rename(shown / workload.ZONES)


def _feed(staged: Path, shown: Path, streams: Streams) -> Floats:
    """Let the files appear on schedule. Return the time of each."""
    names = [[Path(side) / _name(number) for side in streams.sides] for number in range(1, streams.epochs)]
    return np.array([0.0, *appear(staged, shown, names, streams.seconds)])


def appear(staged: Path, shown: Path, names: Sequence[Sequence[Path]], seconds: float) -> list[float]:
    """Make the files of each moment visible, `seconds` apart. Return the times."""
    begin, arrivals = time.time() + 0.2, list[float]()
    for number, files in enumerate(names, start=1):
        time.sleep(max(0.0, begin + number * seconds - time.time()))
        for file in files:
            os.utime(staged / file)
            (staged / file).rename(shown / file)
        arrivals.append(time.time())
    return arrivals


# --- measuring -----------------------------------------------------------------------------------------------------


def latency(case: Case, shown: Path, results: Iterable[tuple[float, pa.Table]], arrivals: Floats) -> Latency | None:
    """Return the latency of the results of the measured time. `shown`: the folder of the tuples' files."""
    found = np.concatenate([np.zeros(0), *(ages(case, table, arrivals, at) for at, table in results)])
    wanted = len(ages(case, expected(case, shown), arrivals, 0.0))
    if not len(found):
        return None
    p50, p95, p99 = (float(q) for q in np.quantile(found, [0.5, 0.95, 0.99]))
    return Latency(len(found), wanted - len(found), p50, p95, p99)


def ages(case: Case, table: pa.Table, arrivals: Floats, at: float) -> Floats:
    """Return the age of each result: the seconds from the arrival of its later tuple until `at`.

    Results whose later tuple belongs to the warm-up or to the tail are left out.
    """
    streams = case.streams
    if case.query.kind == "table":
        later = table["payload"].to_numpy() // streams.rows
    else:
        left = table["l_payload"].to_numpy() // streams.rows
        right = table["r_payload"].to_numpy() // streams.rows - streams.epochs
        later = np.maximum(left, right)
    tail = round(TAIL / streams.seconds)
    kept = (later >= case.warm) & (later < streams.epochs - tail)
    return np.asarray(at - arrivals[later[kept]], np.float64)


def _visible(out: Path, columns: list[str]) -> Iterator[tuple[float, pa.Table]]:
    """Yield every result file with the time at which it became visible."""
    log = out / "_spark_metadata"
    times = dict(_logged(log)) if log.is_dir() else {}
    for path in sorted(out.glob("*")):
        if path.is_file() and not path.name.startswith(("_", ".")) and (not log.is_dir() or path.name in times):
            at = times.get(path.name, path.stat().st_ctime)
            yield at, pq.read_table(path, columns=columns, partitioning=None)


def _logged(log: Path) -> Iterator[tuple[str, float]]:
    """Yield result files with the time of the first entry of Spark's log that names them."""
    seen: set[str] = set()
    for entry in sorted(log.glob("[0-9]*"), key=lambda p: int(p.name.split(".")[0])):
        for line in entry.read_text().splitlines()[1:]:
            name = Path(json.loads(line)["path"]).name
            if name not in seen:
                seen.add(name)
                yield name, entry.stat().st_ctime


def expected(case: Case, shown: Path) -> pa.Table:
    """Return all results, computed by DuckDB."""
    with duckdb.connect() as connection:
        connection.execute("set threads = 2; set TimeZone = 'UTC'")
        return pa.concat_tables(connection.sql(text).to_arrow_table() for text in questions(case, shown))
