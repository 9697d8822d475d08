"""The times of the first epoch, from which an operator that takes tuples in sequence gets its first stretches.

Later epochs follow the one before. These times are an estimate: a wrong one costs balance, never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace import plan as p
from headrace.query import nodes
from headrace.routing import Adaptation
from headrace.routing.by_time import Sample
from headrace.sources.protocol import TakenInput
from headrace.spark.dataframes import sample_times

MOST_FILES = 64  # files whose statistics are read


def first_times(
    plan: p.PhysicalPlan,
    sources: Mapping[str, nodes.Source],
    static: Mapping[str, nodes.Source],
    inputs: Sequence[TakenInput],
) -> Sample:
    """Return a sample of the times of an epoch's input; empty if no operator needs it.

    sources: all sources of the plan. static: those whose DataFrames the epoch reads whole. inputs: what it takes of others.
    """
    if not any(operator.router.adapts is Adaptation.BOUNDS for operator in plan.operators):
        return []
    step = -(-len(inputs) // MOST_FILES)
    found = [list(time) for each in inputs[:: step or 1] for time in each.sample_times(sources[each.source].time)]
    for source in static.values():
        found += sample_times(source.origin.df, source.time)
    return found
