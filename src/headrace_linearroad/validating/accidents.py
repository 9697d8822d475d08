"""Accidents: the segments in which they are, and the minutes in which they affect tolls and alerts.

Official: an accident affects the minute after each minute in which a stopped car reported while another car was stopped
at its place. Walmart: it affects each minute that began while two cars were stopped at one place. A second counts as a
whole: a car that moves in it is not stopped in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace_linearroad.validating.duck import Connection
from headrace_linearroad.validating.reading import Column, Columns, Flags
from headrace_linearroad.validating.rules import Rules

MINUTES = 1 << 10  # larger than any minute
PLACE = "cell, lane, pos"


@dataclass(frozen=True)
class Accidents:
    """`active`: the segments and minutes with an accident, each pair as one number, sorted."""

    active: Column

    def ahead(self, cell: Column, minute: Column, rules: Rules) -> Column:
        """Return the segment of the nearest accident that a car is alerted of, or -1."""
        seg, backwards = cell % 100, cell // 100 % 2 == 1
        found = np.full(len(cell), -1, np.int64)
        for distance in rules.reach:
            step = np.where(backwards, -distance, distance)
            on_road = (seg + step >= 0) & (seg + step <= 99)
            hit = (found < 0) & on_road & self._is_active(cell + step, minute)
            found[hit] = (seg + step)[hit]
        return found

    def _is_active(self, cell: Column, minute: Column) -> Flags:
        if not len(self.active):
            return np.zeros(len(cell), bool)
        wanted = cell.astype(np.int64) * MINUTES + minute
        at = np.minimum(np.searchsorted(self.active, wanted), len(self.active) - 1)
        active: Flags = self.active[at] == wanted
        return active


def accidents(con: Connection, stops: Sequence[Columns], last: int, rules: Rules) -> Accidents:
    """Return the accidents. `stops`: the stops of all cars; `last`: the last second of the input."""
    con.register("stops", pa.concat_tables([pa.table(part) for part in stops]))
    sql = _by_last_stop(rules) if rules.ends == "last stop" else _until_cleared(rules, last)
    found = con.sql(sql).fetchnumpy()
    return Accidents(np.unique(found["cell"].astype(np.int64) * MINUTES + found["minute"]))


def _by_last_stop(rules: Rules) -> str:
    return f"""
        WITH standing AS (SELECT DISTINCT {PLACE}, vid, since, until FROM stops),
        met AS (SELECT {PLACE}, r.vid, r.time FROM stops r JOIN standing o USING ({PLACE})
                WHERE r.time < r.until AND o.since <= r.time AND r.time < o.until
                GROUP BY ALL HAVING count(DISTINCT o.vid) >= {rules.cars})
        SELECT DISTINCT cell, (time // {rules.minute})::INTEGER + 1 + {rules.later} AS minute FROM met
    """


def _until_cleared(rules: Rules, last: int) -> str:
    """Return SQL for the minutes before whose first second all cars of a place stopped and none moved again."""
    minute = rules.minute
    return f"""
        WITH standing AS (SELECT DISTINCT {PLACE}, vid, since::INTEGER AS since, least(until, {last}) AS until FROM stops),
        begun AS (SELECT {PLACE}, vid, unnest(range(since // {minute} + 1, until // {minute} + 1)) AS border FROM standing)
        SELECT DISTINCT cell, border + {rules.later} AS minute
        FROM (SELECT {PLACE}, border FROM begun GROUP BY ALL HAVING count(DISTINCT vid) >= {rules.cars})
    """
