"""The benchmark of strategies: what each way to cut a query into stages moves per epoch, and its cost.

The query has the shape of StreamCloud's figure 8: eight operators over whole numbers, three of them stateful. Windows
are as long as an epoch, and the number of keys follows the rate, so small and large epochs differ only in size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from headrace_bench import compare, summary, systems
from headrace_bench.measure import Spread
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Report, Series, number, size
from headrace_bench.running import JudgedCase, run_case
from headrace_bench.summary import Line
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams

SIDES = ("left", "right")
ORDER = ("subquery", "query", "operator")  # by number of stages
BEST = ORDER[0]  # the default; the others are compared with it
COUNTED = ("milliseconds", "shuffles", "tasks", "by_value", "by_reference", "in_slot", "task_milliseconds")
NOTES = (
    "subquery: operators that are partitioned alike share a stage; query: a stage for every stateful operator;"
    " operator: a stage for every operator. Every stage of every strategy has a task per slot.",
    "tuples/s: over all measured epochs; epoch: from its beginning to its results being visible, median of the"
    " epochs; CPU: of all processes. Each is the median of the rounds, in brackets the least and the most.",
    "shuffled by value: what Spark's shuffle wrote, compressed, with descriptions of blocks and reports of tasks;"
    " by reference: blocks written into the state folder whose description was sent to another stage;"
    " in their slot: blocks handed on without an exchange. All per epoch.",
    f"{BEST} x: how many times as fast {BEST} is; rank: by median tuples/s, among right answers only.",
    "tasks' CPU: of the functions that run in tasks (operators, blocks, messages); the rest is Spark's and the driver's.",
)


def case(per_second: int, seconds: int, warm: int, measured: int) -> Case:
    """Return a case with two streams of `per_second` tuples per second, and epochs and windows of `seconds`."""
    streams = Streams(SIDES, per_second, seconds, warm + measured, keys=per_second * seconds, gap=10.0 * seconds)
    query = Query("figure-8", within=seconds, window=seconds)
    return Case(f"epochs of {streams.per_epoch:,}", streams, query, warm)


def cases(quick: bool) -> list[Case]:
    """Return a case that is little more than an epoch's fixed cost, and one with much data, with about 20 s of warm-up."""
    if quick:
        return [case(100, 1, 4, 4), case(500, 2, 4, 4)]
    return [case(100, 1, 150, 150), case(10_000, 10, 50, 30)]


def run(options: Options) -> Report:
    contenders = [systems.strategy(name) for name in ORDER]
    wanted = options.wanted(cases(options.quick))
    return reported([run_case(each, contenders, options.rounds, options.say) for each in wanted])


def reported(found: Sequence[JudgedCase]) -> Report:
    grids = [grid for measured in found for grid in (_speed(measured), _moved(measured))]
    data = {"cases": [summary.to_json(measured, _extra(measured)) for measured in found]}
    panels = [panel for measured in found for panel in _panels(measured)]
    title = "Strategies: eight operators, three of them stateful, cut into stages in three ways"
    return Report("strategies", title, [*NOTES, *_checked(found)], grids, data, panels)


def counted(line: Line, name: str) -> Spread:
    """Return a figure per epoch, over the rounds."""
    return Spread.of(outcome.per_epoch[name] for outcome in line.outcomes)


def cpu(measured: JudgedCase, line: Line) -> Spread:
    """Return the CPU milliseconds per epoch."""
    tuples = measured.case.streams.per_epoch
    return Spread.of((outcome.cpu_per_million or 0.0) * tuples / 1000 for outcome in line.outcomes)


def slower(found: Sequence[Line], line: Line) -> float | None:
    """Return how many times faster the best strategy is."""
    best = next((other for other in found if other.system == BEST and other.ok), None)
    return best.rate / line.rate if best is not None and line.ok and line is not best else None


# --- showing -------------------------------------------------------------------------------------------------------


def _speed(measured: JudgedCase) -> Grid:
    found = summary.lines(measured)
    headings = ["strategy", ">tuples/s", ">epoch, ms", ">CPU ms an epoch", ">CPU s/M", f">{BEST} x", ">rank"]
    return Grid(f"{measured.case.name} tuples: speed", headings, [_speed_row(measured, found, line) for line in found])


def _speed_row(measured: JudgedCase, found: Sequence[Line], line: Line) -> list[str]:
    if not line.ok:
        return [f"{line.system}: {line.status}", *[""] * 6]
    ratio = slower(found, line)
    return [
        line.system,
        _ranged(line.figure("tuples_per_second")),
        _ranged(counted(line, "milliseconds")),
        _ranged(cpu(measured, line)),
        _ranged(line.figure("cpu_per_million")),
        "" if ratio is None else f"{ratio:.2f}",
        "" if line.rank is None else str(line.rank),
    ]


def _moved(measured: JudgedCase) -> Grid:
    headings = ["strategy", ">shuffles", ">tasks", ">by value", ">by reference", ">in their slot", ">tasks' CPU ms"]
    rows = [_moved_row(line) for line in summary.lines(measured) if line.ok]
    return Grid(f"{measured.case.name} tuples: what an epoch moves", headings, rows)


def _moved_row(line: Line) -> list[str]:
    counts = [f"{counted(line, name).median:g}" for name in ("shuffles", "tasks")]
    sizes = [size(counted(line, name).median) for name in ("by_value", "by_reference", "in_slot")]
    return [line.system, *counts, *sizes, _ranged(counted(line, "task_milliseconds"))]


def _ranged(spread: Spread, show: Callable[[float], str] = number) -> str:
    """Return the median, followed by the range if there was more than one round."""
    if spread.least == spread.most:
        return show(spread.median)
    return f"{show(spread.median)} ({show(spread.least)} .. {show(spread.most)})"


def _panels(measured: JudgedCase) -> list[Panel]:
    """Return charts of the speed, CPU time and moved bytes of each strategy."""
    found = [line for line in summary.lines(measured) if line.ok]
    names = [_label(line) for line in found]
    if not names:
        return []
    ours = next((name for name, line in zip(names, found, strict=True) if line.system == BEST), "")
    size_of = f"{measured.case.name} tuples"
    rates = _bars("tuples/s", names, [line.figure("tuples_per_second") for line in found])
    spent = _bars("CPU", names, [cpu(measured, line) for line in found])
    moved = [
        Series(label, names, [counted(line, name).median for line in found])
        for label, name in (("by value, through Spark", "by_value"), ("by reference, as blocks", "by_reference"))
    ]
    return [
        Panel(f"{size_of}: speed (longer is better)", "", "tuples per second", [rates], ours),
        Panel(
            f"{size_of}: processor time of an epoch (shorter is better)",
            "",
            "milliseconds, all processes",
            [spent],
            ours,
        ),
        Panel(f"{size_of}: shuffled in an epoch (shorter is better)", "", "bytes", moved, ours, stacked=True),
    ]


def _label(line: Line) -> str:
    shuffles, tasks = (counted(line, name).median for name in ("shuffles", "tasks"))
    return f"{line.system}\n{shuffles:g} shuffles\n{tasks:g} tasks"


def _bars(label: str, names: Sequence[str], figures: Sequence[Spread]) -> Series:
    return Series(label, names, *([getattr(f, part) for f in figures] for part in ("median", "least", "most")))


def _checked(found: Sequence[JudgedCase]) -> list[str]:
    """Return the general notes of comparisons without their rules: who checked the answers, versions and settings."""
    return compare.notes(found)[len(compare.RULES) :]


def _extra(measured: JudgedCase) -> Callable[[Line], dict[str, Any]]:
    found = summary.lines(measured)

    def of(line: Line) -> dict[str, Any]:
        figures = {name: asdict(counted(line, name)) for name in COUNTED}
        epoch = {**figures, "cpu_milliseconds": asdict(cpu(measured, line))}
        return {"per_epoch": epoch, f"{BEST}_is_times_as_fast": slower(found, line)}

    return of
