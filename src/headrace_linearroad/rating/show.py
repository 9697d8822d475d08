"""The command `headrace linearroad rate`: trials, their progress, tables at the end, and the result as JSON."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from headrace.errors import WorkloadError
from headrace.showing import live, terminal
from headrace.showing.signals import stop_on_first_signal
from headrace_bench.report import Grid, machine, number, size
from headrace_bench.report import table as as_table
from headrace_bench.running import demand_linux
from headrace_demo.workloads.writing import new_folder
from headrace_linearroad.rating.helpers import Stopped
from headrace_linearroad.rating.judgement import read, waits
from headrace_linearroad.rating.listening import Listening
from headrace_linearroad.rating.responses import LIMITS
from headrace_linearroad.rating.searching import search
from headrace_linearroad.rating.trial import Plan, Trial

RESULT = "result.json"
FORM = 1  # format number of the result
LINES_EVERY = 3.0  # seconds between two plain lines

Result = Mapping[str, Any]  # the result of a trial


@dataclass(frozen=True)
class Options:
    """Options of a rating.

    plan: the plan to try; a search begins with its expressways. keep: keep the answers. trial: the class that runs a
    trial.
    """

    plan: Plan
    out: Path
    searching: bool
    resolution: float
    keep: bool
    trial: Callable[..., Any] = Trial


def show(options: Options, console: Console) -> bool:
    """Rate and show the results. Return whether the given number holds, or the search found one that does."""
    demand_linux()
    out, before = _folder(options.out), machine()
    trials = list[dict[str, Any]]()
    best: float | None = None
    try:
        with stop_on_first_signal() as stop, _display(console) as display:

            def once(expressways: float, folder: Path, strict: bool) -> bool:
                plan = replace(options.plan, expressways=expressways)
                display.begin(plan)
                result = options.trial(plan, folder, display, lambda: stop.asked, strict=strict).run()
                if not options.keep:
                    shutil.rmtree(folder / "answers", ignore_errors=True)
                trials.append(result)
                _save(out / RESULT, trials, before, best)
                display.say(in_words(result))
                return bool(result["held"])

            if options.searching:
                first = int(options.plan.expressways)
                best = search(lambda n: once(n, out / f"L{n}", True), first, options.resolution)
            else:
                best = options.plan.expressways if once(options.plan.expressways, out, False) else 0
    except (Stopped, KeyboardInterrupt):
        _stopped(out, trials, console)
        return True
    _save(out / RESULT, trials, before, best)
    _show_all(trials, _end(options, best, trials), out, console)
    return best > 0


def judge(out: Path, console: Console) -> bool:
    """Resume judging an interrupted rating. Return whether the rating holds."""
    judgement, before = read(out), machine()
    try:
        with stop_on_first_signal() as stop, _display(console) as display:
            result = judgement.judge(lambda: stop.asked, display.doing)
    except (Stopped, KeyboardInterrupt):
        _stopped(out, [], console)
        return True
    _save(out / RESULT, [result], before, result["expressways"] if result["held"] else 0)
    judgement.end()
    _show_all([result], in_words(result), out, console)
    return bool(result["held"])


def _show_all(trials: Sequence[Result], words: str, out: Path, console: Console) -> None:
    for grid in (of_trials(trials), of_responses(trials[-1]), of_processor(trials[-1])):
        console.print()
        console.print(as_table(grid))
    console.print()
    terminal.say(console, words, "bold")
    terminal.say(console, f"full result: {out / RESULT}; as a page: headrace linearroad report {out / RESULT}", "dim")


def _stopped(out: Path, trials: Sequence[Result], console: Console) -> None:
    if waits(out):
        words = f"stopped; the rating is kept; resume judging with: headrace linearroad judge {out}"
    else:
        _removed(out, trials)
        words = "stopped; generated files were deleted" + (", results were kept" if trials else "")
    terminal.say(console, words)


def _folder(out: Path) -> Path:
    return new_folder(out)


def _removed(out: Path, trials: Sequence[Result]) -> None:
    """Delete everything except results."""
    for path in list(out.iterdir()):
        if path.name == RESULT and trials:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    if not trials:
        out.rmdir()


def _save(path: Path, trials: Sequence[Result], before: dict[str, Any], best: float | None) -> None:
    hidden = path.with_name(f"_{path.name}")
    hidden.write_text(json.dumps({"form": FORM, "machine": before, "best": best, "trials": trials}) + "\n")
    hidden.rename(path)


def load(path: Path) -> dict[str, Any]:
    """Read a saved result."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"{str(path)!r} cannot be read: {error}; give a result.json that linearroad rate wrote"
        ) from None
    if not isinstance(found, dict) or found.get("form") != FORM or "trials" not in found:
        raise WorkloadError(f"{str(path)!r} is not a result of linearroad rate; give a result.json that it wrote")
    return found


# --- in words ---------------------------------------------------------------------------------------------------------


def in_words(result: Result) -> str:
    """
    >>> in_words({"expressways": 8, "held": False, "given_up": "it was 61 s behind", "judged": None})
    'L = 8: not held, it was 61 s behind; not judged'
    """
    head = f"L = {result['expressways']:g}: {'held' if result['held'] else 'not held'}"
    if result["given_up"]:
        return f"{head}, {result['given_up']}; not judged"
    worst = ", ".join(f"{name.replace('_', ' ')} {each['worst']:.2f} s" for name, each in result["outputs"].items())
    broken = result["first_broken"]
    late = f"; {broken} came too late first, in second {result['outputs'][broken]['broken']:,}" if broken else ""
    return f"{head}; {_judged(result['judged'])}; worst: {worst}{late}{silent(result)}"


def silent(result: Result) -> str:
    """Return a remark about outputs without rows in the rated time, or "". Their limits were not tested."""
    found = [name.replace("_", " ") for name, each in result["outputs"].items() if not each["rows"]]
    return f"; there were no {' and no '.join(found)}, which are not rated" if found else ""


def _judged(verdict: Result | None) -> str:
    if verdict is None:
        return "not judged"
    if verdict["ok"]:
        return f"all {sum(verdict['rows'].values()):,} rows are right"
    wrong = sum(sum(faults.values()) for faults in verdict["faults"].values())
    return f"NOT RIGHT: {wrong:,} rows are wrong, {sum(verdict['nobodys'].values()):,} belong to no expressway"


def _end(options: Options, best: float, trials: Sequence[Result]) -> str:
    plan = options.plan
    what = "whole-run" if plan.whole else "peak-rate"
    how = f"{plan.seconds:,} s at speed {plan.speed:g}, warm-up {plan.warm_up:,} s, {plan.slots} slots"
    if not options.searching:
        return f"{what} L = {plan.expressways:g} {'holds' if best else 'does not hold'} ({how})"
    tried = ", ".join(f"{trial['expressways']:g} {'held' if trial['held'] else 'failed'}" for trial in trials)
    return f"{what} L = {best:g} ({how}; tried {tried})"


# --- tables -----------------------------------------------------------------------------------------------------------


def of_trials(trials: Sequence[Result]) -> Grid:
    headings = [">L", "held", ">tuples/s", ">worst", ">epoch", ">cores", ">memory", ">state/car"]
    return Grid("trials", headings, [_trial(trial) for trial in trials])


def _trial(trial: Result) -> list[str]:
    epoch, wall = trial["epoch_seconds"], max(trial["wall"], 0.001)
    why = trial["given_up"] or (f"{trial['first_broken']} too late" if trial["first_broken"] else "")
    return [
        f"{trial['expressways']:g}",
        "yes" if trial["held"] else f"no: {why}" if why else "no",
        number(trial["tuples_per_second"]),
        f"{max(each['worst'] for each in trial['outputs'].values()):.2f} s",
        f"{epoch['median']:.2f} s",
        f"{sum(trial['cpu'].values()) / wall:.2f}",
        size(sum(trial["memory"].values())),
        size(trial["state"].get("bytes_per_car", 0)),
    ]


def of_responses(trial: Result) -> Grid:
    rows = [
        [
            name.replace("_", " "),
            f"{each['limit']:g} s",
            f"{each['rows']:,}",
            f"{each['p50']:.2f} s",
            f"{each['p99']:.2f} s",
            f"{each['worst']:.2f} s",
            "" if each["held"] else f"{each['late']:,} late, first in second {each['broken']:,}",
        ]
        for name, each in trial["outputs"].items()
    ]
    headings = ["output", ">limit", ">rows", ">half", ">99%", ">worst", ""]
    return Grid(f"responses at L = {trial['expressways']:g}", headings, rows)


def of_processor(trial: Result) -> Grid:
    wall, tuples = max(trial["wall"], 0.001), max(trial["tuples"], 1)
    rows = [
        [name, f"{seconds:.2f}", f"{seconds / wall:.3f}", f"{seconds / tuples * 1e6:.3f}"]
        for name, seconds in trial["cpu"].items()
    ]
    return Grid(f"processor at L = {trial['expressways']:g}", ["part", ">seconds", ">cores", ">µs/tuple"], rows)


# --- while it runs ----------------------------------------------------------------------------------------------------


class _Shown:
    """The progress display: a fixed panel on a terminal, otherwise a line every few seconds."""

    def __init__(self, console: Console, panel: Live | None) -> None:
        self._console, self._panel = console, panel
        self._plan: Plan | None = None
        self._doing, self._painted = "", 0.0

    def begin(self, plan: Plan) -> None:
        self._plan = plan
        what = "the three hours" if plan.whole else f"{plan.warm_up:,} s of warm-up"
        self.say(f"L = {plan.expressways:g}: {what}, {plan.seconds:,} s rated at speed {plan.speed:g}")

    def say(self, text: str) -> None:
        terminal.say(self._console, text)

    def doing(self, text: str) -> None:
        self._doing = text
        self._paint(text)

    def show(self, listening: Listening) -> None:
        if listening.start is None:
            self._paint(self._doing)
            return
        self._paint(self._figures(listening))

    def _figures(self, listening: Listening) -> str:
        assert self._plan is not None
        now, plan = time.monotonic(), self._plan
        done = min(max(listening.second - plan.begin, 0), plan.seconds)
        recent = [epoch for epoch in listening.epochs[-10:] if epoch["tuples"]]
        passed = recent[-1]["at"] - recent[0]["at"] if len(recent) > 1 else 0.0
        rate = sum(epoch["tuples"] for epoch in recent[1:]) / passed if passed else 0.0
        worst = ", ".join(
            f"{name.replace('_', ' ')} {listening.worst.get(name, 0):.1f}/{LIMITS[name]:g}" for name in LIMITS
        )
        head = f"L = {plan.expressways:g}  second {done:,} of {plan.seconds:,}  {number(rate)} tuples/s"
        return f"{head}  behind {live.seconds_text(listening.behind(now))}  worst of limit: {worst}"

    def _paint(self, text: str) -> None:
        every = 1 / live.FRAMES if self._panel is not None else LINES_EVERY
        if time.monotonic() - self._painted < every:
            return
        self._painted = time.monotonic()
        if self._panel is not None:
            self._panel.update(Text(text), refresh=True)
        else:
            self.say(text)


@contextmanager
def _display(console: Console) -> Iterator[_Shown]:
    if not console.is_terminal:
        yield _Shown(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as panel:
        yield _Shown(console, panel)
