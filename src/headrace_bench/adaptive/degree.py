"""The number of slots under a changing load: a join on Spark with slots="auto", fed in real time at a rate that rises
eightfold and falls.

The left stream keeps its rate, so the number of compared pairs, which is the work, grows linearly with the rate of the
right stream and not quadratically.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from headrace.control.policy import Policy
from headrace.errors import HeadraceError
from headrace_bench import claims, feed
from headrace_bench.adaptive.local import SIDES
from headrace_bench.claims import Claim, Found
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Series, number
from headrace_bench.running import CORES, OK, at_work, scratch
from headrace_bench.systems import HEADRACE
from headrace_bench.task import Query
from headrace_demo.workloads import Uniform, Workload, ramp

TIMES, STEPS = 8, 6
PER_SECOND = 2  # files of each stream per second, and epochs per second
ON = "l.key = r.key and greatest(l.value, r.value) > 999.9"  # no compiled loop supports it, so pairs are expensive
NEAR = 10  # epochs before and after an epoch that it is compared with
GRACE = 30.0  # seconds after the last file


@dataclass(frozen=True)
class Size:
    steady: int  # tuples per second of the left stream
    low: int  # lowest tuples per second of the right stream
    step: int  # seconds for which a rate lasts
    within: int  # seconds
    keys: int
    most: int  # most slots

    @property
    def seconds(self) -> int:
        return self.step * len(self.rates)

    @property
    def rates(self) -> tuple[float, ...]:
        """Return rates that rise and fall, followed by a period at the lowest rate, because slots are removed more
        slowly than added.
        """
        return (*ramp(self.low, TIMES, STEPS), *[self.low] * 4)

    def workloads(self) -> list[Workload]:
        keys = Uniform(self.keys)
        return [
            Workload(self.steady, keys, name=SIDES[0]),
            Workload(self.rates, keys, every=self.step, name=SIDES[1]),
        ]


FULL = Size(5_000, 2_500, 9, 20, 100, 4)
QUICK = Size(100, 50, 1, 2, 10, 2)


@dataclass(frozen=True)
class Epoch:
    """One epoch of the run. `decided`: the number of decisions that took effect in it."""

    epoch: int
    at: float  # wall-clock time at its end
    taken: int
    milliseconds: float
    slots: int
    decided: int


@dataclass(frozen=True)
class Course:
    """The course of a run over the ramp."""

    epochs: list[Epoch]
    offered: list[tuple[float, float]]  # (wall-clock time, tuples per second)
    differing: int  # missing and wrong results


def reversals(slots: Sequence[int]) -> int:
    """Return how often the direction of change reversed.

    >>> reversals([1, 2, 2, 3, 2, 1]), reversals([1, 2, 1, 2])
    (1, 2)
    """
    steps = [b - a for a, b in pairwise(slots) if b != a]
    return sum(a * b < 0 for a, b in pairwise(steps))


def longest_after_a_decision(epochs: Sequence[Epoch]) -> float:
    """Return the longest epoch in which a decision took effect, relative to the median of the epochs around it, or 0."""
    found = [0.0]
    for index, each in enumerate(epochs):
        near = [*epochs[max(0, index - NEAR) : index], *epochs[index + 1 : index + 1 + NEAR]]
        if each.decided and near:
            found.append(each.milliseconds / statistics.median(e.milliseconds for e in near))
    return max(found)


# --- the run -------------------------------------------------------------------------------------------------------


def followed(size: Size) -> Course:
    with scratch("live") as folder, scratch("run") as work:
        staged, shown = folder / "staged", folder / "shown"
        names = _stage(size, staged)
        rows = [sum(pq.read_metadata(staged / name).num_rows for name in moment) for moment in names]
        _show(staged, shown, names[0])
        task = _task(size, shown, work, sum(rows))
        with at_work(HEADRACE, task, "") as (started, _):
            begun = feed.wait(lambda: feed.done(work) > 0 or started.poll() is not None, feed.START_LIMIT)
            if not begun or started.poll() is not None:
                raise HeadraceError(f"the run did not start: {feed.last_line(work)}")
            arrivals = feed.appear(staged, shown, names[1:], 1 / PER_SECOND)
            feed.wait(lambda: started.poll() is not None, GRACE)
            (work / "stop").touch()
            feed.wait(lambda: started.poll() is not None, GRACE)
        if not (work / "epochs.json").exists():
            raise HeadraceError(f"the run did not end well: {feed.last_line(work)}")
        offered = [(at, float(count * PER_SECOND)) for at, count in zip(arrivals, rows[1:], strict=True)]
        return Course(_epochs(work), offered, _differing(size, shown, work / "out"))


def _stage(size: Size, staged: Path) -> list[list[Path]]:
    """Write all files. Return their names by the moment at which they appear."""
    for workload in size.workloads():
        workload.write(staged / workload.name, size.seconds, files_per_second=PER_SECOND)
    by_side = [sorted(p.relative_to(staged) for p in (staged / side).glob("*.parquet")) for side in SIDES]
    return [[file for file in files if file is not None] for files in zip_longest(*by_side)]


def _show(staged: Path, shown: Path, names: Sequence[Path]) -> None:
    """Make the first file of each stream visible before the run begins."""
    for name in names:
        (shown / name).parent.mkdir(parents=True)
        (staged / name).rename(shown / name)


def _task(size: Size, shown: Path, work: Path, tuples: int) -> Path:
    task = {
        **asdict(Query("join", on=ON, within=size.within)),
        "sides": SIDES,
        "tuples": tuples,
        "source": str(shown),
        "work": str(work),
        "cores": CORES,
        "slots": "auto",
        "most_slots": size.most,
        "epoch": f"{1000 // PER_SECOND} milliseconds",
        "files_per_epoch": None,
        "watch": True,
    }
    path = work / "task.json"
    path.write_text(json.dumps(task))
    return path


def _epochs(work: Path) -> list[Epoch]:
    found = json.loads((work / "epochs.json").read_text())
    return [Epoch(e["epoch"], e["at"], e["taken"], e["milliseconds"], e["slots"], e["decided"]) for e in found]


def _differing(size: Size, shown: Path, out: Path) -> int:
    """Return the number of results that only DuckDB, over the same files, or only the run found."""
    left, right = (f"read_parquet('{shown / side}/*.parquet')" for side in SIDES)
    reach = f"interval {size.within} seconds"
    on = f"{ON} and r.ts between l.ts - {reach} and l.ts + {reach}"
    right_answer = f"select l.payload a, r.payload b from {left} l join {right} r on {on}"
    with duckdb.connect() as connection:
        connection.execute(f"set threads = {CORES}; set enable_progress_bar = false")
        connection.execute(f"create temp table expected as {right_answer}")
        given = f"select l_payload a, r_payload b from read_parquet('{out}/*.parquet')"
        files = any(out.glob("*.parquet"))
        connection.execute(f"create temp table given as {given if files else 'select * from expected limit 0'}")
        missing = "select a, b from expected except all select a, b from given"
        more = "select a, b from given except all select a, b from expected"
        found = connection.execute(f"select count(*) from (({missing}) union all ({more}))").fetchone()
    assert found is not None
    return int(found[0])


# --- showing -------------------------------------------------------------------------------------------------------


def run(options: Options) -> Found:
    size = QUICK if options.quick else FULL
    options.say(f"degree: {size.seconds} s of streams in real time")
    found = followed(size)
    epochs, slots = found.epochs, [each.slots for each in found.epochs]
    options.say(f"degree: {len(epochs)} epochs, {min(slots)} to {max(slots)} slots, {found.differing} results differ")
    data = {"size": asdict(size), **asdict(found)}
    status = "wrong answer" if found.differing else OK
    compared = [{"case": {"name": "degree"}, "systems": [{"system": HEADRACE.name, "status": status}]}]
    return Found(_claims(epochs, found.differing), [_grid(epochs)], [_panel(found)], data, _notes(size), compared)


def _claims(epochs: Sequence[Epoch], differing: int) -> list[Claim]:
    slots = [each.slots for each in epochs]
    longest = longest_after_a_decision(epochs)
    course = f"{slots[0]}, {max(slots)} at most, {slots[-1]}"
    return [
        claims.is_true("results are those of DuckDB", differing == 0, f"{differing} differ"),
        claims.is_true("slots grow with the load and shrink again", slots[0] < max(slots) > slots[-1], course),
        claims.at_most("reversals on the way up and down", 1, reversals(slots)),
        claims.at_most("the epoch after a decision, in medians of those around it", 3, longest, " x"),
    ]


def _grid(epochs: Sequence[Epoch]) -> Grid:
    """Return a table by number of slots, in order of time."""
    stretches: list[list[Epoch]] = []
    for each in epochs:
        if stretches and stretches[-1][0].slots == each.slots:
            stretches[-1].append(each)
        else:
            stretches.append([each])
    rows = [
        [
            f"{part[0].epoch} .. {part[-1].epoch}",
            str(part[0].slots),
            number(statistics.fmean(e.taken for e in part)),
            f"{statistics.median(e.milliseconds for e in part):.0f}",
            f"{max(e.milliseconds for e in part):.0f}",
            str(sum(e.decided for e in part)),
        ]
        for part in stretches
    ]
    headings = [">epochs", ">slots", ">tuples an epoch", ">ms, median", ">ms, longest", ">decisions"]
    return Grid("degree: active slots over time", headings, rows)


def _panel(found: Course) -> Panel:
    begin = found.offered[0][0]
    load = Series("load", [at - begin for at, _ in found.offered], [rate for _, rate in found.offered])
    slots = Series("active slots", [e.at - begin for e in found.epochs], [e.slots for e in found.epochs])
    title = f"degree: one stream at {TIMES} times its rate and back, slots chosen"
    return Panel(title, "seconds", "tuples per second that arrive", [load], plain=True, steps=slots)


def _notes(size: Size) -> list[str]:
    usual = Policy()
    return [
        f"degree: {ON}, windows of {size.within} s, {size.keys} keys, {size.steady:,} tuples/s beside {size.low:,} to"
        f" {TIMES * size.low:,}; epochs of {1000 // PER_SECOND} ms, at most {size.most} slots on {CORES} cores, thresholds"
        f" {usual.supplier:g} and {usual.consumer:g} of a slot's time. The epoch after a decision is the first in"
        f" which it took effect; it is compared with the {NEAR} before and the {NEAR} after it.",
    ]
