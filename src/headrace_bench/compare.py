"""Comparison of systems over several cases, shared by several benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_bench import report, summary
from headrace_bench.report import Grid, Panel, Series, number
from headrace_bench.running import JudgedCase
from headrace_bench.summary import Line

RULES = (
    "tuples/s: median over the rounds, from the epoch that filled the windows to the last; spread: least .. most",
    "CPU: processor seconds per million tuples, memory: peak, both of all processes of a system",
    "rank: by median, a product by its best variant; an answer that is not right is not ranked",
)


@dataclass(frozen=True)
class Extra:
    """A figure of a benchmark of its own."""

    heading: str
    name: str  # in the JSON
    figure: Callable[[JudgedCase, Line], float | None]  # None: not known
    show: Callable[[float], str] = number

    def text(self, measured: JudgedCase, line: Line) -> str:
        value = self.figure(measured, line)
        return "" if value is None else self.show(value)


def grids(found: Sequence[JudgedCase], extra: Extra | None = None) -> list[Grid]:
    """Return one table per case."""
    more = [f">{extra.heading}"] if extra else []
    headings = ["system", ">tuples/s", ">spread", *more, ">CPU s/M", ">memory", ">results", ">headrace x", ">rank"]
    return [Grid(measured.case.name, headings, _rows(measured, extra)) for measured in found]


def _rows(measured: JudgedCase, extra: Extra | None) -> list[list[str]]:
    found = summary.lines(measured)
    return [_row(measured, found, line, extra) for line in found]


def _row(measured: JudgedCase, found: Sequence[Line], line: Line, extra: Extra | None) -> list[str]:
    answer = line.outcomes[0].answer
    results = f"{answer.rows:,}" if answer else ""
    if not line.measured:
        return [f"{line.system}: {line.status}", "", "", *([""] if extra else []), "", "", results, "", ""]
    rate, ratio = line.figure("tuples_per_second"), summary.ratio(found, line)
    return [
        line.system if line.ok else f"{line.system}: {line.status}",
        number(rate.median),
        f"{number(rate.least)} .. {number(rate.most)}",
        *([extra.text(measured, line)] if extra else []),
        number(line.figure("cpu_per_million").median),
        f"{line.figure('peak_mb').median:,.0f} MB",
        results,
        "" if ratio is None else f"{ratio:.2f}",
        "" if line.rank is None else str(line.rank),
    ]


def panel(measured: JudgedCase) -> Panel:
    """Return bars with the tuples per second of every system that answered correctly or reached the time limit."""
    found = [line for line in summary.lines(measured) if line.measured]
    rates = [line.figure("tuples_per_second") for line in found]
    bars = Series(
        "tuples/s",
        [line.system if line.ok else f"{line.system}, unfinished" for line in found],
        [r.median for r in rates],
        [r.least for r in rates],
        [r.most for r in rates],
    )
    return Panel(measured.case.name, "", "tuples per second", [bars])


def notes(found: Sequence[JudgedCase], *more: str) -> list[str]:
    checked = [f"{m.case.name}: {m.by}" + (f", {m.expected.rows:,} rows" if m.expected else "") for m in found]
    return [*RULES, "answers checked, by rows and checksum, by " + "; ".join(checked), *more, *about(found)]


def about(found: Sequence[JudgedCase]) -> list[str]:
    """Return the versions and settings of each system."""
    said: dict[str, dict[str, Any]] = {}
    for outcome in (outcome for measured in found for outcome in measured.outcomes):
        if outcome.about:
            said.setdefault(outcome.system, outcome.about)
    return [f"{system}: {_flat(about['versions'])}; {_flat(about['settings'])}" for system, about in said.items()]


def _flat(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def data(found: Sequence[JudgedCase], extra: Extra | None = None) -> dict[str, Any]:
    def more(measured: JudgedCase) -> Callable[[Line], dict[str, Any]]:
        return lambda line: {extra.name: extra.figure(measured, line)} if extra else {}

    return {"cases": [summary.to_json(measured, more(measured)) for measured in found]}


def reported(name: str, title: str, found: Sequence[JudgedCase], *more: str) -> report.Report:
    panels = [panel(measured) for measured in found]
    return report.Report(name, title, notes(found, *more), grids(found), data(found), panels)
