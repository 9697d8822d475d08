"""Journeys, visits of segments and stops, from the reports of all cars sorted by car and time.

A journey begins with the first report of a car, with the report after an exit, or with a report on lane 0 after a
pause. A visit is a sequence of reports of one journey from one (xway, dir, seg). A stop is a sequence of reports of one
journey from one place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace_linearroad.validating.reading import Column, Columns, Flags
from headrace_linearroad.validating.rules import Rules

ENTRY, EXIT = 0, 4  # lanes
NEVER = 1 << 20  # later than any second
SECONDS = 14  # bits of a time


@dataclass(frozen=True)
class Visits:
    """Visits, sorted by car and time. `opens`: begins a journey. `notified`: does not begin on the exit lane."""

    vid: Column
    time: Column
    cell: Column
    opens: Flags
    notified: Flags


@dataclass(frozen=True)
class Cars:
    reports: Columns  # those that are not dropped, sorted by car and time, with `cell`
    visits: Visits
    exits: Column  # `moments` of reports on the exit lane, sorted
    stops: Columns  # one row for each report of a stopped car


def moments(vid: Column, time: Column) -> Column:
    """Return car and second combined into one number, sorted by car first."""
    return (vid.astype(np.int64) << SECONDS) + time


def cells(xway: Column, dir: Column, seg: Column) -> Column:
    """Return one number for each segment of a direction of an expressway."""
    return ((xway.astype(np.int32) * 2 + dir) * 100 + seg).astype(np.int32)


def cars(reports: Columns, rules: Rules) -> Cars:
    rows = _in_order(reports)
    if rules.drops:
        kept = _kept(rows["vid"], rows["lane"])
        rows = {name: column[kept] for name, column in rows.items()}
    rows["cell"] = cells(rows.pop("xway"), rows.pop("dir"), rows.pop("seg"))
    opens = _opens(rows, rules)
    exits = rows["lane"] == EXIT
    return Cars(
        rows,
        _visits(rows, opens, rules),
        moments(rows["vid"][exits], rows["time"][exits]),
        _stops(rows, opens, rules),
    )


def _in_order(reports: Columns) -> Columns:
    """Sort reports by car and time. Reports of one car in one second, which no real car sends, are sorted by fields."""
    moment = moments(reports["vid"], reports["time"])
    order = np.argsort(moment, kind="stable")
    if (np.diff(moment[order]) == 0).any():
        ties = [reports[name] for name in ("pos", "seg", "dir", "lane", "xway", "spd")]
        order = np.lexsort([*ties, moment])
    return {name: column[order] for name, column in reports.items()}


def _first(vid: Column) -> Flags:
    """Return whether each report is the first of its car."""
    return np.append(True, vid[1:] != vid[:-1])[: len(vid)]


def _before(column: Column) -> Column:
    return np.roll(column, 1)  # the first value is meaningless: callers check `_first`


def _kept(vid: Column, lane: Column) -> Flags:
    """Return which reports are kept: all except exits of cars without a kept report, and reports from exit to entry."""
    place = np.arange(len(vid))
    start = np.maximum.accumulate(np.where(_first(vid), place, 0))
    drives = lane != EXIT
    last_drive = np.maximum.accumulate(np.where(drives, place, -1))
    known = last_drive >= start  # this report or an earlier one of the car is not on the exit lane
    turns = known & ((lane == ENTRY) | (lane == EXIT))
    last_turn = _before(np.maximum.accumulate(np.where(turns, place, -1)))  # before this report
    if len(vid):
        last_turn[0] = -1
    gone = (last_turn >= start) & (lane[last_turn] == EXIT)
    kept: Flags = known & (~gone | (lane == ENTRY))
    return kept


def _opens(rows: Columns, rules: Rules) -> Flags:
    pause = rows["time"] - _before(rows["time"])
    again = (_before(rows["lane"]) == EXIT) | ((rows["lane"] == ENTRY) & (pause > rules.pause))
    opens: Flags = _first(rows["vid"]) | again
    return opens


def _visits(rows: Columns, opens: Flags, rules: Rules) -> Visits:
    exits = rows["lane"] == EXIT
    first = opens | (rows["cell"] != _before(rows["cell"])) | (exits & rules.exits_charged)
    notified = ~exits | rules.exits_notified
    return Visits(rows["vid"][first], rows["time"][first], rows["cell"][first], opens[first], notified[first])


def _stops(rows: Columns, opens: Flags, rules: Rules) -> Columns:
    """Return each report at which its car is stopped, with the time of the stop: [since, until)."""
    vid, time = rows["vid"], rows["time"]
    place = np.arange(len(vid))
    stays = ~opens
    for name in ("cell", "lane", "pos"):
        stays &= rows[name] == _before(rows[name])
    if rules.standing:
        stays &= (rows["spd"] == 0) & (_before(rows["spd"]) == 0)
    begin = np.maximum.accumulate(np.where(stays, 0, place))
    stopped = np.flatnonzero(place - begin >= rules.equal - 1)
    after = np.append(np.flatnonzero(~stays), len(vid))  # the reports that end a stop
    end = after[np.searchsorted(after, stopped, "right")]
    inside = np.minimum(end, max(len(vid) - 1, 0))
    same_car = (end < len(vid)) & (vid[inside] == vid[stopped])
    found = {name: rows[name][stopped] for name in ("cell", "lane", "pos", "vid", "time")}
    found["since"] = time[begin[stopped] + rules.equal - 1]
    found["until"] = np.where(same_car, time[inside].astype(np.int32), NEVER)
    return found
