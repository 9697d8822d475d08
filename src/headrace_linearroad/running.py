"""A run of the query, from whatever was given to five folders of answers.

Beside the checkpoint is a folder of the run's own, `<checkpoint>.spool`: text as files of seconds, histories as they are
looked up, and what was kept apart. It is complete when it has `_run.json`, which also says what the run is of: a second start
must be of the same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import headrace as hr
from headrace.errors import QueryError, SourceError
from headrace.stream import Stream
from headrace_linearroad import folders, history, query, reading
from headrace_linearroad.forms import COMPLETE, HISTORY, INPUT, OUTPUTS
from headrace_linearroad.history import Histories
from headrace_linearroad.lookups import REASONS

NOTE = "_run.json"
SECONDS, LINES, TUPLES, LATE = "seconds", "apart.tsv", "apart", "late"
OPERATORS = {"expenditures": 3, "travel_times": 4}  # as the engine counts them, without a step for wandering cars
NO_ROWS = "no-rows.parquet"


@dataclass(frozen=True)
class Given:
    """What a run is of."""

    input: Path
    histories: Sequence[Path]
    profile: str
    out: Path
    checkpoint: Path

    @property
    def spool(self) -> Path:
        return self.checkpoint.with_name(f"{self.checkpoint.name}.spool")


@dataclass(frozen=True)
class Prepared:
    """What was given, as it is read."""

    seconds: Path
    histories: Histories
    lines: int  # of text
    apart: Counter[str]  # lines of it that are kept apart, by reason
    wandering: str = ""  # what a car does that needs the longer plan (`wandering.py`)


def prepare(given: Given, say: Callable[[str], None]) -> Prepared:
    """Look at what is given, and turn it into what is read, unless that was done before."""
    if not given.input.exists():
        raise SourceError(f"there is no {str(given.input)!r}; give a text, or a folder that generate wrote")
    if given.input.is_dir():
        _check_whole(given.input)
    if given.out.exists() and not given.out.is_dir():
        raise QueryError(f"{str(given.out)!r} is no folder; give another --out")
    files = history.files_of(_histories(given))
    identity = _identity(given, files)
    note = given.spool / NOTE
    if note.exists():
        return _again(given, note, identity)
    if _holds_state(given.checkpoint):
        msg = f"the checkpoint {str(given.checkpoint)!r} has no {str(note)!r} beside it: it is of another run, or that was removed"
        raise QueryError(f"{msg}; give another --checkpoint")
    return _anew(given, files, identity, say)


def _check_whole(folder: Path) -> None:
    """Whether a folder has all that was written into it."""
    if not (folder / COMPLETE).exists():
        msg = f"the folder {str(folder)!r} has no {COMPLETE}, so it is half written, or no folder that generate wrote"
        raise SourceError(f"{msg}; make it anew")
    try:
        summary = json.loads((folder / COMPLETE).read_text())
        expected, tuples = summary["files"], summary["tuples"]
    except (ValueError, TypeError, KeyError):
        raise SourceError(f"{str(folder / COMPLETE)!r} does not say how many files there are; make it anew") from None
    found = sum(1 for _ in folder.glob("*.arrow"))
    if not found and tuples:
        raise SourceError(f"the folder {str(folder)!r} has no files of seconds; if it has a text, give that one")
    if found != expected:
        msg = f"the folder {str(folder)!r} has {found:,} files of seconds, {expected:,} were written; make it anew"
        raise SourceError(msg)


def _histories(given: Given) -> list[Path]:
    beside = given.input / HISTORY
    return list(given.histories) or ([beside] if beside.is_dir() else [])


def _holds_state(checkpoint: Path) -> bool:
    return checkpoint.is_dir() and any(checkpoint.iterdir())


def _identity(given: Given, files: dict[str, list[Path]]) -> dict[str, Any]:
    source = given.input / COMPLETE if given.input.is_dir() else given.input
    return {
        "input": _file(source),
        "histories": {name: [_file(path) for path in paths] for name, paths in files.items()},
        "profile": given.profile,
        "out": str(given.out.resolve()),
    }


def _file(path: Path) -> list[Any]:
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def _again(given: Given, note: Path, identity: dict[str, Any]) -> Prepared:
    known = json.loads(note.read_text())
    for what, found in identity.items():
        if known["of"][what] != found:
            msg = f"the checkpoint {str(given.checkpoint)!r} is of a run with another {what}: {known['of'][what]}; found {found}"
            raise QueryError(f"{msg}; give another --checkpoint, or what it is of")
    for name in OUTPUTS:
        if not (given.out / name / NO_ROWS).exists():
            msg = f"{str(given.out / name)!r} is not what this run wrote into: it was removed, or {NO_ROWS} in it"
            raise QueryError(f"{msg}; put it back, or begin anew with another --out and --checkpoint")
    tolls, segments = (None if path is None else Path(path) for path in known["histories"])
    told = known["lines"], Counter(known["apart"]), known["wandering"]
    return Prepared(Path(known["seconds"]), Histories(tolls, segments), *told)


def _anew(given: Given, files: dict[str, list[Path]], identity: dict[str, Any], say: Callable[[str], None]) -> Prepared:
    spool = given.spool
    for name in OUTPUTS:
        if any(each.name != NO_ROWS for each in (given.out / name).glob("[!_.]*")):
            msg = f"{str(given.out / name)!r} has answers of another run, and those of two are not to be mixed"
            raise QueryError(f"{msg}; give another --out, or the --checkpoint of that run")
    if spool.exists():
        shutil.rmtree(spool)  # of a start that was killed
    seconds = spool / SECONDS
    seconds.mkdir(parents=True)
    spooled = reading.Spooled()
    say(f"reading {given.input} ...")
    if given.input.is_dir():
        seconds = given.input.resolve()
        spooled.wandering = folders.look_through(seconds, given.profile)
    else:
        spooled = reading.spool(given.input, seconds, spool / LINES, given.profile)
        say(f"{spooled.tuples:,} tuples of {spooled.seconds:,} seconds")
    if spooled.wandering:
        say(f"{spooled.wandering}: every car is followed by itself")
    if any(files.values()):
        say("looking at histories ...")
    told = spooled.lines, spooled.apart, spooled.wandering
    found = Prepared(seconds.resolve(), history.prepared(files, spool / HISTORY), *told)
    begin_folders(given.out)
    os.sync()
    _publish(
        spool / NOTE,
        {
            "of": identity,
            "seconds": str(found.seconds),
            "histories": [path and str(path) for path in (found.histories.tolls, found.histories.segments)],
            "lines": found.lines,
            "apart": dict(found.apart),
            "wandering": found.wandering,
        },
    )
    return found


def _publish(path: Path, content: dict[str, Any]) -> None:
    hidden = path.with_name(f"{path.name}.new")
    with open(hidden, "w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)


def results(spark: Any, given: Given, prepared: Prepared, epoch: int | None) -> list[tuple[Stream, Any]]:
    """The streams of the query and where they go."""
    files = {"time": "ts", "name": "input", "schema": INPUT, "order": "name", "files_per_epoch": epoch}
    tuples = hr.files(spark, prepared.seconds, **files)
    streams = query.answers(tuples, given.profile, prepared.histories, bool(prepared.wandering))
    places = {name: given.out / name for name in OUTPUTS} | {query.APART: given.spool / TUPLES}
    return [(stream, hr.sinks.parquet(places[name])) for name, stream in streams.items()]


def begin_folders(out: Path) -> None:
    """So that whoever reads them finds the columns, even if there is never a row."""
    for name, schema in OUTPUTS.items():
        path = out / name / NO_ROWS
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f"_{path.name}")
            pq.write_table(schema.empty_table(), hidden)
            hidden.rename(path)


def remarks(given: Given, prepared: Prepared, run: Any) -> list[str]:
    """What must be said of a run that has ended."""
    found = []
    for reason, many in sorted(prepared.apart.items()):
        found.append(f"{_many(many, 'line')} kept apart, {reason}: {given.spool / LINES}")
    if many := run.progress.results.get(f"result-{len(OUTPUTS)}", 0):
        found.append(f"{_many(many, 'tuple')} kept apart, with the reason: {given.spool / TUPLES}")
    if run.progress.late or run.progress.rejected:
        found.append(
            f"{_many(run.progress.late + run.progress.rejected, 'tuple')} left out, of times gone by: {given.spool / LATE}"
        )
    for name, path in (("expenditures", prepared.histories.tolls), ("travel_times", prepared.histories.segments)):
        if path is None:
            found.append(f"no history: {name} is empty")
        for why, many in _unanswered(given, prepared, name):
            found.append(f"{name}: {_many(many, 'question')} without an answer: {REASONS[why]}")
    return found


def _unanswered(given: Given, prepared: Prepared, name: str) -> list[tuple[int, int]]:
    operator = OPERATORS[name] + bool(prepared.wandering)
    table = hr.read_state(given.checkpoint, f"apply-{operator}", "unanswered")
    found: Counter[int] = Counter()
    for row in table.to_pylist():
        found[row["reason"]] += row["n"]
    return sorted(found.items())


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
