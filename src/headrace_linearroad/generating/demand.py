"""The number of cars that enter, chosen so that an expressway has the wanted tuples per second.

A car's trip is a number of reports, drawn when it enters. Let S(k) be the share of trips of more than k reports, c(t)
the cars that enter in second t and r(t) the reports of second t. Then

    r(t) = sum over k of c(t - 30 k) S(k)

and this gives c, second by second, for any r. The number of cars that enter is the same on every expressway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.world import EVERY, HOURS

SHORT, LONG = (8, 30), (31, 150)  # minimum and maximum reports of a trip
SHORT_TRIPS = 4  # one trip in this many is short
LONGEST = LONG[1] * EVERY  # the longest time of a car on the road, in seconds
LEAST, FULL = 10, 1700  # tuples per second and expressway, at the beginning and after three hours
BEND = 1.8  # gives 31 after a minute, 50 after two, 80 after 214 s, and 12 million in all, as in official data
QUERIES = 100  # reports per question

Floats = npt.NDArray[np.float64]


def longer(reports: Ints) -> Floats:
    """Return the share of trips with more than `reports` reports."""

    def of(least: int, most: int) -> Floats:
        return np.clip((most - reports) / (most - least + 1), 0.0, 1.0)

    return of(*SHORT) / SHORT_TRIPS + of(*LONG) * (1 - 1 / SHORT_TRIPS)


def official(second: Ints) -> Floats:
    """Return the official tuples per second of an expressway, from a constant inflow and a fixed chance to leave."""
    rate: Floats = LEAST + (FULL - LEAST) * np.expm1(-BEND * second / HOURS) / np.expm1(-BEND)
    return rate


def usual_miles(seconds: Ints, fullness: float) -> Floats:
    """Return about how far a car comes in some seconds. Cars are slower on fuller roads."""
    return seconds / 3600 * (62 - 20 * min(fullness, 1.0))


@dataclass(frozen=True)
class Trips:
    """The trips of cars, as functions of expressway and car number."""

    seed: int

    def reports(self, xway: Ints, number: Ints) -> Ints:
        drawn = draw(salt(self.seed, "trips"), xway, number)
        return np.where(self.is_short(xway, number), between(drawn, *SHORT), between(drawn, *LONG))

    def is_short(self, xway: Ints, number: Ints) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = draw(salt(self.seed, "short"), xway, number) % np.uint64(SHORT_TRIPS) == 0
        return found


class Demand:
    """The second in which each car enters, from second `first` on.

    `first` is negative if the density is constant, so that there is traffic in second 0.
    """

    def __init__(self, density: float | None) -> None:
        self.density = density
        self.first = 0 if density is None else -LONGEST
        seconds = np.arange(self.first, HOURS)
        per_second = _entering(self.tuples(seconds) * QUERIES / (QUERIES + 1), flowing=density is not None)
        self._before = np.concatenate([[0], np.floor(np.cumsum(per_second) + 0.5)]).astype(np.int64)

    def tuples(self, second: Ints) -> Floats:
        """Return the tuples per second and expressway."""
        return official(np.asarray(second)) if self.density is None else np.full(np.shape(second), float(self.density))

    def fullness(self, second: int) -> float:
        """Return the density of a second relative to full density."""
        return float(self.tuples(np.asarray(second))) / FULL

    @property
    def pace(self) -> float:
        """The mean number of cars that enter per second."""
        return float(self._before[-1]) / len(self._before)

    def before(self, minute: int) -> Ints:
        """Return the number of cars that entered before each second of a minute and before its end."""
        begin = minute * 60 - self.first
        return self._before[begin : begin + 61]

    def entered(self, second: int) -> int:
        """Return the number of cars that entered before a second."""
        return int(self._before[second - self.first])

    def second(self, number: Ints) -> Ints:
        """Return the second in which each car enters."""
        return np.searchsorted(self._before, number, side="right") - 1 + self.first


def _entering(reports: Floats, flowing: bool) -> Floats:
    """Return the cars that enter per second for given reports per second. flowing: assume a steady state."""
    trips = longer(np.arange(LONG[1]))
    if flowing:
        steady: Floats = reports / trips.sum()
        return steady
    rounds = reports.reshape(-1, EVERY)  # every car reports once in each row
    found = np.zeros_like(rounds)
    for n, wanted in enumerate(rounds):
        still = trips[1 : n + 1]
        found[n] = wanted - still @ found[n - len(still) : n][::-1]
    return found.ravel()
