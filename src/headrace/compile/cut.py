"""Cut a query at its stateful operators into a plan, or at every operator (to compare: that is one exchange for each).

Every stateful operator becomes one operator of the plan (a count-window join two: the ranker and the join); the
stateless operators in between become the steps of the edges that lead to it. An operator's stage is one more than
the latest stage among its producers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace import plan as p
from headrace.operators import (
    CountAggregateOperator,
    CountJoinOperator,
    OrderOperator,
    PaneAggregateOperator,
    RankOperator,
    StatelessOperator,
    TimeJoinOperator,
    TupleAggregateOperator,
)
from headrace.operators.base import Operator
from headrace.operators.count_join import RANK_COLUMNS
from headrace.operators.joins import join_groupings
from headrace.query import nodes


@dataclass(frozen=True)
class Flow:
    """Tuples on their way: from one output of a producer through steps."""

    producer: str
    output: int
    stage: int
    steps: tuple[p.Step, ...]
    schema: pa.Schema

    def then(self, step: p.Step, schema: pa.Schema) -> Flow:
        return Flow(self.producer, self.output, self.stage, (*self.steps, step), schema)


def cut(
    roots: Sequence[nodes.Node], ordered: Sequence[bool] | None = None, *, at_every_operator: bool = False
) -> p.Plan:
    """The plan of one or more results; `ordered[i]` asks for result i in sequence."""
    cutter = _Cutter(nodes.named_sources(*roots), at_every_operator)
    for index, root in enumerate(roots):
        cutter.add_result(f"result-{index}", root, ordered=bool(ordered and ordered[index]))
    return cutter.plan()


@dataclass
class _Cutter:
    sources: dict[str, nodes.Source]
    at_every_operator: bool
    operators: list[Operator] = field(default_factory=list)
    edges: list[p.Edge] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    done: dict[int, list[Flow]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def plan(self) -> p.Plan:
        return p.Plan(
            tuple(_source_input(name, s) for name, s in self.sources.items()),
            tuple(self.operators),
            tuple(self.edges),
            tuple(self.results),
        )

    def add_result(self, name: str, root: nodes.Node, *, ordered: bool) -> None:
        flows = self.flows(root)
        if ordered:
            flows = [self._order(root, flows)]
        self.results.append(name)
        self._connect(flows, name, 0)

    def flows(self, node: nodes.Node) -> list[Flow]:
        """The flows whose union is the output of a node; computed once, so a shared stream is shared."""
        if id(node) not in self.done:
            self.done[id(node)] = self._flows(node)
        return self.done[id(node)]

    def _flows(self, node: nodes.Node) -> list[Flow]:
        match node:
            case nodes.Source():
                name = next(name for name, source in self.sources.items() if source is node)
                return [Flow(name, 0, 0, (), node.schema)]
            case nodes.Union():
                flows = [flow for stream in node.streams for flow in self.flows(stream)]
                return [self._stateless("union", node, flows, ())] if self.at_every_operator else flows
            case nodes.Map() | nodes.Filter() | nodes.Case():
                step, flows = _step(node), self.flows(node.input)
                if self.at_every_operator and not getattr(step, "pushed", False):
                    return [self._stateless(node.describe()["operator"], node, flows, (step,))]
                return [flow.then(step, node.schema) for flow in flows]
            case nodes.TimeJoin():
                return [self._time_join(node)]
            case nodes.CountJoin():
                return [self._count_join(node)]
            case nodes.TimeAggregate():
                return [self._time_aggregate(node)]
            case nodes.CountAggregate():
                return [self._count_aggregate(node)]
            case _:
                raise TypeError(f"no plan for {type(node).__name__}")

    def _name(self, kind: str) -> str:
        """A name that no source has."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = f"{kind}-{self.counts[kind]}"
        return name if name not in self.sources else self._name(kind)

    def _connect(self, flows: Sequence[Flow], target: str, side: int) -> None:
        for flow in flows:
            name = self._name(f"{flow.producer} to {target}{'.r' if side else ''}")
            self.edges.append(p.Edge(flow.producer, flow.output, flow.steps, flow.schema, target, side, name))

    def _add(self, operator: Operator, *inputs: Sequence[Flow]) -> Flow:
        self.operators.append(operator)
        for side, flows in enumerate(inputs):
            self._connect(flows, operator.name, side)
        return Flow(operator.name, 0, operator.stage, (), operator.schema)

    def _stateless(self, kind: str, node: nodes.Node, flows: Sequence[Flow], steps: tuple[p.Step, ...]) -> Flow:
        schema = node.inputs[0].schema
        grouping = p.Grouping(tuple(schema.names), None)
        operator = StatelessOperator(self._name(kind), _stage(flows), (schema,), node.schema, (grouping,), steps)
        return self._add(operator, flows)

    def _time_join(self, node: nodes.TimeJoin) -> Flow:
        left, right = self.flows(node.left), self.flows(node.right)
        operator = TimeJoinOperator(
            self._name("join"),
            _stage(left, right),
            (node.left.schema, node.right.schema),
            node.schema,
            join_groupings(node.left.schema, node.right.schema, node.on),
            node.on,
            node.columns,
            node.w1,
            node.w2,
        )
        return self._add(operator, left, right)

    def _count_join(self, node: nodes.CountJoin) -> Flow:
        left, right = self.flows(node.left), self.flows(node.right)
        ranker = RankOperator(
            self._name("rank"),
            _stage(left, right),
            (node.left.schema, node.right.schema),
            node.schema,
            (p.Grouping((), None), p.Grouping((), None)),
        )
        self._add(ranker, left, right)
        ranked = [
            Flow(ranker.name, side, ranker.stage, (), pa.schema([*source.schema, *RANK_COLUMNS]))
            for side, source in enumerate((node.left, node.right))
        ]
        operator = CountJoinOperator(
            self._name("join"),
            ranker.stage + 1,
            (ranked[0].schema, ranked[1].schema),
            node.schema,
            join_groupings(node.left.schema, node.right.schema, node.on),
            node.on,
            node.columns,
            node.n1,
            node.n2,
            ranker.name,
        )
        return self._add(operator, [ranked[0]], [ranked[1]])

    def _time_aggregate(self, node: nodes.TimeAggregate) -> Flow:
        flows = self.flows(node.input)
        functions = [function for _, function in node.functions]
        common: dict[str, Any] = {
            "name": self._name("aggregate"),
            "stage": _stage(flows),
            "schemas": (node.input.schema,),
            "schema": node.schema,
            "groupings": _by_grouping(node),
            "by": node.by,
            "window": node.window,
            "every": node.every,
            "texts": tuple(f.text for f in functions),
        }
        if all(f.partials is not None for f in functions):
            partials = tuple(partial for f in functions for partial in f.partials or ())
            merged = tuple((name, str(f.merged_sql)) for name, f in node.functions)
            pane = math.gcd(node.window, node.every)
            return self._add(PaneAggregateOperator(**common, pane=pane, partials=partials, functions=merged), flows)
        named = tuple((name, f.sql) for name, f in node.functions)
        return self._add(TupleAggregateOperator(**common, functions=named, ordered=node.ordered), flows)

    def _count_aggregate(self, node: nodes.CountAggregate) -> Flow:
        flows = self.flows(node.input)
        named = tuple((name, f.sql) for name, f in node.functions)
        operator = CountAggregateOperator(
            self._name("aggregate"),
            _stage(flows),
            (node.input.schema,),
            node.schema,
            _by_grouping(node),
            node.by,
            named,
            tuple(f.text for _, f in node.functions),
            node.last,
            node.every,
        )
        return self._add(operator, flows)

    def _order(self, root: nodes.Node, flows: Sequence[Flow]) -> Flow:
        operator = OrderOperator(
            self._name("order"), _stage(flows), (root.schema,), root.schema, (p.Grouping((), None),)
        )
        return self._add(operator, flows)


def _source_input(name: str, s: nodes.Source) -> p.SourceInput:
    return p.SourceInput(name, s.schema, s.raw_schema, s.time, s.lateness, s.idle, s.ahead)


def _stage(*inputs: Sequence[Flow]) -> int:
    return 1 + max(flow.stage for flows in inputs for flow in flows)


def _step(node: nodes.Map | nodes.Filter | nodes.Case) -> p.Step:
    if isinstance(node, nodes.Map):
        text = ", ".join(f"{name} = {e.text}" for name, e in node.columns)
        return p.MapStep(tuple((name, e.sql) for name, e in node.columns), node.schema, text)
    if isinstance(node, nodes.Filter):
        return p.FilterStep(node.predicate.sql, node.predicate.text, node.pushed)
    # a predicate is looked at only where no earlier one was true
    earlier = "".join(f" WHEN {e.sql} THEN false" for e in node.predicates[: node.branch])
    chosen = f" WHEN {node.predicates[node.branch].sql} THEN true" if node.branch < len(node.predicates) else ""
    default = "false" if chosen else "true"
    text = ", ".join(e.text for e in node.predicates)
    return p.FilterStep(f"CASE{earlier}{chosen} ELSE {default} END", f"case {text}")


def _by_grouping(node: nodes.Aggregation) -> tuple[p.Grouping, ...]:
    return (p.Grouping(node.by, None),)
