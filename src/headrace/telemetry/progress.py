"""The progress of a run, for programs: totals since the checkpoint was created, the last epoch, and the epoch in
progress.

Invariant: the progress after every epoch has the same keys.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.kernels.joins.table_join import pairing_method
from headrace.operators.aggregates import WITHHELD
from headrace.plan import PhysicalPlan, TableStep
from headrace.state.manifest import Manifest
from headrace.support.event_time import FOREVER, NEVER, moment_text
from headrace.task.reports import Report, SourceCounts, TableUse
from headrace.task.work import split_counts
from headrace.telemetry.incomplete import incomplete_results
from headrace.telemetry.table_sizes import Sizes, substream_counts, table_sizes

if TYPE_CHECKING:
    from headrace.telemetry.epoch_record import EpochRecord

LATENCY_SECONDS = 120.0  # period for latency, short enough to forget a slow first epoch soon
MOST_SAMPLES = 4096  # most samples of latency
# appended to a join's method of finding pairs
IN_DOUBT = "; recently DuckDB, one by one, because too many were in doubt"


Watermark = int | Literal["end"] | None  # microseconds; None: no tuple yet
Wait = tuple[float, int]  # (seconds from the arrival of tuples to the delivery of their results, number of tuples)


@dataclass(frozen=True)
class SplitFigures:
    """How many tuples of a split were sent where. Each tuple is counted once.

    Attributes:
        routed: tuples that went to one substream.
        broadcast: tuples that went to all substreams.
        omitted: tuples that went to none.

    Examples:
        >>> parts = hr.files(spark, "calls/", time="ts").split(4, by=["caller"])
        >>> query = parts.each(lambda part: part.filter("seconds > 0"))
        >>> finished = query.start(hr.sinks.memory(), checkpoint="ckpt/", once=True)
        >>> finished.wait()
        True
        >>> finished.progress.splits
        {'split-1': SplitFigures(routed=3, broadcast=0, omitted=0)}
    """

    routed: int  # to one substream
    broadcast: int  # to all of them
    omitted: int  # to none


def split_figures(counts: Mapping[str, Sequence[int]]) -> dict[str, SplitFigures]:
    return {name: SplitFigures(*each) for name, each in sorted(counts.items())}


@dataclass(frozen=True)
class VersionFigures:
    """The newest content of a table that streams are joined with.

    Attributes:
        version: how many contents it has had since the state began.
        rows: how many rows it has.
        bytes: how large it is.
        trouble: why it could not be read at the last attempt; None: the attempt succeeded.

    Examples:
        >>> run.progress.versions["zones"].rows
        2
    """

    version: int  # number of versions since the checkpoint was created
    rows: int
    bytes: int
    trouble: str | None = None  # error of the last attempt to read it; None: no error


def version_figures(manifest: Manifest) -> dict[str, VersionFigures]:
    """Return the versions of tables that an epoch used."""
    return {name: VersionFigures(v.number, v.block.rows, v.block.bytes) for name, v in manifest.tables.items()}


@dataclass(frozen=True)
class EpochSummary:
    """Totals of one epoch.

    Attributes:
        epoch: the number of the epoch.
        seconds: how long the epoch took, delivery included.
        tuples_in: tuples that its sources delivered.
        results_out: results that were delivered to sinks.
        late: late tuples.
        rejected: rejected tuples.
        sources: tuples in, by source.
        results: results out, by result, zeros included.
        cpu_seconds: processor time of all its tasks.
        sent_bytes: bytes of blocks that were sent to a later stage.
        kept_bytes: bytes of blocks that an operator handed to another one in the same slot.
        failed: failed tuples, with errors="keep": once for every step that a tuple failed in.
        splits: by split, where its tuples were sent. A split without tuples may be left out.

    Examples:
        >>> summary = run.progress.last
        >>> summary.late, summary.rejected
        (0, 0)
    """

    epoch: int
    seconds: float
    tuples_in: int
    results_out: int
    late: int
    rejected: int
    sources: Mapping[str, int]  # tuples in, by source
    results: Mapping[str, int]  # results out, by result, zeros included
    cpu_seconds: float
    sent_bytes: int = 0
    kept_bytes: int = 0
    failed: int = 0
    splits: Mapping[str, SplitFigures] = field(default_factory=dict)

    @classmethod
    def of(cls, record: EpochRecord, results: Iterable[str]) -> EpochSummary:
        """Return the summary of a record. `results`: all results of the query."""
        sources = record.sources.values()
        rows = {name: record.results[name].rows if name in record.results else 0 for name in results}
        return cls(
            epoch=record.epoch,
            seconds=record.seconds or 0.0,
            tuples_in=sum(source.delivered for source in sources),
            results_out=sum(rows.values()),
            late=sum(source.late for source in sources),
            rejected=sum(source.rejected for source in sources),
            sources={name: source.delivered for name, source in record.sources.items()},
            results=rows,
            cpu_seconds=record.cpu_seconds or 0.0,
            sent_bytes=record.sent_bytes or 0,
            kept_bytes=record.kept_bytes or 0,
            failed=sum(source.failed for source in sources),
            splits=record.splits,
        )


@dataclass
class Progress:
    """What a run has done so far, as `Run.progress` returns it. Totals grow once per epoch, when it is committed and
    delivered.

    Attributes:
        epoch: the number of the last epoch; -1 before the first.
        tuples_in: tuples that the sources delivered.
        results_out: results that were delivered to sinks.
        late: late tuples.
        rejected: rejected tuples.
        failed: failed tuples, with errors="keep": once for every step that a tuple failed in.
        accepted: accepted tuples.
        sources: tuples in, by source.
        results: results out, by result, under its name if it has one.
        failed_steps: failed tuples, by source and step.
        watermark: by source, in microseconds since 1970; None before its first tuple, "end" after the end of its input.
        state_bytes: the size of the state.
        blocks: the number of blocks of the state.
        splits: by split, where its tuples were sent since the state began.
        tables: sizes of the state tables of processors, by operator and table.
        table_use: how the last epoch came by these tables, by operator: found in place, or built from blocks, and why.
        versions: tables that streams are joined with, by name.
        joins: by operator, how a join finds its pairs: an index, compiled, or "DuckDB, one by one", which is slow.
        backlog: files and messages that wait. None: no source is a folder or a topic.
        backlog_of: what `backlog` counts: files, messages, or both.
        last: totals of the last epoch. None before the first epoch of this run.
        running: seconds that the epoch in progress has taken so far. None between epochs.
        busy: for each slot, the share of its time in which it has worked lately.
        latency: "p50" and "p99" in seconds, from the arrival of tuples to the delivery of their results, over the last
            two minutes.
        closed: whether the input has ended, and the checkpoint with it.
        lost: offsets of topics that retention removed before they were read, with gaps="count".
        incomplete: after a migration, the results that lack what came before their operators were added, with the time
            from which on they are complete; None if no time is known.
        withheld: after a migration, how many windows an added aggregate did not emit, by operator, because it had not
            seen all of their tuples.

    Examples:
        >>> progress = run.progress
        >>> progress.tuples_in, progress.late, progress.closed
        (3, 0, False)
        >>> progress.backlog_of
        'files'
    """

    epoch: int = -1
    tuples_in: int = 0
    results_out: int = 0
    late: int = 0
    rejected: int = 0
    failed: int = 0  # with errors="keep": once for each step in which a tuple failed
    accepted: int = 0
    sources: dict[str, int] = field(default_factory=dict)  # tuples in, by source
    results: dict[str, int] = field(default_factory=dict)  # results out, by result
    failed_steps: dict[str, int] = field(default_factory=dict)  # failed tuples by source and step
    watermark: dict[str, Watermark] = field(default_factory=dict)
    state_bytes: int = 0
    blocks: int = 0
    splits: dict[str, SplitFigures] = field(default_factory=dict)  # tuples by destination
    tables: Sizes = field(default_factory=dict)  # state tables of processors, by operator and table
    table_use: dict[str, TableUse] = field(default_factory=dict)  # in the last epoch, by operator
    versions: dict[str, VersionFigures] = field(default_factory=dict)  # by name of the joined table
    joins: dict[str, str] = field(default_factory=dict)  # by operator: how it finds matching pairs
    backlog: int | None = None
    backlog_of: str = "files"  # or messages, or both
    last: EpochSummary | None = None
    running: float | None = None  # seconds since the begin of the epoch in progress
    busy: list[float] = field(default_factory=list)  # recent share of time in which each slot works
    latency: dict[str, float | None] = field(default_factory=lambda: latency_of(()))
    closed: bool = False  # the input has ended, and the checkpoint is closed
    lost: int = 0  # offsets that retention removed before they were read, with gaps="count"
    incomplete: dict[str, str | None] = field(
        default_factory=dict
    )  # results with operators that were added to existing state: the time from which they are complete; None: unknown
    withheld: dict[str, int] = field(
        default_factory=dict
    )  # by operator: incomplete windows that an added aggregate did not emit
    _predicates: Mapping[str, str] = field(default_factory=dict, repr=False)  # of joins
    _substreams: Mapping[str, int] = field(default_factory=dict, repr=False)  # number of substreams by operator
    _labels: Mapping[str, str] = field(default_factory=dict, repr=False)  # of results, by `result-N`
    # start of this run, to exclude earlier waits from latency
    _since: float = field(default_factory=time.time, repr=False)
    _samples: deque[tuple[float, Wait]] = field(
        default_factory=lambda: deque(maxlen=MOST_SAMPLES), repr=False
    )  # with the end of the epoch

    def begin(
        self,
        plan: PhysicalPlan,
        last: Manifest | None,
        before: Manifest | None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Set the progress of a run before its first epoch."""
        self._labels = labels or {}
        sources = [source.name for source in plan.sources]
        self.sources, self.watermark = dict.fromkeys(sources, 0), dict.fromkeys(sources)
        self.results = {self._label(name): 0 for name in plan.results}
        self._substreams = substream_counts(plan)
        self.joins = {operator.name: operator.pairing for operator in plan.operators if operator.pairing}
        steps = [step for edge in plan.edges for step in edge.steps if isinstance(step, TableStep)]
        self.joins |= {f"join with {step.table}": pairing_method(step) for step in steps}
        self._predicates = {each.name: each.predicate for each in plan.operators if each.predicate}
        self._predicates |= {f"join with {step.table}": step.on.text for step in steps}
        if last is not None:
            self.restore(last, before)

    def restore(self, manifest: Manifest, before: Manifest | None) -> None:
        """Set the totals from the newest manifest. `before` is the manifest that precedes it."""
        totals = manifest.totals
        self.epoch, self.closed = manifest.number, manifest.closed
        self.tuples_in, self.accepted = totals.delivered, totals.accepted
        self.late, self.rejected = totals.late, totals.rejected
        self.lost = sum(taken.lost for taken in manifest.ledgers.values())
        self.versions = version_figures(manifest)
        missing = incomplete_results(manifest).items()
        self.incomplete = {self._label(name): None if time is None else moment_text(time) for name, time in missing}
        states = manifest.operators.items()
        self.withheld = {name: state.notes[WITHHELD] for name, state in states if WITHHELD in state.notes}
        self.failed_steps = dict(totals.failed)
        self.failed = sum(self.failed_steps.values())
        self.sources = {name: source.delivered for name, source in manifest.sources.items()}
        self.results = {self._label(name): rows for name, rows in totals.results.items()}
        self.results_out = sum(self.results.values())
        self.watermark = {name: known_watermark(source.watermark) for name, source in manifest.sources.items()}
        live = manifest.state_blocks()
        self.state_bytes, self.blocks = sum(block.bytes for block in live), len(live)
        self.splits = split_figures(split_counts(manifest))
        self.tables = table_sizes(manifest, before, self._substreams)

    def update(
        self, record: EpochRecord, last: Manifest | None, manifest: Manifest, reports: Sequence[Report], begun: float
    ) -> None:
        """Add an epoch whose results were just delivered. `last`: the manifest before it."""
        self.restore(manifest, last)
        doubted = {predicate for report in reports for predicate in report.doubted}
        self.joins = {n: _in_doubt(how, self._predicates.get(n) in doubted) for n, how in self.joins.items()}
        now = time.time()
        for counts in (counts for report in reports for counts in report.sources.values()):
            self._samples += [(now, wait) for wait in waiting_times(counts, begun=begun, ended=now, since=self._since)]
        self.latency = latency_of([wait for ended, wait in self._samples if ended >= now - LATENCY_SECONDS])
        self.table_use = dict(record.table_use)
        self.last = EpochSummary.of(record, self.results)

    def _label(self, result: str) -> str:
        return self._labels.get(result, result)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as plain values, for logs and other programs.

        Returns:
            A dict by field, for `json.dumps`.

        Examples:
            >>> run.progress.to_json()["sources"]
            {'calls': 3}
        """
        return {f.name: to_plain(getattr(self, f.name)) for f in fields(self) if not f.name.startswith("_")}


def _in_doubt(how: str, lately: bool) -> str:
    """Return how a join finds its pairs, with a note after an epoch in which too many pairs were in doubt."""
    return f"{how}{IN_DOUBT}" if lately and not how.endswith(IN_DOUBT) else how


def to_plain(value: Any) -> Any:
    """Convert records to objects and tuples to lists, for JSON."""
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in value.items()}
    return [to_plain(each) for each in value] if isinstance(value, list | tuple) else value


class Stopwatch:
    """The durations of epochs: of the epoch in progress, and the time available to slots in the last one."""

    def __init__(self) -> None:
        self.had = 0.0  # seconds available to the slots from one epoch to the next
        self._began: float | None = None  # begin of the epoch in progress
        self._before: float | None = None  # begin of the previous epoch

    @contextmanager
    def epoch(self) -> Iterator[None]:
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._before, self._began = self._began, None

    def lap(self) -> float:
        """Record that the tasks are done. Return the seconds available to them, including idle time between epochs."""
        assert self._began is not None
        self.had = max(time.monotonic() - self._began, self._began - (self._before or self._began))
        return self.had

    @property
    def running(self) -> float | None:
        began = self._began
        return None if began is None else time.monotonic() - began


def busy_shares(measured: Sequence[float], slots: int, window: float, running: float | None) -> list[float]:
    """Return the shares of time in which slots work, while an epoch has been in progress for `running` seconds.

    The work of slots is known only after an epoch. Time by which the current epoch exceeds `window`, the last measured
    period, counts as work; otherwise a run would seem idle when it is busiest.
    """
    if running is None or running <= window:
        return list(measured)
    before = measured if len(measured) == slots else [0.0] * slots
    return [(share * window + running - window) / running for share in before]


def known_watermark(watermark: int) -> Watermark:
    """Return a watermark in microseconds; None before the first tuple, "end" after the end of the input."""
    if watermark == FOREVER:
        return "end"
    return None if watermark == NEVER else watermark


def waiting_times(counts: SourceCounts, *, begun: float, ended: float, since: float) -> list[Wait]:
    """Return (seconds from arrival to the end of the epoch, number of tuples). `since`: the begin of the run.

    Waits before the run began do not count. Waits are at least zero, because another machine's clock may be ahead.
    """
    return [(max(ended - max(arrived or begun, since), 0.0), rows) for arrived, rows in counts.arrivals]


def latency_of(waits: Sequence[Wait]) -> dict[str, float | None]:
    """Return the quantiles of waits, or None values if there were none recently."""
    return {"p50": _quantile(waits, 0.5), "p99": _quantile(waits, 0.99)}


def _quantile(waits: Sequence[Wait], share: float) -> float | None:
    """Return a quantile of waits, weighted by tuples."""
    ordered = sorted(waits)
    total, sofar = sum(rows for _, rows in ordered), 0
    for seconds, rows in ordered:
        sofar += rows
        if sofar >= share * total:
            return seconds
    return None
