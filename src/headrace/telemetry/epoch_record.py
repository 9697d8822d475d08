"""The record of one epoch, `EpochRecord`, which listeners receive (`headrace.telemetry.listeners`).

Invariant: its counts are the difference of two manifests, so they add up to the totals of the newest one. Its times are
measured by this process, and are missing in a record that was made from manifests alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headrace.state.manifest import Manifest, OperatorState, SourceState
from headrace.task.reports import Report, TableUse
from headrace.task.work import WorkCounts, WorkTotals, counts_between
from headrace.telemetry.progress import (
    Progress,
    SplitFigures,
    VersionFigures,
    Watermark,
    known_watermark,
    split_figures,
    to_plain,
    version_figures,
)
from headrace.telemetry.table_sizes import TableSize, table_sizes


@dataclass(frozen=True)
class Phases:
    """The seconds of an epoch by phase. Reading and operators are the sums over stages of the slowest task."""

    reading: float  # read the input and send it
    exchange: float  # Spark: start tasks, move tuples, wait
    operators: float
    commit: float  # make the state durable
    delivery: float  # deliver results to sinks


@dataclass(frozen=True)
class DriverFigures:
    """CPU seconds of the driver's process, over all its threads."""

    planning: float  # includes time while tasks run
    commit: float
    delivery: float


@dataclass(frozen=True)
class SourceFigures:
    """The tuples of one source in an epoch, and its state after it."""

    delivered: int  # = accepted + late + rejected
    accepted: int
    late: int
    rejected: int
    failed: int  # with errors="keep", among those accepted: once for each step in which a tuple failed
    watermark: Watermark  # after the epoch
    idle: bool


@dataclass(frozen=True)
class OperatorFigures:
    """The work of one operator in an epoch."""

    arrived: int  # tuples that arrived at the steps before the operator
    dropped: int  # tuples that these steps removed
    sent: int  # tuples sent to its slots, counted once per receiving slot
    out: int  # tuples that it emitted
    held: int  # tuples in its state after the epoch
    read: int  # tuples that its slots read from state
    opened: int  # bytes that its slots read from state
    compared: int  # pairs of tuples that a join compared
    cpu: float  # seconds


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """The work of one slot in an epoch."""

    cpu: float  # seconds
    out: int
    read: int
    compared: int


@dataclass(frozen=True)
class ResultFigures:
    """One result of an epoch."""

    rows: int
    seconds: float | None  # seconds that its sink took


@dataclass(frozen=True)
class EpochRecord:
    """The record of one epoch, as listeners receive it."""

    epoch: int
    seconds: float | None = None  # from the begin of the epoch to the delivery of its results
    cpu_seconds: float | None = None  # of all its tasks
    phases: Phases | None = None
    driver: DriverFigures | None = None
    sources: Mapping[str, SourceFigures] = field(default_factory=dict)
    operators: Mapping[str, OperatorFigures] = field(default_factory=dict)
    splits: Mapping[str, SplitFigures] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, TableSize]] = field(
        default_factory=dict
    )  # by operator and table, after the epoch
    table_use: Mapping[str, TableUse] = field(
        default_factory=dict
    )  # by operator: tables found in memory, and tables built from blocks
    versions: Mapping[str, VersionFigures] = field(
        default_factory=dict
    )  # versions of joined tables that the epoch used
    slots: Sequence[SlotFigures] = ()
    sent_bytes: int | None = None  # in blocks whose descriptors were sent to a later stage
    kept_bytes: int | None = None  # in blocks that an operator passed to another in the same slot
    results: Mapping[str, ResultFigures] = field(
        default_factory=dict
    )  # late tuples of a source have the name "late:<source>", failed ones "failed:..."
    decisions: Sequence[Mapping[str, Any]] = ()
    repeated: bool = False  # the epoch was committed before this run began, so listeners may have received it before
    error: str | None = None  # the error that ended the run in this epoch; without sources the epoch was not committed
    progress: Progress = field(default_factory=Progress)  # after the epoch

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        own = {f.name: to_plain(getattr(self, f.name)) for f in fields(self) if f.name != "progress"}
        return {**own, "progress": self.progress.to_json()}


# --- construction --------------------------------------------------------------------------------------------------


def record_of(before: Manifest | None, after: Manifest, work: WorkCounts, substreams: Mapping[str, int]) -> EpochRecord:
    """Return the record that follows from two manifests and the work between them. `substreams`: number per operator."""
    nothing = SourceState()
    known = before.sources if before else {}
    rows: dict[str, int] = {}
    for output in after.outbox:
        rows[output.result] = rows.get(output.result, 0) + output.content.rows
    return EpochRecord(
        after.number,
        sources={name: _source(known.get(name, nothing), now) for name, now in after.sources.items()},
        operators=_operators(after.operators, WorkTotals.edges_of(after), work),
        splits=split_figures(work.split),
        tables=table_sizes(after, before, substreams),
        table_use={name: TableUse.of(counts) for name, counts in work.table_use.items() if any(counts)},
        versions=version_figures(after),
        results={name: ResultFigures(count, None) for name, count in rows.items()},
        decisions=tuple(after.decisions),
    )


def record_from_manifests(
    before: Manifest | None,
    after: Manifest,
    substreams: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
) -> EpochRecord:
    """Return the record of a manifest's epoch, without times."""
    known = labels or {}
    record = record_of(before, after, counts_between(before, after), substreams or {})
    progress = Progress(table_use=dict(record.table_use), _substreams=substreams or {}, _labels=known)
    progress.restore(after, before)
    results = {known.get(name, name): figures for name, figures in record.results.items()}
    return replace(record, progress=progress, results=results)


def slot_figures(reports: Sequence[Report], slots: int) -> tuple[SlotFigures, ...]:
    mine: list[list[Report]] = [[] for _ in range(slots)]
    for report in reports:
        if report.task.stage > 0:  # stage 0 has no slots
            mine[report.task.number].append(report)
    return tuple(
        SlotFigures(
            cpu=round(sum(r.cpu for r in each), 6),
            out=sum(sum(r.work.out.values()) for r in each),
            read=sum(sum(r.work.read.values()) for r in each),
            compared=sum(sum(r.work.pairs.values()) for r in each),
        )
        for each in mine
    )


def phase_seconds(reports: Sequence[Report], slots: int, executed: float, commit: float, delivery: float) -> Phases:
    stages: dict[int, list[float]] = {}
    for report in reports:
        stages.setdefault(report.task.stage, []).append(report.seconds)
    took = {stage: max(max(each), sum(each) / slots) for stage, each in stages.items()}
    reading = took.pop(0, 0.0)
    operators = sum(took.values())
    rest = max(executed - reading - operators, 0.0)
    return Phases(*(round(each, 6) for each in (reading, rest, operators, commit, delivery)))


def _source(before: SourceState, now: SourceState) -> SourceFigures:
    return SourceFigures(
        delivered=now.delivered - before.delivered,
        accepted=now.accepted - before.accepted,
        late=now.late - before.late,
        rejected=now.rejected - before.rejected,
        failed=now.failed - before.failed,
        watermark=known_watermark(now.watermark),
        idle=now.idle,
    )


def _operators(
    state: Mapping[str, OperatorState], edges: Sequence[tuple[str, str, str]], work: WorkCounts
) -> dict[str, OperatorFigures]:
    return {name: _operator(name, found, edges, work) for name, found in state.items()}


def _operator(
    name: str, state: OperatorState, edges: Sequence[tuple[str, str, str]], work: WorkCounts
) -> OperatorFigures:
    entering = [work.edges.get(edge, [0, 0]) for edge, _, target in edges if target == name]
    arrived = sum(before for before, _ in entering)
    held = {block.name: block.rows for blocks in state.inputs for block in blocks}  # inputs may share blocks
    return OperatorFigures(
        arrived=arrived,
        dropped=max(arrived - sum(after for _, after in entering), 0),  # a split may make several tuples of one
        sent=sum(work.sent.get(name, ())),
        out=work.out.get(name, 0),
        held=sum(held.values()),
        read=work.read.get(name, 0),
        opened=work.opened.get(name, 0),
        compared=work.pairs.get(name, 0),
        cpu=round(work.cpu.get(name, 0.0), 6),
    )
