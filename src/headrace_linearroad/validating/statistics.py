"""Cars and speeds of every segment and minute, and the statistics (LAV, NOV) that later minutes use.

Invariant: LAV is the exact rational number, truncated or rounded once. Doubles are enough for most values. The few that are too
close to a whole number are computed again with fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace_linearroad.validating.duck import Connection
from headrace_linearroad.validating.reading import Column, Columns
from headrace_linearroad.validating.rules import Rules

NEAR = 1e-7  # far larger than the error of doubles here, far smaller than any difference that matters


def gathered(con: Connection, reports: Columns, rules: Rules) -> pa.Table:
    """Return, by segment, minute and number of reports per car: the number of such cars and the sum of their speeds."""
    con.register("rows", pa.table({name: reports[name] for name in ("vid", "cell", "time", "spd")}))
    found = con.sql(f"""
        SELECT cell, minute, n, count(*)::BIGINT AS cars, sum(speed)::BIGINT AS speed
        FROM (SELECT cell, (time // {rules.minute})::INTEGER + 1 AS minute, vid, count(*) AS n, sum(spd) AS speed
              FROM rows GROUP BY ALL)
        GROUP BY ALL
    """).to_arrow_table()
    con.unregister("rows")  # frees the memory
    return found


@dataclass(frozen=True)
class Statistics:
    """NOV and LAV of the segments with reports, indexed by place in `cells` and by minute. Minute 0 is always empty."""

    cells: Column
    nov: npt.NDArray[np.int64]
    lav: npt.NDArray[np.int64]

    def of(self, cell: Column, minute: Column, rules: Rules) -> tuple[Column, Column]:
        """Return (LAV, NOV), which determine the toll in a minute."""
        row = np.searchsorted(self.cells, cell)
        return self.lav[row, minute], self.nov[row, np.maximum(minute - rules.counted, 0)]


def statistics(con: Connection, parts: Sequence[pa.Table], rules: Rules) -> Statistics:
    con.register("parts", pa.concat_tables(parts))
    found = con.sql(
        "SELECT cell, minute, n, sum(cars)::BIGINT AS cars, sum(speed)::BIGINT AS speed FROM parts GROUP BY ALL"
    ).fetchnumpy()
    known = np.unique(found["cell"])
    shape = (len(known), int(found["minute"].max(initial=0)) + 1)
    where = (np.searchsorted(known, found["cell"]), found["minute"])
    nov = _summed(shape, where, found["cars"])
    if rules.mean_of == "reports":
        lav = _of_reports(
            _summed(shape, where, found["speed"]), _summed(shape, where, found["cars"] * found["n"]), rules
        )
    else:
        common = math.lcm(*(int(n) for n in np.unique(found["n"])))
        kind: Any = np.int64 if common < 2**31 else object
        means = found["speed"].astype(kind) * (common // found["n"].astype(kind))
        lav = _of_means(_summed(shape, where, means), nov, common, rules)
    return Statistics(known, nov, lav)


def _summed(shape: tuple[int, int], where: tuple[Column, Column], values: Column) -> npt.NDArray[Any]:
    sums = np.zeros(shape, values.dtype)
    np.add.at(sums, where, values)
    return sums


def _ago(values: npt.NDArray[Any], minutes: int) -> npt.NDArray[Any]:
    """Return the values of `minutes` minutes before each minute; 0 before the first."""
    if minutes == 0:
        return values
    moved = np.zeros_like(values)
    moved[:, minutes:] = values[:, :-minutes]
    return moved


def _of_reports(speed: npt.NDArray[Any], reports: npt.NDArray[Any], rules: Rules) -> npt.NDArray[Any]:
    """Return LAV as the mean of all reports of the minutes before."""
    over = sum(_ago(speed, minutes) for minutes in rules.back)
    under = sum(_ago(reports, minutes) for minutes in rules.back)
    some = np.maximum(under, 1)
    return np.where(under > 0, (2 * over + some) // (2 * some) if rules.half_up else over // some, rules.no_speed)


def _of_means(means: npt.NDArray[Any], nov: npt.NDArray[Any], common: int, rules: Rules) -> npt.NDArray[Any]:
    """Return LAV as the mean of the minutes' means. `means`: sums of the cars' mean speeds, times `common`."""
    average = (means / np.maximum(nov * common, 1)).astype(float)
    over = sum(_ago(average, minutes) for minutes in rules.back)
    minutes_with = sum(_ago((nov > 0).astype(int), minutes) for minutes in rules.back)
    half = Fraction(1, 2) if rules.half_up else Fraction(0)
    value = over / np.maximum(minutes_with, 1) + float(half)
    lav = np.where(minutes_with > 0, np.floor(value), rules.no_speed).astype(np.int64)
    near = (np.abs(value - np.rint(value)) < NEAR) & (minutes_with > 0)
    for row, minute in np.argwhere(near):
        before = [minute - ago for ago in rules.back if minute - ago >= 0 and nov[row, minute - ago] > 0]
        total = sum(Fraction(int(means[row, m]), common * int(nov[row, m])) for m in before)
        lav[row, minute] = math.floor(total / len(before) + half)
    return lav
