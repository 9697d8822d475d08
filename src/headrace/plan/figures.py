"""Figures: rates of a query's sources and costs of its operators, measured on a sample or assumed.

`forecast` derives from the figures the load of every operator of a plan when its windows are full.
"""

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
LARGEST_FIGURE = 1e18  # a larger figure is a typing error
ASSUMED_RATE = 1000.0  # tuples per second of a source without a measured rate


@dataclass(frozen=True)
class Figures:
    """Measured numbers by the names of sources, edges and operators. A missing number is replaced by an assumption.

    `headrace.calibrate` returns one.

    Attributes:
        rates: by source, tuples per second of event time.
        passing: by edge, the share of the tuples that pass its steps.
        matching: by join, results per pair within its windows.
        partials: by aggregate with panes, rows sent per tuple.
        results: by aggregate, results per second.
        held: by aggregate, rows in state.
        costs: by source or operator, microseconds per input tuple.
        bounds: by band join, bounds of equally full ranges.
        reach: by band join, how many ranges an interval can extend over.

    Examples:
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
        >>> figures = hr.calibrate(hr.testing.table_stream(table, name="xs").filter("x > 1"))
        >>> figures.passing
        {'filter-1 to result-0-1': 1.0, 'xs to filter-1-1': 1.0, 'xs to result-0-1': 0.5}
    """

    rates: Mapping[str, float] = field(default_factory=dict)  # source: tuples per second of event time
    passing: Mapping[str, float] = field(default_factory=dict)  # edge: share of the tuples that pass its steps
    matching: Mapping[str, float] = field(default_factory=dict)  # join: results per pair within its windows
    partials: Mapping[str, float] = field(default_factory=dict)  # aggregate with panes: rows sent per tuple
    results: Mapping[str, float] = field(default_factory=dict)  # aggregate: results per second
    held: Mapping[str, float] = field(default_factory=dict)  # aggregate: rows in state
    costs: Mapping[str, float] = field(default_factory=dict)  # source or operator: microseconds per input tuple
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # band join: bounds of equally full ranges
    reach: Mapping[str, int] = field(default_factory=dict)  # band join: ranges that an interval can extend over

    def rate(self, source: str) -> float:
        """Return the tuples per second of a source, 1000 if that was not measured.

        Args:
            source: the name of the source.

        Returns:
            The rate.

        Examples:
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
            >>> figures = hr.calibrate(hr.testing.table_stream(table, name="xs").filter("x > 1"))
            >>> figures.rate("xs")
            2000000.0
        """
        return self.rates.get(source, ASSUMED_RATE)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, for `json.dumps`.

        Returns:
            A dict, which `from_json` reads.

        Examples:
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
            >>> figures = hr.calibrate(hr.testing.table_stream(table, name="xs").filter("x > 1"))
            >>> figures.to_json()["passing"]
            {'filter-1 to result-0-1': 1.0, 'xs to filter-1-1': 1.0, 'xs to result-0-1': 0.5}
        """
        return {"format": FIGURES_FORMAT, **{f.name: dict(getattr(self, f.name)) for f in fields(self)}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Figures:
        """Return the figures that `to_json` wrote, possibly edited.

        Args:
            data: the dict.

        Returns:
            The figures.

        Raises:
            QueryError: an entry is unknown or invalid.

        Examples:
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
            >>> figures = hr.calibrate(hr.testing.table_stream(table, name="xs").filter("x > 1"))
            >>> saved = figures.to_json()
            >>> type(figures).from_json(saved) == figures
            True
        """
        known = [f.name for f in fields(Figures)]
        if not isinstance(data, Mapping):
            raise QueryError(f"figures must be an object, as returned by to_json(); found {data!r:.100}")
        if type(data.get("format")) is not int or data["format"] != FIGURES_FORMAT:
            raise QueryError(f"the figures have format {data.get('format')!r:.50}, this version reads {FIGURES_FORMAT}")
        for name in data:
            if name not in ("format", *known):
                raise QueryError(f"the figures have an unknown entry {name!r}; known entries: {', '.join(known)}")
        return Figures(**{name: _numbers(data.get(name, {}), name) for name in known})


def _numbers(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise QueryError(f"the figures: {where} must be an object of numbers; found {data!r:.100}")
    for name, value in data.items():
        if where == "bounds":
            if not isinstance(value, list | tuple) or len(value) >= MOST_GROUPS or not are_rising(value):
                raise QueryError(f"the figures: bounds of {name} must be increasing numbers; found {value!r:.100}")
        elif not is_number(value) or not 0 <= value <= LARGEST_FIGURE or (where == "reach" and value != int(value)):
            wanted = "a whole number, " if where == "reach" else ""
            msg = f"the figures: {where} of {name} must be {wanted}zero or more, at most {LARGEST_FIGURE:.0e}; found {value!r:.100}"
            raise QueryError(msg)
    return {name: _as_number(value, where) for name, value in data.items()}


def _as_number(value: Any, where: str) -> Any:
    """Return the value in the type of its field. Integers become floats, since products of long ones would overflow."""
    if where == "bounds":
        return tuple(value)
    return int(value) if where == "reach" else float(value)


def is_number(value: Any) -> bool:
    """Return whether the value is a number that a finite float can represent; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def are_rising(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers, in strictly increasing order."""
    return all(map(is_number, values)) and all(before < after for before, after in pairwise(values))


# --- loads that follow from figures --------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorLoad:
    """The load of an operator when its windows are full."""

    arriving: tuple[float, ...]  # tuples per second, by input
    sending: tuple[float, ...]  # rows sent per second, by input; partials if the sender pre-aggregates
    state: tuple[float, ...]  # tuples held, by input
    pairs: float  # per second, within the windows
    results: float  # per second
    reach: int = 0  # band join routed by ranges: number of ranges that an interval extends over


@dataclass(frozen=True)
class StreamPace:
    """The rate of a stream, and how far the stream lags behind the present."""

    rate: float  # tuples per second
    lag: float  # of the watermark, in seconds
    delay: float  # of the newest tuple, in seconds


@dataclass(frozen=True)
class SampleCounts:
    """Counters of one operator for a sample of the input."""

    arrived: tuple[int, ...]  # tuples, by input
    out: int  # results
    sent: int | None  # rows sent for the first input; None: the input is handed over within a slot
    held: float  # rows in state
    span: float  # seconds of event time of the sample
    times: tuple[int, int]  # first and last event time of the sample


@dataclass(frozen=True)
class Forecast:
    """The loads that figures imply for a plan."""

    loads: Mapping[str, OperatorLoad]  # by operator
    edges: Mapping[str, float]  # tuples per second after the steps of each edge


def forecast(plan: p.PhysicalPlan, figures: Figures) -> Forecast:
    """Return the load of every operator of the plan and the rate of every edge."""
    flows = {s.name: StreamPace(figures.rate(s.name), s.lateness / 1e6, 0.0) for s in plan.sources}
    loads: dict[str, OperatorLoad] = {}
    for operator in plan.operators:
        inputs = [_united(plan, operator, side, flows, figures) for side in range(len(operator.schemas))]
        loads[operator.name], flows[operator.name] = operator.load(inputs, figures)
    edges = {e.name: _output(plan, e, flows, figures).rate * _share_passing(e, figures) for e in plan.edges}
    return Forecast(loads, edges)


def _united(
    plan: p.PhysicalPlan, operator: Operator, side: int, flows: Mapping[str, StreamPace], figures: Figures
) -> StreamPace:
    edges = plan.entering(operator.name, side)
    before = [_output(plan, edge, flows, figures) for edge in edges]
    rate = sum(flow.rate * _share_passing(edge, figures) for edge, flow in zip(edges, before, strict=True))
    return StreamPace(rate, max(flow.lag for flow in before), min(flow.delay for flow in before))


def _share_passing(edge: p.Edge, figures: Figures) -> float:
    return figures.passing.get(edge.name, assumed_share(edge.steps))


def assumed_share(steps: Sequence[p.Step]) -> float:
    """Return the share of tuples that pass the steps, if nothing was measured: a sample passes its fraction, others all.

    Of several samples by the same columns the smallest counts, because it keeps a subset of what the others keep.
    """
    fractions: dict[tuple[str, ...], float] = {}
    for step in steps:
        if isinstance(step, p.SampleStep):
            fractions[step.hashed] = min(step.fraction, fractions.get(step.hashed, 1.0))
    return math.prod(fractions.values())


def _output(plan: p.PhysicalPlan, edge: p.Edge, flows: Mapping[str, StreamPace], figures: Figures) -> StreamPace:
    """Return the pace of the output that the edge reads; for a processor, of all its outputs together."""
    producer = plan.by_name.get(edge.producer)
    if producer is not None and producer.relays:
        own = _united(plan, producer, edge.output, flows, figures)
        return StreamPace(own.rate, flows[producer.name].lag, flows[producer.name].lag)
    return flows[edge.producer]
