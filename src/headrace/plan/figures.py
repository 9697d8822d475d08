"""What is known of a query's input and of what its operators cost: measured on a sample, or assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace import plan as p
from headrace.errors import QueryError
from headrace.support.limits import MOST_GROUPS

if TYPE_CHECKING:
    from headrace.operators.base import Operator

FIGURES_FORMAT = 1
LARGEST_FIGURE = 1e18  # a figure; more is a slip of the hand
ASSUMED_RATE = 1000.0  # tuples per second of a source of which nothing is known


@dataclass(frozen=True)
class Figures:
    """By the names of sources, edges and operators; what is missing is assumed."""

    rates: Mapping[str, float] = field(default_factory=dict)  # source: tuples per second of event time
    passing: Mapping[str, float] = field(default_factory=dict)  # edge: share of the tuples that pass its steps
    matching: Mapping[str, float] = field(default_factory=dict)  # join: results per pair within its windows
    partials: Mapping[str, float] = field(default_factory=dict)  # aggregate in panes: rows that are sent per tuple
    results: Mapping[str, float] = field(default_factory=dict)  # aggregate: results per second
    held: Mapping[str, float] = field(default_factory=dict)  # aggregate: rows that it keeps
    costs: Mapping[str, float] = field(default_factory=dict)  # source or operator: microseconds per tuple that comes in
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # band join: ranges that hold equally many
    reach: Mapping[str, int] = field(default_factory=dict)  # band join: ranges that an interval can extend over

    def rate(self, source: str) -> float:
        return self.rates.get(source, ASSUMED_RATE)

    def to_json(self) -> dict[str, Any]:
        return {"format": FIGURES_FORMAT, **{f.name: dict(getattr(self, f.name)) for f in fields(self)}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Figures:
        """The figures that `to_json` gave, perhaps edited; refuses anything else, saying where."""
        known = [f.name for f in fields(Figures)]
        if not isinstance(data, Mapping):
            raise QueryError(f"figures are an object, as to_json() gives it; found {data!r:.100}")
        if type(data.get("format")) is not int or data["format"] != FIGURES_FORMAT:
            raise QueryError(f"the figures have format {data.get('format')!r:.50}, this version reads {FIGURES_FORMAT}")
        for name in data:
            if name not in ("format", *known):
                raise QueryError(f"the figures have an unknown entry {name!r}; there are {', '.join(known)}")
        return Figures(**{name: _numbers(data.get(name, {}), name) for name in known})


def _numbers(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise QueryError(f"the figures: {where} must be an object of numbers; found {data!r:.100}")
    for name, value in data.items():
        if where == "bounds":
            if not isinstance(value, list | tuple) or len(value) >= MOST_GROUPS or not are_rising(value):
                raise QueryError(f"the figures: bounds of {name} must be numbers that rise; found {value!r:.100}")
        elif not is_number(value) or not 0 <= value <= LARGEST_FIGURE or (where == "reach" and value != int(value)):
            wanted = "a whole number, " if where == "reach" else ""
            msg = f"the figures: {where} of {name} must be {wanted}zero or more, at most {LARGEST_FIGURE:.0e}; found {value!r:.100}"
            raise QueryError(msg)
    return {name: _as_number(value, where) for name, value in data.items()}


def _as_number(value: Any, where: str) -> Any:
    """Whole numbers of any length would multiply to what no float can hold."""
    if where == "bounds":
        return tuple(value)
    return int(value) if where == "reach" else float(value)


def is_number(value: Any) -> bool:
    """Whether it is one that can be calculated with: finite, and not larger than a float can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def are_rising(values: Sequence[Any]) -> bool:
    """Whether they are numbers, each larger than the one before."""
    return all(map(is_number, values)) and all(before < after for before, after in pairwise(values))


# --- what follows from them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorLoad:
    """What an operator meets when its windows are full: tuples per second, tuples held, pairs per second."""

    arriving: tuple[float, ...]  # by input
    sending: tuple[float, ...]  # the same, as it is sent: partials where an aggregate is prepared by the sender
    state: tuple[float, ...]
    pairs: float  # within the windows
    results: float
    reach: int = 0  # of a band join by ranges: how many of them an interval extends over


@dataclass(frozen=True)
class StreamPace:
    """Tuples per second; how far their watermark, and their newest tuple, are behind the present, in seconds."""

    rate: float
    lag: float
    delay: float


@dataclass(frozen=True)
class SampleCounts:
    """What was counted of one operator while a sample went through it."""

    arrived: tuple[int, ...]  # tuples, by input
    out: int
    sent: int | None  # rows that were sent for its first input; None: it is handed them inside a slot
    held: float
    span: float  # seconds of event time of the sample
    times: tuple[int, int]  # its first and last moment


@dataclass(frozen=True)
class Forecast:
    """The load of every operator; tuples per second behind the steps of every edge, and from every source."""

    loads: Mapping[str, OperatorLoad]
    edges: Mapping[str, float]


def forecast(plan: p.PhysicalPlan, figures: Figures) -> Forecast:
    flows = {s.name: StreamPace(figures.rate(s.name), s.lateness / 1e6, 0.0) for s in plan.sources}
    found: dict[str, OperatorLoad] = {}
    for operator in plan.operators:
        inputs = [_united(plan, operator, side, flows, figures) for side in range(len(operator.schemas))]
        found[operator.name], flows[operator.name] = operator.load(inputs, figures)
    edges = {e.name: _output(plan, e, flows, figures).rate * figures.passing.get(e.name, 1.0) for e in plan.edges}
    return Forecast(found, edges)


def _united(
    plan: p.PhysicalPlan, operator: Operator, side: int, flows: Mapping[str, StreamPace], figures: Figures
) -> StreamPace:
    edges = plan.entering(operator.name, side)
    before = [_output(plan, edge, flows, figures) for edge in edges]
    rate = sum(flow.rate * figures.passing.get(edge.name, 1.0) for edge, flow in zip(edges, before, strict=True))
    return StreamPace(rate, max(flow.lag for flow in before), min(flow.delay for flow in before))


def _output(plan: p.PhysicalPlan, edge: p.Edge, flows: Mapping[str, StreamPace], figures: Figures) -> StreamPace:
    """What a producer puts out on one edge; of one with several outputs, all of them together."""
    producer = plan.by_name.get(edge.producer)
    if producer is not None and producer.relays:
        own = _united(plan, producer, edge.output, flows, figures)
        return StreamPace(own.rate, flows[producer.name].lag, flows[producer.name].lag)
    return flows[edge.producer]
