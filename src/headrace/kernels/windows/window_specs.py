"""The protocols of operators that the window kernels read. The operators of `headrace.operators` implement them."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from headrace.expressions import KeyEquality, Partial
from headrace.kernels.joins.join_spec import PairColumns
from headrace.kernels.windows.time_windows import WindowGrid
from headrace.plan import Named


class AggregateSpec(Protocol):
    """An aggregate: grouping columns, functions with their texts, and the schema of its results."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def schemas(self) -> tuple[pa.Schema, ...]: ...

    @property
    def by(self) -> tuple[str, ...]: ...

    @property
    def functions(self) -> Named: ...

    @property
    def texts(self) -> tuple[str, ...]: ...


class PartialsSpec(AggregateSpec, Protocol):
    """An aggregate whose functions are combined from partials."""

    @property
    def partials(self) -> tuple[Partial, ...]: ...


class OrderSpec(AggregateSpec, Protocol):
    """An aggregate with functions that may depend on the order of the tuples."""

    @property
    def ordered(self) -> bool:
        """Return whether a function depends on the order of the tuples."""


class TimeWindowSpec(AggregateSpec, Protocol):
    """An aggregate over time windows."""

    @property
    def windows(self) -> WindowGrid: ...


class PartialWindowSpec(PartialsSpec, TimeWindowSpec, Protocol):
    """An aggregate over time windows whose state is one row of partials per pane."""


class TupleWindowSpec(OrderSpec, TimeWindowSpec, Protocol):
    """An aggregate over time windows whose state is the tuples."""


class CountWindowSpec(AggregateSpec, Protocol):
    """An aggregate over count windows."""

    @property
    def last(self) -> int: ...

    @property
    def every(self) -> int: ...


class SessionSpec(AggregateSpec, Protocol):
    """An aggregate over sessions."""

    @property
    def gap(self) -> int: ...


class PartialSessionSpec(PartialsSpec, SessionSpec, Protocol):
    """Sessions whose state is one row of partials per stretch of tuples."""


class TupleSessionSpec(OrderSpec, SessionSpec, Protocol):
    """Sessions whose state is the tuples."""


class TopSpec(AggregateSpec, Protocol):
    """The first tuples of each group and window in an order."""

    @property
    def n(self) -> int: ...

    @property
    def order_sql(self) -> tuple[str, ...]:
        """Return the terms of the order, each with its direction and its place for nulls."""


class WindowTopSpec(TopSpec, TimeWindowSpec, Protocol):
    """A `top` over time windows, whose state is the first tuples of each pane."""


class SessionTopSpec(TopSpec, SessionSpec, Protocol):
    """A `top` over sessions, whose state is the tuples of open sessions."""


class AsOfSpec(PairColumns, Protocol):
    """An as-of join."""

    @property
    def schemas(self) -> tuple[pa.Schema, ...]: ...

    @property
    def keys(self) -> tuple[KeyEquality, ...]: ...

    @property
    def within(self) -> int | None: ...

    @property
    def keep(self) -> bool:
        """Return whether tuples without a match are results, with nulls."""
