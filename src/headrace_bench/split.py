"""The benchmark of splits: Linear Road tuples are routed by expressway, some broadcast, with all columns, to a
processor that counts.

Every variant is headrace or Spark on the same tuples, in a separate process, in alternating rounds: few and many
substreams, one file per epoch and sixteen, a plain route and one ten times as expensive, Spark unsorted and sorted like
headrace. The rate is compared with a bare scan of the same files, and the cost of the expensive route with the time
that DuckDB takes for it alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as dataset

from headrace_bench import answers, claims, compare, roads, summary, systems
from headrace_bench.claims import Claim
from headrace_bench.measure import Spread
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Report, Series, number
from headrace_bench.roads import BALANCE, REPORT, ROUND, Roads
from headrace_bench.running import CORES, OK, JudgedCase, Outcome, alternating, judged, run_once, scratch, told
from headrace_bench.summary import Line
from headrace_bench.systems import System
from headrace_bench.task import Case, Query

SIDE = "reports"
FILES = 16
LINKS = 12  # length of the chain that makes a route more than ten times as expensive
PLAIN = f"CASE WHEN type = {REPORT} THEN xway END"
BROADCAST = f"type = {BALANCE}"
LITTLE = "rehearsal"
REPEATS = 5  # repetitions of what is measured in this process
FEW = 8  # substreams
BASE = f"q = {FEW}"
ONE_FILE, EXPENSIVE, ONE_SPLITTER = f"{BASE}, one file an epoch", f"{BASE}, an expensive route", f"{BASE}, one splitter"
PARQUET, SPARK, SORTED = (f"{BASE}, Parquet, {who}" for who in ("headrace", "Spark", "Spark sorted"))


def expensive_route(substreams: int) -> str:
    """Return an expensive route with the plain route's values: it adds arithmetic that DuckDB cannot simplify."""
    chain = "pos"
    for _ in range(LINKS):
        chain = f"({chain} * 31 + 7) % 65521"
    return f"CASE WHEN type = {REPORT} THEN (xway + {substreams} * ({chain})) % {substreams} END"


@dataclass(frozen=True)
class Size:
    rate: int  # tuples per second of event time
    seconds: int  # seconds per epoch
    warm: int  # epochs
    measured: int
    many: int  # substreams of the variant with many
    rehearsed: int  # small epochs before the others

    @property
    def per_epoch(self) -> int:
        return self.rate * self.seconds


FULL = Size(rate=13_635, seconds=300, warm=3, measured=6, many=512, rehearsed=40)  # 8 expressways at their peak
QUICK = Size(rate=1_010, seconds=30, warm=1, measured=2, many=32, rehearsed=2)


@dataclass(frozen=True)
class Variant:
    case: Case
    system: System

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def roads(self) -> Roads:
        assert isinstance(self.case.streams, Roads)
        return self.case.streams


def variants(size: Size) -> list[Variant]:
    def made(name: str, system: System, substreams: int = FEW, route: str = PLAIN, **options: Any) -> Variant:
        options = {"files": FILES, **options}
        stream = Roads((SIDE,), size.rate, size.seconds, size.warm + size.measured, substreams, gap=1.0, **options)
        query = Query("split", every=size.seconds, substreams=substreams, route=route, broadcast=BROADCAST)
        return Variant(Case(name, stream, query, size.warm), system)

    ours = systems.HEADRACE
    return [
        made(BASE, ours),
        made(f"q = {size.many}", ours, size.many),
        made(ONE_FILE, ours, files=1),
        made(EXPENSIVE, ours, route=expensive_route(FEW)),
        made(PARQUET, ours, form="parquet"),
        made(SPARK, systems.SPARK_SPLIT, form="parquet"),
        made(SORTED, systems.SPARK_IN_SEQUENCE, form="parquet"),
        made(ONE_SPLITTER, systems.HEADRACE_ONE_SPLITTER),
    ]


# --- measuring -----------------------------------------------------------------------------------------------------


def run(options: Options) -> Report:
    size = QUICK if options.quick else scaled(FULL, options.size)
    chosen = options.wanted(variants(size))
    with ExitStack() as stack:
        folders = {}
        for stream in dict.fromkeys(variant.roads for variant in chosen):
            what = f"{stream.keys} expressways, {stream.form}, files an epoch: {stream.files}"
            options.say(f"writing {stream.tuples:,} tuples, {stream.tuples * roads.BYTES / 1e9:.1f} GB: {what}")
            folders[stream] = stack.enter_context(scratch("data"))
            roads.write(stream, folders[stream])
            roads.write(rehearsal(stream, size), folders[stream] / LITTLE)
        outcomes, scans = _rounds(chosen, folders, size, options)
        options.say("counting the same by DuckDB ...")
        found = _judged(chosen, outcomes, folders)
    alone = routes_alone(chosen[0].roads) if EXPENSIVE in outcomes else {}
    return reported(size, found, Spread.of(scans), alone)


def rehearsal(stream: Roads, size: Size) -> Roads:
    """Return small epochs that every process runs first, so that its virtual machine has compiled the code."""
    return replace(stream, rate=QUICK.rate, seconds=ROUND, epochs=size.rehearsed)


def scaled(size: Size, times: float) -> Size:
    """Return epochs of a multiple of the length, in whole rounds, with the same traffic."""
    return replace(size, seconds=max(1, round(size.seconds * times / ROUND)) * ROUND)


def _rounds(
    chosen: Sequence[Variant], folders: Mapping[Roads, Path], size: Size, options: Options
) -> tuple[dict[str, list[Outcome]], list[float]]:
    outcomes: dict[str, list[Outcome]] = {variant.name: [] for variant in chosen}
    scans = []
    for turn in range(options.rounds):
        for variant in alternating(chosen, turn):
            if any(outcome.tuples_per_second is None for outcome in outcomes[variant.name]):
                continue  # there was nothing to measure
            options.say(f"{variant.name}: round {turn + 1} of {options.rounds} ...")
            folder = folders[variant.roads]
            little = {"source": str(folder / LITTLE), "tuples": rehearsal(variant.roads, size).tuples}
            files = variant.roads.files
            found = run_once(variant.system, variant.case, folder, files_per_epoch=files, rehearsal=little)
            outcomes[variant.name].append(found)
            options.say(f"{variant.name}: {told(found)}")
        scans.append(scanned(folders[chosen[0].roads] / SIDE))
        options.say(f"a bare scan: {scans[-1]:,.0f} tuples/s")
    return outcomes, scans


def scanned(folder: Path) -> float:
    """Return the tuples per second of reading all columns of all files, and nothing else."""
    files = sorted(folder.glob("part-*"))
    began = time.monotonic()
    with ThreadPoolExecutor(CORES) as pool:
        rows = sum(pool.map(_read, files))
    return rows / (time.monotonic() - began)


def _read(path: Path) -> int:
    return int(dataset.dataset(str(path), format=path.suffix.lstrip(".")).to_table(use_threads=False).num_rows)


def routes_alone(stream: Roads) -> dict[str, float]:
    """Return the CPU seconds that DuckDB takes for a million tuples, by route."""
    one = stream.round(0).select(["type", "xway", "pos"])
    columns = pa.concat_tables([one] * -(-(10**6) // len(one)))
    took: dict[str, list[float]] = {PLAIN: [], expensive_route(FEW): []}
    with duckdb.connect() as connection:
        connection.execute("set threads = 1")
        connection.register("tuples", columns)
        for _ in range(REPEATS):
            for route, seconds in took.items():
                began = time.process_time()
                connection.sql(f"select {route} from tuples").to_arrow_table()
                seconds.append((time.process_time() - began) / len(columns) * 1e6)
    plain, other = (statistics.median(seconds) for seconds in took.values())
    return {"plain": plain, "expensive": other}


# --- judging -------------------------------------------------------------------------------------------------------


def _judged(
    chosen: Sequence[Variant], outcomes: Mapping[str, Sequence[Outcome]], folders: Mapping[Roads, Path]
) -> list[JudgedCase]:
    right, went, found = {}, {}, []
    for variant in chosen:
        asked, folder = (variant.roads, variant.case.query), folders[variant.roads]
        if asked not in right:  # reads all files
            right[asked], went[asked] = answers.expected(variant.case, folder), shares(asked[1], folder / SIDE)
        case = replace(variant.case, facts=went[asked])
        found.append(judged(case, outcomes[variant.name], right[asked]))
    return found


def shares(query: Query, folder: Path) -> dict[str, float]:
    """Return the shares of tuples that go to one substream, to all and to none."""
    to_all, route = f"coalesce({query.broadcast}, false)", f"({query.route})"
    kinds = (f"not {to_all} and {route} is not null", to_all, f"not {to_all} and {route} is null")
    counts = ", ".join(f"count(*) filter ({kind}) / count(*)" for kind in kinds)
    with duckdb.connect() as connection:
        connection.execute(f"set threads = {CORES}; set enable_progress_bar = false")
        connection.register("tuples", answers.scan(folder))
        found = connection.execute(f"select {counts} from tuples").fetchone()
    assert found is not None
    return dict(zip(("routed", "broadcast", "omitted"), found, strict=True))


# --- showing -------------------------------------------------------------------------------------------------------


def reported(size: Size, found: Sequence[JudgedCase], scan: Spread, alone: Mapping[str, float]) -> Report:
    lines = {measured.case.name: summary.lines(measured)[0] for measured in found}
    good = {name: line for name, line in lines.items() if line.ok}
    made = [("split", claim) for claim in _claims(size, good, alone)]
    grids = [grid for grid in (claims.grid(made), _grid(found, lines), _ratios(good, scan)) if grid.rows]
    data = {
        **compare.data(found),
        "size": asdict(size) | {"per_epoch": size.per_epoch},
        "claims": claims.to_json(made),
        "ratios": dict(_pairs(good, scan)),
        "scan": asdict(scan),
        "routes_alone": dict(alone),
    }
    title = "Splitting a stream: Linear Road tuples by expressway, 15 columns"
    return Report("split", title, _notes(size, found, alone), grids, data, [_panel(good, scan)])


def _claims(size: Size, good: Mapping[str, Line], alone: Mapping[str, float]) -> list[Claim]:
    found = []
    for name, least in ((BASE, 6.0), (f"q = {size.many}", 4.0)):
        if name in good:
            found.append(claims.at_least(f"{name}: million tuples/s", least, good[name].rate / 1e6))
    if {BASE, ONE_FILE} <= good.keys():
        found.append(claims.at_least("one file an epoch, beside sixteen", 0.9, good[ONE_FILE].rate / good[BASE].rate))
    if {BASE, EXPENSIVE} <= good.keys():
        plain, other = (good[name].figure("cpu_per_million").median for name in (BASE, EXPENSIVE))
        extra = (other - plain) / (alone["expensive"] - alone["plain"])
        found.append(
            claims.at_most("extra processor time of an expensive route, in what it takes alone", 1, extra, " x")
        )
    return found


def _pairs(good: Mapping[str, Line], scan: Spread) -> list[tuple[str, float]]:
    """Return the compared pairs and the ratio of their rates."""
    asked = [(BASE, ONE_FILE), (PARQUET, SPARK), (PARQUET, SORTED), (BASE, ONE_SPLITTER)]
    found = [(f"{a} : {b}", good[a].rate / good[b].rate) for a, b in asked if {a, b} <= good.keys()]
    return found + ([(f"{BASE} : a bare scan", good[BASE].rate / scan.median)] if BASE in good else [])


def _ratios(good: Mapping[str, Line], scan: Spread) -> Grid:
    return Grid("ratios of tuples/s", ["", ">times"], [[what, f"{ratio:.2f}"] for what, ratio in _pairs(good, scan)])


def _grid(found: Sequence[JudgedCase], lines: Mapping[str, Line]) -> Grid:
    headings = ["variant", ">tuples/s", ">spread", ">CPU s/M", ">memory", ">delivered/s", ">answers"]
    return Grid("input tuples per second", headings, [_row(each, lines[each.case.name]) for each in found])


def _row(measured: JudgedCase, line: Line) -> list[str]:
    if not line.measured:
        return [f"{line.outcomes[0].system}, {measured.case.name}: {line.status}", *[""] * 6]
    rate = line.figure("tuples_per_second")
    facts, substreams = measured.case.facts, measured.case.query.substreams
    delivered = facts["routed"] + substreams * facts["broadcast"]
    return [
        measured.case.name,
        number(rate.median),
        f"{number(rate.least)} .. {number(rate.most)}",
        number(line.figure("cpu_per_million").median),
        f"{line.figure('peak_mb').median:,.0f} MB",
        number(rate.median * delivered),
        "right" if line.status == OK else line.status,
    ]


def _panel(good: Mapping[str, Line], scan: Spread) -> Panel:
    rates = {name: line.figure("tuples_per_second") for name, line in good.items()} | {"a bare scan": scan}
    spread = list(rates.values())
    bars = Series(
        "tuples/s", list(rates), [r.median for r in spread], [r.least for r in spread], [r.most for r in spread]
    )
    return Panel("", "", "input tuples per second", [bars], ours=BASE)


def _notes(size: Size, found: Sequence[JudgedCase], alone: Mapping[str, float]) -> list[str]:
    went = ", ".join(f"{share:.2%} {what}" for what, share in found[0].case.facts.items())
    dearer = (
        [
            f"routes alone, by DuckDB in one thread: {alone['plain']:.4f} and {alone['expensive']:.4f} s of processor time a"
            f" million tuples, {alone['expensive'] / alone['plain']:.1f} times as much"
        ]
        if alone
        else []
    )
    return [
        f"epochs of {size.per_epoch:,} tuples, {size.seconds} s of traffic at {size.rate:,} tuples/s, in {FILES} files"
        f" or in one; {size.rehearsed} small ones and {size.warm} such to get warm, {size.measured} measured; CPU and"
        " memory: of all processes of a system",
        f"{found[0].case.name}: {went}; delivered: to processors, a tuple for all once in each substream",
        "answers: how many tuples of each type came to every substream in every epoch, as DuckDB counts them in the"
        " files",
        "headrace: in sequence, counts in a keyed table, every epoch committed; Spark: exploded by the substreams of a"
        " tuple, repartitionById, mapInArrow, no state; sorted: sortWithinPartitions by time before it",
        f"a bare scan: all columns of the files of the first variant, {CORES} threads",
        *dearer,
        *compare.about(found),
    ]
