"""What a benchmark asks of a system: a query over streams, as plain values that go to its process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace_bench.workload import Streams

PROCESSORS = ("count", "sessions")  # kinds of queries that run a user's own code, key by key


@dataclass(frozen=True)
class Query:
    """A join of two streams (`on`, `within`) or of one with a table, an aggregate of one (`window`, `every`), both, or a processor;
    in seconds."""

    kind: str  # join, aggregate, figure-8: aggregate, join, aggregate; table; session; copy; count, sessions and split: processors
    on: str = ""
    how: str = "inner"
    places: dict[str, str] = field(
        default_factory=dict
    )  # of a join with a table: columns that the stream gets before it
    equality: bool = True  # whether `on` has one
    within: int = 0
    window: int = 0
    every: int = 0
    gap: int = 0  # that ends a session
    substreams: int = 0  # that headrace splits into, for a processor
    route: str = ""  # of a split: its rules, as SQL
    broadcast: str = ""
    in_place: bool = False  # a processor that counts by row numbers instead of `get` and `put`
    operators: int = 1  # chained, one behind the other
    ranges: str = ""  # what `on` implies of these data: lets the checker of answers look up instead of comparing all
    strip: tuple[str, ...] = ()  # the same of a table: a number of the stream, and its two borders in the table

    @property
    def length(self) -> int:
        """Seconds until the windows are full."""
        return self.within + self.window * (2 if self.kind == "figure-8" else 1)


@dataclass(frozen=True)
class Case:
    """One line of a benchmark: streams, a query over them, and what is measured of it."""

    name: str
    streams: Streams
    query: Query
    warm: int  # epochs that fill the windows and let virtual machines compile, left out of every figure
    heap: str = "6g"  # of the JVM, for Spark and Flink; headrace keeps its own default
    limit: float = 600  # seconds, for one run of one system
    slots: int = 2
    full: int | None = (
        None  # epochs that fill the windows: where a system begins to be measured that is too slow for all
    )
    facts: dict[str, Any] = field(default_factory=dict)  # what a report or a chart needs to know

    def describe(self) -> dict[str, Any]:
        """For the JSON."""
        return asdict(self)


def write_task(case: Case, source: Path, work: Path, options: dict[str, Any]) -> Path:
    """The file that a system's process is started with."""
    task = {
        **asdict(case.query),
        "sides": case.streams.sides,
        "columns": case.streams.columns,
        "tuples": case.streams.tuples + len(case.streams.sides),  # the last one of each moves the watermark
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
