"""What cars were charged, and which answers to a question for a balance are right.

A visit's toll is charged when the next visit of the same journey begins, and never otherwise. The paper's balance at a
time is the sum of that; the official check's counts every notified toll as soon as the car begins another visit, on
whatever journey. Both are right in the official profile. They differ for cars that come back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace_linearroad.validating.journeys import Visits, moments
from headrace_linearroad.validating.reading import Column, Columns
from headrace_linearroad.validating.rules import Rules

RECENT, WINDOW = 30, 60  # seconds


@dataclass(frozen=True)
class Balances:
    """`canonical`: one answer to each question; `needed` is false where none is right as well.

    `accepted`: what is right: any result time from `low` to `high`, with `bal`.
    """

    canonical: pa.Table
    accepted: pa.Table


def balances(visits: Visits, tolls: Column, exits: Column, queries: Columns, rules: Rules) -> Balances:
    ledger = _Ledger(visits, tolls)
    find = _of_entries if rules.entries else _of_half_minutes
    order = np.argsort(moments(queries["vid"], queries["time"]))  # neighbours are looked up next to each other
    return find(ledger, exits, {name: queries[name][order] for name in ("qid", "time", "vid")})


class _Ledger:
    """Sums over visits, which are in order of car and time."""

    def __init__(self, visits: Visits, tolls: Column) -> None:
        told = np.where(visits.notified, tolls, 0)
        before = np.append(0, told[:-1])[: len(told)]  # of another car only where a journey opens
        same_car = np.append(False, visits.vid[1:] == visits.vid[:-1])[: len(told)]
        self.moments = moments(visits.vid, visits.time)
        self.entries = self.moments[visits.notified]
        self.entered = visits.time[visits.notified].astype(np.int64)
        self.charge = np.where(visits.opens, 0, before)
        self._charged = _sums(self.charge)
        self._unpaid = _sums(np.where(visits.opens & same_car, before, 0))

    def charged(self, vid: Column, time: Column) -> Column:
        """Up to and with that second."""
        return self._between(self._charged, vid, time)

    def notified(self, vid: Column, time: Column) -> Column:
        """As the official check has it: what was never paid on journeys before this one as well."""
        return self.charged(vid, time) + self._between(self._unpaid, vid, time)

    def _between(self, sums: Column, vid: Column, time: Column) -> Column:
        first = np.searchsorted(self.moments, moments(vid, np.zeros_like(vid)), "left")
        return sums[np.searchsorted(self.moments, moments(vid, time), "right")] - sums[first]


def _sums(values: Column) -> Column:
    return np.append(0, np.cumsum(values.astype(np.int64)))


def _of_entries(ledger: _Ledger, exits: Column, asked: Columns) -> Balances:
    """Balances at the last segment entry, the one before it or the first within a minute; at an exit, that of now."""
    vid, time = asked["vid"], asked["time"]
    now = moments(vid, time)
    base = np.searchsorted(ledger.entries, moments(vid, np.zeros_like(vid)), "left")
    last = np.searchsorted(ledger.entries, now, "right") - 1
    recent = np.searchsorted(ledger.entries, moments(vid, np.maximum(time - WINDOW, -1)), "right")
    entered = last >= base
    exiting = np.searchsorted(exits, now, "right") > np.searchsorted(exits, now, "left")

    def at(entry: Column) -> Column:
        return np.append(ledger.entered, 0)[np.clip(entry, 0, len(ledger.entered))]  # of none, anything

    fresh = entered & (at(last) > time - RECENT)
    results = [  # (which questions, result time)
        (entered, at(last)),
        (fresh & (last - 1 >= base), at(last - 1)),
        (entered & (recent <= last), at(np.minimum(recent, last))),
        (exiting | ~entered, time),
    ]
    accepted = []
    for which, when in results:
        rows = {name: column[which] for name, column in asked.items()} | {"low": when[which], "high": when[which]}
        sums = (ledger.charged(vid, when), ledger.notified(vid, when))
        accepted += [pa.table(rows | {"bal": bal[which]}) for bal in sums]
    when = np.where(exiting | ~entered, time, at(last))
    rows = asked | {"resulttime": when, "bal": ledger.charged(vid, when), "needed": entered}
    return Balances(pa.table(rows), pa.concat_tables(accepted))


def _of_half_minutes(ledger: _Ledger, exits: Column, asked: Columns) -> Balances:
    """All that was charged, or all but the last charge, at a time that is not too long ago."""
    vid, time = asked["vid"], asked["time"]
    paid = ledger.charge > 0
    charges, amounts = ledger.moments[paid], ledger.charge[paid]
    until = np.searchsorted(charges, moments(vid, time), "right")
    times = until - np.searchsorted(charges, moments(vid, np.zeros_like(vid)), "left")
    full = ledger.charged(vid, time)
    latest = np.where(times > 0, np.append(amounts, 0)[until - 1], 0)
    rows = asked | {"low": np.where(times < 2, 0, np.maximum(time - RECENT, 0)), "high": time}
    accepted = [pa.table(rows | {"bal": bal}) for bal in (full, full - latest)]
    canonical = asked | {"resulttime": time, "bal": full, "needed": np.full(len(vid), True)}
    return Balances(pa.table(canonical), pa.concat_tables(accepted))
