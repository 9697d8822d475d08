"""A run of the query, from the user's files to five folders of answers.

Each run has a folder beside its checkpoint, `<checkpoint>.spool`, with the input as one file per second, the histories
in sorted form, and the invalid input. The folder is complete when it has `_run.json`, which also identifies the input:
a second start must use the same. Another `_run.json` in a folder of answers names the checkpoint that the answers
belong to.
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

ANSWERS = next(iter(OUTPUTS))  # the folder of answers that has `_run.json`
SECONDS, LINES, TUPLES, LATE = "seconds", "apart.tsv", "apart", "late"
OPERATORS = {"expenditures": 3, "travel_times": 4}  # the engine's numbers of these operators, in the usual plan
NO_ROWS = "no-rows.parquet"


@dataclass(frozen=True)
class Given:
    """The options of a run."""

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
    """The prepared input of a run."""

    seconds: Path
    histories: Histories
    lines: int  # lines of a text input
    apart: Counter[str]  # invalid lines of a text input, by reason
    wandering: str = ""  # the car behaviour that needs the longer plan (`wandering.py`), or ""


@dataclass(frozen=True)
class Looked:
    """The result of `look`."""

    files: dict[str, list[Path]]  # files of histories, by kind
    identity: dict[str, Any]  # identifies the input of the run
    known: dict[str, Any] | None  # what an earlier start prepared


def look(given: Given) -> Looked:
    """Do every check that takes less than a second. Nothing is written."""
    if not given.input.exists():
        raise SourceError(f"there is no {str(given.input)!r}; give a text file, or a folder that generate wrote")
    if given.input.is_dir():
        _check_whole(given.input)
    elif given.input.is_file():
        reading.look(given.input)
    else:
        raise SourceError(
            f"{str(given.input)!r} is not a regular file; give a file, because a run that was killed must read it again"
        )
    files = history.files_of(_histories(given))
    read = {
        "the input": given.input,
        **{f"the history {path.name!r}": path for paths in files.values() for path in paths},
    }
    places.check(given.out, list(OUTPUTS), given.checkpoint, given.spool, read)
    return Looked(files, identity := _identity(given, files), _known(given, identity))


@contextmanager
def prepare(given: Given, looked: Looked, say: Say) -> Iterator[Prepared]:
    """Prepare the input, unless an earlier start did, and lock the run's folders until the context ends."""
    with places.held(given.spool, given.out / ANSWERS):
        known = looked.known or _known(given, looked.identity)  # another process may have prepared it since `look`
        _check_answers(given, begun=known is not None)
        yield _anew(given, looked, say) if known is None else _again(known)


def _check_whole(folder: Path) -> None:
    """Raise if the folder does not have all files that `generate` wrote."""
    if not (folder / COMPLETE).exists():
        msg = f"the folder {str(folder)!r} has no {COMPLETE}, so it is half written or generate did not write it"
        raise SourceError(f"{msg}; generate it again, or give the text file if it contains one")
    try:
        summary = json.loads((folder / COMPLETE).read_text())
        expected, tuples = summary["files"], summary["tuples"]
    except (ValueError, TypeError, KeyError):
        raise SourceError(
            f"{str(folder / COMPLETE)!r} does not say how many files there are; generate the folder again"
        ) from None
    found = sum(1 for _ in folder.glob("*.arrow"))
    if not found and tuples:
        raise SourceError(f"the folder {str(folder)!r} has no Arrow files; if it contains a text file, give that file")
    if found != expected:
        msg = f"the folder {str(folder)!r} has {found:,} files of seconds, but generate wrote {expected:,}"
        raise SourceError(f"{msg}; generate it again")


def _histories(given: Given) -> list[Path]:
    beside = given.input / HISTORY
    return list(given.histories) or ([beside] if beside.is_dir() else [])


# --- identity of a run ------------------------------------------------------------------------------------------------


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
    """Return what an earlier start prepared, or None. Raise if it was for other options."""
    note = given.spool / NOTE
    try:
        known: dict[str, Any] = json.loads(note.read_text())
        of = known["of"]
        differing = [what for what, found in identity.items() if of[what] != found]
    except FileNotFoundError:
        _check_unused(given, note)
        return None
    except (ValueError, TypeError, KeyError):
        msg = f"{str(note)!r} is damaged, or another program wrote it"
        raise QueryError(f"{msg}; start over with another --out and --checkpoint") from None
    if differing:
        what = differing[0]
        why = _difference(what, of[what], identity[what])
        raise QueryError(f"the checkpoint {str(given.checkpoint)!r} belongs to another run: {why}")
    return known


def _check_unused(given: Given, note: Path) -> None:
    if given.checkpoint.is_dir() and any(given.checkpoint.iterdir()):
        msg = f"the checkpoint {str(given.checkpoint)!r} belongs to another program, or its {str(note)!r} was removed"
        raise QueryError(f"{msg}; give another --checkpoint")


def _difference(what: str, known: Any, found: Any) -> str:
    anew = "to start over, give another --out and --checkpoint"
    if isinstance(found, str):
        option = f"--{what}"
        return f"it has {option} {known}, and this one has {found}; to resume it, give {option} {known}; {anew}"
    before, now = ([path for path, _, _ in files] for files in (known, found))
    if before != now:
        msg = f"its {what} is {_listed(before)}, and that of this one is {_listed(now)}"
        return f"{msg}; to resume it, give the same; {anew}"
    path = next(new[0] for old, new in zip(known, found, strict=True) if old != new)
    return f"its {what} {path!r} was changed since, so the existing answers do not fit it; {anew}"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(map(repr, paths)) if paths else "none"


# --- preparation ------------------------------------------------------------------------------------------------------


def _check_answers(given: Given, begun: bool) -> None:
    """Raise if the folders of answers contain those of another run, or no longer contain those of this run."""
    here, owner = str(given.checkpoint.resolve()), given.out / ANSWERS / NOTE
    of = json.loads(owner.read_text())["checkpoint"] if owner.exists() else None
    anew = "start over with another --out and --checkpoint"
    for folder in (given.out / name for name in OUTPUTS):
        if begun and not (folder / NO_ROWS).exists():
            msg = f"the folder {str(folder)!r} of this run, or {NO_ROWS} in it, was removed"
            raise QueryError(f"{msg}; put it back, or {anew}")
        if not any(each.name != NO_ROWS for each in folder.glob("[!_.]*")):
            continue
        if not begun or of not in (None, here):
            msg = f"{str(folder)!r} has answers of another run, and a folder cannot hold answers of two runs"
            theirs = f", {of!r}" if of not in (None, here) else ""
            raise QueryError(f"{msg}; give another --out, or the --checkpoint of that run{theirs}")
        if not given.checkpoint.exists():
            msg = f"{str(folder)!r} has answers, but the checkpoint {str(given.checkpoint)!r} does not exist"
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
        say(f"{spooled.wandering}: using the longer plan, which follows each car separately")
    begin_folders(given.out)
    os.sync()
    paths = [path and str(path) for path in (histories.tolls, histories.segments)]
    found = Prepared(seconds.resolve(), histories, spooled.lines, spooled.apart, spooled.wandering)
    note = {"seconds": str(found.seconds), "histories": paths, "lines": found.lines, "apart": dict(found.apart)}
    places.publish(spool / NOTE, {"of": looked.identity, **note, "wandering": found.wandering})
    return found


def results(spark: Any, given: Given, prepared: Prepared, epoch: int | None) -> list[tuple[Stream, Any]]:
    """Return the streams of the query, each with its sink."""
    streams = query.answers(
        _tuples(spark, prepared.seconds, epoch), given.profile, prepared.histories, bool(prepared.wandering)
    )
    to = {name: given.out / name for name in OUTPUTS} | {query.APART: given.spool / TUPLES}
    return [(stream, hr.sinks.parquet(to[name])) for name, stream in streams.items()]


def options(given: Given, slots: int) -> dict[str, Any]:
    """Return the options of `start`: run to the end of the input, without a pause between epochs."""
    late = hr.sinks.parquet(given.spool / LATE)
    return {"checkpoint": given.checkpoint, "epoch": "0 seconds", "slots": slots, "once": True, "late": late}


def shape(given: Given) -> list[Stream]:
    """Return the streams of the usual plan, for `--explain`. The input files are not read."""
    folder = given.input if given.input.is_dir() else given.input.parent
    return list(query.answers(_tuples(None, folder, None), given.profile, Histories(None, None)).values())


def _tuples(spark: Any, seconds: Path, epoch: int | None) -> Stream:
    return hr.files(spark, seconds, time="ts", name="input", schema=INPUT, order="name", files_per_epoch=epoch)


def begin_folders(out: Path) -> None:
    """Write an empty Parquet file with the columns to each folder of answers, so that readers find the schema."""
    for name, schema in OUTPUTS.items():
        path = out / name / NO_ROWS
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f"_{path.name}")
            pq.write_table(schema.empty_table(), hidden)
            hidden.rename(path)


def remarks(given: Given, prepared: Prepared, run: Any) -> list[str]:
    """Return what the user must know about a run that has ended: invalid and late input, and unanswered questions."""
    found = []
    for reason, many in sorted(prepared.apart.items()):
        found.append(f"{_many(many, 'line')} set aside, {reason}: {given.spool / LINES}")
    if many := run.progress.results.get(f"result-{len(OUTPUTS)}", 0):
        found.append(f"{_many(many, 'tuple')} set aside, with reasons: {given.spool / TUPLES}")
    if run.progress.late or run.progress.rejected:
        found.append(
            f"{_many(run.progress.late + run.progress.rejected, 'tuple')} late or rejected: {given.spool / LATE}"
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
