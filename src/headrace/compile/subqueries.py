"""The plan as a user sees it: subqueries, each with its operators, its router and its slots.

A subquery is a stateful operator with the stateless operators behind it (the papers' unit of parallelisation), several
of them where they share their slots, or the stateless operators before the first. Its router says how tuples find its
slots. The records are plain values: they can be saved, compared and read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.compile import check_strategy, compile_query
from headrace.compile import plan as p
from headrace.errors import QueryError
from headrace.query import nodes
from headrace.query.durations import format_duration
from headrace.routing.layout import best_rectangles

FORMAT = 1
WINDOWS, HASH, GRID, ONE, CONTENT = "windows", "hash", "grid", "one", "content"


@dataclass(frozen=True)
class Router:
    """How tuples find the slots of a subquery.

    windows: whole windows as they come; hash: by columns; grid: one side by rows, the other by columns of a rectangle;
    one: all to one slot, in sequence; content: anywhere, by a hash of the whole tuple.
    """

    kind: str
    columns: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()  # of a grid: cells in each row
    transposed: bool = False

    def __str__(self) -> str:
        match self.kind:
            case "hash":
                return f"hash of {', '.join(self.columns)}"
            case "grid":
                sides = "right by rows" if self.transposed else "left by rows"
                return f"grid of {' + '.join(map(str, self.shape))} cells, {sides}"
            case "one":
                return "one slot, in sequence"
            case "content":
                return "hash of the whole tuple"
            case _:
                return "whole windows, as they come"


@dataclass(frozen=True)
class Subquery:
    name: str
    operators: tuple[str, ...]
    router: Router
    slots: int
    cost: float | None  # microseconds per tuple, once measured
    inputs: tuple[str, ...]  # sources and subqueries


@dataclass(frozen=True)
class Plan:
    """Subqueries in the order of their stages; `shuffles` is the number of exchanges between them."""

    strategy: str
    slots: int
    subqueries: tuple[Subquery, ...]
    shuffles: int

    def to_json(self) -> dict[str, Any]:
        """As plain values, for `json.dumps`."""
        return {"format": FORMAT, **asdict(self, dict_factory=_with_lists)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` gave; refuses anything else, saying where."""
        _demand(data, "the plan", {"format": int, "strategy": str, "slots": int, "subqueries": list, "shuffles": int})
        if data["format"] != FORMAT:
            raise QueryError(f"the plan has format {data['format']}, this version reads {FORMAT}; make it anew")
        found = tuple(_subquery(each, f"subquery {number}") for number, each in enumerate(data["subqueries"], start=1))
        return Plan(data["strategy"], data["slots"], found, data["shuffles"])

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _with_lists(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in pairs}


def _lines(plan: Plan) -> Iterable[str]:
    yield f"strategy {plan.strategy}, {plan.slots} slots, {plan.shuffles} shuffles"
    for subquery in plan.subqueries:
        yield ""
        yield f"{subquery.name} <- {', '.join(subquery.inputs)}"
        yield f"  router: {subquery.router}; slots: {subquery.slots}"
        yield from (f"  {text}" for text in subquery.operators)


def plan_of(roots: Sequence[nodes.Node], ordered: Sequence[bool], strategy: str, slots: int) -> Plan:
    """The plan of a query: one or more results."""
    check_strategy(strategy)
    return describe(compile_query(roots, ordered, strategy), strategy, slots)


# --- from what the engine runs -------------------------------------------------------------------------------------


def describe(plan: p.Plan, strategy: str, slots: int) -> Plan:
    """The subqueries of a physical plan."""
    leaders, groups = _leaders(plan), members(plan)
    prefix = _prefix(plan, slots)
    names = {leaders[group[0].name]: f"subquery-{n}" for n, group in enumerate(groups, start=1 + len(prefix))}
    found = [_described(plan, names, leaders, group, slots, bool(prefix)) for group in groups]
    return Plan(strategy, slots, (*prefix, *found), plan.stages)


def members(plan: p.Plan) -> list[list[p.Operator]]:
    """The operators of every subquery that has some."""
    leaders, groups = _leaders(plan), dict[str, list[p.Operator]]()
    for operator in plan.operators:
        groups.setdefault(leaders[operator.name], []).append(operator)
    return list(groups.values())


def _leaders(plan: p.Plan) -> dict[str, str]:
    return {o.name: _owner(plan.by_name.get(o.follows, o)) for o in plan.operators}


def _owner(operator: p.Operator) -> str:
    """A ranker belongs to the count join that it gives numbers to; others to themselves."""
    return operator.ranker if isinstance(operator, p.CountJoinOperator) else operator.name


def _prefix(plan: p.Plan, slots: int) -> list[Subquery]:
    """The stateless operators between the sources and whatever comes first."""
    sources = [s.name for s in plan.sources]
    steps = _unique(step for e in plan.edges if e.producer in sources for step in e.steps)
    if all(_pushed(step) for step in steps):
        return []
    used = [name for name in sources if any(e.producer == name and _own_steps(e) for e in plan.edges)]
    return [Subquery("subquery-1", tuple(map(_step_text, steps)), Router(WINDOWS), slots, None, tuple(used))]


def _described(
    plan: p.Plan,
    names: Mapping[str, str],
    leaders: Mapping[str, str],
    group: Sequence[p.Operator],
    slots: int,
    prefix: bool,
) -> Subquery:
    texts: list[str] = []
    inputs: dict[str, None] = {}
    inside = {operator.name for operator in group}
    for operator in group:
        if not isinstance(operator, p.RankOperator):
            texts.append(_operator_text(operator))
        edges = [edge for edge in plan.edges if edge.producer == operator.name]
        texts += [_step_text(step) for step in _unique(step for edge in edges for step in edge.steps)]
        for edge in (edge for edge in plan.edges if edge.target == operator.name and edge.producer not in inside):
            before = "subquery-1" if prefix and _own_steps(edge) and edge.producer not in leaders else edge.producer
            inputs[names[leaders[before]] if before in leaders else before] = None
    router = _router(next(o for o in group if not isinstance(o, p.RankOperator)), slots)
    return Subquery(names[leaders[group[0].name]], tuple(texts), router, _slots(router, slots), None, tuple(inputs))


def _slots(router: Router, slots: int) -> int:
    return 1 if router.kind == ONE else slots


def _router(operator: p.Operator, slots: int) -> Router:
    if isinstance(operator, p.StatelessOperator):
        return Router(CONTENT)
    if isinstance(operator, p.OrderOperator):
        return Router(ONE)
    if isinstance(operator, p.JoinOperator):
        if operator.keys:
            pairs = zip(operator.groupings[0].columns, operator.groupings[1].columns, strict=True)
            return Router(HASH, tuple(f"l.{left} = r.{right}" for left, right in pairs))
        layout = best_rectangles(max(slots, 1), slots, 1, 1)
        return Router(GRID, (), layout.rows, layout.transposed)
    columns = operator.groupings[0].columns
    return Router(HASH, columns) if columns else Router(ONE)


def _unique(steps: Iterable[p.Step]) -> list[p.Step]:
    """Each step once, though several edges may carry it."""
    return list({id(step): step for step in steps}.values())


def _pushed(step: p.Step) -> bool:
    return isinstance(step, p.FilterStep) and step.pushed


def _own_steps(edge: p.Edge) -> list[p.Step]:
    """The steps that the user wrote."""
    return [step for step in edge.steps if not _pushed(step)]


def _step_text(step: p.Step) -> str:
    pushed = " (part of the join behind it)" if _pushed(step) else ""
    return f"{'map' if isinstance(step, p.MapStep) else 'filter'} {step.text}{pushed}"


def _operator_text(operator: p.Operator) -> str:
    match operator:
        case p.TimeJoinOperator():
            return f"join on {operator.text} within {format_duration(operator.w1)}, {format_duration(operator.w2)}"
        case p.CountJoinOperator():
            return f"join on {operator.text} last {operator.n1}, {operator.n2}"
        case p.PaneAggregateOperator() | p.TupleAggregateOperator():
            window = f"window {format_duration(operator.window)} every {format_duration(operator.every)}"
            return f"aggregate by {', '.join(operator.by) or 'nothing'} {window}: {', '.join(operator.texts)}"
        case p.CountAggregateOperator():
            window = f"last {operator.last} every {operator.every}"
            return f"aggregate by {', '.join(operator.by) or 'nothing'} {window}: {', '.join(operator.texts)}"
        case p.StatelessOperator():
            return ", ".join(map(_step_text, operator.steps)) or "union"
        case _:
            return "results in sequence"


# --- from a file ---------------------------------------------------------------------------------------------------


def _subquery(data: Any, where: str) -> Subquery:
    if not isinstance(data, Mapping):
        raise QueryError(f"{where} must be an object; found {data!r:.100}")
    _demand(data, where, {"name": str, "operators": list, "router": dict, "slots": int, "inputs": list, "cost": object})
    where = f"{where} ({data['name']})"
    if data["slots"] < 1:
        raise QueryError(f"{where} has {data['slots']} slots; every subquery needs at least one")
    if data["cost"] is not None and (not isinstance(data["cost"], int | float) or data["cost"] < 0):
        raise QueryError(f"{where}: cost must be a number of microseconds or null; found {data['cost']!r:.100}")
    router = data["router"]
    _demand(router, f"{where}: router", {"kind": str, "columns": list, "shape": list, "transposed": bool})
    if router["kind"] not in (WINDOWS, HASH, GRID, ONE, CONTENT):
        raise QueryError(f"{where}: there is no router {router['kind']!r}; there are windows, hash, grid, one, content")
    made = Router(router["kind"], tuple(router["columns"]), tuple(router["shape"]), router["transposed"])
    return Subquery(data["name"], tuple(data["operators"]), made, data["slots"], data["cost"], tuple(data["inputs"]))


def _demand(data: Mapping[str, Any], where: str, fields: Mapping[str, type]) -> None:
    for name, kind in fields.items():
        if name not in data:
            raise QueryError(f"{where} has no {name!r}; it has {', '.join(data) or 'nothing'}")
        if not isinstance(data[name], kind) or (kind is int and isinstance(data[name], bool)):
            raise QueryError(f"{where}: {name} must be {kind.__name__}; found {data[name]!r:.100}")
    strange = [name for name in data if name not in fields]
    if strange:
        raise QueryError(f"{where} has unknown entries: {', '.join(strange)}; there are {', '.join(fields)}")
