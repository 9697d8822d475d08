"""The benchmark of latency: the age of results at shares of each system's highest rate, with epochs of 500 ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace_bench import systems
from headrace_bench.feed import Latency, run_live
from headrace_bench.measure import Spread
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Report, Series, number
from headrace_bench.running import alternating
from headrace_bench.systems import System
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams

SIDES = ("left", "right")
EPOCH = "500 milliseconds"
FILE = 0.1  # seconds of data per file: five files of each stream per epoch
SUSTAINED = 2.5  # seconds; a rate is sustained while p95 is below this
PARTNERS = 0.1  # matches per tuple
LOADS = (0.25, 0.5, 0.75, 0.9)
QUANTILES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class Size:
    """Durations and limits: window, warm-up (including windows) and measured time in seconds, rates in tuples/s."""

    within: int
    warm: float
    probe: float
    measured: float
    least: int
    first: int
    highest: int
    halvings: int
    loads: tuple[float, ...]


FULL = Size(5, 10, 8, 20, 1_000, 64_000, 1_024_000, 2, LOADS)
QUICK = Size(1, 2, 3, 3, 500, 500, 500, 0, ())


@dataclass(frozen=True)
class Load:
    """A load for every system: tuples per second by system name."""

    name: str
    rates: dict[str, float]


@dataclass(frozen=True)
class Measurement:
    """A system at one rate, over all rounds."""

    system: str
    load: str
    rate: float
    rounds: tuple[Latency | None, ...]

    def figure(self, name: str) -> Spread | None:
        found = [getattr(r, name) for r in self.rounds if r is not None]
        return Spread.of(found) if found and len(found) == len(self.rounds) else None

    @property
    def complete(self) -> bool:
        return all(r is not None and not r.missing for r in self.rounds)


def case(rate: float, size: Size, measured: float) -> Case:
    """Return a case with two streams of together `rate` tuples per second, in real time."""
    each = max(1.0, rate / len(SIDES))
    epochs = round((size.warm + measured) / FILE)
    keys = max(1, round(each * size.within / PARTNERS))
    streams = Streams(SIDES, each, FILE, epochs, keys, gap=10.0 * size.within)
    return Case(
        f"{rate:,.0f} tuples/s", streams, Query("join", on="l.key = r.key", within=size.within), round(size.warm / FILE)
    )


def highest_rate(system: System, size: Size, options: Options) -> float:
    """Return the highest sustained rate, or 0. It is found by doubling or halving, and then by bisection."""
    low, high = 0.0, float(size.first)
    while high <= size.highest and _keeps_up(system, high, size, options):
        low, high = high, high * 2
    while not low and high / 2 >= size.least:
        if _keeps_up(system, high / 2, size, options):
            low = high / 2
        else:
            high /= 2
    if low:
        for _ in range(size.halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if _keeps_up(system, middle, size, options) else (low, middle)
    return low


def _keeps_up(system: System, rate: float, size: Size, options: Options) -> bool:
    found = run_live(system, case(rate, size, size.probe), EPOCH)
    good = found is not None and not found.missing and found.p95 <= SUSTAINED
    options.say(f"{system.name}: {number(rate)} tuples/s: {'kept up with' if good else 'too much'}{_text(found)}")
    return good


def _text(found: Latency | None) -> str:
    if found is None:
        return " (no results)"
    missing = f", {found.missing:,} results missing" if found.missing else ""
    return f" (p50 {found.p50:.2f} s, p95 {found.p95:.2f} s, p99 {found.p99:.2f} s{missing})"


def run(options: Options) -> Report:
    size = QUICK if options.quick else FULL
    contenders = [systems.HEADRACE, systems.SPARK, *([] if options.quick else [systems.SPARK_ROCKSDB_NEWEST])]
    contenders += [systems.FLINK] if options.flink else []
    highest = {system.name: highest_rate(system, size, options) for system in contenders}
    able = [system for system in contenders if highest[system.name]]
    loads = [Load(f"{load:.0%} of its highest", {s.name: load * highest[s.name] for s in able}) for load in size.loads]
    if able:  # and all systems at one rate
        equal = min(highest[s.name] for s in able) / 2
        loads.append(Load("equal rate", {s.name: equal for s in able}))
    found = [m for load in options.wanted(loads) for m in _measure(able, load.name, load.rates, size, options)]
    data = {"highest_tuples_per_second": highest, "epoch": EPOCH, "size": asdict(size), "measurements": _json(found)}
    return Report("latency", _title(size), _notes(size), [_rates(highest), _grid(found)], data, _panels(found))


def _measure(
    able: Sequence[System], load: str, rates: dict[str, float], size: Size, options: Options
) -> list[Measurement]:
    rounds: dict[str, list[Latency | None]] = {system.name: [] for system in able}
    for turn in range(options.rounds):
        for system in alternating(able, turn):
            found = run_live(system, case(rates[system.name], size, size.measured), EPOCH)
            rounds[system.name].append(found)
            rate = number(rates[system.name])
            options.say(f"{load}, round {turn + 1} of {options.rounds}, {system.name}, {rate} tuples/s:{_text(found)}")
    return [Measurement(name, load, rates[name], tuple(each)) for name, each in rounds.items()]


def _title(size: Size) -> str:
    return f"Latency of an equality join, windows of {size.within} s, epochs of {EPOCH}"


def _notes(size: Size) -> list[str]:
    return [
        "from the file of a result's later tuple appearing to the result's file being visible; median of the rounds, in brackets least .. most",
        f"highest rate: doubled, then halved {size.halvings} times; kept up with = all results, p95 at most {SUSTAINED} s",
        "Flink: a checkpoint every 500 ms makes results visible; it has no epochs otherwise",
    ]


def _rates(highest: dict[str, float]) -> Grid:
    rows = [[name, number(rate) if rate else "none found"] for name, rate in highest.items()]
    return Grid("highest rate at these epochs", ["system", ">tuples/s"], rows)


def _grid(found: Sequence[Measurement]) -> Grid:
    rows = [[m.load, m.system, number(m.rate), *(_cell(m.figure(q)) for q in QUANTILES), _state(m)] for m in found]
    return Grid("latency in seconds", ["load", "system", ">tuples/s", *(f">{q}" for q in QUANTILES), ""], rows)


def _cell(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} ({spread.least:.2f} .. {spread.most:.2f})"


def _state(measurement: Measurement) -> str:
    return "" if measurement.complete else "results missing"


def _json(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [
        asdict(m) | {q: None if (s := m.figure(q)) is None else asdict(s) for q in QUANTILES} | {"complete": m.complete}
        for m in found
    ]


def _panels(found: Sequence[Measurement]) -> list[Panel]:
    loads = list(dict.fromkeys(m.load for m in found))
    return [_panel(load, [m for m in found if m.load == load and m.complete]) for load in loads]


def _panel(load: str, found: Sequence[Measurement]) -> Panel:
    series = [Series(q, [m.system for m in found], [s.median for m in found if (s := m.figure(q))]) for q in QUANTILES]
    return Panel(load, "", "seconds", series if found else [])
