"""How many cars enter, and for how long: so many that an expressway's tuples per second are what they should be.

A car's trip is a number of reports, drawn when it enters. With S(k) the share of trips of more than k reports, c(t) the cars
that enter in second t and r(t) the reports of second t:

    r(t) = sum over k of c(t - 30 k) S(k)

which gives c, second by second, for any r. The number of cars that enter is the same on every expressway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.world import EVERY, HOURS

SHORT, LONG = (8, 30), (31, 150)  # reports, at least and at most
SHORT_TRIPS = 4  # one in so many
LONGEST = LONG[1] * EVERY  # seconds that a car is under way at most
LEAST, FULL = 10, 1700  # tuples per second and expressway, at the beginning and after three hours
BEND = 1.8  # with it: 31 after a minute, 50 after two, 80 after 214 s, some 12 million in all, as in official data
QUERIES = 100  # reports per question

Floats = npt.NDArray[np.float64]


def longer(reports: Ints) -> Floats:
    """Share of trips of more than so many reports."""

    def of(least: int, most: int) -> Floats:
        return np.clip((most - reports) / (most - least + 1), 0.0, 1.0)

    return of(*SHORT) / SHORT_TRIPS + of(*LONG) * (1 - 1 / SHORT_TRIPS)


def official(second: Ints) -> Floats:
    """Tuples per second of an expressway: as if cars came evenly and left with a fixed chance."""
    rate: Floats = LEAST + (FULL - LEAST) * np.expm1(-BEND * second / HOURS) / np.expm1(-BEND)
    return rate


def usual_miles(seconds: Ints, fullness: float) -> Floats:
    """How far a car comes, more or less: the fuller, the slower."""
    return seconds / 3600 * (62 - 20 * min(fullness, 1.0))


@dataclass(frozen=True)
class Trips:
    """Of the cars of an expressway, by number: all that can be known of them before they drive."""

    seed: int

    def reports(self, xway: Ints, number: Ints) -> Ints:
        drawn = draw(salt(self.seed, "trips"), xway, number)
        return np.where(self.is_short(xway, number), between(drawn, *SHORT), between(drawn, *LONG))

    def is_short(self, xway: Ints, number: Ints) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = draw(salt(self.seed, "short"), xway, number) % np.uint64(SHORT_TRIPS) == 0
        return found


class Demand:
    """When the car of which number enters, from second `first` on, which is before 0 where traffic is there from the beginning."""

    def __init__(self, density: float | None) -> None:
        self.density = density
        self.first = 0 if density is None else -LONGEST
        seconds = np.arange(self.first, HOURS)
        per_second = _entering(self.tuples(seconds) * QUERIES / (QUERIES + 1), flowing=density is not None)
        self._before = np.concatenate([[0], np.floor(np.cumsum(per_second) + 0.5)]).astype(np.int64)

    def tuples(self, second: Ints) -> Floats:
        """Per second and expressway."""
        return official(np.asarray(second)) if self.density is None else np.full(np.shape(second), float(self.density))

    def fullness(self, second: int) -> float:
        """1 is full density."""
        return float(self.tuples(np.asarray(second))) / FULL

    @property
    def pace(self) -> float:
        """Cars that enter in a second, in the mean."""
        return float(self._before[-1]) / len(self._before)

    def before(self, minute: int) -> Ints:
        """How many cars have entered before each second of a minute, and by its end; numbers of cars count from 0."""
        begin = minute * 60 - self.first
        return self._before[begin : begin + 61]

    def entered(self, second: int) -> int:
        """How many have entered before a second."""
        return int(self._before[second - self.first])

    def second(self, number: Ints) -> Ints:
        """In which cars enter."""
        return np.searchsorted(self._before, number, side="right") - 1 + self.first


def _entering(reports: Floats, flowing: bool) -> Floats:
    """Cars per second for reports per second; flowing: as many as have to come when it has always been so."""
    trips = longer(np.arange(LONG[1]))
    if flowing:
        steady: Floats = reports / trips.sum()
        return steady
    rounds = reports.reshape(-1, EVERY)  # of one report of every car
    found = np.zeros_like(rounds)
    for n, wanted in enumerate(rounds):
        still = trips[1 : n + 1]
        found[n] = wanted - still @ found[n - len(still) : n][::-1]
    return found.ravel()
