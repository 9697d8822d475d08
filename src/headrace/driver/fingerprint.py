"""The fingerprint of a query: the meaning of the state of every operator, starting with its sources.

    meaning of an operator  =  its own definition  +  per input: the meanings of its producers, the steps between, and the
                               columns that it reads of them, with their types
    two meanings are equal  =>  the state made under one is the state that the other would have made

The meaning of an operator does not contain: steps downstream of the last stateful operator, sinks, the names and order
of results, lateness, `idle` and `ahead`, columns that the operator only passes on, and the names that an aggregate
gives to its functions. The operator that reads such a column describes it. For columns in state that are only passed
on, the fingerprint has their origin, so that they can be compared one by one. All of this is JSON in the manifest, with
which a later query is compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace import plan as p
from headrace.columnar.types import SUBSTREAM, TS, describe_schema
from headrace.operators.base import Operator, StateKind
from headrace.plan.columns_read import Names, column_of, columns_before, names_of, narrow_step, side_columns
from headrace.query import nodes
from headrace.support import validators
from headrace.support.event_time import FOREVER, NEVER

Json = dict[str, Any]
PLACES = ("lateness", "idle", "ahead")  # fields of a source that may change while the state continues
NOT_MEANT = ("body", "inputs", "schema", *PLACES)
OF_TABLE = " of table "  # part of the text of a column's origin
_LOADED = re.compile(r"(?:__main__|headrace_query_[^.]*)\.")  # module names under which a query file was loaded


def query_section(plan: p.PhysicalPlan, graph: Sequence[Json], holding: p.PhysicalPlan | None = None) -> Json:
    """Return the section of a manifest about a query: the user's query, and the meanings of operators and results.

    plan: under the strategy `subquery`, whichever the run uses, because no meaning depends on the strategy. holding:
    the plan with all columns that the state has, if these are more than the query reads.
    """
    found = {
        "operators": list(graph),
        "means": {o.name: _operator(plan, o, holding or plan) for o in plan.operators if o.state is not StateKind.NONE},
        "results": {name: _result(plan, name) for name in plan.results},
    }
    again: Json = json.loads(json.dumps(found))
    return again


def _operator(plan: p.PhysicalPlan, operator: Operator, holding: p.PhysicalPlan) -> Json:
    does = {key: value for key, value in operator.spec.items() if key not in NOT_MEANT}
    if "functions" in does:
        does["functions"] = [sql for _, sql in does["functions"]]
    inputs = []
    for side in range(len(operator.schemas)):
        needed = operator.needs(side, frozenset())
        edges = [
            _edge(plan, edge, needed) | _computed(plan, edge, needed) for edge in plan.entering(operator.name, side)
        ]
        held = passed_columns(holding, operator.name, side, needed)
        inputs.append([{**edge, "passes": found} if found else edge for edge, found in zip(edges, held, strict=True)])
    return {"does": does, "inputs": inputs}


def passed_columns(plan: p.PhysicalPlan, name: str, side: int, needed: Names) -> list[list[list[str]]]:
    """Return by edge the columns in an operator's state that it only passes on, each with its origin."""
    operator = plan.by_name[name]
    columns = operator.schemas[side].names if operator.holds_tuples else []
    hidden = {TS, SUBSTREAM, *needed}
    return [
        [[column, _origin(plan, edge, column)] for column in columns if column.lower() not in hidden]
        for edge in plan.entering(name, side)
    ]


def _origin(plan: p.PhysicalPlan, edge: p.Edge, column: str) -> str:
    """Return the origin of a column after the steps of an edge. Steps that only rename the column do not count."""
    name = column.lower()
    for step in reversed(edge.steps):
        if isinstance(step, p.TableStep):
            side, of = next(((side, of) for out, side, of in step.columns if out.lower() == name), ("l", name))
            if side == "r":
                return f"{of}{OF_TABLE}{step.table}"
            name = of.lower()
        elif isinstance(step, p.UnnestStep):
            if name in names_of(step.made):
                return f"{name} of unnest {step.column}"
        elif isinstance(step, p.MapStep) and name != TS:
            sql = next((sql for out, sql in step.columns if out.lower() == name), "")
            if not sql:
                break
            if (former := column_of(sql)) is None:
                return f"{name} = {sql}"
            name = former
    return next((sql for out, sql in _functions(plan, edge.producer) if out.lower() == name), name)


def _functions(plan: p.PhysicalPlan, producer: str) -> Sequence[Sequence[str]]:
    """Return (name, SQL) of the functions that a producer computes."""
    operator = plan.by_name.get(producer)
    found: Sequence[Sequence[str]] = operator.spec.get("functions", ()) if operator else ()
    return found


def _result(plan: p.PhysicalPlan, name: str) -> Json:
    edges = plan.entering(name, 0)
    needed = names_of(edges[0].schema.names)
    return {"inputs": [_edge(plan, edge, needed) for edge in edges], "columns": describe_schema(edges[0].schema)}


def _edge(plan: p.PhysicalPlan, edge: p.Edge, needed: Names) -> Json:
    steps = [
        step for step in edge.steps if not p.is_pushed(step)
    ]  # pushed steps are part of a join, which describes them
    read = narrow_step(_producer_schema(plan, edge), columns_before(steps, needed))
    found = {"from": edge.producer, "steps": _steps(steps, needed), "reads": describe_schema(read)}
    return {**found, "output": edge.output} if edge.output else found


def _computed(plan: p.PhysicalPlan, edge: p.Edge, needed: Names) -> Json:
    """Return the SQL of the columns that are read and that the producer computes, because its meaning has no names."""
    names = columns_before([step for step in edge.steps if not p.is_pushed(step)], needed)
    functions = _functions(plan, edge.producer)
    return {"computed": [[name, sql] for name, sql in functions if name.lower() in names]} if functions else {}


def _producer_schema(plan: p.PhysicalPlan, edge: p.Edge) -> pa.Schema:
    operator = plan.by_name.get(edge.producer)
    return operator.output_schema(edge.output) if operator else plan.source(edge.producer).schema


def _steps(steps: Sequence[p.Step], needed: Names) -> list[Json]:
    found: list[Json] = []
    for step in reversed(steps):
        found.append(_step(step, needed))
        needed = columns_before([step], needed)
    return found[::-1]


def _step(step: p.Step, needed: Names) -> Json:
    if isinstance(step, p.SplitStep):
        rule = nodes.Rule(step.substreams, step.by, step.route, step.broadcast)
        return {"split": rule.describe(), "name": step.name, "words": step.text}
    if isinstance(step, p.FilterStep):
        return {"filter": step.sql, "words": step.text}
    if isinstance(step, p.SampleStep):
        return {"sample": step.fraction, "by": list(step.hashed), "words": step.text}
    if isinstance(step, p.UnnestStep):
        words = step.text.replace("unnest ", "", 1)
        return {"unnest": step.column, "outer": step.outer, "index": step.index, "words": words}
    if isinstance(step, p.TableStep):
        joined = [list(column) for column in step.columns if column[0].lower() in needed]
        read = names_of(of for _, side, of in joined if side == "r") | side_columns(step.on.sql, "r")
        types = describe_schema(pa.schema([field for field in step.rows if field.name.lower() in read]))
        found = {"table": step.table, "on": step.on.sql, "keep": step.keep, "columns": joined, "words": step.text}
        return {**found, "types": types}
    columns = [[n, sql] for n, sql in step.columns if n.lower() in needed or column_of(sql) is None]
    return {"map": columns, "words": step.text}


# --- what is stored ----------------------------------------------------------------------------------------------------

_TIME = validators.optional(validators.whole(0, 1 << 62))
_COLUMNS = validators.list_of(validators.exact_list(validators.text, validators.text))
_JOINED = validators.record_with(
    table=validators.text,
    columns=validators.list_of(validators.exact_list(validators.text, validators.text, validators.text)),
    types=_COLUMNS,
)


def _step_of(value: Any, key: str) -> Json:
    step: Json = validators.record_with(words=validators.text)(value, key)
    return _JOINED(step, key) if "table" in step else step


_EDGES = validators.list_of(
    validators.record_with(**{"from": validators.text, "steps": validators.list_of(_step_of), "reads": _COLUMNS})
)
_SOURCE = validators.record_with(
    name=validators.text, schema=_COLUMNS, lateness=validators.whole(0, 1 << 62), idle=_TIME, ahead=_TIME
)
_SINCE = validators.mapping_of(
    validators.list_of(validators.exact_list(validators.count, validators.optional(validators.whole(NEVER, FOREVER))))
)
_LAID = validators.mapping_of(validators.list_of(validators.list_of(validators.text)))
_SECTION = validators.record_with(
    operators=validators.list_of(validators.record_with(operator=validators.text)),
    means=validators.mapping_of(validators.record(does=validators.table, inputs=validators.list_of(_EDGES))),
    results=validators.mapping_of(validators.record(inputs=_EDGES, columns=_COLUMNS)),
    changes=validators.list_of(validators.record(epoch=validators.count, said=validators.list_of(validators.text))),
    grouped=_LAID,
    held=_LAID,
)


def check_query_section(query: Any) -> None:
    """Raise for a section that no run wrote."""
    found = _SECTION(query, "query")
    operators = found["operators"]
    for place, node in enumerate(operators):
        if node["operator"] == "source":
            _SOURCE(node, f"query.operators[{place}]")
        if node["operator"] == "result":
            validators.record_with(order=validators.text)(node, f"query.operators[{place}]")
        _tables(node, f"query.operators[{place}]")
    if all(node["operator"] != "result" for node in operators):
        raise validators.refuse("query.operators", "with a result", [node["operator"] for node in operators])
    validators.mapping_of(validators.optional(validators.whole(NEVER, FOREVER)))(query.get("begun", {}), "query.begun")
    _SINCE(query.get("functions_since", {}), "query.functions_since")
    validators.mapping_of(validators.text)(query.get("places", {}), "query.places")
    known = {*found["means"], *(node["name"] for node in operators if node["operator"] == "source")}
    sides = [side for each in found["means"].values() for side in each["inputs"]]
    sides += [each["inputs"] for each in found["results"].values()]
    for edge in (edge for side in sides for edge in side):
        if edge["from"] not in known:
            raise validators.refuse("query.means", f"made of {sorted(known)}", edge["from"])
        for key in ("computed", "passes"):
            _COLUMNS(edge.get(key, []), f"query.means.{key}")


def _tables(node: Json, key: str) -> None:
    """Check the joins with tables in a node and in its body."""
    if node["operator"] == "table":
        validators.record_with(table=validators.optional(validators.text), schema=_COLUMNS)(node, key)
    for place, inside in enumerate(
        validators.list_of(validators.record_with(operator=validators.text))(node.get("body", []), f"{key}.body")
    ):
        _tables(inside, f"{key}.body[{place}]")


class QueryMeanings:
    """The meanings in a section `query` of a manifest, for comparison with another section.

    code: by operator, the user's code that it runs.
    """

    def __init__(self, section: Mapping[str, Any], code: Mapping[str, str] | None = None) -> None:
        self.operators: dict[str, Json] = {
            name: {**each, "does": without_loaders(each["does"])} for name, each in section["means"].items()
        }
        self.results: dict[str, Json] = section["results"]
        self.sources = {node["name"]: node for node in section["operators"] if node["operator"] == "source"}
        self.order = next(node["order"] for node in section["operators"] if node["operator"] == "result")
        self._code = {name: without_loader(text) for name, text in (code or {}).items() if name in self.operators}
        self._found: dict[bool, dict[str, str]] = {True: {}, False: {}}  # digests, with and without code

    @cached_property
    def digests(self) -> dict[str, str]:
        """Return the digest of the meaning of each operator."""
        return {name: self._digest_of(name, coded=False) for name in self.operators}

    @cached_property
    def coded(self) -> dict[str, str]:
        """Return the same digests, including the user's code in the operator and upstream of it."""
        return {name: self._digest_of(name, coded=True) for name in self.operators}

    def _digest_of(self, name: str, *, coded: bool) -> str:
        found = self._found[coded]
        if name not in found:
            found[name] = ""  # ends the recursion for names that are not complete yet
            if name in self.sources:
                found[name] = _digest(["source", source_meaning(self.sources[name])])
            else:
                operator, code = self.operators[name], self._code.get(name) if coded else None
                inputs = [self._resolved(side, coded=coded) for side in operator["inputs"]]
                found[name] = _digest([operator_kind(name), operator["does"], inputs, code])
        return found[name]

    def _resolved(self, edges: Sequence[Json], *, coded: bool) -> list[str]:
        """Return the meanings of edges, which do not depend on the names of their producers."""
        return sorted(self.edge_meaning(edge, coded=coded) for edge in edges)

    def edge_meaning(self, edge: Json, *, coded: bool = False) -> str:
        """Return the meaning of the tuples that an edge carries, from the meaning of its producer."""
        producer = self._digest_of(edge["from"], coded=coded)
        return _canonical([producer, edge.get("output", 0), *self._carried(edge)])

    def _carried(self, edge: Json) -> list[Any]:
        left_out = ("words", "name")
        steps = [{k: v for k, v in _unloaded_step(step).items() if k not in left_out} for step in edge["steps"]]
        reads = [column for column in edge["reads"] if column[0] != SUBSTREAM]
        return [steps, reads, edge.get("computed", [])]

    def result_digest(self, name: str, *, coded: bool = False) -> str:
        """Return the digest of the meaning of a result."""
        result = self.results[name]
        return _digest([self._resolved(result["inputs"], coded=coded), result["columns"]])

    def passed(self, name: str, side: int) -> dict[str, dict[str, list[str]]]:
        """Return the columns that are only passed on: by column and origin, the meanings of the edges that carry it."""
        found: dict[str, dict[str, list[str]]] = {}
        for edge in self.operators[name]["inputs"][side]:
            for column, origin in edge.get("passes", ()):
                found.setdefault(column, {}).setdefault(origin, []).append(self.edge_meaning(edge))
        return {column: {origin: sorted(edges) for origin, edges in each.items()} for column, each in found.items()}

    def above(self, name: str) -> set[str]:
        """Return the sources and operators upstream of an operator or a result."""
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


def operator_kind(name: str) -> str:
    """Return the kind of an operator from its name: "join" for "join-2"."""
    return name.rpartition("-")[0]


# --- names of user code, without the name that its file was loaded as ------------------------------------------------


def without_loader(text: str) -> str:
    """Return the name of a class or function without the name of the module that its file was loaded as."""
    found = _LOADED.match(text)
    return text[found.end() :] if found else text


def without_loaders(does: Json) -> Json:
    """Return the description of an operator, or the rule of a split, without module names of loaded files."""
    named = {key: without_loader(does[key]) for key in ("processor",) if isinstance(does.get(key), str)}
    rules = {key: does[key] for key in ("route", "broadcast") if isinstance(does.get(key), list) and does[key]}
    return {**does, **named, **{key: [without_loader(str(name)), *rest] for key, (name, *rest) in rules.items()}}


def _unloaded_step(step: Json) -> Json:
    return {**step, "split": without_loaders(step["split"])} if isinstance(step.get("split"), dict) else step


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
