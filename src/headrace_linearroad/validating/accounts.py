"""Charges of cars, and the right answers to questions for balances.

The toll of a visit is charged when the next visit of the same journey begins, and never otherwise. The paper's balance
at a time is the sum of the charges. The balance of the official check includes every notified toll as soon as the car
begins another visit, on any journey. Both are right in the official profile. They differ for cars that return.
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
    """`canonical`: one answer to each question; its `needed` is false where no answer is also right.

    `accepted`: all right answers: any result time from `low` to `high`, with `bal`.
    """

    canonical: pa.Table
    accepted: pa.Table


def balances(visits: Visits, tolls: Column, exits: Column, queries: Columns, rules: Rules) -> Balances:
    ledger = _Ledger(visits, tolls)
    find = _of_entries if rules.entries else _of_half_minutes
    order = np.argsort(moments(queries["vid"], queries["time"]))  # sorted lookups are faster
    return find(ledger, exits, {name: queries[name][order] for name in ("qid", "time", "vid")})


class _Ledger:
    """Sums over visits, which are sorted by car and time."""

    def __init__(self, visits: Visits, tolls: Column) -> None:
        told = np.where(visits.notified, tolls, 0)
        before = np.append(0, told[:-1])[: len(told)]  # the toll of another car only where a journey begins
        same_car = np.append(False, visits.vid[1:] == visits.vid[:-1])[: len(told)]
        self.moments = moments(visits.vid, visits.time)
        self.entries = self.moments[visits.notified]
        self.entered = visits.time[visits.notified].astype(np.int64)
        self.charge = np.where(visits.opens, 0, before)
        self._charged = _sums(self.charge)
        self._unpaid = _sums(np.where(visits.opens & same_car, before, 0))

    def charged(self, vid: Column, time: Column) -> Column:
        """Return the sum of charges up to and including that second."""
        return self._between(self._charged, vid, time)

    def notified(self, vid: Column, time: Column) -> Column:
        """Return the balance of the official check, which includes uncharged tolls of the journeys before this one."""
        return self.charged(vid, time) + self._between(self._unpaid, vid, time)

    def _between(self, sums: Column, vid: Column, time: Column) -> Column:
        first = np.searchsorted(self.moments, moments(vid, np.zeros_like(vid)), "left")
        return sums[np.searchsorted(self.moments, moments(vid, time), "right")] - sums[first]


def _sums(values: Column) -> Column:
    return np.append(0, np.cumsum(values.astype(np.int64)))


def _of_entries(ledger: _Ledger, exits: Column, asked: Columns) -> Balances:
    """Return balances at the last segment entry, the one before, or the first within a minute; at an exit, also now."""
    vid, time = asked["vid"], asked["time"]
    now = moments(vid, time)
    base = np.searchsorted(ledger.entries, moments(vid, np.zeros_like(vid)), "left")
    last = np.searchsorted(ledger.entries, now, "right") - 1
    recent = np.searchsorted(ledger.entries, moments(vid, np.maximum(time - WINDOW, -1)), "right")
    entered = last >= base
    exiting = np.searchsorted(exits, now, "right") > np.searchsorted(exits, now, "left")

    def at(entry: Column) -> Column:
        return np.append(ledger.entered, 0)[np.clip(entry, 0, len(ledger.entered))]  # any value if there is no entry

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
    """Return the sum of charges, with and without the last charge, at any time in the last half minute."""
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
