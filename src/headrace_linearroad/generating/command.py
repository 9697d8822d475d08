"""The command `headrace linearroad generate`: from options to files, with progress."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from headrace.errors import WorkloadError
from headrace.showing.progress_bar import show_progress
from headrace.showing.signals import stop_on_first_signal
from headrace.showing.terminal import say
from headrace_linearroad.generating.demand import FULL
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import HOURS
from headrace_linearroad.generating.writing import Job, Written, expected, history_paths, write


def density(full: bool, given: float | None) -> float | None:
    """Return the density that --full-density and --density give, or None."""
    if full and given is not None:
        raise WorkloadError(f"--full-density is --density {FULL}; give one of them")
    return FULL if full else given


def length(begin: int, seconds: int | None, minutes: float | None) -> int:
    """Return the length in seconds that --seconds and --minutes give; without them, the rest of the three hours."""
    if seconds is not None and minutes is not None:
        raise WorkloadError("--seconds and --minutes both give the length; give one of them")
    if minutes is not None:
        return round(minutes * 60)
    return HOURS - begin if seconds is None else seconds


def generate(settings: Settings, folder: Path, job: Job) -> None:
    """Write the traffic and show progress. Stopping early is not an error, but leaves the folder incomplete."""
    console, last = Console(highlight=False, soft_wrap=True), Written()
    say(console, f"{_what(settings, job)}: some {expected(settings, job):,} tuples", "dim")
    with stop_on_first_signal() as stop, show_progress(console, job.seconds) as show:

        def tell(written: Written, doing: str) -> None:
            nonlocal last
            last = written
            show(written.seconds, doing or f"{written.tuples:,} tuples")
            if stop.asked:  # an exception raised by the signal handler is lost where Arrow calls Python
                raise KeyboardInterrupt

        try:
            write(settings, folder, job, tell)
        except KeyboardInterrupt:
            done = f"{last.seconds:,} of {job.seconds:,} seconds"
            say(console, f"stopped after {done}; {folder} is half written; delete it unless you want to inspect it")
            return
    say(console, f"{last.tuples:,} tuples in {_input(folder, job)}")
    say(
        console,
        f"compute the answers with headrace linearroad run --input {_input(folder, job)} --out ANSWERS{_history(folder, job)}",
        "dim",
    )


def _input(folder: Path, job: Job) -> Path:
    return folder if job.text is None else folder / job.text


def _history(folder: Path, job: Job) -> str:
    """Return the options for the histories of a text. `run` finds the histories of a folder without options."""
    if job.text is None or job.history == "none":
        return ""
    return "".join(f" --history {path}" for path in history_paths(folder, job))


def _what(settings: Settings, job: Job) -> str:
    roads = f"{settings.expressways:g} expressway{'' if settings.expressways == 1 else 's'}"
    how = "" if settings.density is None else f", {settings.density:g} tuples/s each"
    return f"seconds {job.begin:,} to {job.end - 1:,} of {roads}{how}"
