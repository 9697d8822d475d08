"""The benchmark of large state: epochs that touch few of very many keys, what they write, and the restart of a run with
all keys.

`large state` measures headrace alone with few keys and with many, and the same number of keys touched per epoch.
`beside Spark` counts per key at full speed, with all keys in state. The final state is compared key by key, and the
results with DuckDB.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from headrace.errors import HeadraceError
from headrace_bench import claims, compare, feed, parts, processors, summary, systems, workload
from headrace_bench.claims import Claim, Found
from headrace_bench.keys import Keys
from headrace_bench.measure import Spread
from headrace_bench.options import Options
from headrace_bench.parts import Part
from headrace_bench.report import Grid, Panel, Report, Series, number, size
from headrace_bench.running import CORES, OK, JudgedCase, alternating, at_work, run_case, scratch
from headrace_bench.task import Case, Query

SIDE = "stream"
SUBSTREAMS = 64
REHEARSED = 15  # small epochs before the others, in the comparison with Spark
LIMIT = 1_800.0  # seconds for one run
Epoch = Mapping[str, float]  # figures from `state_job`
FIGURES = ("median", "longest", "written", "few_median", "few_written", "first_again", "read", "in_place", "peak_mb")


@dataclass(frozen=True)
class Sizes:
    keys: tuple[int, int]  # few, many
    touched: int  # keys touched per epoch
    load: int  # tuples per epoch while all keys are introduced
    settling: int  # further epochs that are not measured, until the virtual machine has compiled the code
    epochs: int
    few: int  # epochs with a tenth of `touched` keys, after the restart

    def stream(self, keys: int) -> Keys:
        load = min(keys, self.load)
        return Keys((SIDE,), self.touched, 1, self.settling + self.epochs, keys, gap=30.0, load=load, few=self.few)


FULL = Sizes(keys=(100_000, 10_000_000), touched=50_000, load=1_000_000, settling=30, epochs=40, few=20)
QUICK = Sizes(keys=(1_000, 5_000), touched=500, load=2_500, settling=2, epochs=4, few=4)


def scaled(sizes: Sizes, times: float) -> Sizes:
    few, many = (round(keys * times) for keys in sizes.keys)
    return replace(sizes, keys=(few, many), touched=round(sizes.touched * times), load=round(sizes.load * times))


# --- a run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """The figures of one run with this number of keys, in milliseconds and bytes per epoch."""

    keys: int
    status: str
    median: float
    longest: float
    written: float
    few_median: float  # of the epochs with a tenth of the touched keys
    few_written: float
    first_again: float  # the first epoch after the restart, which reads all state
    read: float  # task milliseconds for reading all state; 0: not reported
    in_place: float  # share of tables in measured epochs that were still in memory
    peak_mb: float
    epochs: Mapping[str, Sequence[Epoch]]


def held(sizes: Sizes, keys: int) -> Held:
    stream = sizes.stream(keys)
    with scratch("data") as folder, scratch("run") as work:
        source, later = folder / "source", folder / "later"
        workload.write(stream, source)
        later.mkdir()
        for file in sorted((source / SIDE).iterdir())[stream.loads + stream.epochs :]:
            file.rename(later / file.name)
        task = _task(stream, source, later, work)
        with at_work(systems.HEADRACE_STATE, task, "") as (started, meter):
            ended = feed.wait(lambda: started.poll() is not None, LIMIT)
        if not ended or not (work / "epochs.json").exists():
            raise HeadraceError(f"the run with {stream.keys:,} keys did not end well: {feed.last_line(work)}")
        epochs = json.loads((work / "epochs.json").read_text())
        status = OK if is_right(stream, work / "checkpoint") else "wrong answer"
        taken = [epoch for epoch in epochs["first"] if epoch["tuples"]]
        return figures(keys, taken[stream.loads + sizes.settling :], epochs["again"], status, meter.peak / 2**20)


def _task(stream: Keys, source: Path, later: Path, work: Path) -> Path:
    task = {
        "source": str(source),
        "later": str(later),
        "work": str(work),
        "side": SIDE,
        "cores": CORES,
        "substreams": SUBSTREAMS,
        "first": stream.tuples - stream.fewer * stream.few,
        "tuples": stream.tuples + 1,  # including the tuple that moves the watermark
    }
    path = work / "task.json"
    path.write_text(json.dumps(task))
    return path


def is_right(stream: Keys, checkpoint: Path) -> bool:
    """Return whether the state contains every key with its count."""
    found = hr.read_state(checkpoint, "apply-1", "counts")
    keys, counts = found["key"].to_numpy(), stream.counts()
    whole = len(keys) == stream.keys and np.array_equal(np.sort(keys), np.arange(stream.keys))
    return bool(whole and np.array_equal(counts[keys], found["n"].to_numpy()))


def figures(keys: int, measured: Sequence[Epoch], again: Sequence[Epoch], status: str, peak_mb: float) -> Held:
    """Return the figures. `measured`: epochs of the first start; `again`: all epochs of the second."""
    cold, *few = [e for e in again if e["tuples"] > 1]  # excludes an epoch with only the last tuple
    took, found = [e["milliseconds"] for e in measured], sum(e["found"] for e in measured)
    return Held(
        keys=keys,
        status=status,
        median=statistics.median(took),
        longest=max(took),
        written=statistics.fmean(e["written"] for e in measured),
        few_median=statistics.median(e["milliseconds"] for e in few),
        few_written=statistics.fmean(e["written"] for e in few),
        first_again=cold["milliseconds"],
        read=1000 * cold["read"],
        in_place=found / max(1, found + sum(e["built"] for e in measured)),
        peak_mb=peak_mb,
        epochs={"first": measured, "again": again},
    )


# --- large state ---------------------------------------------------------------------------------------------------


def large(options: Options) -> Found:
    sizes = QUICK if options.quick else scaled(FULL, options.size)
    found: dict[int, list[Held]] = {keys: [] for keys in sizes.keys}
    for turn in range(options.rounds):
        for keys in alternating(sizes.keys, turn):
            options.say(f"{keys:,} keys: round {turn + 1} of {options.rounds} ...")
            found[keys].append(each := held(sizes, keys))
            told = f"median {each.median:.0f} ms, longest {each.longest:.0f} ms, {size(each.written)} written an epoch"
            options.say(
                f"{keys:,} keys: {each.status}, {told}, first epoch of the second start {each.first_again:.0f} ms"
            )
    return reported(sizes, found)


def reported(sizes: Sizes, found: Mapping[int, Sequence[Held]]) -> Found:
    middle = {keys: {name: _spread(runs, name).median for name in FIGURES} for keys, runs in found.items()}
    data = {"sizes": asdict(sizes), "medians": middle, "runs": [asdict(run) for runs in found.values() for run in runs]}
    statuses = [
        {"case": {"name": f"{keys:,} keys"}, "systems": [{"system": "headrace", "status": run.status} for run in runs]}
        for keys, runs in found.items()
    ]
    wrong = sum(run.status != OK for runs in found.values() for run in runs)
    made = [claims.is_true("every key has its count", not wrong, f"{wrong} runs differ"), *_claims(sizes, middle)]
    return Found(made, [_grid(found)], [_panel(found)], data, _notes(sizes), statuses)


def _spread(runs: Sequence[Held], name: str) -> Spread:
    return Spread.of(getattr(run, name) for run in runs)


def _claims(sizes: Sizes, middle: Mapping[int, Mapping[str, float]]) -> list[Claim]:
    few, many = (middle[keys] for keys in sizes.keys)
    beside = f"{sizes.keys[1]:,} keys beside {sizes.keys[0]:,}"
    return [
        claims.at_most(f"{beside}: the median epoch", 1.5, many["median"] / few["median"], " x"),
        claims.at_most(f"{beside}: the longest epoch", 1.5, many["longest"] / few["longest"], " x"),
        claims.at_most(f"{beside}: bytes written in an epoch", 1.5, many["written"] / few["written"], " x"),
        claims.at_most("a tenth of the rows touched: bytes written", 0.2, many["few_written"] / many["written"], " x"),
    ]


def _grid(found: Mapping[int, Sequence[Held]]) -> Grid:
    headings = [
        ">keys",
        ">ms, median",
        ">ms, longest",
        ">written",
        ">with a tenth",
        ">ms",
        ">again, ms",
        ">reading, ms",
        ">in place",
        ">memory",
    ]
    rows = [
        [
            f"{keys:,}",
            number(_spread(runs, "median").median),
            number(_spread(runs, "longest").median),
            size(_spread(runs, "written").median),
            size(_spread(runs, "few_written").median),
            number(_spread(runs, "few_median").median),
            number(_spread(runs, "first_again").median),
            number(_spread(runs, "read").median),
            f"{_spread(runs, 'in_place').median:.0%}",
            f"{_spread(runs, 'peak_mb').median:,.0f} MB",
        ]
        for keys, runs in found.items()
    ]
    return Grid("large state: an epoch, by the number of keys that are held", headings, rows)


def _panel(found: Mapping[int, Sequence[Held]]) -> Panel:
    names = [f"{keys:,} keys" for keys in found]
    bars = [
        Series(label, names, [_spread(runs, name).median for runs in found.values()])
        for label, name in (("median", "median"), ("longest", "longest"), ("first of a second start", "first_again"))
    ]
    return Panel("large state: epochs that touch some of the keys", "", "milliseconds", bars)


def _notes(sizes: Sizes) -> list[str]:
    return [
        f"large state: a count per key by row numbers in place, {SUBSTREAMS} substreams on {CORES} slots; after all keys"
        f" have come once, and {sizes.settling} epochs more, {sizes.epochs} epochs with {sizes.touched:,} random keys"
        f" each; the run is stopped and started again, for {sizes.few} epochs with {sizes.touched // 10:,}, the first"
        " of which reads all state (again; reading: the seconds of all tasks that this took). Written: all files that"
        " an epoch leaves in the checkpoint, in the mean. In place: tables that were not read from blocks. Medians over"
        " the rounds. What is held in the end is compared with the input, key by key.",
    ]


# --- beside Spark --------------------------------------------------------------------------------------------------


def case(keys: int, per_epoch: int, measured: int) -> Case:
    """Return a case in which all keys are in state before the measurement."""
    stream = Keys((SIDE,), per_epoch, 1, measured, keys, gap=30.0, load=per_epoch)
    query = Query("count", substreams=SUBSTREAMS, in_place=True)
    name = f"count, {keys:,} keys, epochs of {per_epoch:,}"
    return Case(name, stream, query, warm=stream.loads, limit=LIMIT)


def beside(options: Options) -> Found:
    processors.demand_protobuf()
    times = options.size
    chosen = case(2_000, 1_000, 2) if options.quick else case(round(1_000_000 * times), round(200_000 * times), 4)
    little = Keys((SIDE,), 500, 1, 1 if options.quick else REHEARSED, 1_000, gap=30.0, load=1_000)
    both, once = [systems.HEADRACE, systems.SPARK_PANDAS], () if options.full else (systems.SPARK_PANDAS.family,)
    with scratch("rehearsal") as folder:
        workload.write(little, folder)
        first = {"source": str(folder), "tuples": little.tuples}
        return compared(run_case(chosen, both, options.rounds, options.say, once, rehearsal=first))


def compared(found: JudgedCase) -> Found:
    lines = {line.system: line for line in summary.lines(found)}
    spark = lines[systems.SPARK_PANDAS.name]
    ratio = summary.ratio(list(lines.values()), spark)
    what = f"{found.case.name}: tuples/s, beside Spark's transformWithStateInPandas"
    made: list[Claim] = [] if ratio is None else [claims.at_least(what, 10, ratio, " x")]
    notes = [
        "beside Spark: the number of every tuple among those of its key; each process first runs it over a thousand"
        " keys, and all keys are in state before anything is measured;"
        f" headrace: {SUBSTREAMS} substreams by key, row numbers in place; Spark: a ValueState in RocksDB, changelog"
        " checkpoints, Unix domain sockets to its Python workers, one round unless --full",
        *compare.notes([found]),
    ]
    data: dict[str, Any] = {"headrace_is_times_as_fast": ratio}
    return Found(made, compare.grids([found]), [compare.panel(found)], data, notes, [summary.to_json(found)])


PARTS = (Part("large state", large), Part("beside Spark", beside))


def run(options: Options) -> Report:
    return parts.run("state", "Many keys: epochs that touch a few of them, and counting beside Spark", PARTS, options)
