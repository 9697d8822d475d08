"""The demo from start to end: a feed of calls, a run that processes them, and the comparison of results."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console

import headrace as hr
from headrace.difference import difference
from headrace.errors import HeadraceError
from headrace.reference import references
from headrace.run.run import Run
from headrace.showing import live
from headrace.showing.signals import StopRequest, stop_at_end, stop_on_first_signal
from headrace.telemetry.progress import Progress
from headrace_demo.fraud import report
from headrace_demo.fraud.generator import Calls, Feed, generate
from headrace_demo.fraud.places import Places, Topics
from headrace_demo.fraud.query import fraud

NAMES = {"result-0": "alarms", "result-1": "alarms per district"}
WELCOME = """\
[bold]Telephone fraud, live[/]: {rate:,} made-up calls per second for {seconds:g} seconds, and two joins
that look for the frauds planted among them.
  [bold]cloned SIM[/]  one number calls from two places too far apart to travel between
  [bold]SIM box[/]     different numbers, within 5 m of each other, at the same time: a join
              without any equality, which Spark's own streaming joins refuse
"""


@dataclass(frozen=True)
class Options:
    rate: int
    seconds: float
    slots: int
    keep: bool
    verify: bool
    seed: int
    kafka: bool = False


def show(spark: Any, options: Options, console: Console) -> bool:
    """Run the demo. Return whether every planted fraud was found and the results equal the sequential ones."""
    console.print(WELCOME.format(rate=options.rate, seconds=options.seconds), soft_wrap=True)
    with _placed(options, console) as places:
        streams = fraud(places.stream(spark))
        results = places.results(streams)
        with stop_on_first_signal() as stop:
            calls, progress, seconds = _stream(options, places, streams, results, console, stop)
        good = _summary(console, calls, progress, seconds, results)
        if stop.asked:
            console.print(f"stopped after {progress.tuples_in:,} of {len(calls.arrivals):,} calls; not verified")
        elif options.verify:
            good &= _verified(places, streams, results, console)
        return good


@contextmanager
def _placed(options: Options, console: Console) -> Iterator[Places]:
    """Yield folders or a broker, which are removed at the end unless folders are to be kept."""
    root = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        if options.kafka:
            with console.status("starting a Kafka broker ..."):
                places: Places = Topics(root)
        else:
            places = Places(root)
        try:
            yield places
        finally:
            places.close()
    finally:
        if options.keep:
            what = "checkpoint/" if options.kafka else "calls/, alarms/, alarms-per-district/ and checkpoint/"
            console.print(f"kept {root}: {what}", soft_wrap=True, markup=False)
        else:
            shutil.rmtree(root, ignore_errors=True)


def _stream(
    options: Options,
    places: Places,
    streams: tuple[hr.Stream, hr.Stream],
    results: list[report.Results],
    console: Console,
    stop: StopRequest,
) -> tuple[Calls, Progress, float]:
    """Feed and process calls in parallel until all calls are processed. Return them with the progress and the time
    taken.
    """
    pairs = list(zip(streams, places.sinks(), strict=True))
    with stop_at_end(hr.start(pairs, checkpoint=places.checkpoint, slots=options.slots, show=False)) as run:
        calls = generate(options.rate, options.seconds, options.seed, time.time())
        feed, began = places.feed(calls), time.monotonic()
        feed.start()
        below = lambda: report.latest(results[0].table())  # noqa: E731
        display = live.for_console(console, "headrace demo", NAMES, below, transient=True)
        try:
            live.watch_run(run, lambda run: stop.asked or _through(run, feed), display=display)
        finally:
            feed.stop()
        run.stop()
        return calls, run.progress, time.monotonic() - began


def _through(run: Run, feed: Feed) -> bool:
    if feed.error is not None:
        raise HeadraceError(f"the demo could not write its calls: {feed.error}")
    last = run.progress.last
    return feed.done and last is not None and run.progress.tuples_in >= feed.written


def _summary(console: Console, calls: Calls, progress: Progress, seconds: float, results: list[report.Results]) -> bool:
    alarms, counts = (r.table() for r in results)
    found = report.compare(calls.frauds, alarms, progress.tuples_in)
    halves = [(report.run_table(progress, seconds), report.frauds_table(found))]
    if alarms.num_rows:
        halves.append((report.latest(alarms), report.top_districts(counts)))
    for pair in halves:
        console.print(Columns(pair, padding=(1, 5)))
        console.print()
    missed = [f for f in found if f.found < f.planted]
    for f in missed:
        console.print(
            f"FAILED: {f.planted - f.found} of {f.planted} planted frauds ({f.kind}) not found", style="bold red"
        )
    return not missed


def _verified(
    places: Places, streams: tuple[hr.Stream, hr.Stream], results: list[report.Results], console: Console
) -> bool:
    """Compare both results with the sequential answer over all calls."""
    everything = places.everything()
    began = time.monotonic()
    try:
        with console.status("computing the sequential answer, pair by pair ..."):
            expected = references(streams, epochs=[everything], end=False)
    except KeyboardInterrupt:
        console.print("stopped before the sequential answer was known; not verified")
        return True
    found = [r.table() for r in results]
    differences = [difference(e, f) for e, f in zip(expected, found, strict=True)]
    for name, text in zip(NAMES.values(), differences, strict=True):
        if text is not None:
            console.print(f"FAILED: {name}: not the sequential answer: {text}", style="bold red", markup=False)
    if any(text is not None for text in differences):
        return False
    count = sum(table.num_rows for table in found)
    how = f"({found[0].num_rows:,} alarms, {found[1].num_rows:,} counts per district; it took {_took(began)})"
    console.print(f"[bold green]verified: {count:,} results equal the sequential reference[/] {how}", soft_wrap=True)
    return True


def _took(began: float) -> str:
    return live.seconds_text(time.monotonic() - began)
