"""A run of the query, from whatever was given to five folders of answers.

Beside the checkpoint is a folder of the run's own, `<checkpoint>.spool`: text as files of seconds, histories as they are
looked up, and what was kept apart. It is complete when it has `_run.json`, which also says what the run is of: a second start
must be of the same. Among the answers is a `_run.json` that says of which checkpoint they are.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import headrace as hr
from headrace.errors import QueryError, SourceError
from headrace.stream import Stream
from headrace_linearroad import folders, history, places, query, reading
from headrace_linearroad.forms import COMPLETE, HISTORY, INPUT, OUTPUTS
from headrace_linearroad.history import Histories
from headrace_linearroad.lookups import REASONS
from headrace_linearroad.places import NOTE
from headrace_linearroad.telling import Say, Slowly

ANSWERS = next(iter(OUTPUTS))  # the folder of answers that says of which run all of them are
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
        return places.beside(self.checkpoint, ".spool")


@dataclass(frozen=True)
class Prepared:
    """What was given, as it is read."""

    seconds: Path
    histories: Histories
    lines: int  # of text
    apart: Counter[str]  # lines of it that are kept apart, by reason
    wandering: str = ""  # what a car does that needs the longer plan (`wandering.py`)


@dataclass(frozen=True)
class Looked:
    """What was found at a first look, which changes nothing."""

    files: dict[str, list[Path]]  # of histories, by kind
    identity: dict[str, Any]  # what the run is of
    known: dict[str, Any] | None  # what a start before this one prepared


def look(given: Given) -> Looked:
    """All that can be known to be wrong in a second."""
    if not given.input.exists():
        raise SourceError(f"there is no {str(given.input)!r}; give a text, or a folder that generate wrote")
    if given.input.is_dir():
        _check_whole(given.input)
    elif given.input.is_file():
        reading.look(given.input)
    else:
        raise SourceError(f"{str(given.input)!r} is no file: a run that was killed must find it again; give a file")
    files = history.files_of(_histories(given))
    read = {
        "the input": given.input,
        **{f"the history {path.name!r}": path for paths in files.values() for path in paths},
    }
    places.check(given.out, list(OUTPUTS), given.checkpoint, given.spool, read)
    return Looked(files, identity := _identity(given, files), _known(given, identity))


@contextmanager
def prepare(given: Given, looked: Looked, say: Say) -> Iterator[Prepared]:
    """What was given as it is read, unless that was done before; nobody else has the folders as long as this lasts."""
    with places.held(given.spool, given.out / ANSWERS):
        known = looked.known or _known(given, looked.identity)  # which somebody may have prepared since we looked
        _check_answers(given, begun=known is not None)
        yield _anew(given, looked, say) if known is None else _again(known)


def _check_whole(folder: Path) -> None:
    """Whether a folder has all that was written into it."""
    if not (folder / COMPLETE).exists():
        msg = f"the folder {str(folder)!r} has no {COMPLETE}, so it is half written, or no folder that generate wrote"
        raise SourceError(f"{msg}; make it anew, or if there is a text in it, give that one")
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


# --- what a run is of -------------------------------------------------------------------------------------------------


def _identity(given: Given, files: dict[str, list[Path]]) -> dict[str, Any]:
    source = given.input / COMPLETE if given.input.is_dir() else given.input
    return {
        "profile": given.profile,
        "input": [_file(source)],
        **{history.KINDS_BY_FILE[name].words: [_file(path) for path in paths] for name, paths in files.items()},
        "out": str(given.out.resolve()),
    }


def _file(path: Path) -> list[Any]:
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def _known(given: Given, identity: dict[str, Any]) -> dict[str, Any] | None:
    """What was prepared before, of the same; or it is said what it is of."""
    note = given.spool / NOTE
    try:
        known: dict[str, Any] = json.loads(note.read_text())
        of = known["of"]
        differing = [what for what, found in identity.items() if of[what] != found]
    except FileNotFoundError:
        _check_unused(given, note)
        return None
    except (ValueError, TypeError, KeyError):
        msg = f"{str(note)!r} is not what a run wrote there"
        raise QueryError(f"{msg}; begin anew with another --out and --checkpoint") from None
    if differing:
        what = differing[0]
        why = _difference(what, of[what], identity[what])
        raise QueryError(f"the checkpoint {str(given.checkpoint)!r} is of another run: {why}")
    return known


def _check_unused(given: Given, note: Path) -> None:
    if given.checkpoint.is_dir() and any(given.checkpoint.iterdir()):
        msg = f"the checkpoint {str(given.checkpoint)!r} has no {str(note)!r} beside it: it is of another run, or that was removed"
        raise QueryError(f"{msg}; give another --checkpoint")


def _difference(what: str, known: Any, found: Any) -> str:
    anew = "to begin anew, give another --out and --checkpoint"
    if isinstance(found, str):
        option = f"--{what}"
        return f"it has {option} {known}, and this one {found}; to go on, give {option} {known}; {anew}"
    before, now = ([path for path, _, _ in files] for files in (known, found))
    if before != now:
        return f"its {what} is {_listed(before)}, and that of this one {_listed(now)}; to go on, give the same; {anew}"
    path = next(new[0] for old, new in zip(known, found, strict=True) if old != new)
    return f"its {what} {path!r} was changed since, so what was answered is of another one; {anew}"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(map(repr, paths)) if paths else "none"


# --- what is prepared -------------------------------------------------------------------------------------------------


def _check_answers(given: Given, begun: bool) -> None:
    """That answers which are there are of this run, and what it answered is there."""
    here, owner = str(given.checkpoint.resolve()), given.out / ANSWERS / NOTE
    of = json.loads(owner.read_text())["checkpoint"] if owner.exists() else None
    anew = "begin anew with another --out and --checkpoint"
    for folder in (given.out / name for name in OUTPUTS):
        if begun and not (folder / NO_ROWS).exists():
            msg = f"{str(folder)!r} is not what this run wrote into: it was removed, or {NO_ROWS} in it"
            raise QueryError(f"{msg}; put it back, or {anew}")
        if not any(each.name != NO_ROWS for each in folder.glob("[!_.]*")):
            continue
        if not begun or of not in (None, here):
            msg = f"{str(folder)!r} has answers of another run, and those of two are not to be mixed"
            theirs = f", {of!r}" if of not in (None, here) else ""
            raise QueryError(f"{msg}; give another --out, or the --checkpoint of that run{theirs}")
        if not given.checkpoint.exists():
            msg = f"{str(folder)!r} has answers, and the checkpoint {str(given.checkpoint)!r} is gone"
            raise QueryError(f"{msg}; put it back, or {anew}")
    places.publish(owner, {"checkpoint": here})


def _again(known: dict[str, Any]) -> Prepared:
    tolls, segments = (None if path is None else Path(path) for path in known["histories"])
    told = known["lines"], Counter(known["apart"]), known.get("wandering", "")
    return Prepared(Path(known["seconds"]), Histories(tolls, segments), *told)


def _anew(given: Given, looked: Looked, say: Say) -> Prepared:
    spool = given.spool
    places.remove(spool, (SECONDS, LINES, TUPLES, LATE, HISTORY))
    histories = history.prepared(looked.files, spool / HISTORY, Slowly(say))
    seconds, spooled = given.input, reading.Spooled()
    if given.input.is_dir():
        spooled.wandering = folders.look_through(seconds, given.profile, Slowly(say))
    else:
        seconds = spool / SECONDS
        seconds.mkdir()
        spooled = reading.spool(given.input, seconds, spool / LINES, Slowly(say), profile=given.profile)
        say(f"{given.input}: {spooled.tuples:,} tuples of {spooled.seconds:,} seconds")
    if spooled.wandering:
        say(f"{spooled.wandering}: each car is followed by itself")
    begin_folders(given.out)
    os.sync()
    paths = [path and str(path) for path in (histories.tolls, histories.segments)]
    found = Prepared(seconds.resolve(), histories, spooled.lines, spooled.apart, spooled.wandering)
    note = {"seconds": str(found.seconds), "histories": paths, "lines": found.lines, "apart": dict(found.apart)}
    places.publish(spool / NOTE, {"of": looked.identity, **note, "wandering": found.wandering})
    return found


def results(spark: Any, given: Given, prepared: Prepared, epoch: int | None) -> list[tuple[Stream, Any]]:
    """The streams of the query and where they go."""
    streams = query.answers(
        _tuples(spark, prepared.seconds, epoch), given.profile, prepared.histories, bool(prepared.wandering)
    )
    to = {name: given.out / name for name in OUTPUTS} | {query.APART: given.spool / TUPLES}
    return [(stream, hr.sinks.parquet(to[name])) for name, stream in streams.items()]


def options(given: Given, slots: int) -> dict[str, Any]:
    """How they are started: to the end of the input, one epoch right behind the other."""
    late = hr.sinks.parquet(given.spool / LATE)
    return {"checkpoint": given.checkpoint, "epoch": "0 seconds", "slots": slots, "once": True, "late": late}


def shape(given: Given) -> list[Stream]:
    """The same streams to be looked at only: the usual plan, whatever the files hold."""
    folder = given.input if given.input.is_dir() else given.input.parent
    return list(query.answers(_tuples(None, folder, None), given.profile, Histories(None, None)).values())


def _tuples(spark: Any, seconds: Path, epoch: int | None) -> Stream:
    return hr.files(spark, seconds, time="ts", name="input", schema=INPUT, order="name", files_per_epoch=epoch)


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
