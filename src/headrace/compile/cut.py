"""The pass that cuts a query into a plan, at its stateful operators or, for comparison, at every operator.

Each stateful operator becomes one operator of the plan (a count-window join becomes two: the ranker and the join). The
stateless operators between them become steps of the edges. The stage of an operator is one more than the latest stage
of its producers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import plan as p
from headrace.operators import PLANNERS, Operator, OrderOperator, StatelessOperator
from headrace.operators.flow import Flow, stage_after
from headrace.query import nodes
from headrace.routing import HashGrouping, RangeGrouping

Stateless = nodes.Map | nodes.Filter | nodes.Case | nodes.Sample | nodes.Unnest | nodes.Split


def cut(
    roots: Sequence[nodes.Node], ordered: Sequence[bool] | None = None, *, at_every_operator: bool = False
) -> p.PhysicalPlan:
    """Return the plan of one or more results. `ordered[i]` requires result i in sequence."""
    tables = {id(table): name for name, table in nodes.named_tables(*roots).items()}
    cutter = _Cutter(nodes.named_sources(*roots), tables, at_every_operator)
    for index, root in enumerate(roots):
        cutter.add_result(f"result-{index}", root, ordered=bool(ordered and ordered[index]))
    return cutter.plan()


@dataclass
class _Cutter:
    """The state of one cut: the operators, edges and sources found so far."""

    sources: dict[str, nodes.Source]
    tables: dict[int, str]  # id of a table -> its name
    at_every_operator: bool
    operators: list[Operator] = field(default_factory=list)
    edges: list[p.Edge] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    done: dict[int, list[Flow]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)  # description of the node that is being planned

    def plan(self) -> p.PhysicalPlan:
        return p.PhysicalPlan(
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
        """Return the flows whose union is the output of a node. They are computed once, so a shared stream is planned
        once.
        """
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
            case (
                nodes.Map()
                | nodes.Filter()
                | nodes.Case()
                | nodes.Sample()
                | nodes.Unnest()
                | nodes.Split()
                | nodes.TableJoin()
            ):
                step, flows = self._step(node), self.flows(node.input)
                if self.at_every_operator and not getattr(step, "pushed", False):
                    return [self._stateless(node.describe()["operator"], node, flows, (step,))]
                return [flow.then(step, node.schema) for flow in flows]
            case nodes.ProcessorOutput():
                return [replace(flow, output=node.number, schema=node.schema) for flow in self.flows(node.input)]
            case _:
                return self._planned(node)

    def _planned(self, node: nodes.Node) -> list[Flow]:
        """Plan a stateful node. Its inputs are planned first, so that their operators do not get this node's
        description.
        """
        for child in node.inputs:
            self.flows(child)
        self.spec = node.describe()
        found = PLANNERS[type(node)](node, self)
        return [found] if isinstance(found, Flow) else found

    def _step(self, node: Stateless | nodes.TableJoin) -> p.Step:
        if not isinstance(node, nodes.TableJoin):
            return _step(node)
        name = self.tables[id(node.table)]
        text = nodes.table_join_summary(name, node.on.text, node.keep)
        return p.TableStep(name, node.on, node.keep, node.columns, node.schema, text, node.table.schema)

    def name(self, kind: str) -> str:
        """Return an unused name that is also no source's name."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = f"{kind}-{self.counts[kind]}"
        return name if name not in self.sources else self.name(kind)

    def _connect(self, flows: Sequence[Flow], target: str, side: int) -> None:
        for flow in flows:
            name = self.name(f"{flow.producer} to {target}{_side_name(side)}")
            self.edges.append(p.Edge(flow.producer, flow.output, flow.steps, flow.schema, target, side, name))

    def add(self, operator: Operator, *inputs: Sequence[Flow]) -> Flow:
        self.operators.append(replace(operator, spec=self.spec))
        for side, flows in enumerate(inputs):
            self._connect(flows, operator.name, side)
        return Flow(operator.name, 0, operator.stage, (), operator.schema)

    def _stateless(self, kind: str, node: nodes.Node, flows: Sequence[Flow], steps: tuple[p.Step, ...]) -> Flow:
        schema = node.inputs[0].schema
        grouping = HashGrouping(tuple(schema.names))
        operator = StatelessOperator(self.name(kind), stage_after(flows), (schema,), node.schema, (grouping,), steps)
        return self.add(operator, flows)

    def _order(self, root: nodes.Node, flows: Sequence[Flow]) -> Flow:
        operator = OrderOperator(
            self.name("order"), stage_after(flows), (root.schema,), root.schema, (RangeGrouping(("ts",)),)
        )
        self.spec = {"operator": "order"}
        return self.add(operator, flows)


def _side_name(side: int) -> str:
    """Return the name of an input in the name of an edge: nothing for the first, `.r` for the second, then a number."""
    return ("", ".r")[side] if side < 2 else f".{side + 1}"


def _source_input(name: str, s: nodes.Source) -> p.SourceInput:
    given = (s.schema, s.raw_schema, s.time, s.lateness, s.idle, s.ahead)
    return p.SourceInput(name, *given, s.schema, unread_schema=s.origin.unread_schema)


def _step(node: Stateless) -> p.Step:
    if isinstance(node, nodes.Split):
        columns, rule = tuple(node.input.schema.names), node.rule
        given = (rule.substreams, rule.by, rule.route, rule.broadcast)
        return p.SplitStep(node.name, *given, node.replicate, columns, rule.summary)
    if isinstance(node, nodes.Unnest):
        return p.UnnestStep(node.column, node.outer, node.index, node.elements, node.summary)
    if isinstance(node, nodes.Map):
        shown = [(name, e.text) for name, e in node.columns if name != nodes.SUBSTREAM]
        text = ", ".join(name if text == name else f"{name} = {text}" for name, text in shown)
        return p.MapStep(tuple((name, e.sql) for name, e in node.columns), node.schema, text)
    if isinstance(node, nodes.Filter):
        return p.FilterStep(node.predicate.sql, node.predicate.text, node.pushed)
    if isinstance(node, nodes.Sample):
        return p.SampleStep(node.fraction, node.hashed, node.text)
    # a predicate is evaluated only if no earlier predicate was true
    earlier = "".join(f" WHEN {e.sql} THEN false" for e in node.predicates[: node.branch])
    chosen = f" WHEN {node.predicates[node.branch].sql} THEN true" if node.branch < len(node.predicates) else ""
    default = "false" if chosen else "true"
    text = ", ".join(e.text for e in node.predicates)
    return p.FilterStep(f"CASE{earlier}{chosen} ELSE {default} END", f"case {text}")
