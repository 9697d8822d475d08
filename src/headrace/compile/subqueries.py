"""The plan that users see: subqueries, each with its operators, its router and its slots.

A subquery is a stateful operator with the stateless operators downstream of it (the papers' unit of parallelisation),
or several such operators that share their slots, or the stateless operators before the first stateful one. Its router
decides which slots receive a tuple. The records are plain values that can be saved, compared and read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import CorruptState, QueryError
from headrace.plan.figures import is_number
from headrace.routing import Router, RoutingCost, router_from_json
from headrace.support.limits import check_slots
from headrace.support.terminal_text import printable

if TYPE_CHECKING:
    from headrace.showing.notebook import Picture

PLAN_FORMAT = 3


@dataclass(frozen=True)
class MeasuredRates:
    """What a run measured for a subquery or source, per second of event time."""

    arriving: float
    sent: float
    state: float
    results: float
    cost: float | None  # microseconds per tuple


@dataclass(frozen=True)
class RoutingOption:
    """A routing alternative that was not chosen, with its estimates."""

    router: Router
    numbers: RoutingCost


@dataclass(frozen=True)
class Subquery:
    """One subquery of a plan: its operators, its router, its slots, and what it is expected to cost.

    Attributes:
        name: the name in plans.
        operators: one line of text for each operator.
        router: how tuples find their slots.
        slots: how many slots it has.
        cost: microseconds per tuple; None: neither measured nor given.
        inputs: the sources and subqueries that it reads.
        first: the number of its first slot.
        share: how many slots would suit its cost if every subquery had its own slots. None: no cost is known.
        stage: subqueries of one stage run side by side.
        members: the names of its operators in figures.
        numbers: what its routing is expected to cost.
        rejected: other ways of routing, with what they would cost.
        meets: how its joins find their pairs.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> [subquery] = calls.distinct(by=["caller"], within="10 seconds").plan(slots=8).subqueries
        >>> subquery.name, subquery.slots, subquery.inputs
        ('subquery-1', 8, ('calls',))
    """

    name: str
    operators: tuple[str, ...]
    router: Router
    slots: int
    cost: float | None  # microseconds per tuple, if measured or given
    inputs: tuple[str, ...]  # names of sources and subqueries
    first: int = 0  # number of its first slot
    share: int | None = None  # slots in proportion to its cost, if every subquery had separate slots
    stage: int = 0  # subqueries of one stage run in parallel
    members: tuple[str, ...] = ()  # names of its operators in figures
    numbers: RoutingCost = field(default_factory=RoutingCost)
    rejected: tuple[RoutingOption, ...] = ()
    meets: tuple[str, ...] = ()  # how its joins find matching pairs


@dataclass(frozen=True)
class PlannedSource:
    """A source of a plan: its rate and its cost.

    Attributes:
        name: the name of the source.
        rate: tuples per second, measured or assumed.
        cost: microseconds to read and send one tuple; None: not measured.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> calls.filter("caller is not null").plan().sources
        (PlannedSource(name='calls', rate=1000.0, cost=None),)
    """

    name: str
    rate: float
    cost: float | None


@dataclass(frozen=True)
class Plan:
    """How a query is cut into subqueries and routed, as `Stream.plan` returns it. It can be printed, drawn, saved and
    compared.

    Attributes:
        strategy: "subquery", "operator" or "query".
        slots: tasks per stage.
        subqueries: the subqueries in the order of their stages.
        shuffles: the number of exchanges between subqueries.
        sources: the sources.
        measured: whether the numbers follow from a sample of the input; otherwise from assumed rates.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> print(calls.distinct(by=["caller"], within="10 seconds").plan(slots=8))
        strategy subquery, 8 slots, 1 shuffle
        <BLANKLINE>
        subquery-1 <- calls
          router: hash of caller; slots: 8
          distinct by caller within 10 seconds
    """

    strategy: str
    slots: int
    subqueries: tuple[Subquery, ...]
    shuffles: int
    sources: tuple[PlannedSource, ...] = ()
    measured: bool = False  # True: the numbers follow from a sample of the input; False: from assumed rates

    @property
    def headline(self) -> str:
        """The strategy and the numbers of slots and shuffles, as one line of text.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> calls.distinct(by=["caller"], within="10 seconds").plan(slots=8).headline
            'strategy subquery, 8 slots, 1 shuffle'
        """
        counts = [
            f"{n} {what}{'s' if n != 1 else ''}" for n, what in ((self.slots, "slot"), (self.shuffles, "shuffle"))
        ]
        return f"strategy {self.strategy}, {', '.join(counts)}"

    def picture(self) -> Picture:
        """Return the plan as a picture.

        Returns:
            The text of an SVG file, which a notebook draws.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> calls.distinct(by=["caller"], within="10 seconds").plan().picture()[:4]
            '<svg'
        """
        from headrace.showing.notebook import picture

        return picture(self)

    def _repr_html_(self) -> str:
        return str(self.picture())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, for `json.dumps`.

        Returns:
            A dict, which `from_json` reads.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> sorted(calls.filter("caller is not null").plan().to_json())
            ['format', 'measured', 'shuffles', 'slots', 'sources', 'strategy', 'subqueries']
        """
        return {"format": PLAN_FORMAT, **_plain(self)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_json` gave, perhaps edited.

        Args:
            data: the dict.

        Returns:
            The plan.

        Raises:
            QueryError: an entry is missing, unknown or invalid; the message names it.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> plan = calls.filter("caller is not null").plan(slots=8)
            >>> saved = plan.to_json()
            >>> type(plan).from_json(saved) == plan
            True
        """
        if not isinstance(data, Mapping):
            raise QueryError(f"a plan must be an object, such as q.plan(...).to_json() returns; found {data!r:.100}")
        if type(data.get("format")) is int and data["format"] != PLAN_FORMAT:
            raise QueryError(
                f"the plan has format {data['format']!r:.50}, but this version reads {PLAN_FORMAT}; create the plan again"
            )
        kinds = {"format": int, "strategy": str, "slots": int, "subqueries": list, "shuffles": int, "sources": list}
        _demand(data, "the plan", {**kinds, "measured": bool})
        check_slots(data["slots"], "the plan: slots")
        _demand_counts(data, "the plan", "shuffles")
        found = [_subquery(each, f"subquery {number}") for number, each in enumerate(data["subqueries"], start=1)]
        sources = [_source(each, f"source {number}") for number, each in enumerate(data["sources"], start=1)]
        return Plan(data["strategy"], data["slots"], tuple(found), data["shuffles"], tuple(sources), data["measured"])

    def __str__(self) -> str:
        return "\n".join(map(printable, _lines(self)))


def _plain(value: Any) -> Any:
    """Convert records to objects and tuples to lists."""
    if isinstance(value, Router):
        return value.to_json()
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _lines(plan: Plan) -> Iterable[str]:
    yield plan.headline
    for subquery in plan.subqueries:
        yield ""
        yield f"{subquery.name} <- {', '.join(subquery.inputs)}"
        yield f"  router: {subquery.router}; slots: {subquery.slots}"
        yield from (f"  {text}" for text in subquery.operators)


# --- from a file ---------------------------------------------------------------------------------------------------


def _subquery(data: Any, where: str) -> Subquery:
    kinds = {"name": str, "operators": list, "router": dict, "slots": int, "inputs": list, "cost": object, "first": int}
    kinds |= {"share": object, "stage": int, "members": list, "numbers": dict, "rejected": list, "meets": list}
    _demand(data, where, kinds)
    _demand_texts(data, where, "operators", "inputs", "members", "meets")
    where = f"{where} ({data['name']})"
    check_slots(data["slots"], f"{where}: slots")
    _demand_counts(data, where, "first", "stage")
    _demand_cost(data["cost"], where)
    share = data["share"]
    if share is not None and not _is_count(share):
        raise QueryError(f"{where}: share must be a number of slots or null; found {share!r:.100}")
    rejected = tuple(_option(each, f"{where}: rejected {n}") for n, each in enumerate(data["rejected"], start=1))
    made: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    made |= {"router": _router(data["router"], where), "numbers": _numbers(data["numbers"], f"{where}: numbers")}
    return Subquery(**{**made, "rejected": rejected})


def _router(data: Any, where: str) -> Router:
    try:
        return router_from_json(data, f"{where}: router")
    except CorruptState as error:
        raise QueryError(str(error)) from None


def _option(data: Any, where: str) -> RoutingOption:
    _demand(data, where, {"router": dict, "numbers": dict})
    return RoutingOption(_router(data["router"], where), _numbers(data["numbers"], where))


def _numbers(data: Any, where: str) -> RoutingCost:
    _demand(data, where, {f.name: object for f in fields(RoutingCost)})
    for name, value in data.items():
        if not is_number(value) or value < 0:
            raise QueryError(f"{where}: {name} must be a number, zero or more; found {value!r:.100}")
    return RoutingCost(**data)


def _source(data: Any, where: str) -> PlannedSource:
    _demand(data, where, {"name": str, "rate": object, "cost": object})
    if not is_number(data["rate"]) or data["rate"] < 0:
        raise QueryError(f"{where}: rate must be a number of tuples per second; found {data['rate']!r:.100}")
    _demand_cost(data["cost"], where)
    return PlannedSource(data["name"], data["rate"], data["cost"])


def _demand_cost(cost: Any, where: str) -> None:
    if cost is not None and (not is_number(cost) or cost < 0):
        raise QueryError(f"{where}: cost must be a number of microseconds or null; found {cost!r:.100}")


def _demand_counts(data: Mapping[str, Any], where: str, *names: str) -> None:
    for name in names:
        if not _is_count(data[name]):
            raise QueryError(f"{where}: {name} must be a whole number, zero or more; found {data[name]!r:.100}")


def _is_count(value: Any) -> bool:
    """Return whether a value is a plausible number of slots, stages or exchanges."""
    return type(value) is int and 0 <= value < 1_000_000


def _demand_texts(data: Mapping[str, Any], where: str, *names: str) -> None:
    for name in names:
        if not all(isinstance(each, str) for each in data[name]):
            raise QueryError(f"{where}: {name} must be a list of texts; found {data[name]!r:.100}")


def _demand(data: Any, where: str, fields: Mapping[str, type]) -> None:
    if not isinstance(data, Mapping):
        raise QueryError(f"{where} must be an object; found {data!r:.100}")
    for name, kind in fields.items():
        if name not in data:
            raise QueryError(
                f"{where} lacks the entry {name!r}; it has {', '.join(map(str, data)) or 'nothing'!s:.300}"
            )
        if not isinstance(data[name], kind) or (kind is int and isinstance(data[name], bool)):
            raise QueryError(f"{where}: {name} must be {kind.__name__}; found {data[name]!r:.100}")
    strange = [name for name in data if name not in fields]
    if strange:
        raise QueryError(
            f"{where} has unknown entries: {', '.join(map(str, strange))!s:.300}; expected {', '.join(fields)}"
        )
