"""Claims of a benchmark, and whether they hold. Missed claims are printed like all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace_bench.report import Grid, Panel


@dataclass(frozen=True)
class Claim:
    what: str
    wanted: str
    found: str
    holds: bool

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "missed"


@dataclass(frozen=True)
class Found:
    """The results of one part of a benchmark."""

    claims: Sequence[Claim]
    grids: Sequence[Grid]
    panels: Sequence[Panel]
    data: Mapping[str, Any]
    notes: Sequence[str] = ()
    compared: Sequence[Mapping[str, Any]] = field(default_factory=tuple)  # answers of systems, for the exit code


def at_most(what: str, limit: float, found: float, unit: str = "") -> Claim:
    """
    >>> at_most("reads", 0.6, 0.4).verdict
    'holds'
    """
    return Claim(what, f"at most {limit:g}{unit}", f"{found:.3g}{unit}", found <= limit)


def at_least(what: str, limit: float, found: float, unit: str = "") -> Claim:
    return Claim(what, f"at least {limit:g}{unit}", f"{found:.3g}{unit}", found >= limit)


def within(what: str, expected: float, tolerance: float, found: float, unit: str = "") -> Claim:
    holds = abs(found - expected) <= tolerance * expected
    return Claim(what, f"{expected:g}{unit} within {tolerance:.0%}", f"{found:.3g}{unit}", holds)


def is_true(what: str, holds: bool, found: str) -> Claim:
    return Claim(what, "yes", found, holds)


def grid(claims: Iterable[tuple[str, Claim]]) -> Grid:
    """Return the claims of several cases as a table."""
    rows = [[case, claim.what, claim.wanted, claim.found, claim.verdict] for case, claim in claims]
    return Grid("claims", ["case", "claim", ">wanted", ">found", ""], rows)


def to_json(claims: Iterable[tuple[str, Claim]]) -> list[dict[str, Any]]:
    return [{"case": case, **asdict(claim)} for case, claim in claims]
