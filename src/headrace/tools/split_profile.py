"""Measurement of the cost terms of a query's split, and recommendation of splitters and physical windows for a rate.

The first tuples of the query's files pass through the real stages in this process, in windows of several sizes and with
two numbers of splitters. Costs are CPU time, the minimum of several rounds, because other load on the machine only adds
to them. A processor that does nothing replaces the query downstream of the split, so that O = 0.

The terms of the paper have these meanings in headrace:

    PR  the driver, which distributes names of windows and reads none: cr_PR = 0, and cs_W and ce_W are negligible
    PS  a splitter, a task of stage 0: it sends a broadcast tuple once, whatever q is, unless the plan needs copies
    PQ  a slot, which has many substreams and sorts its input at once, not tuple by tuple: a further splitter costs
        it time per epoch; cm is that time divided by the tuples of the sample, and includes cp, the opening of blocks
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace import plan as p
from headrace.columnar import arrow, scratch
from headrace.columnar.types import TS, TS_TYPE
from headrace.compile import compile_query
from headrace.control import parasplit_model, splitter_count
from headrace.control.parasplit_model import ModelCosts, SplitShares
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.errors import QueryError
from headrace.processor import Processor, declared
from headrace.query import nodes
from headrace.sources import as_tuples
from headrace.sources.file_pieces import FileToRead
from headrace.sources.files import FilesOrigin
from headrace.sources.protocol import PhysicalWindow
from headrace.state.blocks import BlockReader
from headrace.state.store import StateStore
from headrace.task.epoch import Epoch
from headrace.task.in_process import execute_locally
from headrace.task.messages import Message
from headrace.task.rejects import Rejects
from headrace.task.reports import Report, ReportBuilder
from headrace.task.splitters import SourcePiece, read_windows
from headrace.task.step_runner import EdgeWalk, StepRunner
from headrace.task.task import Task
from headrace.task.work import WorkCounts, sum_counts

SAMPLED_TUPLES = 1_000_000  # at least one window is read
ROUNDS = 5
MEASURED_SIZES = (
    splitter_count.SMALLEST_WINDOW,
    4 << 20,
    splitter_count.USUAL,
    splitter_count.LARGEST_WINDOW,
)  # bytes of the compared windows
MEASURED_SPLITTERS = 4  # number of splitters, besides one, with which a slot's costs are measured
SIZE_TOLERANCE = 0.05  # share by which the cost of a smaller window may exceed the lowest cost
READING_TERM = "reading"


class NullProcessor(Processor):
    """A processor that does nothing, in place of the query downstream of the split."""

    schema = pa.schema([(TS, TS_TYPE)])

    def process(self, tuples: Any, state: Any) -> None:
        return None


# --- the split -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfiledSplit:
    """A query's split, followed by a processor that does nothing, and the source of most of its tuples."""

    plan: p.PhysicalPlan
    source: p.SourceInput
    origin: FilesOrigin
    edge: p.Edge
    step: p.SplitStep
    summary: str

    @staticmethod
    def of(roots: Sequence[nodes.Node]) -> ProfiledSplit:
        """Return the first split of files. Raise if the query has none."""
        for node in nodes.walk_nodes(*roots):
            if isinstance(node, nodes.Splitting):
                found = _subject(node)
                if found is not None:
                    return found
        msg = "the query does not split a stream of hr.files with only map, filter, case and sample before the split; expected, for example, hr.files(...).split(8, by=['user'])"
        raise QueryError(msg)

    def windows(
        self, epoch: Epoch, W: int, tuples: int, work: WorkCounts
    ) -> Iterator[tuple[SourcePiece, PhysicalWindow]]:
        """Read the first physical windows of W bytes until they contain `tuples` tuples. `work` records the reading
        time.
        """
        rows = 0
        for path, stat in self.origin.entries():
            taken = FileToRead(self.source.name, path, stat.st_size, stat.st_mtime_ns)
            pieces = [SourcePiece(taken.source, piece) for piece in taken.pieces(W)]
            for piece, window in zip(pieces, work.timing(READING_TERM, read_windows(epoch, pieces)), strict=True):
                yield piece, window
                rows += window.rows.num_rows
                if rows >= tuples:
                    return
        if not rows:
            raise QueryError(f"there are no tuples to measure in {str(self.origin.folder)!r}; add a file")


def _subject(node: nodes.Splitting) -> ProfiledSplit | None:
    leaf = nodes.Substream(node.input.schema)
    nothing = NullProcessor()
    root = nodes.ProcessorOutput(
        nodes.Apply(node.input, node.rule, nodes.Body(leaf, leaf), nothing, declared(nothing)), 0
    )
    plan = compile_query([root])
    origins = {name: source.origin for name, source in nodes.named_sources(root).items()}
    found = [
        ProfiledSplit(plan, source, origins[source.name], edge, step, f"split {node.rule.summary}")
        for source in plan.sources
        if isinstance(origins[source.name], FilesOrigin)
        for edge in plan.leaving(source.name)
        for step in edge.steps
        if isinstance(step, p.SplitStep)
    ]
    return max(found, key=lambda each: sum(stat.st_size for _, stat in each.origin.entries()), default=None)


# --- one epoch -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredEpoch:
    """The CPU seconds of one epoch over the sample."""

    tuples: int
    bytes: int  # of files
    reading: float
    stepping: float  # map, filter, broadcast and route alone; also part of `splitting`
    splitting: float  # all work of splitters except reading
    merging: float  # all work of the only slot
    divided: tuple[int, int]  # tuples to one substream, and to all

    @property
    def splitter(self) -> float:
        """Return the CPU seconds of a splitter per tuple."""
        return (self.reading + self.splitting) / self.tuples


def measure_epoch(subject: ProfiledSplit, W: int, tuples: int, splitters: int) -> MeasuredEpoch:
    """Run an epoch in this process: the splitters one after the other, then one slot."""
    found: list[MeasuredEpoch] = []
    with scratch.temporary_folder("profile") as folder, StateStore.open(folder / "state", fsync=False) as store:

        def execute(epoch: Epoch) -> Sequence[Message]:
            work = WorkCounts()
            sample = [*subject.windows(epoch, W, tuples, work)]
            windows = [window for _, window in sample]
            stepping = _stepping(subject, epoch, windows, store)
            messages = execute_locally(epoch, [_share(windows, n, splitters) for n in range(splitters)], store.storage)
            reports = [message.read(Report) for message in messages]
            routed, broadcast, _ = sum_counts(report.work for report in reports).split.get(subject.step.name, [0, 0, 0])
            split, merged = (
                sum(report.cpu for report in reports if (report.task.stage > 0) == later) for later in (False, True)
            )
            rows, size = sum(window.rows.num_rows for window in windows), sum(each.piece.size for each, _ in sample)
            found.append(
                MeasuredEpoch(rows, size, work.cpu[READING_TERM], stepping, split, merged, (routed, broadcast))
            )
            return messages

        driver = Driver(subject.plan, {"operators": []}, store, {}, Settings(1, bounded=True)).open()
        driver.run_epoch(Position("profile"), execute, final=True)
    return found[-1]


def _share(windows: Sequence[PhysicalWindow], number: int, of: int) -> list[PhysicalWindow]:
    """Return an equal share of the rows of each window."""
    bounds = [[len(window.rows) * end // of for end in (number, number + 1)] for window in windows]
    return [
        replace(window, rows=window.rows.slice(start, stop - start))
        for window, (start, stop) in zip(windows, bounds, strict=True)
    ]


def _stepping(subject: ProfiledSplit, epoch: Epoch, windows: Sequence[PhysicalWindow], store: StateStore) -> float:
    """Return the seconds for the work on tuples before they are sent: map, filter, broadcast and route."""
    task = Task(0, 0, 0, store.storage, BlockReader(store.storage))
    runner = StepRunner(epoch, task, Rejects(epoch, task, ReportBuilder(task.itself, task.stamp)))
    tuples = [as_tuples(window.rows, subject.source, subject.source.reads(whole=False)) for window in windows]
    begin = time.process_time()
    for piece in (piece for each in tuples for piece in arrow.slice_table(each)):
        for _ in EdgeWalk(runner, piece, [subject.edge]).along(subject.edge):
            pass
    return time.process_time() - begin


# --- costs ---------------------------------------------------------------------------------------------------------


def costs_of(turns: Mapping[int, Sequence[MeasuredEpoch]], split: SplitShares) -> ModelCosts:
    """Return the terms of equations 3 and 4. `turns`: the rounds by number of splitters, for 1 and one other number."""

    def least(splitters: int, part: Callable[[MeasuredEpoch], float]) -> float:
        return min(part(turn) / turn.tuples for turn in turns[splitters])

    cr_W, cs = least(1, lambda turn: turn.reading), least(1, lambda turn: turn.stepping)
    rest = least(1, lambda turn: turn.splitting) - cs * (split.o + split.sent)
    few, many = (least(splitters, lambda turn: turn.merging) / (split.delivered or 1.0) for splitters in sorted(turns))
    cm = max(many - few, 0.0) / (max(turns) - 1)
    ce = max(rest, 0.0) / split.sent if split.sent else 0.0
    return ModelCosts(cr_W=cr_W, cs=cs, ce=ce, cr=max(few - cm, 0.0), cm=cm, cr_PR=0.0)


def _shares(subject: ProfiledSplit, turn: MeasuredEpoch) -> SplitShares:
    """Return the shares of the tuples by destination. Tuples that a filter before the split removes count as omitted."""
    r, b = (tuples / turn.tuples for tuples in turn.divided)
    q = subject.step.substreams
    return SplitShares(q, r, b, max(1 - r - b, 0.0), q if subject.step.replicate else 1, 1)


# --- the recommendation --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitProfile:
    """The costs of a split, and the p and W that they recommend for a rate."""

    source: str
    summary: str  # the split, as the user wrote it
    wanted: float  # tuples per second
    tuples: int  # tuples of the sample
    row_bytes: float  # bytes of a tuple in the files
    sizes: Mapping[int, float]  # bytes of a window -> seconds of a splitter per tuple
    costs: ModelCosts  # with windows of the cheapest size
    split: SplitShares

    @property
    def p(self) -> int:
        """Return the fewest splitters that reach the rate, with as many slots, which share the same CPUs."""
        return parasplit_model.p_model(self.rate, self.wanted)

    @property
    def W(self) -> int:
        """Return the cheapest window size, unless a splitter would get too few windows in an epoch of one second."""
        return min(
            cheapest_size(self.sizes),
            splitter_count.window_size(self.wanted * self.row_bytes / (splitter_count.EACH * self.p)),
        )

    def rate(self, p: int) -> float:
        """Return the rate of p splitters and p slots that share p CPUs, by the model."""
        return parasplit_model.rates(self.costs, replace(self.split, processors=p), p).in_turn


def cheapest_size(sizes: Mapping[int, float]) -> int:
    """Return the smallest size whose cost is within the tolerance of the lowest cost."""
    return min(W for W, cost in sizes.items() if cost <= (1 + SIZE_TOLERANCE) * min(sizes.values()))


def profile_split(
    roots: Sequence[nodes.Node],
    wanted: float,
    *,
    tuples: int = SAMPLED_TUPLES,
    rounds: int = ROUNDS,
    tell: Callable[[str], None] = lambda _: None,
) -> SplitProfile:
    """Measure the costs of the first split of files in a query."""
    subject = ProfiledSplit.of(roots)
    tell(f"measuring {subject.summary} of {subject.source.name}")
    measure_epoch(subject, MEASURED_SIZES[-1], 1, 1)  # warms up compiled code
    by_size: dict[int, list[MeasuredEpoch]] = {W: [] for W in MEASURED_SIZES}
    for number in range(rounds):
        for W, found in by_size.items():
            found.append(measure_epoch(subject, W, tuples, 1))
        tell(f"round {number + 1} of {rounds}")
    sizes = {W: min(turn.splitter for turn in found) for W, found in by_size.items()}
    W = cheapest_size(sizes)
    one = by_size[W][0]
    split = _shares(subject, one)
    turns = {
        1: by_size[W],
        MEASURED_SPLITTERS: [measure_epoch(subject, W, tuples, MEASURED_SPLITTERS) for _ in range(rounds)],
    }
    row_bytes = one.bytes / one.tuples
    return SplitProfile(
        subject.source.name, subject.summary, wanted, one.tuples, row_bytes, sizes, costs_of(turns, split), split
    )
