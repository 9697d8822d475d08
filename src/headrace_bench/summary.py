"""From outcomes to figures: medians with spread, ranks of families by their best variant, ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace_bench.measure import Spread
from headrace_bench.running import OK, TIME_LIMIT, JudgedCase, Outcome

FIGURES = ("tuples_per_second", "cpu_per_million", "peak_mb")


@dataclass(frozen=True)
class Line:
    """One system in one case, over all rounds."""

    system: str
    family: str
    status: str
    outcomes: tuple[Outcome, ...]
    rank: int | None  # among families, by their best variant; None: another variant is better, or an answer is wrong

    @property
    def ok(self) -> bool:
        return self.status == OK

    def figure(self, name: str) -> Spread:
        return Spread.of(getattr(outcome, name) for outcome in self.outcomes)

    @property
    def measured(self) -> bool:
        """Return whether there is a rate. A system that reached the time limit has a rate but no rank."""
        rated = all(outcome.tuples_per_second is not None for outcome in self.outcomes)
        return rated and (self.ok or self.status.startswith(TIME_LIMIT))

    @property
    def rate(self) -> float:
        return self.figure("tuples_per_second").median


def lines(measured: JudgedCase) -> list[Line]:
    """Return every system of a case in running order, ranked if all rounds were correct."""
    unranked = [_line(measured, system) for system in measured.systems]
    best: dict[str, Line] = {}
    for line in sorted((line for line in unranked if line.ok), key=lambda line: -line.rate):
        best.setdefault(line.family, line)
    ranks = {line.system: rank for rank, line in enumerate(best.values(), start=1)}
    return [Line(x.system, x.family, x.status, x.outcomes, ranks.get(x.system)) for x in unranked]


def _line(measured: JudgedCase, system: str) -> Line:
    outcomes = tuple(measured.of(system))
    bad = next((o.status for o in outcomes if o.status != OK), OK)
    return Line(system, outcomes[0].family, bad, outcomes, None)


def ratio(found: Sequence[Line], other: Line) -> float | None:
    """Return how many times faster headrace is."""
    ours = next((line for line in found if line.family == "headrace" and line.ok), None)
    return ours.rate / other.rate if ours is not None and other.measured and other is not ours else None


def to_json(measured: JudgedCase, extra: Callable[[Line], dict[str, Any]] = lambda line: {}) -> dict[str, Any]:
    found = lines(measured)
    return {
        "case": measured.case.describe(),
        "expected": None if measured.expected is None else asdict(measured.expected),
        "expected_by": measured.by,
        "systems": [_system(found, line) | (extra(line) if line.ok else {}) for line in found],
    }


def _system(found: Sequence[Line], line: Line) -> dict[str, Any]:
    figures = {name: asdict(line.figure(name)) for name in FIGURES} if line.measured else {}
    return {
        "system": line.system,
        "family": line.family,
        "status": line.status,
        "rank": line.rank,
        **figures,
        "headrace_is_times_as_fast": ratio(found, line),
        "rounds": [asdict(outcome) for outcome in line.outcomes],
    }
