"""The arrival times of tuples: a Poisson process, uniform gaps, or even gaps, at a rate that changes on a schedule.

Arrivals are generated on a separate clock that ticks once per expected tuple. `Schedule.expected` gives its reading at
a moment; the inverse converts ticks into moments. So neither a change of the rate nor the boundary between two seconds
breaks a gap.

Uniform gaps range from 1/(2r) to 2/r, as in the paper on load diffusion. Their mean is 1.25/r, so there are 0.8 r
tuples per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import WorkloadError
from headrace_demo.workloads.checks import SECOND, number, whole

SHORTEST, LONGEST = 0.5, 2.0  # bounds of uniform gaps, in ticks
HIGHEST = 10_000_000  # tuples per second; one second is held in memory
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """Rates that alternate, each for `every` microseconds, repeated from the beginning."""

    rates: tuple[float, ...]
    every: int = SECOND

    def expected(self, at: int) -> float:
        """Return the expected number of tuples in the first `at` microseconds."""
        turns, rest = divmod(at, self.every)
        rounds, turn = divmod(turns, len(self.rates))
        passed = rounds * sum(self.rates) + sum(self.rates[:turn])
        return (passed * self.every + self.rates[turn] * rest) / SECOND

    def moments(self, begin: int, end: int) -> list[int]:
        """Return begin, end, and the rate changes between them."""
        changes = range((begin // self.every + 1) * self.every, end, self.every)
        return [begin, *(changes if len(self.rates) > 1 else ()), end]


def ramp(low: float, times: float = 8, steps: int = 6) -> tuple[float, ...]:
    """Return rates that rise `times`-fold and fall again by equal factors, half of the steps up and half down.

    >>> ramp(1000)
    (1000.0, 2000.0, 4000.0, 8000.0, 4000.0, 2000.0)
    """
    if whole(steps, "the steps of a ramp", 2) % 2:
        raise WorkloadError(
            f"the steps of a ramp must be even, because half of them go up and half down; found {steps!r}"
        )
    if number(times, "the height of a ramp") <= 0:
        raise WorkloadError(f"the height of a ramp must be more than 0 times the lowest rate; found {times!r}")
    top = steps // 2
    climbed = [min(step, steps - step) / top for step in range(steps)]
    return tuple(round(number(low, "rate") * times**part, 6) for part in climbed)


@dataclass(frozen=True)
class Span:
    """One second as an interval of ticks, and its random generator."""

    rng: np.random.Generator
    low: float
    high: float


def _poisson(spans: Iterable[Span]) -> Iterator[Floats]:
    """Yield the ticks of a Poisson process. Given their number, its arrivals are independent and uniform."""
    for span in spans:
        count = span.rng.poisson(span.high - span.low)
        yield np.sort(span.low + span.rng.random(count) * (span.high - span.low))


def _uniform(spans: Iterable[Span]) -> Iterator[Floats]:
    following = 0.0  # the next tick; its gap may have been drawn in an earlier second
    for span in spans:
        enough = max(0, math.ceil((span.high - following) / SHORTEST)) + 1
        gaps = span.rng.uniform(SHORTEST, LONGEST, enough)
        ticks = following + np.concatenate([[0.0], np.cumsum(gaps)])
        inside = int(np.searchsorted(ticks, span.high))
        following = float(ticks[inside])
        yield ticks[:inside]


def _fixed(spans: Iterable[Span]) -> Iterator[Floats]:
    for span in spans:
        yield np.arange(math.ceil(span.low), math.ceil(span.high), dtype=np.float64)


KINDS: dict[str, Callable[[Iterable[Span]], Iterator[Floats]]] = {
    "poisson": _poisson,
    "uniform": _uniform,
    "fixed": _fixed,
}


def arrivals(
    kind: str, schedule: Schedule, random: Callable[[int], np.random.Generator], seconds: int
) -> Iterator[Ints]:
    """Yield for each second the arrivals in microseconds after the beginning. `random` returns the generator of a
    second.
    """
    edges = [schedule.expected(second * SECOND) for second in range(seconds + 1)]
    spans = (Span(random(second), edges[second], edges[second + 1]) for second in range(seconds))
    for second, ticks in enumerate(KINDS[kind](spans)):
        yield _moments(ticks, schedule, second * SECOND)


def _moments(ticks: Floats, schedule: Schedule, begin: int) -> Ints:
    """Return the moments of the ticks, all within the second that starts at `begin`."""
    moments = schedule.moments(begin, begin + SECOND)
    shown = [schedule.expected(moment) for moment in moments]
    after = np.rint(np.interp(ticks, shown, [moment - begin for moment in moments])).astype(np.int64)
    return begin + np.minimum(after, SECOND - 1)


def checked_rates(rate: object) -> tuple[float, ...]:
    """Return a rate or several rates as a tuple, or raise."""
    rates = tuple(rate) if isinstance(rate, list | tuple) else (rate,)
    if not rates:
        raise WorkloadError("rate must be one or more numbers of tuples per second; found none")
    for one in rates:
        if not 0 < number(one, "rate") <= HIGHEST:
            msg = f"rate must be more than 0 and at most {HIGHEST:,} tuples per second; found {one!r}"
            raise WorkloadError(msg)
    return tuple(float(one) for one in rates)
