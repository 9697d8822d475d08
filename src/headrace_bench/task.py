"""The task of a system in a benchmark: a query over streams, as plain values that are passed to its process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace_bench.workload import Streams

PROCESSORS = ("count", "sessions")  # kinds of queries that run user code, key by key


@dataclass(frozen=True)
class Query:
    """A query: a join of two streams (`on`, `within`) or with a table, of three (`joins`, `within`), an aggregate
    (`window`, `every`), a join and aggregates, or a processor. Times are in seconds.
    """

    # join, nway, aggregate, table, session, copy; figure-8: aggregate, join, aggregate; count, sessions, split: processors
    kind: str
    on: str = ""
    how: str = "inner"
    places: dict[str, str] = field(
        default_factory=dict
    )  # for a join with a table: columns that are added to the stream before it
    joins: tuple[str, ...] = ()  # of streams a, b and c: the condition of a and b, and that of c with them
    equality: bool = True  # whether `on` or each of `joins` contains an equality
    within: int = 0
    window: int = 0
    every: int = 0
    gap: int = 0  # gap that ends a session
    substreams: int = 0  # number of substreams for a processor
    route: str = ""  # rules of a split, as SQL
    broadcast: str = ""
    in_place: bool = False  # the processor counts by row numbers instead of `get` and `put`
    operators: int = 1  # number of chained operators
    ranges: str = ""  # conditions that `on` implies on these data, so that the expected answer can be looked up
    near: float = 0  # the same for a band in each of `joins`: x of a and b, and of b and c, differ by at most this
    strip: tuple[str, ...] = ()  # the same for a table: a number of the stream, and its two bounds in the table

    @property
    def length(self) -> int:
        """Return the seconds until the windows are full."""
        return self.within + self.window * (2 if self.kind == "figure-8" else 1)


@dataclass(frozen=True)
class Case:
    """One line of a benchmark: streams, a query over them, and the extent of the measurement."""

    name: str
    streams: Streams
    query: Query
    warm: int  # epochs that fill the windows and warm up virtual machines; excluded from every figure
    heap: str = "6g"  # of the JVM, for Spark and Flink; headrace uses its default
    limit: float = 600  # seconds for one run of one system
    slots: int = 2
    full: int | None = (
        None  # epochs that fill the windows; the measurement of a system that is too slow for `warm` starts here
    )
    facts: dict[str, Any] = field(default_factory=dict)  # facts for a report or chart

    def describe(self) -> dict[str, Any]:
        """Return the case as plain values for JSON."""
        return asdict(self)


def write_task(case: Case, source: Path, work: Path, options: dict[str, Any]) -> Path:
    """Write the file with which a system's process is started."""
    task = {
        **asdict(case.query),
        "sides": case.streams.sides,
        "columns": case.streams.columns,
        "tuples": case.streams.tuples + len(case.streams.sides),  # the last tuple of each stream moves the watermark
        "source": str(source),
        "work": str(work),
        "heap": case.heap,
        "cores": case.slots,
        "epoch": "0 seconds",
        "files_per_epoch": 1,
        "delay": 0,
        **options,
    }
    path = work / "task.json"
    path.write_text(json.dumps(task))
    return path
