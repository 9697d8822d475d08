"""Answers from history: what a car spent on a day, and how long a trip takes and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from headrace.errors import SourceError
from headrace_linearroad.validating import text
from headrace_linearroad.validating.duck import Connection
from headrace_linearroad.validating.reading import Columns
from headrace_linearroad.validating.rules import Rules
from headrace_linearroad.validating.shapes import HISTORY, SEGMENT_HISTORY, TOLL_HISTORY

HOUR = 3_600_000  # milliseconds: the time for a mile at 1 mph
MINUTE = 60_000
DAYS, WEEK, SEGMENTS, MINUTES = 69, 7, 100, 1440
SUMS = ("n", "speed", "k", "toll")
KINDS: dict[int, tuple[str, ...]] = {len(names): names for names in (TOLL_HISTORY, SEGMENT_HISTORY)}


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Histories:
    """Files of each kind. Without files of a kind, its questions have no answers."""

    tolls: Sequence[Path]
    segments: Sequence[Path]


def histories(given: Sequence[Path], path: Path) -> Histories:
    """Return the given histories, or those in the input folder if none are given."""
    beside = path / HISTORY
    if not given and path.is_dir() and beside.is_dir():
        given = [beside]
    files = [file for each in given for file in _files(each)]
    kinds = {file: len(_columns(file)) for file in files}
    return Histories(
        *([file for file in files if kinds[file] == len(names)] for names in (TOLL_HISTORY, SEGMENT_HISTORY))
    )


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise SourceError(
            f"there is no history at {str(path)!r}; give a file with 4 or 8 columns, or a folder of such files"
        )
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith(("_", ".")))
    if not found:
        raise SourceError(f"there is no history in {str(path)!r}: the folder is empty; give another folder")
    return found


def _columns(file: Path) -> tuple[str, ...]:
    """Return the columns of a history, which identify its kind."""
    if _is_arrow(file):
        names = pa.ipc.open_file(pa.memory_map(str(file))).schema.names
        for kind in KINDS.values():
            if set(names) == set(kind):
                return kind
        raise SourceError(f"{str(file)!r} has columns {', '.join(names)}; expected {_either()}")
    with text.opened(file) as lines:
        line = lines.readline()
    count = line.count(b",") + 1
    if count not in KINDS:
        raise SourceError(f"{str(file)!r} begins with a line of {count} columns; expected {_either()}")
    return KINDS[count]


def _either() -> str:
    return " or ".join(", ".join(kind) for kind in KINDS.values())


def _is_arrow(file: Path) -> bool:
    with file.open("rb") as head:
        return head.read(6) == b"ARROW1"


@contextmanager
def _rows(file: Path, names: Sequence[str]) -> Iterator[Any]:
    """Open the rows of a file for DuckDB."""
    if _is_arrow(file):
        with pa.memory_map(str(file)) as source:
            yield pa.ipc.open_file(source).read_all()
        return
    with text.opened(file) as source:
        yield pa.csv.open_csv(
            source,
            read_options=pa.csv.ReadOptions(column_names=list(names), block_size=text.BLOCK),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64()), null_values=[]),
        )


def _gathered(con: Connection, files: Iterable[Path], names: Sequence[str], sql: str) -> pa.Table:
    """Return the concatenated results of a SELECT over each file, registered as `history`."""
    found = []
    for file in files:
        try:
            with _rows(file, names) as rows:
                con.register("history", rows)
                found.append(con.sql(sql).to_arrow_table())
                con.unregister("history")
        except (pa.ArrowException, duckdb.Error, *text.UNREADABLE) as error:
            reason = str(error).splitlines()[0]
            raise SourceError(f"{str(file)!r} does not have {len(names)} columns of whole numbers: {reason}") from None
    return pa.concat_tables(found)


# --- expenditures ----------------------------------------------------------------------------------------------------


def expenditures(con: Connection, files: Sequence[Path], queries: Columns) -> pa.Table:
    """Return the toll of each question's (vid, day, xway). A question without a row has no answer."""
    names = ("qid", "time", "vid", "day", "xway")
    asked = pa.table({name: queries[name] for name in names})
    if not files:
        return asked.slice(0, 0).append_column("bal", pa.array([], pa.int64()))
    con.register("asked", asked)
    found = _gathered(
        con,
        files,
        TOLL_HISTORY,
        f"""SELECT DISTINCT h.vid, h.day, h.xway, h.toll::BIGINT AS toll FROM history h
            SEMI JOIN asked USING (vid, day, xway) WHERE h.day BETWEEN 1 AND {DAYS}""",
    )
    con.register("found", found)
    twice = con.sql(
        "SELECT vid, day, xway FROM found GROUP BY ALL HAVING count(DISTINCT toll) > 1 ORDER BY ALL LIMIT 1"
    ).fetchall()
    if twice:
        raise SourceError("the history of tolls has two tolls for vid {}, day {}, xway {}".format(*twice[0]))
    return con.sql("""
        SELECT qid, time, vid, day, xway, toll AS bal FROM asked JOIN (SELECT DISTINCT * FROM found) USING (vid, day, xway)
    """).to_arrow_table()


# --- travel times ----------------------------------------------------------------------------------------------------


def travel_times(con: Connection, files: Sequence[Path], queries: Columns, rules: Rules) -> pa.Table:
    """Return travel times and tolls of the trips from segment `sinit` to `send`, one expressway at a time."""
    fits = (queries["dow"] >= 1) & (queries["dow"] <= WEEK)
    fits &= (queries["tod"] >= 1) & (queries["tod"] <= MINUTES)
    for name in ("sinit", "send"):
        fits &= (queries[name] >= 0) & (queries[name] < SEGMENTS)
    asked = {name: column[fits] for name, column in queries.items()}
    answered = [_none()]
    if files and len(asked["qid"]):
        con.register("asked", pa.table(asked))
        con.register("by_weekday", _gathered(con, files, SEGMENT_HISTORY, _by_weekday()))
        for xway in np.unique(asked["xway"]):
            mine = asked["xway"] == xway
            rows = con.execute(_of_one_expressway(), [int(xway)]).fetchnumpy()
            if len(rows["seg"]):
                answered.append(_trips({name: column[mine] for name, column in asked.items()}, rows, rules))
    return pa.concat_tables(answered)


def _none() -> pa.Table:
    return pa.table({name: pa.array([], pa.int64()) for name in ("qid", "time", "traveltime", "toll")})


def _by_weekday() -> str:
    """Return SQL for the sums over the days of each weekday. Rows outside the domains are ignored."""
    return f"""
        SELECT xway::INTEGER AS xway, dir::TINYINT AS dir, seg::TINYINT AS seg, min::SMALLINT AS min,
               (day % {WEEK})::TINYINT AS weekday,
               count(*) FILTER (lav > 0) AS n, coalesce(sum(lav) FILTER (lav > 0), 0)::BIGINT AS speed,
               count(*) FILTER (lav >= 0) AS k, coalesce(sum(toll) FILTER (lav >= 0), 0)::BIGINT AS toll
        FROM history SEMI JOIN asked USING (xway)
        WHERE day BETWEEN 1 AND {DAYS} AND min BETWEEN 1 AND {MINUTES} AND dir BETWEEN 0 AND 1
              AND seg BETWEEN 0 AND {SEGMENTS - 1}
        GROUP BY ALL
    """


def _of_one_expressway() -> str:
    sums = ", ".join(f"sum({name})::BIGINT AS {name}" for name in SUMS)
    return f"SELECT dir, seg, min, weekday, {sums} FROM by_weekday WHERE xway = ? GROUP BY ALL"


def _trips(asked: Columns, history: Mapping[str, Any], rules: Rules) -> pa.Table:
    """Compute all trips of an expressway at once, segment by segment."""
    sums = _dense(history)
    back = asked["sinit"] > asked["send"]
    length = np.abs(asked["send"] - asked["sinit"])
    weekday = (asked["dow"] - rules.weekday) % WEEK
    start = (asked["tod"] - 1) * MINUTE
    now, cost = start.copy(), np.zeros_like(start)
    for step in range(int(length.max(initial=0)) + 1):
        on = np.flatnonzero(length >= step)
        seg = asked["sinit"][on] + np.where(back[on], -step, step)
        minute = now[on] // MINUTE + 1
        minute = (minute - 1) % MINUTES + 1 if rules.wraps else np.minimum(minute, MINUTES)
        n, speed, k, toll = sums[:, _place(back[on].astype(np.int64), seg, minute, weekday[on])]
        now[on] += np.where(n > 0, HOUR * n // np.maximum(speed, 1), HOUR)
        cost[on] += np.where(k > 0, (2 * toll + k * rules.rounded) // np.maximum(2 * k, 1), 0)
    return pa.table({"qid": asked["qid"], "time": asked["time"], "traveltime": (now - start) // 1000, "toll": cost})


def _dense(history: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """Return the sums of one expressway as an array: one row for each of SUMS, indexed by `_place`."""
    dense = np.zeros((len(SUMS), 2 * SEGMENTS * MINUTES * WEEK), np.int64)
    at = _place(*(history[name].astype(np.int64) for name in ("dir", "seg", "min", "weekday")))
    for row, name in enumerate(SUMS):
        dense[row, at] = history[name]
    return dense


def _place(dir: Any, seg: Any, minute: Any, weekday: Any) -> Any:
    return ((dir * SEGMENTS + seg) * MINUTES + minute - 1) * WEEK + weekday
