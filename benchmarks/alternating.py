"""Runs over files that benchmarks repeat in turn: the seconds of a run from the epoch that filled its windows on."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import headrace as hr


def measured(
    query: hr.Stream, out: Path, begin: int, total: int, *, ordered: bool = False, **options: Any
) -> tuple[float, int]:
    """Return the seconds between the tuples number `begin` and `total` of the input, and the number of results."""
    begun = 0.0
    sink = hr.sinks.parquet(out, ordered=ordered, parts=True)
    with query.start(sink, checkpoint=f"{out}.checkpoint", epoch="0 seconds", show=False, **options) as run:
        while run.progress.tuples_in < total:
            if run.exception is not None:
                raise run.exception
            if not begun and run.progress.tuples_in >= begin:
                begun = time.perf_counter()
            run.wait(0.01)
        took, results = time.perf_counter() - begun, run.progress.results_out
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(f"{out}.checkpoint")
    return took, results


def compare(name: str, runs: Mapping[str, Callable[[], tuple[float, int]]], rounds: int) -> None:
    """Run all in turn, print each round, and the median of how many times as long as the last each of them takes.

    The first round is a warm-up. All runs must have the same number of results.
    """
    ratios: dict[str, list[float]] = {each: [] for each in runs}
    *others, last = runs
    for turn in range(-1, rounds):
        took = {each: run() for each, run in runs.items()}
        if len({results for _, results in took.values()}) > 1:
            raise SystemExit(f"{name}: the runs have different numbers of results: {took}")
        for each in others if turn >= 0 else ():
            ratios[each].append(took[each][0] / took[last][0])
        shown = ", ".join(f"{each} {seconds:.2f} s" for each, (seconds, _) in took.items())
        print(f"{name}: {shown} ({took[last][1]:,} results)", flush=True)
    for each in others if rounds else ():
        print(f"{name}: {each} / {last}: {statistics.median(ratios[each]):.2f} (median of {rounds} rounds)", flush=True)
