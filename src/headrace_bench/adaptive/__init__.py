"""What adapting is worth: rates that flip, skewed keys, a load that rises and falls, a hot key. Claims, each with a verdict.

`diffusion` and `elasticity` are counted in this process and are the same on any machine; `degree` and the first part of
`hot key` run on Spark, in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_bench.adaptive import claims, degree, diffusion, elasticity, hot_key
from headrace_bench.adaptive.claims import Found
from headrace_bench.options import Options
from headrace_bench.report import Report


@dataclass(frozen=True)
class Part:
    name: str
    run: Callable[[Options], Found]


PARTS = (
    Part("diffusion", diffusion.run),
    Part("elasticity", elasticity.run),
    Part("degree", degree.run),
    Part("hot key", hot_key.run),
)


def run(options: Options) -> Report:
    return reported([(part.name, part.run(options)) for part in options.wanted(PARTS)])


def reported(found: list[tuple[str, Found]]) -> Report:
    made = [(name, claim) for name, each in found for claim in each.claims]
    data = {
        "claims": claims.to_json(made),
        "parts": {name: each.data for name, each in found},
        "cases": [case for _, each in found for case in each.compared],
    }
    grids = [claims.grid(made), *(grid for _, each in found for grid in each.grids)]
    panels = [panel for _, each in found for panel in each.panels]
    notes = [note for _, each in found for note in each.notes]
    return Report("adaptive", "Adapting to rates, skew, load and hot keys", notes, grids, data, panels)
