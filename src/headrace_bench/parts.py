"""A benchmark of several parts with claims: one report, which begins with the claims of all parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_bench import claims
from headrace_bench.claims import Found
from headrace_bench.options import Options
from headrace_bench.report import Report


@dataclass(frozen=True)
class Part:
    name: str
    run: Callable[[Options], Found]


def run(name: str, title: str, parts: Sequence[Part], options: Options) -> Report:
    return reported(name, title, [(part.name, part.run(options)) for part in options.wanted(parts)])


def reported(name: str, title: str, found: Sequence[tuple[str, Found]]) -> Report:
    made = [(part, claim) for part, each in found for claim in each.claims]
    data = {
        "claims": claims.to_json(made),
        "parts": {part: each.data for part, each in found},
        "cases": [case for _, each in found for case in each.compared],
    }
    grids = [claims.grid(made), *(grid for _, each in found for grid in each.grids)]
    panels = [panel for _, each in found for panel in each.panels]
    notes = [note for _, each in found for note in each.notes]
    return Report(name, title, notes, grids, data, panels)
