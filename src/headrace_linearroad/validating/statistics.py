"""Cars and speeds of every segment and minute, and what follows for the minutes after.

Invariant: LAV is the exact rational number, then cut or rounded. Doubles only find the few that are so near to a whole
number that fractions must decide.
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

NEAR = 1e-7  # far more than doubles are wrong here, far less than a difference that matters


def gathered(con: Connection, reports: Columns, rules: Rules) -> pa.Table:
    """By segment, minute and how often a car reported in it: how many such cars, and the sum of their speeds."""
    con.register("rows", pa.table({name: reports[name] for name in ("vid", "cell", "time", "spd")}))
    found = con.sql(f"""
        SELECT cell, minute, n, count(*)::BIGINT AS cars, sum(speed)::BIGINT AS speed
        FROM (SELECT cell, (time // {rules.minute})::INTEGER + 1 AS minute, vid, count(*) AS n, sum(spd) AS speed
              FROM rows GROUP BY ALL)
        GROUP BY ALL
    """).to_arrow_table()
    con.unregister("rows")  # or they would stay in memory
    return found


@dataclass(frozen=True)
class Statistics:
    """Of segments that had a report, by number of `cells` and minute from 0 (in which nothing can be)."""

    cells: Column
    nov: npt.NDArray[np.int64]
    lav: npt.NDArray[np.int64]

    def of(self, cell: Column, minute: Column, rules: Rules) -> tuple[Column, Column]:
        """(LAV, NOV) that decide about a toll in a minute."""
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
    """What was so many minutes before each minute; nothing before the first."""
    if minutes == 0:
        return values
    moved = np.zeros_like(values)
    moved[:, minutes:] = values[:, :-minutes]
    return moved


def _of_reports(speed: npt.NDArray[Any], reports: npt.NDArray[Any], rules: Rules) -> npt.NDArray[Any]:
    """All reports of those minutes alike."""
    over = sum(_ago(speed, minutes) for minutes in rules.back)
    under = sum(_ago(reports, minutes) for minutes in rules.back)
    some = np.maximum(under, 1)
    return np.where(under > 0, (2 * over + some) // (2 * some) if rules.half_up else over // some, rules.no_speed)


def _of_means(means: npt.NDArray[Any], nov: npt.NDArray[Any], common: int, rules: Rules) -> npt.NDArray[Any]:
    """`means`: of every minute the sum over cars of their mean speed, times `common`."""
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
