"""The command `headrace bench`: runs benchmarks, shows and saves their results, and draws charts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from headrace_bench import (
    adaptive,
    aggregate,
    connect,
    growth,
    join,
    latency,
    nway,
    processors,
    report,
    running,
    split,
    state,
    strategies,
    tables,
    theta,
)
from headrace_bench.options import Options
from headrace_bench.report import Report
from headrace_bench.systems import flink

BENCHMARKS: dict[str, Callable[[Options], Report]] = {
    "join": join.run,
    "theta": theta.run,
    "nway": nway.run,
    "aggregate": aggregate.run,
    "latency": latency.run,
    "growth": growth.run,
    "strategies": strategies.run,
    "processors": processors.run,
    "tables": tables.run,
    "split": split.run,
    "state": state.run,
    "adaptive": adaptive.run,
    "connect": connect.run,
}
WITH_FLINK = {"join", "theta", "nway", "aggregate", "latency"}


def show(names: Sequence[str], options: Options, console: Console, json: Path | None, charts: Path | None) -> bool:
    """Run benchmarks. Return whether every answer was correct."""
    running.demand_linux()
    if charts:
        report.demand_matplotlib()
    if options.flink and WITH_FLINK & set(names):
        flink.prepare(options.say)
    before, began = report.machine(), time.monotonic()
    console.print(_welcome(before, options), markup=False, soft_wrap=True)
    reports: list[Report] = []
    for name in names:
        found = BENCHMARKS[name](options)
        reports.append(found)
        report.show(console, found)
        if json:  # after each benchmark, so that an interrupted run has results
            report.save(json, reports, before)
        if charts:
            written = report.write(charts, found, before, report.draw(charts, found, before))
            console.print(f"  tables and chart: {written}", markup=False, soft_wrap=True)
    console.print(f"\ndone in {(time.monotonic() - began) / 60:.1f} minutes{f'; {json}' if json else ''}", markup=False)
    return not any(wrong(found) for found in reports)


def wrong(found: Report) -> bool:
    return any(
        "wrong" in s["status"] or "differ" in s["status"] for c in found.data.get("cases", []) for s in c["systems"]
    )


def _welcome(before: dict[str, object], options: Options) -> str:
    quick = "; --quick: small sizes, the figures mean nothing" if options.quick else ""
    cores = running.cores()
    load = f"load {os.getloadavg()[0]:.1f} before it began"
    return f"{before['processor']}, cores {cores}, {before['memory_gb']} GB; rounds: {options.rounds}; {load}{quick}"
