"""Response times: from when the tuple of an answer was due, by the benchmark's clock, until its epoch was visible.

The clock begins with the rated part. Second t is due (t - begin) / speed seconds later, even if the feeder is late. An
answer is visible when its epoch is committed and delivered; the run's listener writes these times to `PUBLISHED`. The
rows of an epoch are read from its files, not inferred from watermarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from headrace_linearroad.forms import OUTPUTS

LIMITS: dict[str, float] = {"tolls": 5, "accidents": 5, "balances": 5, "expenditures": 10, "travel_times": 30}
"""Seconds from a tuple to its answer."""

PUBLISHED = "published"
"""File with a line per epoch: its number, and the second since the clock began in which it became visible.

Seconds are negative in the warm-up.
"""

EPOCH = re.compile(r"epoch-(\d+)-")

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """The times at which seconds are due. pauses: (second, wall seconds): the clock stood still before that second."""

    begin: int
    end: int  # the first second that is not rated
    speed: float
    pauses: tuple[tuple[int, float], ...] = ()

    def due(self, second: Any) -> Any:
        """Return the wall-clock seconds since the clock began at which one or many seconds are due.

        The second before a pause also counts as due after the pause. It is complete only when the next second begins,
        and its answers must not be blamed for the pause.
        """
        wall = (np.asarray(second, np.float64) - self.begin) / self.speed
        for before, long in self.pauses:
            wall = wall + np.where(np.asarray(second) >= before - 1, long, 0.0)
        return wall


@dataclass(frozen=True)
class Found:
    """The number of rows of an output, by epoch and second."""

    epoch: Ints
    second: Ints
    rows: Ints


@dataclass(frozen=True)
class Response:
    """Response times of one output in seconds. All except the limit are 0 or None if the output has no rows."""

    limit: float
    rows: int
    worst: float
    p50: float
    p99: float
    broken: int | None  # the first second with a late answer
    late: int  # number of late rows

    @property
    def held(self) -> bool:
        return self.broken is None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"held": self.held}


def read_published(path: Path) -> dict[int, float]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {int(epoch): float(seconds) for epoch, seconds in rows}


def find(out: Path, name: str) -> Found:
    """Return the number of rows of an output by epoch and second."""
    files = [str(file) for file in (out / name).rglob("*.parquet") if EPOCH.search(str(file.relative_to(out)))]
    if not files:
        none = np.empty(0, np.int64)
        return Found(none, none, none)
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in sorted(files))
    # the last match, because a parent folder may have such a name too
    epoch = "list_last(regexp_extract_all(filename, 'epoch-(\\d+)-', 1))::BIGINT"
    with duckdb.connect(":memory:") as con:
        found = con.sql(
            f"SELECT {epoch} AS epoch, time, count(*) AS n FROM read_parquet([{listed}], filename = true) GROUP BY ALL"
        ).fetchnumpy()
    return Found(*(np.asarray(found[column], np.int64) for column in ("epoch", "time", "n")))


def respond(found: Found, published: Mapping[int, float], clock: Clock, limit: float) -> tuple[Response, list[float]]:
    """Return the response times of the rated seconds, and the worst of each second (0 if it has no rows)."""
    rated = (found.second >= clock.begin) & (found.second < clock.end)
    epoch, second, rows = found.epoch[rated], found.second[rated], found.rows[rated]
    visible = np.array([published[one] for one in epoch.tolist()], np.float64)
    took = visible - clock.due(second)
    worst = np.zeros(clock.end - clock.begin)
    np.maximum.at(worst, second - clock.begin, took)
    late = took > limit
    broken = int(second[late].min()) if late.any() else None
    p50, p99 = quantiles(took, rows, (0.5, 0.99))
    response = Response(limit, int(rows.sum()), float(took.max(initial=0.0)), p50, p99, broken, int(rows[late].sum()))
    return response, [round(each, 3) for each in worst.tolist()]


def quantiles(values: Floats, weights: Ints, shares: Iterable[float]) -> list[float]:
    """Return weighted quantiles.

    >>> quantiles(np.array([3.0, 1.0]), np.array([1, 9]), (0.5, 0.95))
    [1.0, 3.0]
    """
    if not len(values):
        return [0.0 for _ in shares]
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return [float(values[order][np.searchsorted(sums, share * sums[-1])]) for share in shares]


def responses(out: Path, published: Mapping[int, float], clock: Clock) -> tuple[dict[str, Response], dict[str, Any]]:
    """Return the response times by output, and the worst of every second by output."""
    found = {name: respond(find(out, name), published, clock, LIMITS[name]) for name in OUTPUTS}
    return {name: each for name, (each, _) in found.items()}, {name: course for name, (_, course) in found.items()}


def first_broken(found: Mapping[str, Response]) -> str | None:
    """Return the output whose limit was exceeded first, or None."""
    late = {name: each.broken for name, each in found.items() if each.broken is not None}
    return min(late, key=lambda name: late[name]) if late else None
