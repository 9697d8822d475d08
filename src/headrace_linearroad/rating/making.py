"""The process that generates the traffic of a rating, piece by piece on request.

A piece is a range of seconds that is written to files, or only surveyed. All questions must be known before a run
begins, because it needs their histories, so a first pass surveys all seconds. The process reports the numbers of tuples
and reports of every second, and a digest, which shows later that the same seconds were generated again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_linearroad.forms import FIELDS, HISTORY, REPORT
from headrace_linearroad.generating.draws import draw, salt
from headrace_linearroad.generating.histories import Tolls
from headrace_linearroad.generating.rows import numbers
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic
from headrace_linearroad.generating.writing import Job as Written
from headrace_linearroad.generating.writing import put_columns, write_histories
from headrace_linearroad.rating import helpers
from headrace_linearroad.rating.helpers import Helper, Seldom, told

MODULE = "headrace_linearroad.rating.making"
FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Piece:
    """The seconds [begin, end). write: write them to files; otherwise they are only surveyed."""

    begin: int
    end: int
    write: bool = True


@dataclass
class Counts:
    """Counts and digests of every second from `begin` on."""

    begin: int
    tuples: list[int] = field(default_factory=list)
    reports: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        self.tuples.append(table.num_rows)
        self.reports.append(int(np.count_nonzero(numbers(table, "type") == REPORT)))
        self.digests.append(digest(table))

    def within(self, begin: int, end: int) -> int:
        """Return the number of tuples in [begin, end)."""
        return sum(self.tuples[begin - self.begin : end - self.begin])

    def cars(self, second: int) -> int:
        """Return the number of cars on the road in a second: each reports once in 30 seconds."""
        until = second + 1 - self.begin
        return sum(self.reports[max(until - 30, 0) : until])


def digest(table: pa.Table) -> int:
    """Return a digest that does not depend on order. The digests of parts of a second add up, modulo 2 ** 64."""
    words = np.zeros(table.num_rows, np.uint64)
    for name in FIELDS:
        words *= FACTOR
        words += numbers(table, name).astype(np.int64).view(np.uint64)
    return int(draw(salt("digest"), words.view(np.int64)).sum(dtype=np.uint64)) if len(words) else 0


class Maker:
    """The run's handle on the process."""

    def __init__(self, process: Helper, pieces: Sequence[Piece]) -> None:
        self._process, self.pieces = process, list(pieces)

    def next(self, stop: Any, tell: Any) -> Counts:
        """Generate the next piece and return its counts. tell: called with the seconds that are done."""
        self._process.say("next")
        for line in self._process.said(stop):
            if "counts" in line:
                return Counts(**line["counts"])
            tell(line["second"])
        raise AssertionError("the maker ended before it returned the counts of its piece")


def job(settings: Settings, pieces: Sequence[Piece], folder: Path, history: Path | None) -> dict[str, Any]:
    """Return the job of the process. history: folder for the histories, written after all pieces; None: none."""
    found: dict[str, Any] = {"settings": asdict(settings), "pieces": [asdict(piece) for piece in pieces]}
    return found | {"folder": str(folder), "history": None if history is None else str(history)}


def make(job: dict[str, Any]) -> None:
    settings, folder = Settings(**job["settings"]), Path(job["folder"])
    pieces = [Piece(**piece) for piece in job["pieces"]]
    traffic = Traffic(settings)
    tolls = Tolls(settings, traffic.cast.unknown)
    is_time = Seldom()
    seconds = traffic.seconds(
        pieces[0].begin, pieces[-1].end, lambda: told({"second": pieces[0].begin}) if is_time() else None
    )
    for piece in pieces:
        if not sys.stdin.readline():  # the parent has closed the pipe
            return
        counts = Counts(piece.begin)
        for second, table in _of(piece, seconds):
            counts.add(table)
            if piece.write:
                put_columns(folder, second, table)
            if job["history"] is not None:
                tolls.see(table)
            if is_time():
                told({"second": second})
        if piece is pieces[-1] and job["history"] is not None:
            write_histories(traffic, tolls, Path(job["history"]), Written(piece.begin, 1), lambda: None)
        told({"counts": asdict(counts)})


def _of(piece: Piece, seconds: Iterator[tuple[int, pa.Table]]) -> Iterator[tuple[int, pa.Table]]:
    for _ in range(piece.begin, piece.end):
        yield next(seconds)


def history_of(folder: Path) -> Path:
    return folder / HISTORY


if __name__ == "__main__":
    helpers.serve(make)
