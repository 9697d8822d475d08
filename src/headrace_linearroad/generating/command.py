"""`headrace linearroad generate`: from options to files, and what is shown meanwhile."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from headrace.errors import WorkloadError
from headrace.showing.stopping import stoppable
from headrace.showing.streams import say
from headrace.showing.stretch import showing
from headrace_linearroad.forms import HISTORY
from headrace_linearroad.generating.demand import FULL
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import HOURS
from headrace_linearroad.generating.writing import TRUTH, Job, Written, expected, write


def density(full: bool, given: float | None) -> float | None:
    """Of --full-density and --density."""
    if full and given is not None:
        raise WorkloadError(f"--full-density is --density {FULL}; give one of them")
    return FULL if full else given


def length(begin: int, seconds: int | None, minutes: float | None) -> int:
    """Of --seconds and --minutes, in seconds; without them, all that is left of the three hours."""
    if seconds is not None and minutes is not None:
        raise WorkloadError("--seconds and --minutes say the same; give one of them")
    if minutes is not None:
        return round(minutes * 60)
    return HOURS - begin if seconds is None else seconds


def generate(settings: Settings, folder: Path, job: Job) -> None:
    """Write, showing how far it has come; to be stopped before the end is no error, but the folder stays half written."""
    console, last = Console(highlight=False, soft_wrap=True), Written()
    say(console, f"{_what(settings, job)}: some {expected(settings, job):,} tuples", "dim")
    with stoppable() as stop, showing(console, job.seconds) as show:

        def tell(written: Written, doing: str) -> None:
            nonlocal last
            last = written
            show(written.seconds, doing or f"{written.tuples:,} tuples")
            if stop.asked:  # an exception from the signal itself is lost where Arrow calls Python
                raise KeyboardInterrupt

        try:
            write(settings, folder, job, tell)
        except KeyboardInterrupt:
            done = f"{last.seconds:,} of {job.seconds:,} seconds"
            say(console, f"stopped after {done}; {folder} is half written: remove it, or keep it to look at")
            return
    where = folder if job.text is None else folder / job.text
    say(console, f"{last.tuples:,} tuples in {where}")
    beside = [TRUTH] if job.history == "none" else [f"{HISTORY}/", TRUTH]
    say(console, f"beside them: {', '.join(beside)}", "dim")


def _what(settings: Settings, job: Job) -> str:
    roads = f"{settings.expressways:g} expressway{'' if settings.expressways == 1 else 's'}"
    how = "" if settings.density is None else f", {settings.density:g} tuples/s each"
    return f"seconds {job.begin:,} to {job.end - 1:,} of {roads}{how}"
