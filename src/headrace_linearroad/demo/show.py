"""The demo: traffic offered in real time, a run that processes it, and a judgement of all rows at the end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.text import Text

import headrace as hr
from headrace.errors import HeadraceError, WorkloadError
from headrace.run.run import Run
from headrace.showing import live, terminal
from headrace.showing.signals import StopRequest, stop_at_end, stop_on_first_signal
from headrace.telemetry.progress import Progress
from headrace_demo.fraud.report import Results
from headrace_demo.workloads.writing import new_folder
from headrace_linearroad import history, running
from headrace_linearroad.demo import picture, traffic
from headrace_linearroad.demo.seen import GREEN, GREY, Seen, clock
from headrace_linearroad.demo.traffic import Feed, Traffic
from headrace_linearroad.forms import HISTORY, OUTPUTS
from headrace_linearroad.generating.world import HOURS
from headrace_linearroad.profiles import Profile
from headrace_linearroad.running import Given, Prepared
from headrace_linearroad.validating import PROFILES, judge, showing

EPOCH = "500 milliseconds"
WARM = 5  # seconds of traffic that are processed before the clock begins
LINES_EVERY = 3.0  # seconds between two plain lines
WELCOME = """\
[bold]Linear Road, live[/]: two expressways of 100 miles, {cars} cars that report every 30 seconds.
A car that enters a segment is notified of its toll, which depends on the number and speed of cars there.
Near an accident it is alerted instead, and there is no toll. An accident happens after {soon} s.
{length} of traffic in {seconds:g} seconds.
"""
REAL = """\
To run half an hour of four expressways at full density:
  headrace linearroad generate --out road --expressways 4 --minutes 30 --full-density
  headrace linearroad run --input road --out answers
  headrace linearroad validate --input road --out answers"""
KEPT = "kept {root}: road/ is the output of generate, answers/ that of run, and checkpoint/ the run's state"


@dataclass(frozen=True)
class Options:
    seconds: float
    speed: float
    density: float
    seed: int
    slots: int
    keep: Path | None

    def __post_init__(self) -> None:
        if not 1 <= self.length <= HOURS:
            msg = f"{self.seconds:g} seconds at speed {self.speed:g} are {self.length:,} seconds of traffic"
            raise WorkloadError(f"{msg}; expected 1 to {HOURS:,}; change --seconds or --speed")

    @property
    def length(self) -> int:
        """The seconds of traffic."""
        return round(self.seconds * self.speed)


@dataclass(frozen=True)
class Places:
    """The demo's folders."""

    root: Path

    @property
    def made(self) -> Path:
        return self.root / "made"

    @property
    def road(self) -> Path:
        return self.root / "road"

    @property
    def given(self) -> Given:
        return Given(self.road, (), Profile.official.value, self.root / "answers", self.root / "checkpoint")


def show(spark: Any, options: Options, console: Console) -> bool:
    """Run the demo. Return whether every row is right, or the user stopped it."""
    with _folder(options.keep, console) as places, stop_on_first_signal() as stop:
        made = _made(options, places, console, stop)
        if made is None:
            console.print("stopped before the traffic was generated")
            return True
        console.print(_welcome(options, made), soft_wrap=True)
        watched = Watched(made, options, Feed(made, places.road, options.speed), _results(places))
        _stream(spark, options, places, watched, console, stop)
        if stop.asked:
            done = f"{watched.feed.next - made.begin:,} of {options.length:,} seconds of traffic"
            console.print(f"stopped after {done}; not judged", soft_wrap=True)
            return True
        good = _judged(places, console)
        console.print()
        console.print(REAL, soft_wrap=True)
        return good


@contextmanager
def _folder(keep: Path | None, console: Console) -> Iterator[Places]:
    root = Path(tempfile.mkdtemp(prefix="headrace-linearroad-")) if keep is None else new_folder(keep)
    try:
        yield Places(root)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)
        else:
            shutil.rmtree(Places(root).made, ignore_errors=True)
            terminal.say(console, KEPT.format(root=root))


class _Enough(Exception):
    """Raised when the user stops the generation of traffic."""


def _made(options: Options, places: Places, console: Console, stop: StopRequest) -> Traffic | None:
    with console.status("preparing cars on the road ...") as status:

        def tell(seconds: int) -> None:
            if stop.asked:
                raise _Enough
            status.update(f"generating traffic: {seconds:,} of {options.length:,} seconds")

        try:
            return traffic.make(options.seed, options.density, options.length, places.made, tell)
        except _Enough:
            return None


def _welcome(options: Options, made: Traffic) -> str:
    first = min((crash.begins for crash in made.crashes if crash.begins >= made.begin), default=made.begin)
    soon = f"{(first - made.begin) / options.speed:.0f}"
    cars = f"{round(made.reports[-1] / options.length * 30 / 1000) * 1000:,}"
    return WELCOME.format(cars=cars, soon=soon, length=f"{options.length / 60:.0f} minutes", seconds=options.seconds)


def _results(places: Places) -> dict[str, Results]:
    return {name: Results(places.given.out / name, schema) for name, schema in OUTPUTS.items()}


# --- the run ----------------------------------------------------------------------------------------------------------


def _stream(
    spark: Any, options: Options, places: Places, watched: Watched, console: Console, stop: StopRequest
) -> None:
    """Offer the traffic and run the query until all tuples are processed, then answer the last second.

    The answers of the last second need the end of the input, so a second start with `once=True` emits them.
    """
    files = history.files_of([places.road / HISTORY])
    prepared = Prepared(places.road, history.prepared(files, places.given.spool / HISTORY), 0, Counter())
    settings: dict[str, Any] = {"checkpoint": places.given.checkpoint, "slots": options.slots, "show": False}
    running.begin_folders(places.given.out)
    with stop_at_end(hr.start(running.results(spark, places.given, prepared, None), epoch=EPOCH, **settings)) as run:
        _warm_up(run, watched.feed, console, stop)
        display = OnScreen(console, watched) if console.is_terminal else InLines(console, watched)
        watched.feed.start()
        try:
            live.watch_run(run, lambda run: stop.asked or watched.is_through(run), display=display)
        finally:
            watched.feed.stop()
            display.end()
        run.stop()
    if not stop.asked:
        with (
            console.status("answering the last second ..."),
            hr.start(running.results(spark, places.given, prepared, None), epoch="0 s", once=True, **settings) as run,
        ):
            run.wait()


def _warm_up(run: Run, feed: Feed, console: Console, stop: StopRequest) -> None:
    """Process some seconds before the clock begins, so that loops are compiled and workers started."""
    feed.offer(WARM)
    console.print(Text("compiling loops; the first time, this takes half a minute", "dim"), soft_wrap=True)
    with console.status("waiting for the first answers ..."):
        while run.progress.last is None and not stop.asked and not run.wait(live.POLL):
            pass


class Watched:
    """The current state of traffic, answers and run."""

    def __init__(self, made: Traffic, options: Options, feed: Feed, results: dict[str, Results]) -> None:
        self.made, self.options, self.feed = made, options, feed
        self.seen = Seen(made.crashes)
        self._results, self._began = results, time.monotonic()

    def is_through(self, run: Run) -> bool:
        if self.feed.error is not None:
            raise HeadraceError(f"the demo could not offer its traffic: {self.feed.error}")
        return self.feed.done and run.progress.tuples_in >= self.feed.offered

    def look(self, progress: Progress) -> Seen:
        """Add the reports and answers since the last call."""
        until = max(
            (time for time in progress.watermark.values() if isinstance(time, int)), default=0
        )  # taken before the answers are read, so that they are complete up to it
        for second in range(max(self.seen.time + 1, self.made.begin), self.feed.next):
            with pa.memory_map(str(traffic.path_of(self.feed.folder, second))) as file:
                self.seen.report(second, pa.ipc.open_file(file).read_all())
        for name, results in self._results.items():
            for table in results.new():
                self.seen.answer(name, table)
        self.seen.settle(until // 1_000_000 if until else self.made.begin)
        return self.seen

    def head(self) -> Text:
        done = (self.feed.next - self.made.begin) / self.options.length
        long = 30
        full = round(done * long)
        return Text.assemble(
            ("Linear Road  ", "bold"),
            (clock(max(self.seen.time, self.made.begin)), "bold"),
            f", {self.options.speed:g} times as fast  ",
            ("━" * full, GREEN),
            ("━" * (long - full), GREY),
            f" {done:.0%}",
            no_wrap=True,
        )

    def figures(self, progress: Progress) -> list[list[tuple[str, str]]]:
        seen, counts = self.seen, self.seen.counts
        cars = self.made.cars(seen.time) if seen.time >= 0 else 0
        behind = max(seen.time - seen.answered, 0)
        latency = {name: live.seconds_text(progress.latency[name]) for name in ("p50", "p99")}
        return [
            [
                ("cars", f"{cars:,}"),
                ("  tolls", f"{counts['tolls']:,}"),
                ("  balances", f"{counts['balances']:,}"),
            ],
            [
                ("tuples", f"{progress.tuples_in:,}"),
                ("  above 0", f"{seen.charged:,}"),
                ("  expenditures", f"{counts['expenditures']:,}"),
            ],
            [
                ("state", live.size_text(progress.state_bytes)),
                ("  alerts", f"{counts['accidents']:,}"),
                ("  travel times", f"{counts['travel_times']:,}"),
            ],
            [("latency", latency["p50"]), ("  99% within", latency["p99"]), ("  behind", f"{behind} s of traffic")],
        ]


class OnScreen:
    """The display on a terminal: a picture in a fixed place."""

    def __init__(self, console: Console, watched: Watched) -> None:
        self._watched, self._painted = watched, 0.0
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._painted >= 1 / live.FRAMES:
            self._paint(progress)
        self._progress = progress

    def close(self) -> None:
        """Do nothing: `end` closes the display, after the feed has ended."""

    def end(self) -> None:
        self._paint(self._progress)
        self._live.stop()

    def _paint(self, progress: Progress) -> None:
        self._painted = time.monotonic()
        seen = self._watched.look(progress)
        self._live.update(picture.screen(self._watched.head(), seen, self._watched.figures(progress)), refresh=True)


class InLines:
    """The display without a terminal: events as lines, and figures every few seconds."""

    def __init__(self, console: Console, watched: Watched) -> None:
        self._console, self._watched = console, watched
        self._events, self._said = 0, time.monotonic()

    def show(self, progress: Progress) -> None:
        seen = self._watched.look(progress)
        for event in seen.events[self._events :]:
            self._say(str(event))
        self._events = len(seen.events)
        self._progress = progress
        if time.monotonic() - self._said >= LINES_EVERY:
            self._say_figures(progress)

    def close(self) -> None:
        """Do nothing: `end` closes the display, after the feed has ended."""

    def end(self) -> None:
        self.show(self._progress)
        self._say_figures(self._progress)

    def _say_figures(self, progress: Progress) -> None:
        self._said = time.monotonic()
        pairs = [pair for row in self._watched.figures(progress) for pair in row]
        words = ", ".join(f"{name.strip()} {value}" for name, value in pairs)
        self._say(f"{clock(max(self._watched.seen.time, self._watched.made.begin))}  {words}")

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)


# --- the end ----------------------------------------------------------------------------------------------------------


def _judged(places: Places, console: Console) -> bool:
    """Judge every row with the independent validator. Return whether all are right."""
    began = time.monotonic()
    given = places.given
    console.print()
    with console.status("recomputing all five answers from the whole input with independent code ...") as status:
        verdict = judge(given.input, given.out, [given.input / HISTORY], PROFILES[Profile.official], tell=status.update)
    showing.show(verdict, console)
    if not verdict.ok:
        console.print("FAILED: not every row is right", style="bold red")
        return False
    rows = sum(output.found for output in verdict.outputs.values())
    took = f"it took {live.seconds_text(time.monotonic() - began)}"
    console.print(f"[bold green]verified: all {rows:,} rows are right, and none is missing[/] ({took})", soft_wrap=True)
    return True
