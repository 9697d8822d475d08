"""What the split of a query costs on this machine: the terms of the cost model, measured with the engine's own code.

The first tuples of the query's files are cut into physical windows and go through the real stages, once for each number of
splitters in turn and over again. What is counted is processor time, which depends little on what else the machine does;
every figure is a median of rounds. In place of the query stands a processor that does nothing, so that O = 0.

Where headrace is not what the paper describes, the terms mean this:
    PR  the driver deals out names of windows, it reads none: cr_PR = 0, cs_W and ce_W are not worth counting
    PS  a task of stage 0; a tuple for all is sent once, whatever q is (`copies`), unless the plan wants it replicated
    PQ  a slot: it has many substreams, and puts what it is given in sequence at once, not tuple by tuple. So what a
        splitter more costs it (cp, cm) is a cost per epoch, shared out over the tuples of the sample
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from headrace import arrow, scratch
from headrace import plan as p
from headrace.compile import compile_query
from headrace.control import parasplit
from headrace.control.parasplit import Costs, Split
from headrace.control.splitting import Splitters
from headrace.engine.aside import Aside, Walk
from headrace.engine.driver import Driver, Settings
from headrace.engine.epoch import Epoch, Window
from headrace.engine.local import execute_locally
from headrace.engine.messages import Message
from headrace.engine.position import Position
from headrace.engine.reports import Report, TaskReport
from headrace.engine.work import Work, total
from headrace.engine.writing import Task
from headrace.errors import QueryError
from headrace.processor import Processor, declared
from headrace.query import nodes
from headrace.sources import as_tuples
from headrace.sources.cutting import Taken
from headrace.sources.files import FilesOrigin, read_file
from headrace.state.blocks import BlockReader
from headrace.state.store import StateStore
from headrace.types import TS, TS_TYPE

TUPLES = 1_000_000  # of the sample
SEARCHED = 32 << 20  # bytes of it that W is looked for with
LEAST_WINDOW = 64 << 10  # bytes, to begin with
FEWEST = 4  # windows that a sample must have: fewer say nothing
ENOUGH = 0.0015  # gain in rate below which a larger window is not worth it (section 3.2.1)
SPLITTERS = (1, 2, 4)  # that the receiver is measured with
SIGMA = 1.4826  # of a normal distribution, in median absolute deviations
ROUNDS = 5
MORE = 4  # times as many rounds where a gain cannot be told from noise

Tell = Callable[[str], None]


class Nothing(Processor):
    """In place of the query, which is no part of the split."""

    schema = pa.schema([(TS, TS_TYPE)])

    def process(self, tuples: Any, state: Any) -> None:
        return None


# --- what is found -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One doubling of W. gain: in rate over half of it, in the median; noise: what a gain must exceed to be one."""

    W: int  # bytes
    rate: float  # tuples per second of a processor, of one splitter
    gain: float | None = None
    noise: float | None = None

    @property
    def enough(self) -> bool:
        """Whether half of it does as well."""
        return self.gain is not None and self.noise is not None and self.gain < max(ENOUGH, self.noise)


@dataclass(frozen=True)
class Ran:
    """p splitters as they ran side by side, beside what the model says of them."""

    p: int
    rate: float  # tuples per second, of the splitters, had each a processor to itself
    noise: float  # of it, as a share
    rate_model: float
    eta: float
    eta_model: float


@dataclass(frozen=True)
class Profile:
    source: str
    words: str  # the split, as the user wrote it
    tuples: int  # of the sample
    row_bytes: int
    wanted: float  # tuples per second
    steps: Sequence[Step]
    W: int
    costs: Costs
    noise: float  # of the rate of one splitter, as a share of it
    split: Split
    ran: Sequence[Ran] = field(default_factory=tuple)

    @property
    def phi_PS_1(self) -> float:
        """Tuples per second of one splitter that sends each once, as it does with q = 1."""
        return 1 / parasplit.C_PS(self.costs, replace(self.split, copies=1))

    @property
    def p_paper(self) -> int:
        """Equation 6 as it is printed: one tuple in a hundred for all, sent q times."""
        return parasplit.p_hat(self.wanted, self.phi_PS_1, self.split.q)

    @property
    def p_hat(self) -> int:
        """Equation 6 for what the splitters do here: a tuple for all is sent as often as they send it."""
        return parasplit.p_hat(self.wanted, self.phi_PS_1, self.split.copies or self.split.q, self.split.b)

    @property
    def p_model(self) -> int:
        """The exact model: as many slots as splitters, which take turns on the same processors."""
        return parasplit.p_model(self.rate, self.wanted)

    def rate(self, p: int) -> float:
        """Of p splitters and then p slots, in turn, by the model."""
        return self.in_turn(p).in_turn

    def in_turn(self, p: int) -> parasplit.Rates:
        return parasplit.rates(self.costs, replace(self.split, processors=p), p)

    def efficiency(self, p: int) -> float:
        return parasplit.efficiency(self.costs, self.split, p)

    def to_json(self) -> dict[str, Any]:
        table = [
            {
                "p": p,
                "PS": self.in_turn(p).PS,
                "PQ": self.in_turn(p).PQ,
                "rate": self.rate(p),
                "eta": self.efficiency(p),
            }
            for p in doubling()
        ]
        return {
            "source": self.source,
            "split": {"words": self.words, **vars(self.split)},
            "sample": {"tuples": self.tuples, "row_bytes": self.row_bytes},
            "wanted": self.wanted,
            "windows": [vars(step) for step in self.steps],
            "W": self.W,
            "costs": vars(self.costs),
            "rate_of_one": self.phi_PS_1,
            "noise": self.noise,
            "p": {"equation_6": self.p_paper, "equation_6_sent_once": self.p_hat, "model": self.p_model},
            "ran": [vars(each) for each in self.ran],
            "table": table,
        }


def doubling(most: int = parasplit.MOST) -> list[int]:
    """1, 2, 4 ... up to the most."""
    return [1 << power for power in range(most.bit_length())]


# --- which split ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A query's split, behind it a processor that does nothing, and the source that most of its tuples come from."""

    plan: p.PhysicalPlan
    source: p.SourceInput
    origin: FilesOrigin
    edge: p.Edge
    step: p.SplitStep
    words: str

    @staticmethod
    def of(roots: Sequence[nodes.Node]) -> Subject:
        """The first split of files; refuses a query that has none."""
        for node in nodes.walk(*roots):
            if isinstance(node, nodes.Splitting):
                found = _subject(node)
                if found is not None:
                    return found
        msg = "the query has no split of hr.files with nothing but map and filter before it; such as hr.files(...).split(8, by=['user'])"
        raise QueryError(msg)


def _subject(node: nodes.Splitting) -> Subject | None:
    leaf = nodes.Substream(node.input.schema)
    nothing = Nothing()
    root = nodes.Output(nodes.Apply(node.input, node.rule, nodes.Body(leaf, leaf), nothing, declared(nothing)), 0)
    plan = compile_query([root])
    origins = {name: source.origin for name, source in nodes.named_sources(root).items()}
    found = [
        Subject(plan, source, origins[source.name], edge, step, f"split {node.rule.words}")
        for source in plan.sources
        if isinstance(origins[source.name], FilesOrigin)
        for edge in plan.leaving(source.name)
        for step in edge.steps
        if isinstance(step, p.SplitStep)
    ]
    return max(found, key=lambda each: _bytes(each.origin), default=None)


def _bytes(origin: FilesOrigin) -> int:
    return sum(stat.st_size for _, stat in origin.entries())


# --- physical windows ------------------------------------------------------------------------------------------------------


def take_sample(subject: Subject, tuples: int) -> pa.Table:
    """The first tuples of the source's files, as they are delivered."""
    tables: list[pa.Table] = []
    rows = 0
    for path in subject.origin.listing():
        if rows < tuples:
            tables.append(read_file(path).select(subject.source.raw_schema.names).slice(0, tuples - rows))
            rows += tables[-1].num_rows
    if not rows:
        raise QueryError(f"there are no tuples in {str(subject.origin.folder)!r} to measure with; put a file there")
    return pa.concat_tables(tables, promote_options="permissive")


def cut_windows(subject: Subject, sample: pa.Table, W: int, folder: Path) -> list[Path]:
    """The sample as physical windows of W bytes, each a file such as those that it was taken from.

    The one place that knows what a window is: a task is handed its name and reads it itself.
    """
    suffix = subject.origin.listing()[0].suffix
    folder.mkdir(parents=True)
    found = []
    for number, piece in enumerate(arrow.cut(sample, W)):
        found.append(folder / f"{number:06}{suffix}")
        pq.write_table(piece, found[-1]) if suffix == ".parquet" else feather.write_feather(piece, found[-1])
    return found


def dealt(windows: Sequence[Path], splitters: int) -> list[list[Path]]:
    """In turn, so that all have about as many."""
    return [list(windows[number::splitters]) for number in range(splitters)]


@dataclass
class Reading:
    """The windows of one splitter, read when they are asked for, and what that took."""

    source: str
    paths: Sequence[Path]
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Window]:
        for path in self.paths:
            begin = time.process_time()
            rows = read_file(path)
            self.seconds += time.process_time() - begin
            yield Window(self.source, rows, None, str(path))


# --- one epoch -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """What an epoch took, in seconds of a processor."""

    splitting: Sequence[float]  # of every splitter, reading included
    merging: Sequence[float]  # of every slot
    work: Work
    reading: float = 0.0  # of all splitters
    opening: float = 0.0  # of the blocks that they wrote


Run = Callable[[Epoch, StateStore], Sequence[Message]]


def turn(subject: Subject, slots: int, run: Run) -> tuple[list[Report], float]:
    """An epoch that takes all there is and ends; its reports, and what it takes to open the blocks that were sent."""
    found: list[tuple[list[Report], float]] = []
    with scratch.temporary("profile") as folder, StateStore.open(folder / "state", fsync=False) as store:

        def execute(epoch: Epoch) -> Sequence[Message]:
            messages = run(epoch, store)
            reports = [message.read(Report) for message in messages]
            found.append((reports, _opening(reports, store)))
            return messages

        driver = Driver(subject.plan, {"operators": []}, store, {}, Settings(slots, bounded=True))
        driver.run(Position("profile"), execute, final=True)
    return found[-1]


def _opening(reports: Sequence[Report], store: StateStore) -> float:
    """Seconds of a processor to open, for the first time, what the splitters wrote."""
    blocks = [added.block for report in reports if report.task.stage == 0 for added in report.added]
    reader = BlockReader(store.storage)
    begin = time.process_time()
    for block in blocks:
        reader.open(block)
    return time.process_time() - begin


def turn_here(subject: Subject, windows: Sequence[Path], splitters: int) -> Turn:
    """In this process: so many splitters one after the other, then one slot that is sent everything."""
    readings = [Reading(subject.source.name, paths) for paths in dealt(windows, splitters)]
    reports, opening = turn(subject, 1, lambda epoch, store: execute_locally(epoch, readings, store.storage))
    return _turn(reports, sum(each.seconds for each in readings), opening)


def turn_on_spark(subject: Subject, sc: Any, windows: Sequence[Path], p: int) -> Turn:
    """p splitters side by side, then p slots side by side, in processes of their own.

    Each is given the whole sample, as much as one alone: what a task gathers before it writes has a cost of its own.
    """
    from headrace.engine import spark

    found = [(path, path.stat()) for path in windows]
    files = [Taken(subject.source.name, path, stat.st_size, stat.st_mtime_ns) for path, stat in found]
    rows = spark.file_rows(sc, files * p, Splitters(p, max(file.bytes for file in files)))
    reports, _ = turn(subject, p, lambda epoch, _: spark.execute(sc, rows, epoch))
    return _turn(reports)


def _turn(reports: Sequence[Report], reading: float = 0.0, opening: float = 0.0) -> Turn:
    at = [[report.cpu for report in reports if (report.task.stage > 0) == later] for later in (False, True)]
    return Turn(at[0], at[1], total(report.work for report in reports), reading, opening)


# --- W ---------------------------------------------------------------------------------------------------------------------


def find_window(subject: Subject, sample: pa.Table, folder: Path, rounds: int, tell: Tell) -> list[Step]:
    """W by doubling, on part of the sample."""
    sample = sample.slice(0, max(1, SEARCHED // arrow.row_bytes(sample)))
    most = max(1, int(sample.nbytes) // FEWEST)
    cut: dict[int, list[Path]] = {}

    def rate(W: int) -> float:
        if W not in cut:
            cut[W] = cut_windows(subject, sample, W, folder / f"{W}")
        return float(sample.num_rows / sum(turn_here(subject, cut[W], 1).splitting))

    least = min(LEAST_WINDOW, most)
    rate(least)  # nothing is warm
    return doubled(rate, least, most, rounds, tell)


def doubled(
    rate: Callable[[int], float], least: int, most: int, rounds: int, tell: Tell = lambda _: None
) -> list[Step]:
    """Windows twice as large, again and again, until that gains nothing or they are as large as they may be."""
    steps = [Step(least, rate(least))]
    while not steps[-1].enough and (larger := 2 * steps[-1].W) <= most:
        steps.append(_compared(rate, larger, rounds))
        tell(f"W = {steps[-1].W >> 10:,} KiB: {steps[-1].gain:+.2%} in rate, noise {steps[-1].noise:.2%}")
    return steps


def _compared(rate: Callable[[int], float], W: int, rounds: int) -> Step:
    """With half of it, in turn: what else the machine does falls on both. More rounds while it may all be chance."""
    pairs: list[tuple[float, float]] = []
    for _ in range(MORE):
        pairs += [(rate(W // 2), rate(W)) for _ in range(rounds)]
        gain, noise = gained([after / before - 1 for before, after in pairs])
        if not ENOUGH <= gain < noise:
            break
    return Step(W, statistics.median(after for _, after in pairs), gain, noise)


def gained(gains: Sequence[float]) -> tuple[float, float]:
    """The median of gains that were measured side by side, and how far a median of as many is off by chance."""
    median = statistics.median(gains)
    spread = SIGMA * statistics.median(abs(gain - median) for gain in gains)
    return median, 1.25 * spread / math.sqrt(len(gains))


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and its noise as a share of it."""
    median = statistics.median(values)
    return median, gained([value / median - 1 for value in values])[1]


def chosen(steps: Sequence[Step]) -> int:
    """The last W that was better than half of it."""
    return [step.W for step in steps if not step.enough][-1]


# --- costs -----------------------------------------------------------------------------------------------------------------


def measure_costs(
    subject: Subject, sample: pa.Table, windows: Sequence[Path], rounds: int
) -> tuple[Costs, Split, float]:
    """The terms of equations 2 to 4, the shares, and the noise of the rate of one splitter."""
    turns: dict[int, list[Turn]] = {splitters: [] for splitters in SPLITTERS}
    steps = []
    for _ in range(rounds):
        for splitters, found in turns.items():
            found.append(turn_here(subject, windows, splitters))
        steps.append(_stepping(subject, sample))
    split = _shares(subject, turns[1][0].work, sample.num_rows)
    _, noise = _spread([sum(each.splitting) for each in turns[1]])
    return costs_of(turns, steps, split, sample.num_rows), split, noise


def costs_of(turns: Mapping[int, Sequence[Turn]], steps: Sequence[float], split: Split, tuples: int) -> Costs:
    """Equations 3 and 4 solved for their terms: turns by their number of splitters; steps: seconds of all tuples."""

    def median(p: int, part: Callable[[Turn], float]) -> float:
        return statistics.median(map(part, turns[p])) / tuples

    cr_W, cs = median(1, lambda turn: turn.reading), statistics.median(steps) / tuples
    rest = median(1, lambda turn: sum(turn.splitting)) - cr_W - cs * (split.o + split.sent)
    ce = max(rest, 0.0) / split.sent if split.sent else 0.0
    given = split.delivered or 1.0
    cr, more = _line({p: median(p, lambda turn: sum(turn.merging)) / given for p in turns})
    _, cp = _line({p: median(p, lambda turn: turn.opening) / given for p in turns})
    return Costs(cr_W=cr_W, cs=cs, ce=ce, cr=cr, cp=min(cp, more), cm=max(more - cp, 0.0), cr_PR=0.0)


def _stepping(subject: Subject, sample: pa.Table) -> float:
    """Seconds of a processor for what is done with tuples before they are sent: map, filter, broadcast and route."""
    tuples = as_tuples(sample, subject.source, subject.source.reads(whole=False))
    seconds: list[float] = []

    def execute(epoch: Epoch, store: StateStore) -> Sequence[Message]:
        task = Task(0, 0, 0, store.storage, BlockReader(store.storage))
        aside = Aside(epoch, task, TaskReport(task.itself, task.stamp))
        begin = time.process_time()
        for piece in arrow.cut(tuples):
            Walk(aside, piece, [subject.edge]).along(subject.edge)
        seconds.append(time.process_time() - begin)
        return execute_locally(epoch, [[]], store.storage)

    turn(subject, 1, execute)
    return seconds[0]


def _shares(subject: Subject, work: Work, tuples: int) -> Split:
    """What the split did with the tuples; those that were filtered out before it went nowhere too."""
    routed, for_all, _ = work.split.get(subject.step.name, [0, 0, 0])
    r, b = routed / tuples, for_all / tuples
    q = subject.step.substreams
    return Split(q, r, b, max(1 - r - b, 0.0), q if subject.step.replicate else 1, 1)


def _line(points: dict[int, float]) -> tuple[float, float]:
    """Where a line through the points begins, and how steep it is: neither below zero."""
    slope, start = np.polyfit(list(points), list(points.values()), 1)
    if slope <= 0:
        return statistics.median(points.values()), 0.0
    return (float(start), float(slope)) if start >= 0 else (0.0, float(np.mean([y / x for x, y in points.items()])))


# --- side by side ------------------------------------------------------------------------------------------------------------


def run_beside(
    subject: Subject, found: Profile, sc: Any, windows: Sequence[Path], rounds: int, ps: Iterable[int] = (1, 2)
) -> list[Ran]:
    """p splitters on Spark: their rate, and equation 7, as they are and as the model has them."""
    turns: dict[int, list[Turn]] = {p: [] for p in ps}
    for each in turns:
        turn_on_spark(subject, sc, windows, each)  # nothing is warm
    for _ in range(rounds):
        for each, known in turns.items():
            known.append(turn_on_spark(subject, sc, windows, each))
    return [_ran(found, each, known) for each, known in turns.items()]


def _ran(found: Profile, p: int, turns: Sequence[Turn]) -> Ran:
    rate, noise = _spread([p * found.tuples / max(each.splitting) for each in turns])
    shares = [parasplit.eta(1, 1, 0.0, sum(each.splitting), sum(each.merging)) for each in turns]  # each kind as one
    return Ran(p, rate, noise, found.in_turn(p).PS, statistics.median(shares), found.efficiency(p))


# --- all of it -----------------------------------------------------------------------------------------------------------------


def profile(
    roots: Sequence[nodes.Node],
    wanted: float,
    *,
    sc: Any | None = None,
    tuples: int = TUPLES,
    W: int | None = None,
    rounds: int = ROUNDS,
    tell: Tell = lambda _: None,
) -> Profile:
    """W, the costs and the number of splitters for a rate; sc: a Spark context, to run splitters side by side."""
    subject = Subject.of(roots)
    sample = take_sample(subject, tuples)
    tell(f"sample: {sample.num_rows:,} tuples of {subject.source.name}, {sample.nbytes / 2**20:,.1f} MiB")
    with scratch.temporary("windows") as folder:
        steps = [] if W else find_window(subject, sample, folder / "search", rounds, tell)
        W = W or chosen(steps)
        windows = cut_windows(subject, sample, W, folder / "windows")
        tell(f"measuring costs with {len(windows):,} windows of {W >> 10:,} KiB")
        costs, split, noise = measure_costs(subject, sample, windows, rounds)
        found = Profile(
            source=subject.source.name,
            words=subject.words,
            tuples=sample.num_rows,
            row_bytes=arrow.row_bytes(sample),
            wanted=wanted,
            steps=steps,
            W=W,
            costs=costs,
            noise=noise,
            split=split,
        )
        if sc is None:
            return found
        tell("running splitters side by side")
        return replace(found, ran=tuple(run_beside(subject, found, sc, windows, rounds)))
