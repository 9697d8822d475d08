"""What the state of every operator means: what it does, and what comes to it, down to the sources.

    meaning of an operator  =  what it does itself  +  per input: the meanings of its producers, the steps between, and the
                               columns that it reads of them, with their types
    two meanings are equal  =>  state that was made under one is the state that the other would have made

Steps behind the last state, sinks, the names and order of results, lateness, `idle` and `ahead` are no part of it, nor are
columns that an operator only passes on, or the names that an aggregate gives to what it computes. All of it is JSON and stands in the manifest, so that a later query is held against it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace import form
from headrace import plan as p
from headrace.operators.base import Operator, State
from headrace.plan.columns import Names, before, column_of, names_of, narrow
from headrace.query import nodes
from headrace.types import SUBSTREAM, describe

Json = dict[str, Any]
PLACES = ("lateness", "idle", "ahead")  # of a source: may change while state goes on
NOT_MEANT = ("body", "inputs", "schema", *PLACES)


def section(plan: p.PhysicalPlan, graph: Sequence[Json]) -> Json:
    """What a manifest says of a query: as a user wrote it, and what operators and results mean; JSON as it is read again.

    plan: under the strategy `subquery`, whatever the run has: no meaning depends on a strategy.
    """
    found = {
        "operators": list(graph),
        "means": {o.name: _operator(plan, o) for o in plan.operators if o.state is not State.NONE},
        "results": {name: _result(plan, name) for name in plan.results},
    }
    again: Json = json.loads(json.dumps(found))
    return again


def _operator(plan: p.PhysicalPlan, operator: Operator) -> Json:
    does = {key: value for key, value in operator.does.items() if key not in NOT_MEANT}
    if "functions" in does:
        does["functions"] = [sql for _, sql in does["functions"]]
    sides = range(len(operator.schemas))
    return {"does": does, "inputs": [_input(plan, operator.name, s, operator.needs(s, frozenset())) for s in sides]}


def _result(plan: p.PhysicalPlan, name: str) -> Json:
    edges = plan.entering(name, 0)
    return {"inputs": _input(plan, name, 0, names_of(edges[0].schema.names)), "columns": describe(edges[0].schema)}


def _input(plan: p.PhysicalPlan, target: str, side: int, needed: Names) -> list[Json]:
    return [_edge(plan, edge, needed) for edge in plan.entering(target, side)]


def _edge(plan: p.PhysicalPlan, edge: p.Edge, needed: Names) -> Json:
    steps = [step for step in edge.steps if not p.is_pushed(step)]  # what is pushed is part of a join, which says it
    read = narrow(_put_out(plan, edge), before(steps, needed))
    found = {"from": edge.producer, "steps": _steps(steps, needed), "reads": describe(read)}
    return {**found, "output": edge.output} if edge.output else found


def _put_out(plan: p.PhysicalPlan, edge: p.Edge) -> pa.Schema:
    operator = plan.by_name.get(edge.producer)
    return operator.put_out(edge.output) if operator else plan.source(edge.producer).schema


def _steps(steps: Sequence[p.Step], needed: Names) -> list[Json]:
    found: list[Json] = []
    for step in reversed(steps):
        found.append(_step(step, needed))
        needed = before([step], needed)
    return found[::-1]


def _step(step: p.Step, needed: Names) -> Json:
    if isinstance(step, p.SplitStep):
        rule = nodes.Rule(step.substreams, step.by, step.route, step.broadcast)
        return {"split": rule.describe(), "name": step.name, "words": step.text}
    if isinstance(step, p.FilterStep):
        return {"filter": step.sql, "words": step.text}
    if isinstance(step, p.TableStep):
        joined = [list(column) for column in step.columns if column[0].lower() in needed]
        return {"table": step.table, "on": step.on.sql, "keep": step.keep, "columns": joined, "words": step.text}
    columns = [[n, sql] for n, sql in step.columns if n.lower() in needed or column_of(sql) is None]
    return {"map": columns, "words": step.text}


# --- what is stored ----------------------------------------------------------------------------------------------------

_TIME = form.optional(form.whole(0, 1 << 62))
_COLUMNS = form.items(form.row(form.text, form.text))
_EDGES = form.items(
    form.having(**{"from": form.text, "steps": form.items(form.having(words=form.text)), "reads": _COLUMNS})
)
_SOURCE = form.having(name=form.text, schema=_COLUMNS, lateness=form.whole(0, 1 << 62), idle=_TIME, ahead=_TIME)
_LAID = form.each(form.items(form.items(form.text)))
_SECTION = {
    "means": form.each(form.record(does=form.table, inputs=form.items(_EDGES))),
    "results": form.each(form.record(inputs=_EDGES, columns=_COLUMNS)),
    "changes": form.items(form.record(epoch=form.count, said=form.items(form.text))),
}


def check(query: Any) -> None:
    """Refuse a section that no run wrote; state of format 5 has no meanings."""
    operators = form.having(operators=form.items(form.having(operator=form.text)))(query, "query")["operators"]
    for place, node in enumerate(operators):
        if node["operator"] == "source":
            _SOURCE(node, f"query.operators[{place}]")
        if node["operator"] == "result":
            form.having(order=form.text)(node, f"query.operators[{place}]")
    if all(node["operator"] != "result" for node in operators):
        raise form.refuse("query.operators", "with a result", [node["operator"] for node in operators])
    for part in ("grouped", "held"):
        _LAID(query.get(part, {}), f"query.{part}")
    if "means" not in query:
        return
    found = form.having(**_SECTION)(query, "query")
    known = {*found["means"], *(node["name"] for node in operators if node["operator"] == "source")}
    sides = [side for each in found["means"].values() for side in each["inputs"]]
    sides += [each["inputs"] for each in found["results"].values()]
    for name in (edge["from"] for side in sides for edge in side):
        if name not in known:
            raise form.refuse("query.means", f"made of {sorted(known)}", name)


class Meanings:
    """What a section says, to be held against another."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        self.operators: dict[str, Json] = section["means"]
        self.results: dict[str, Json] = section["results"]
        self.sources = {node["name"]: node for node in section["operators"] if node["operator"] == "source"}
        self.order = next(node["order"] for node in section["operators"] if node["operator"] == "result")

    @cached_property
    def digests(self) -> dict[str, str]:
        """By operator."""
        found: dict[str, str] = {}
        for name in self.operators:
            self._digest_of(name, found)
        return {name: found[name] for name in self.operators}

    def _digest_of(self, name: str, found: dict[str, str]) -> str:
        if name not in found:
            found[name] = ""  # no operator is made of itself
            if name in self.sources:
                found[name] = _digest(["source", source_meaning(self.sources[name])])
            else:
                operator = self.operators[name]
                inputs = [self._resolved(side, found) for side in operator["inputs"]]
                found[name] = _digest([kind_of(name), operator["does"], inputs])
        return found[name]

    def _resolved(self, edges: Sequence[Json], found: dict[str, str]) -> list[str]:
        """Edges by what they mean, not by what their producers are called."""
        return sorted(_canonical([self._digest_of(e["from"], found), e.get("output", 0), *_carried(e)]) for e in edges)

    def result_digest(self, name: str) -> str:
        """Of all that makes a result."""
        result = self.results[name]
        return _digest([self._resolved(result["inputs"], {}), result["columns"]])

    def above(self, name: str) -> set[str]:
        """The sources and operators that an operator or a result is made of."""
        found: set[str] = set()
        left = {name}
        while left:
            left = {of for each in left for of in self._producers(each)} - found
            found |= left
        return found

    def _producers(self, name: str) -> set[str]:
        sides = self.operators[name]["inputs"] if name in self.operators else []
        sides = [self.results[name]["inputs"]] if name in self.results else sides
        return {edge["from"] for side in sides for edge in side}


def source_meaning(node: Mapping[str, Any]) -> Json:
    return {key: value for key, value in node.items() if key not in NOT_MEANT}


def kind_of(name: str) -> str:
    """join-2 is a join."""
    return name.rpartition("-")[0]


def _carried(edge: Json) -> list[Any]:
    steps = [{key: value for key, value in step.items() if key not in ("words", "name")} for step in edge["steps"]]
    return [steps, [column for column in edge["reads"] if column[0] != SUBSTREAM]]


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
