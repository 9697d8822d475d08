"""The output of the demo: alarms as they arrive, the planted frauds that were found, and the comparison at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.table import Table

from headrace.showing import live
from headrace.support.extras import import_extra
from headrace.telemetry.progress import Progress
from headrace_demo.fraud.generator import BOX, CLONED, Fraud

LATEST, TOP = 5, 5
ANSWER = 10.0  # seconds within which a broker on this machine answers


class Results:
    """The results in a folder of the Parquet sink, read as files appear."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._tables = {"": schema.empty_table()}

    def new(self) -> list[pa.Table]:
        """Return the results that have appeared since the last call."""
        found = [path for path in sorted(self._folder.glob("[!_]*.parquet")) if path.name not in self._tables]
        for path in found:
            self._tables[path.name] = pq.read_table(path).cast(self._tables[""].schema)
        return [self._tables[path.name] for path in found]

    def table(self) -> pa.Table:
        self.new()
        return pa.concat_tables(self._tables.values())


class Committed(Results):
    """The results in a topic of the Kafka sink, as a reader of committed messages receives them."""

    def __init__(self, servers: str, topic: str, schema: pa.Schema) -> None:
        self._tables = {"": schema.empty_table()}
        self._kafka = import_extra("confluent_kafka", "kafka", "headrace demo --kafka")
        settings = {"bootstrap.servers": servers, "group.id": topic, "isolation.level": "read_committed"}
        self._reader = self._kafka.Consumer(
            {**settings, "enable.partition.eof": True, "fetch.wait.max.ms": 10, "log_level": 0}
        )
        self._topic, self._next = topic, self._kafka.OFFSET_BEGINNING

    def new(self) -> list[pa.Table]:
        # reports the end of the partition again
        self._reader.assign([self._kafka.TopicPartition(self._topic, 0, self._next)])
        found = []
        while (message := self._reader.poll(ANSWER)) is not None:
            if message.error() is not None:
                self._next = max(self._next, message.offset())
                break
            self._next = message.offset() + 1
            found.append(pa.ipc.open_stream(message.value()).read_all())
        self._tables |= {str(len(self._tables) + number): table for number, table in enumerate(found)}
        return found


@dataclass(frozen=True)
class Found:
    """The planted frauds of one kind, and the alarms that were raised."""

    kind: str
    planted: int
    found: int
    alarms: int
    by_chance: int


def compare(frauds: Sequence[Fraud], alarms: pa.Table, arrived: int) -> list[Found]:
    """Return for each kind how many of the frauds among the first `arrived` calls raised all of their alarms."""
    raised = Counter((a["kind"], a["caller"], a["other"]) for a in alarms.to_pylist())
    expected = {alarm for fraud in frauds for alarm in fraud.alarms}
    found = []
    for kind in (CLONED, BOX):
        planted = [f for f in frauds if f.kind == kind and max(f.rows) < arrived]
        complete = [f for f in planted if f.alarms <= raised.keys()]
        own = {alarm: count for alarm, count in raised.items() if alarm[0] == kind}
        chance = sum(count for alarm, count in own.items() if alarm not in expected)
        found.append(Found(kind, len(planted), len(complete), sum(own.values()), chance))
    return found


def latest(alarms: pa.Table) -> Table:
    """Return the newest alarms by the time of their calls, as a table of constant height."""
    table = _titled("latest alarms", "call at", "alarm", "district", "caller", "")
    newest = sorted(alarms.to_pylist(), key=lambda a: (a["ts"], a["caller"], a["other"]), reverse=True)[:LATEST]
    for a in newest:
        table.add_row(f"{a['ts']:%H:%M:%S}", a["kind"], a["district"], str(a["caller"]), a["other"])
    for _ in range(LATEST - len(newest)):
        table.add_row()
    return table


def top_districts(counts: pa.Table) -> Table:
    """Return the districts and windows with the most alarms."""
    table = _titled("most alarms in 10 seconds", "district", "from", ">alarms")
    ordered = sorted(counts.to_pylist(), key=lambda c: (-c["alarms"], c["window_start"], c["district"]))
    for c in ordered[:TOP]:
        table.add_row(c["district"], f"{c['window_start']:%H:%M:%S}", str(c["alarms"]))
    return table


def frauds_table(found: Sequence[Found]) -> Table:
    table = _titled("frauds", "", ">planted", ">found", ">alarms", ">by chance")
    for f in found:
        style = "green" if f.found == f.planted else "bold red"
        table.add_row(f.kind, str(f.planted), f"[{style}]{f.found}[/]", str(f.alarms), str(f.by_chance))
    return table


def run_table(progress: Progress, seconds: float) -> Table:
    """Return the figures of a run as a table."""
    table = _titled("the run", "", "")
    rate = progress.tuples_in / seconds if seconds else 0.0
    table.add_row("calls in", f"{progress.tuples_in:,} (epochs: {progress.epoch + 1:,})")
    table.add_row("throughput", f"{live.rate_text(rate)} calls/s")
    table.add_row(
        "latency", f"p50 {live.seconds_text(progress.latency['p50'])}, p99 {live.seconds_text(progress.latency['p99'])}"
    )
    table.add_row("dropped", live.dropped_text(progress))
    table.add_row("state", f"{live.size_text(progress.state_bytes)} in {progress.blocks:,} blocks")
    return table


def _titled(title: str, *headings: str) -> Table:
    """Return an empty table. A heading that begins with > is above numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.show_header = any(headings)
    for heading in headings:
        table.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left", no_wrap=True)
    return table
