"""The rating of one number of expressways: whether a run keeps every limit, with every row right.

    survey     generate all seconds once, for the histories and the counts of tuples
    warm-up    generate pieces of the warm-up, and process each at full speed
    clock      generate the rated seconds; then the feeder offers them second by second, and the run follows the folder
    end        answer the last second, which needs the end of the input; then compute response times and judge all rows

The run is that of `linearroad run`: the same query, checkpoint and sinks. The answers of a second are emitted when the
next second begins, so one more second is offered than is rated.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import headrace as hr
from headrace.cli.follow import spark_session
from headrace.errors import HeadraceError, WorkloadError
from headrace.run.run import Run
from headrace_linearroad import history, running
from headrace_linearroad.forms import HISTORY, INPUT
from headrace_linearroad.generating.demand import Demand
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import HOURS
from headrace_linearroad.generating.writing import BYTES, columns
from headrace_linearroad.rating import making, offering
from headrace_linearroad.rating.accounting import account
from headrace_linearroad.rating.helpers import Helper, Stopped, helper
from headrace_linearroad.rating.judgement import ANSWERS, WORK, Judgement, waits
from headrace_linearroad.rating.listening import Listening
from headrace_linearroad.rating.making import Counts, Maker, Piece
from headrace_linearroad.rating.parts import FEEDER, Parts
from headrace_linearroad.rating.responses import PUBLISHED, Clock, first_broken, read_published, responses
from headrace_linearroad.running import Given, Prepared

PIECE = 60  # seconds of the warm-up that are generated and processed together
HOPELESS = 60.0  # seconds that a run may be behind before the trial ends
LEAD = 1.0  # seconds from the start of the feeder to the start of the clock
POLL = 0.05
WAKING = "waking.arrow"  # not the name of any second
SHARE = 0.4  # share of the free disk for files that wait to be offered


@dataclass(frozen=True)
class Plan:
    """The parameters of a trial.

    whole: rate from second 0 on, with the growing traffic of official data; otherwise rate the end of the three hours
    at `density`.
    """

    expressways: float
    whole: bool = False
    seconds: int = 600
    warm_up: int = 1200
    speed: float = 1.0
    density: float = 1700
    seed: int = 1
    slots: int = 2
    profile: str = "official"
    epoch: int | None = None  # maximum seconds of input per epoch; None: as many as fit

    def __post_init__(self) -> None:
        most = HOURS - 1 - self.warm_up
        if self.warm_up < 0 or not 1 <= self.seconds <= most:
            msg = (
                f"the three hours are {HOURS:,} seconds; a warm-up of {self.warm_up:,} leaves 1 to {most:,} to be rated"
            )
            raise WorkloadError(f"{msg}; found {self.seconds:,}")
        if self.whole and self.warm_up:
            raise WorkloadError("--warm-up does not apply to --whole, which begins with empty roads; leave one out")

    @property
    def settings(self) -> Settings:
        return Settings(self.expressways, self.seed, None if self.whole else self.density)

    @property
    def begin(self) -> int:
        return 0 if self.whole else HOURS - 1 - self.seconds

    @property
    def end(self) -> int:
        return self.begin + self.seconds

    @property
    def first(self) -> int:
        return self.begin - self.warm_up


class Display(Protocol):
    """The progress display of a trial."""

    def say(self, text: str) -> None: ...

    def doing(self, text: str) -> None: ...

    def show(self, listening: Listening) -> None: ...


class Trial:
    def __init__(self, plan: Plan, folder: Path, display: Display, stop: Callable[[], bool], *, strict: bool) -> None:
        """strict: end the trial, without judging its rows, when the first limit is exceeded."""
        self.plan, self.folder, self.display, self.stop, self.strict = plan, folder, display, stop, strict
        self.work = folder / WORK
        self.made, self.road = self.work / "made", self.work / "road"
        self.given = Given(self.road, (), plan.profile, folder / ANSWERS, self.work / "checkpoint")
        self.listening = Listening(plan.begin, plan.end, folder / PUBLISHED, self._taken)
        self.parts = Parts()
        self.notes: dict[str, Any] = {}

    # --- steps --------------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Run the trial and return its result, for JSON."""
        for folder in (self.made, self.road):
            folder.mkdir(parents=True)
        try:
            return self._run()
        finally:
            if not waits(self.folder):
                shutil.rmtree(self.work, ignore_errors=True)

    def _run(self) -> dict[str, Any]:
        plan, began = self.plan, time.monotonic()
        pieces = self._pieces()
        offered = self._survey(pieces)
        with ExitStack() as stack:
            spark = stack.enter_context(spark_session(plan.slots, quiet=True))
            given_up = self._stream(spark, pieces, offered)
            if given_up is None:
                self._close(spark)
        result = self._result(offered, pieces, given_up)
        result["took"] = round(time.monotonic() - began, 1)
        if given_up is None:
            self.display.say(f"{_worst(result['outputs'])}; now every row is judged")
            result = self._judged(offered, result)
        return result

    # --- traffic ------------------------------------------------------------------------------------------------------

    def _pieces(self) -> list[Piece]:
        """Return the pieces of the rated seconds and the second after them: one piece if they fit on the disk."""
        plan, settings = self.plan, self.plan.settings
        room = shutil.disk_usage(self.folder).free * SHARE
        per_second = Demand(settings.density).tuples(np.arange(plan.begin, plan.end + 1)) * settings.expressways
        found, begin, filled = list[Piece](), plan.begin, 0.0
        for second, tuples in enumerate(per_second.tolist(), plan.begin):
            if filled + tuples * BYTES["columns"] > room and second > begin:
                found.append(Piece(begin, second))
                begin, filled = second, 0.0
            filled += tuples * BYTES["columns"]
        return [*found, Piece(begin, plan.end + 1)]

    def _survey(self, pieces: list[Piece]) -> Counts:
        """Generate every second once and return the counts. Keep the files of the rated seconds if they fit the disk."""
        plan = self.plan
        looked = [Piece(plan.first, plan.begin, write=False)] if plan.warm_up else []
        looked += [Piece(plan.begin, plan.end + 1, write=len(pieces) == 1)]
        offered = Counts(plan.first)
        job = making.job(plan.settings, looked, self.made, self.work)
        with helper(making.MODULE, job, self.work / "survey.errors") as process:
            maker = Maker(process, looked)
            for _ in looked:
                counts = maker.next(self.stop, self._tell_making("surveying traffic"))
                offered.tuples += counts.tuples
                offered.reports += counts.reports
                offered.digests += counts.digests
        return offered

    def _tell_making(self, what: str) -> Callable[[int], None]:
        plan = self.plan
        return lambda second: self.display.doing(f"{what}: {second - plan.first:,} of {plan.end + 1 - plan.first:,} s")

    def _taken(self, second: int) -> None:
        """Delete the files up to a second, because their epoch is committed."""
        for path in self.road.glob("[0-9]*.arrow"):
            if int(path.stem) <= second:
                path.unlink()

    # --- the run ------------------------------------------------------------------------------------------------------

    def _results(self, spark: Any) -> list[Any]:
        prepared = Prepared(self.road, self._histories(), 0, Counter())
        return running.results(spark, self.given, prepared, self.plan.epoch)

    def _histories(self) -> history.Histories:
        return history.prepared(history.files_of([self.work / HISTORY]), self.given.spool / HISTORY)

    def _started(self, spark: Any, **more: Any) -> Run:
        late = hr.sinks.parquet(self.given.spool / running.LATE)
        settings: dict[str, Any] = {"checkpoint": self.given.checkpoint, "slots": self.plan.slots, "show": False}
        return hr.start(self._results(spark), epoch="0 seconds", late=late, **settings, **more)

    def _stream(self, spark: Any, pieces: list[Piece], offered: Counts) -> str | None:
        """Run warm-up and rated seconds. Return why the trial ended early, or None."""
        self.given.spool.mkdir(parents=True)
        running.begin_folders(self.given.out)
        with self._started(spark) as run, self._looking():
            run.listen(self.listening)
            self._wake(run)
            self._warm_up(run)
            given_up = self._rated(run, pieces)
            run.stop()
        self.notes["tuples_left_out"] = run.progress.late + run.progress.rejected
        return given_up

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.parts.start()
        try:
            yield
        finally:
            self.parts.stop()

    def _wake(self, run: Run) -> None:
        """Process a file without tuples, so that workers are started before the warm-up."""
        self.display.doing("starting the run")
        with columns(self.road / WAKING, INPUT) as writer:
            writer.write_table(INPUT.empty_table())
        self._wait(run, lambda: bool(self.listening.epochs))
        (self.road / WAKING).unlink()

    def _wait(self, run: Run, enough: Callable[[], bool], feeder: Helper | None = None) -> None:
        while not enough():
            if self.stop():
                raise Stopped
            if feeder is not None:
                feeder.check()
            if run.wait(POLL):
                raise HeadraceError("the run ended before its input did")
            self.display.show(self.listening)

    def _warm_up(self, run: Run) -> None:
        """Generate pieces of the warm-up while the run is idle, and process each at full speed."""
        plan = self.plan
        if not plan.warm_up:
            return
        bounds = [*range(plan.first, plan.begin, PIECE), plan.begin]
        pieces = [Piece(a, b) for a, b in pairwise(bounds)]
        began, worked = time.monotonic(), 0.0
        with helper(
            making.MODULE, making.job(plan.settings, pieces, self.made, None), self.work / "maker.errors"
        ) as process:
            self.parts.named[process.pid] = None
            maker = Maker(process, pieces)
            for piece in pieces:
                maker.next(self.stop, self._tell_making("generating warm-up"))
                before = time.monotonic()
                self.display.doing(f"processing warm-up: up to second {piece.end - plan.first:,} of {plan.warm_up:,}")
                for second in range(piece.begin, piece.end):
                    offering.publish(str(self.made), str(self.road), second)
                last = piece.end - 1
                self._wait(run, lambda last=last: self.listening.second >= last)  # type: ignore[misc]
                worked += time.monotonic() - before
        self.notes["warm_up"] = {"took": round(time.monotonic() - began, 1), "answered_in": round(worked, 1)}

    def _rated(self, run: Run, pieces: list[Piece]) -> str | None:
        """Offer the rated pieces, each generated while the clock stands still. Return why it ended early, or None."""
        with ExitStack() as stack:
            maker = None
            if len(pieces) > 1:
                job = making.job(self.plan.settings, pieces, self.made, None)
                process = stack.enter_context(helper(making.MODULE, job, self.work / "maker.errors"))
                self.parts.named[process.pid] = None
                maker = Maker(process, pieces)
            for piece in pieces:
                if maker is not None:
                    maker.next(self.stop, self._tell_making("generating rated traffic"))
                if (why := self._offered(run, piece)) is not None:
                    return why
        self.notes["last"] = self.parts.look()
        return None

    def _offered(self, run: Run, piece: Piece) -> str | None:
        plan, log = self.plan, self.work / f"feeder-{piece.begin}"
        start = time.monotonic() + LEAD
        self.notes.setdefault("first", self.parts.look())
        self.listening.begin(start, piece.begin, plan.speed)
        job = {"made": str(self.made), "road": str(self.road), "first": piece.begin, "last": piece.end}
        job |= {"start": start, "speed": plan.speed, "log": str(log)}
        with helper(offering.__name__, job, self.work / "feeder.errors") as feeder:
            self.parts.named[feeder.pid] = FEEDER
            self._wait(run, lambda: self.listening.second >= piece.end - 1 or self._hopeless() is not None, feeder)
            why = self._hopeless()
            while why is None and not feeder.ended:
                time.sleep(POLL)  # all seconds are published; wait for the feeder's processor time
            feeder.check()
        if why is None:
            self._read_log(log)
        return why

    def _hopeless(self) -> str | None:
        if self.strict and (broken := self.listening.broken()):
            return f"{broken} came too late"
        behind = self.listening.behind(time.monotonic())
        return f"it was {behind:.0f} s behind" if behind > HOPELESS else None

    def _read_log(self, log: Path) -> None:
        rows = [line.split("\t") for line in log.read_text().splitlines()]
        feeder = self.notes.setdefault("feeder", {"cpu": 0.0, "latest": 0.0})
        feeder["cpu"] += sum(float(value) for what, value in rows if what == offering.CPU)
        late = [float(value) for what, value in rows if what != offering.CPU]
        feeder["latest"] = max([feeder["latest"], *late])

    def _close(self, spark: Any) -> None:
        """Answer the last second: resume the run from its checkpoint with a bounded input."""
        self.display.doing("answering the last second")
        with self._started(spark, once=True) as run:
            run.wait()

    # --- result -------------------------------------------------------------------------------------------------------

    def _result(self, offered: Counts, pieces: list[Piece], given_up: str | None) -> dict[str, Any]:
        plan = self.plan
        clock = Clock(plan.begin, plan.end, plan.speed, self.listening.pauses)
        published = read_published(self.folder / PUBLISHED)
        found, courses = responses(self.given.out, published, clock)
        rated = offered.within(plan.begin, plan.end)
        return {
            "rating": "whole" if plan.whole else "peak",
            **asdict(plan),
            "begin": plan.begin,
            "held": False,
            "given_up": given_up,
            "first_broken": first_broken(found),
            "tuples": rated,
            "tuples_per_second": round(rated / plan.seconds * plan.speed, 1),
            "pieces": [[piece.begin, piece.end] for piece in pieces],
            "outputs": {name: each.to_json() for name, each in found.items()},
            "judged": None,
            **account(self.listening, self.parts, self.notes, offered, plan.speed),
            "worst_by_second": courses,
        }

    def _judged(self, offered: Counts, result: dict[str, Any]) -> dict[str, Any]:
        shutil.rmtree(self.given.checkpoint, ignore_errors=True)  # frees disk space
        judgement = Judgement(self.folder, self.plan.settings, offered, result)
        judgement.write()
        found = judgement.judge(self.stop, self.display.doing)
        judgement.end()
        return found


def _worst(outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a summary of the response times, to show before the rows are judged, which may take long."""
    broken = [name for name, output in outputs.items() if not output["held"]]
    kept = f"limits of {', '.join(broken)} were not kept" if broken else "every limit was kept"
    return f"{kept}, the longest response took {max(output['worst'] for output in outputs.values()):.2f} s"
