"""From the query a user wrote to the plan the engine runs, pass by pass.

    normalise conditions on one side of a join go below it
    cut       at the stateful operators: one stage, and so one exchange, for each
    coalesce  operators that are partitioned alike into one stage: no exchange between them

Strategies, to compare: `subquery` is all of it; `query` does not coalesce; `operator` cuts at every operator, stateless ones
too. How state is grouped does not depend on the strategy, so a run may go on under another one.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.compile.coalesce import coalesce
from headrace.compile.cut import cut
from headrace.compile.normalise import normalise
from headrace.compile.plan import Plan
from headrace.errors import QueryError
from headrace.query import nodes

STRATEGIES = ("subquery", "operator", "query")


def check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise QueryError(f"unknown strategy {strategy!r}; there are {', '.join(STRATEGIES)}")


def compile_query(
    roots: Sequence[nodes.Node], ordered: Sequence[bool] | None = None, strategy: str = "subquery"
) -> Plan:
    """The plan of one or more results; `ordered[i]` asks for result i in sequence."""
    roots = normalise(roots)
    plan = cut(roots, ordered)
    together = coalesce(plan)
    if strategy == "subquery":
        return together
    return grouped_like(together, cut(roots, ordered, at_every_operator=True) if strategy == "operator" else plan)


def grouped_like(other: Plan, plan: Plan) -> Plan:
    """The plan with the groupings that the same operators have in another."""
    groupings = {operator.name: operator.groupings for operator in other.operators}
    operators = tuple(replace(o, groupings=groupings.get(o.name, o.groupings)) for o in plan.operators)
    return replace(plan, operators=operators)


__all__ = ["STRATEGIES", "check_strategy", "compile_query"]
