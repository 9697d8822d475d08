"""Reports: each task sends the driver one report, the only record of what the task did to the state.

A task collects its report with the methods of a `ReportBuilder` while it works, and sends the `Report` at its end. A
report exists only during its epoch. The driver computes the next manifest from the reports (`headrace.driver.outcome`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.control.group_load import GroupLoad, HeavyKey, NumbersOfBlock
from headrace.kernels.stateless.split import SplitCounts
from headrace.sources.protocol import MessageAmount
from headrace.state.bases import ChangeSummary
from headrace.state.blocks import Block
from headrace.state.caches import NOT_IN_PLACE
from headrace.state.manifest import Receipt
from headrace.task.messages import Attempt, Header
from headrace.task.watermarks import Seen, SplitTimes, merge_split_times
from headrace.task.work import WorkCounts


@dataclass
class SourceCounts:
    """Counts and times of the tuples that a source delivered to one task."""

    delivered: int = 0  # = accepted + late + rejected
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    smallest: int | None = None  # of the accepted times
    largest: int | None = None
    arrivals: list[tuple[float | None, int]] = field(default_factory=list)  # by window: arrival time, tuples
    partition_times: dict[str, int | None] = field(
        default_factory=dict
    )  # by partition that delivered tuples in time or late: the largest `ts` accepted
    bytes: int = 0  # of messages read
    messages: int = 0
    behind: int = 0  # microseconds from the earliest late tuple to the watermark

    def read(self, amount: MessageAmount) -> None:
        self.bytes += amount.bytes
        self.messages += amount.messages

    def deliver(self, arrived: float | None, tuples: int) -> None:
        self.delivered += tuples
        self.arrivals.append((arrived, tuples))

    def accept(self, partition: str, tuples: int, smallest: int, largest: int) -> None:
        """Count accepted tuples whose `ts` lie between `smallest` and `largest`."""
        if tuples:
            self.accepted += tuples
            self.smallest = smallest if self.smallest is None else min(smallest, self.smallest)
            self.largest = largest if self.largest is None else max(largest, self.largest)
            known = self.partition_times.get(partition)
            self.partition_times[partition] = largest if known is None else max(largest, known)

    def came_late(self, partition: str, tuples: int, behind: int) -> None:
        """Count late tuples, the earliest of them `behind` microseconds before the watermark.

        Late tuples show that the partition is not idle; rejected tuples do not.
        """
        if tuples:
            self.late += tuples
            self.behind = max(behind, self.behind)
            self.partition_times.setdefault(partition)

    def to_json(self) -> Any:
        return self.__dict__

    @staticmethod
    def from_json(data: Any) -> SourceCounts:
        return SourceCounts(**{**data, "arrivals": [(when, tuples) for when, tuples in data["arrivals"]]})


@dataclass(frozen=True)
class StateBlock:
    """A block of state that was written for one input of an operator."""

    operator: str
    input: int
    block: Block

    def to_json(self) -> Any:
        return [self.operator, self.input, self.block.to_json()]

    @staticmethod
    def from_json(data: Any) -> StateBlock:
        operator, side, block = data
        return StateBlock(operator, side, Block.from_json(block))


@dataclass(frozen=True)
class MergedBlocks:
    """One block that replaces several. Inputs that shared the former blocks share it."""

    operator: str
    inputs: tuple[int, ...]
    gone: tuple[str, ...]  # names of the replaced blocks
    block: Block
    table: str | None = None  # a state table; None: inputs

    def to_json(self) -> Any:
        return [self.operator, self.inputs, self.gone, self.block.to_json(), self.table]

    @staticmethod
    def from_json(data: Any) -> MergedBlocks:
        operator, inputs, gone, block, table = data
        return MergedBlocks(operator, tuple(inputs), tuple(gone), Block.from_json(block), table)


@dataclass(frozen=True)
class StateTableChange:
    """The change of one state table by a slot."""

    operator: str
    table: str
    block: Block | None  # None: nothing had to be written
    rows: Mapping[int, int]  # number of live rows of every group with a change
    renewed: tuple[int, ...]  # groups that this epoch wrote completely
    opened: tuple[int, ...]  # substreams whose table was opened, from a cache or not
    summary: ChangeSummary  # of the rows in the block, and of those that they replace

    def to_json(self) -> Any:
        block = self.block.to_json() if self.block else None
        summary = [self.summary.born, self.summary.gone, list(self.summary.died.items())]
        return [self.operator, self.table, block, list(self.rows.items()), self.renewed, self.opened, summary]

    @staticmethod
    def from_json(data: Any) -> StateTableChange:
        operator, table, block, rows, renewed, opened, (born, gone, died) = data
        written = Block.from_json(block) if block else None
        summary = ChangeSummary(born, gone, dict(died))
        return StateTableChange(operator, table, written, dict(rows), tuple(renewed), tuple(opened), summary)


@dataclass
class TableUse:
    """Counts of how an epoch opened the state tables of an operator. Each substream has one of each table."""

    found: int = 0  # tables found in caches
    built: dict[str, int] = field(default_factory=dict)  # tables built from blocks, by the reason
    rows: int = 0  # rows read from blocks to build tables
    seconds: float = 0.0
    reason: str = ""  # why a cache had no space

    def add(self, other: TableUse) -> None:
        for why, many in other.built.items():
            self.built[why] = self.built.get(why, 0) + many
        self.found, self.rows, self.reason = (
            self.found + other.found,
            self.rows + other.rows,
            self.reason or other.reason,
        )
        self.seconds = round(self.seconds + other.seconds, 6)

    @property
    def counts(self) -> list[float]:
        """Return the counts in the form that is added up over epochs."""
        return [self.found, self.rows, self.seconds, *(self.built.get(why, 0) for why in NOT_IN_PLACE)]

    @staticmethod
    def of(counts: Sequence[float]) -> TableUse:
        found, rows, seconds, *built = counts
        by_reason = {why: int(many) for why, many in zip(NOT_IN_PLACE, built, strict=True) if many}
        return TableUse(int(found), by_reason, int(rows), round(seconds, 6))

    def to_json(self) -> Any:
        return self.__dict__

    @staticmethod
    def from_json(data: Any) -> TableUse:
        return TableUse(**data)


@dataclass(frozen=True)
class TaskOutput:
    """Results or rejected tuples of a task: in a block, or written to a part sink already."""

    result: str
    content: Block | Receipt

    def to_json(self) -> Any:
        return [self.result, isinstance(self.content, Receipt), self.content.to_json()]

    @staticmethod
    def from_json(data: Any) -> TaskOutput:
        result, with_sink, content = data
        return TaskOutput(result, Receipt.from_json(content) if with_sink else Block.from_json(content))


@dataclass(frozen=True)
class Report(Header):
    """The report of one attempt of a task: everything that it did.

    The driver computes the next manifest from the reports of all tasks. Each number and block counts the work of this task
    in this epoch alone.
    """

    kind = "report"
    task: Attempt
    stamp: str  # unique for every attempt
    senders: tuple[Attempt, ...]  # attempts of the stage before that sent messages to this task, ascending
    seen: Seen
    split_times: SplitTimes  # by split: the largest `ts`, from this task and from its senders
    cpu: float  # seconds
    seconds: float  # from its first message to its last, waiting included
    work: WorkCounts
    sources: Mapping[str, SourceCounts]  # sources that delivered something
    added: Sequence[StateBlock]  # to state whose blocks are added, merged and dropped whole
    replaced: Sequence[StateBlock]  # parts of state that is rewritten in every epoch
    merged: Sequence[MergedBlocks]
    changed: Sequence[StateTableChange]
    used: Mapping[str, TableUse]  # by operator
    outbox: Sequence[TaskOutput]  # results before late tuples
    notes: Mapping[str, Mapping[str, Any]]  # by operator: small values stored beside its blocks
    load: Mapping[str, GroupLoad]  # by operator
    failed: Mapping[tuple[str, str], int]  # failed tuples, by source and text of the step
    doubted: Sequence[str]  # join predicates that left too many pairs to DuckDB

    def to_json(self) -> Any:
        return {
            "task": self.task,
            "stamp": self.stamp,
            "producers": self.senders,
            "seen": self.seen,
            "split_times": self.split_times,
            "cpu": self.cpu,
            "seconds": self.seconds,
            "work": self.work.to_json(),
            "sources": {name: counts.to_json() for name, counts in self.sources.items()},
            "added": [each.to_json() for each in self.added],
            "replaced": [each.to_json() for each in self.replaced],
            "merged": [each.to_json() for each in self.merged],
            "changed": [each.to_json() for each in self.changed],
            "used": {name: each.to_json() for name, each in self.used.items()},
            "outbox": [each.to_json() for each in self.outbox],
            "notes": self.notes,
            "load": {name: load.to_json() for name, load in self.load.items()},
            "failed": [[*place, rows] for place, rows in self.failed.items()],
            "doubted": self.doubted,
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return cls(
            task=Attempt(*data["task"]),
            stamp=data["stamp"],
            senders=tuple(Attempt(*each) for each in data["producers"]),
            seen=data["seen"],
            split_times=data["split_times"],
            cpu=data["cpu"],
            seconds=data["seconds"],
            work=WorkCounts.from_json(data["work"]),
            sources={name: SourceCounts.from_json(counts) for name, counts in data["sources"].items()},
            added=[StateBlock.from_json(each) for each in data["added"]],
            replaced=[StateBlock.from_json(each) for each in data["replaced"]],
            merged=[MergedBlocks.from_json(each) for each in data["merged"]],
            changed=[StateTableChange.from_json(each) for each in data["changed"]],
            used={name: TableUse.from_json(each) for name, each in data["used"].items()},
            outbox=[TaskOutput.from_json(each) for each in data["outbox"]],
            notes=data["notes"],
            load={name: GroupLoad.from_json(load) for name, load in data["load"].items()},
            failed={(source, words): rows for source, words, rows in data["failed"]},
            doubted=data["doubted"],
        )


class ReportBuilder:
    """A report under construction. The parts of a task call its methods for what they do."""

    def __init__(self, task: Attempt, stamp: str) -> None:
        self.task, self.stamp = task, stamp
        self.work = WorkCounts()
        self.split_times: SplitTimes = {}
        self._sources: dict[str, SourceCounts] = {}
        self._added: list[StateBlock] = []
        self._replaced: list[StateBlock] = []
        self._merged: list[MergedBlocks] = []
        self._changed: list[StateTableChange] = []
        self._used: dict[str, TableUse] = {}
        self._results: list[TaskOutput] = []
        self._rejected: list[TaskOutput] = []
        self._notes: dict[str, Mapping[str, Any]] = {}
        self._load: dict[str, GroupLoad] = {}
        self._failed: Counter[tuple[str, str]] = Counter()
        self._doubted: Sequence[str] = ()

    def delivered(self, source: str, counts: SourceCounts) -> None:
        self._sources[source] = counts

    def split(self, name: str, counts: SplitCounts, largest: int | None) -> None:
        self.work.divided(name, counts.routed, counts.broadcast, counts.omitted)
        if largest is not None:
            self.add_split_times({name: largest})

    def add_split_times(self, split_times: Mapping[str, int]) -> None:
        """Add the largest `ts` of each split that another task has sent."""
        merge_split_times(self.split_times, split_times)

    def added(self, operator: str, side: int, block: Block) -> None:
        self._added.append(StateBlock(operator, side, block))

    def replaced(self, operator: str, side: int, block: Block) -> None:
        self._replaced.append(StateBlock(operator, side, block))

    def merged(
        self, operator: str, inputs: Iterable[int], gone: Iterable[str], block: Block, table: str | None = None
    ) -> None:
        self._merged.append(MergedBlocks(operator, tuple(inputs), tuple(gone), block, table))

    def changed(
        self,
        operator: str,
        table: str,
        block: Block | None,
        rows: Mapping[int, int],
        renewed: Iterable[int],
        opened: Iterable[int],
        summary: ChangeSummary,
    ) -> None:
        self._changed.append(
            StateTableChange(operator, table, block, dict(rows), tuple(renewed), tuple(opened), summary)
        )

    def used(self, operator: str, use: TableUse) -> None:
        self._used.setdefault(operator, TableUse()).add(use)
        self.work.table_use[operator] = self._used[operator].counts

    def result(self, result: str, content: Block | Receipt) -> None:
        self._results.append(TaskOutput(result, content))

    def rejected(self, result: str, content: Block | Receipt) -> None:
        self._rejected.append(TaskOutput(result, content))

    def failed(self, source: str, words: str, tuples: int) -> None:
        self._failed[source, words] += tuples

    def doubted(self, predicates: Sequence[str]) -> None:
        self._doubted = predicates

    def add_notes(self, operator: str, data: Mapping[str, Any]) -> None:
        """Set the notes of an operator. The newest notes count."""
        self._notes[operator] = data

    def loaded(self, operator: str, side: int, counts: Sequence[int], heavy: Iterable[HeavyKey] = ()) -> None:
        self._load.setdefault(operator, GroupLoad()).add(side, counts, heavy)

    def numbered(self, operator: str, side: int, numbers: NumbersOfBlock) -> None:
        """Add a sample of the numbers of a block."""
        self._load.setdefault(operator, GroupLoad()).numbers[side].append(numbers)

    def finished(self, seen: Seen, senders: Iterable[Attempt], cpu: float, seconds: float) -> Report:
        return Report(
            task=self.task,
            stamp=self.stamp,
            senders=tuple(sorted(senders)),
            seen=seen,
            split_times=self.split_times,
            cpu=round(cpu, 6),
            seconds=round(seconds, 6),
            work=self.work,
            sources=self._sources,
            added=self._added,
            replaced=self._replaced,
            merged=self._merged,
            changed=self._changed,
            used=self._used,
            outbox=[*self._results, *self._rejected],
            notes=self._notes,
            load=self._load,
            failed=self._failed,
            doubted=self._doubted,
        )
