"""The aggregate over time windows: in panes where its functions allow it, else over the tuples themselves."""

from __future__ import annotations

import math
from typing import Any

from headrace.operators.pane_aggregate import PaneAggregateOperator
from headrace.operators.planning import Flow, PlanSoFar, stage_after
from headrace.operators.tuple_aggregate import TupleAggregateOperator
from headrace.query import nodes
from headrace.routing import HashGrouping


def plan(node: nodes.TimeAggregate, sofar: PlanSoFar) -> Flow:
    flows = sofar.flows(node.input)
    functions = [function for _, function in node.functions]
    common: dict[str, Any] = {
        "name": sofar.name("aggregate"),
        "stage": stage_after(flows),
        "schemas": (node.input.schema,),
        "schema": node.schema,
        "groupings": (HashGrouping(node.by),),
        "by": node.by,
        "window": node.window,
        "every": node.every,
        "texts": tuple(f.text for f in functions),
    }
    if all(f.partials is not None for f in functions):
        partials = tuple(partial for f in functions for partial in f.partials or ())
        merged = tuple((name, str(f.merged_sql)) for name, f in node.functions)
        pane = math.gcd(node.window, node.every)
        return sofar.add(PaneAggregateOperator(**common, pane=pane, partials=partials, functions=merged), flows)
    named = tuple((name, f.sql) for name, f in node.functions)
    return sofar.add(TupleAggregateOperator(**common, functions=named, ordered=node.ordered), flows)
