"""The nodes of a query: one frozen record per operator, validated on construction.

A query is a graph of nodes. A node is equal only to itself, so a stream that is used twice is one node.
docs/GUARANTEES.md defines the meaning of each node, and `headrace.reference` is an executable definition.
A node knows its inputs and its output schema, but not how the engine executes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace import expressions
from headrace.columnar import duck
from headrace.columnar.types import (
    BOUNDS,
    EVENT_TIME,
    TS,
    TS_TYPE,
    JoinColumn,
    check_names,
    describe_schema,
    fold_name,
    refuse_added_names,
    unnested_schema,
)
from headrace.columnar.types import SUBSTREAM as SUBSTREAM
from headrace.errors import QueryError, QueryTypeError
from headrace.processor import Declaration, Function, Processor
from headrace.support.durations import format_duration
from headrace.support.terminal_text import printable


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of a query."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def schema(self) -> pa.Schema:
        raise QueryError("a node has a schema")

    def describe(self) -> dict[str, Any]:
        """Return the meaning of this operator as JSON, for the fingerprint of the query."""
        raise QueryError("a node describes itself")

    @property
    def summary(self) -> str:
        """Return a description of this operator on one line, for `explain`."""
        raise QueryError("a node has a summary")


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """An operator with one input."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)


@dataclass(frozen=True, eq=False)
class Selection(Unary):
    """An operator that passes on some tuples of its input unchanged."""

    @property
    def schema(self) -> pa.Schema:
        return self.input.schema


@dataclass(frozen=True, eq=False)
class Source(Node):
    """An input of a query. `origin` is the handle of its data: a folder of files, Kafka topics, a DataFrame or an
    Arrow table.
    """

    name: str | None
    raw_schema: pa.Schema  # as the source delivers it
    time: str
    lateness: int
    idle: int | None
    ahead: int | None
    origin: Any = field(repr=False)
    schema_: pa.Schema = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        return self.schema_

    @property
    def summary(self) -> str:
        return f"({_columns(self.schema)})"

    def describe(self) -> dict[str, Any]:
        return {
            "operator": "source",
            "driven": getattr(self.origin, "driven", "by hand"),
            "schema": describe_schema(self.schema),
            "time": self.time,
            "lateness": self.lateness,
            "idle": self.idle,
            "ahead": self.ahead,
        }


@dataclass(frozen=True, eq=False)
class Map(Unary):
    """New columns computed from expressions. `ts` is kept as the first column."""

    columns: tuple[tuple[str, expressions.Expression], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.columns]
        refuse_added_names(names, EVENT_TIME, "map")
        _check_names([TS, *names], self.input)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(TS, TS_TYPE), *((name, e.type) for name, e in self.columns)])

    @property
    def summary(self) -> str:
        return "map " + ", ".join(n if e.text == n else f"{n} = {e.text}" for n, e in self.columns)

    def describe(self) -> dict[str, Any]:
        return {"operator": "map", "columns": [[name, e.sql] for name, e in self.columns]}


@dataclass(frozen=True, eq=False)
class Filter(Selection):
    """The tuples for which the predicate is true. A null predicate is not true."""

    predicate: expressions.Expression
    pushed: bool = False  # added by the compiler (predicate pushdown), not written by the user

    @property
    def summary(self) -> str:
        return f"filter {_flat(self.predicate.text)}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "filter", "predicate": self.predicate.sql}


@dataclass(frozen=True, eq=False)
class Case(Selection):
    """Output number `branch` of a case: the tuples whose first true predicate is `predicates[branch]`.

    The last output, `branch == len(predicates)`, has the tuples for which no predicate is true.
    """

    predicates: tuple[expressions.Expression, ...]
    branch: int

    @property
    def summary(self) -> str:
        predicates = ", ".join(p.text for p in self.predicates)
        return f"case {self.branch + 1} of {len(self.predicates) + 1}: {predicates}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "case", "predicates": [p.sql for p in self.predicates], "branch": self.branch}


@dataclass(frozen=True, eq=False)
class Unnest(Unary):
    """One tuple for each element of the list or map `column`, or a struct replaced by its fields; `ts` is that of the tuple.

    The elements take the place of the column: under its name, as the fields of a struct, or as key and value of a map.
    outer: a tuple without elements is emitted once, with nulls.
    index: a further column, the last, with the position of the element from 0.
    """

    column: str
    outer: bool
    index: str | None

    def __post_init__(self) -> None:
        kind = self.input.schema.field(self.column).type
        if not pa.types.is_nested(kind):
            raise QueryTypeError(f"unnest takes a column of lists, maps or structs; {self.column!r} is {kind}")
        if pa.types.is_struct(kind) and self.index is not None:
            raise QueryError(
                f"unnest of a struct makes one tuple of one, so it takes no index=; {self.column!r} is {kind}; leave it out"
            )
        made = [*(field.name for field in self.elements), *([] if self.index is None else [self.index])]
        refuse_added_names(made, EVENT_TIME, "unnest")
        others = {fold_name(name) for name in self.input.schema.names if name != self.column}
        for number, name in enumerate(made):
            if fold_name(name) in others | {fold_name(each) for each in made[:number]}:
                raise QueryError(
                    f"unnest makes a column {name!r}, and there is one already; there are"
                    f" {', '.join(self.input.schema.names)}; rename that one before: s.rename({{{name!r}: 'other'}})"
                )
        _check_names(self.schema.names, self.input)

    @property
    def elements(self) -> pa.Schema:
        """Return the columns that take the place of the unnested one."""
        kind = self.input.schema.field(self.column).type
        if pa.types.is_map(kind):
            return pa.schema([(f"{self.column}_key", kind.key_type), (f"{self.column}_value", kind.item_type)])
        if pa.types.is_list(kind):
            kind = kind.value_type
        fields = list(kind) if pa.types.is_struct(kind) else [pa.field(self.column, kind)]
        return pa.schema([(field.name, field.type) for field in fields])

    @property
    def schema(self) -> pa.Schema:
        return unnested_schema(self.input.schema, self.column, self.elements, self.index)

    @property
    def summary(self) -> str:
        position = f" with position {self.index}" if self.index is not None else ""
        return f"{'outer ' if self.outer else ''}unnest {self.column}{position}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "unnest", "column": self.column, "outer": self.outer, "index": self.index}


@dataclass(frozen=True, eq=False)
class Union(Node):
    """The union of streams that have the same schema."""

    streams: tuple[Node, ...]

    def __post_init__(self) -> None:
        named_sources(self)
        first = self.streams[0].schema
        for other in (s.schema for s in self.streams[1:]):
            if not first.equals(other):
                found = f"found ({_columns(first)}) and ({_columns(other)})"
                raise QueryTypeError(
                    f"union needs streams with the same schema; {found}; use select, rename or with_columns to align them"
                )

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.streams

    @property
    def schema(self) -> pa.Schema:
        return self.streams[0].schema

    @property
    def summary(self) -> str:
        return "union"

    def describe(self) -> dict[str, Any]:
        return {"operator": "union"}


@dataclass(frozen=True, eq=False)
class PairingNode(Node):
    """An operator with two inputs whose results have the columns of both inputs."""

    left: Node
    right: Node

    def __post_init__(self) -> None:
        named_sources(self)
        _check_names(self.schema.names, self.left)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @property
    def columns(self) -> tuple[JoinColumn, ...]:
        """Return every column of the result after `ts`."""
        return _paired_columns(self.left.schema, self.right.schema)

    @property
    def schema(self) -> pa.Schema:
        return _paired_schema(self.columns, self.left.schema, self.right.schema)


@dataclass(frozen=True, eq=False)
class Join(PairingNode):
    """The common part of time-window and count-window joins: the predicate."""

    on: expressions.JoinPredicate


@dataclass(frozen=True, eq=False)
class TimeJoin(Join):
    """A time-window join: pairs that satisfy `on` with r.ts in [l.ts - w2, l.ts + w1]; `ts` is the smaller of the two.

    A tuple of a kept side that has no match is emitted with nulls and its own `ts`, once the watermark rules out a match.
    """

    w1: int
    w2: int
    how: str = "inner"  # or left, right, full: the sides that are kept

    @property
    def kept(self) -> str:
        """Return the sides whose tuples are emitted even without a match: a combination of "l" and "r"."""
        return KEPT_SIDES[self.how]

    @property
    def summary(self) -> str:
        return time_join_summary(self.how, self.on.text, self.w1, self.w2)

    def describe(self) -> dict[str, Any]:
        how = {} if self.how == "inner" else {"how": self.how}
        return {"operator": "join", "on": self.on.sql, "within": [self.w1, self.w2], **how}


KEPT_SIDES = {"inner": "", "left": "l", "right": "r", "full": "lr"}


def time_join_summary(how: str, on: str, w1: int, w2: int) -> str:
    kind = "join" if how == "inner" else f"{how} join"
    return f"{kind} on {_flat(on)} within {format_duration(w1)}, {format_duration(w2)}"


@dataclass(frozen=True, eq=False)
class CountJoin(Join):
    """A count-window join: pairs that satisfy `on`, limited by the number of tuples between the two.

    A pair is a result if the earlier tuple was among the last `n1` tuples of the left stream (or the last `n2` of the
    right stream) when the later tuple came in sequence.
    """

    n1: int
    n2: int

    @property
    def summary(self) -> str:
        return f"join on {_flat(self.on.text)} last {self.n1}, {self.n2}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "join", "on": self.on.sql, "last": [self.n1, self.n2]}


@dataclass(frozen=True, eq=False)
class NWayJoin(Node):
    """A join of several streams under aliases: combinations of one tuple of each that satisfy `on` within the windows.

    In a combination whose latest tuple has `ts` t, every tuple of the alias i has a `ts` of at least t - `windows[i]`. The
    result has the smallest `ts`.
    """

    aliases: tuple[str, ...]
    streams: tuple[Node, ...]
    on: expressions.NWayPredicate
    windows: tuple[int, ...]  # of each alias, in microseconds

    def __post_init__(self) -> None:
        named_sources(self)
        columns = list(self.columns)
        for number, (name, alias, source) in enumerate(columns):
            twin = next((each for each in columns[:number] if fold_name(each.name) == fold_name(name)), None)
            if twin is not None:
                raise QueryError(
                    f"two columns of the join would be called {name!r}: {twin.source!r} of {twin.side!r} and {source!r} of"
                    f" {alias!r}; choose another alias, or rename one of the columns first"
                )
        _check_names(self.schema.names, self.streams[0])

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.streams

    @property
    def columns(self) -> tuple[JoinColumn, ...]:
        """Return every column of the result after `ts`. The side of a column is its alias."""
        sides = [
            (alias, [name for name in stream.schema.names if name != SUBSTREAM])
            for alias, stream in zip(self.aliases, self.streams, strict=True)
        ]
        hidden = [JoinColumn(SUBSTREAM, self.aliases[0], SUBSTREAM)] * (SUBSTREAM in self.streams[0].schema.names)
        return (*prefixed_columns(sides), *hidden)

    @property
    def schema(self) -> pa.Schema:
        schemas = {alias: stream.schema for alias, stream in zip(self.aliases, self.streams, strict=True)}
        return pa.schema([(TS, TS_TYPE), *((name, schemas[alias].field(c).type) for name, alias, c in self.columns)])

    @property
    def summary(self) -> str:
        return nway_join_summary(self.aliases, self.on.text, self.windows)

    def describe(self) -> dict[str, Any]:
        return {
            "operator": "nway-join",
            "aliases": list(self.aliases),
            "on": self.on.sql,
            "within": list(self.windows),
        }


def nway_join_summary(aliases: Sequence[str], on: str, windows: Sequence[int]) -> str:
    if len(set(windows)) == 1:
        within = format_duration(windows[0])
    else:
        within = ", ".join(f"{alias} {format_duration(w)}" for alias, w in zip(aliases, windows, strict=True))
    return f"join of {', '.join(aliases)} on {_flat(on)} within {within}"


@dataclass(frozen=True, eq=False)
class AsOf(PairingNode):
    """An asof join: each left tuple with the last right tuple, in sequence, that has the same key and is not later.

    within: how much older the right tuple may be, in microseconds, or None for no limit.
    keep: left tuples without a match are emitted too, with nulls.
    """

    by: tuple[str, ...]
    within: int | None
    keep: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.keys  # raises if the types of a key column cannot be compared

    @property
    def keys(self) -> tuple[expressions.KeyEquality, ...]:
        """Return the columns that must be equal, each with the type to which both sides are cast."""
        schemas = self.left.schema, self.right.schema
        return tuple(expressions.KeyEquality(name, name, common_type("by", name, *schemas)) for name in self.by)

    @property
    def summary(self) -> str:
        return asof_summary(self.by, self.within, self.keep)

    def describe(self) -> dict[str, Any]:
        how = "left" if self.keep else "inner"
        return {"operator": "asof", "by": list(self.by), "within": self.within, "how": how}


def common_type(what: str, name: str, left: pa.Schema, right: pa.Schema) -> pa.DataType:
    """Return the type in which a column of both sides is compared. `what` is the argument that names it, for errors."""
    one, other = (schema.field(name).type for schema in (left, right))
    if one == other:
        return one
    if (found := wider_type(one, other)) is not None:
        return found
    kind = duck.type_of(f"SELECT {duck.quote(name)} FROM {duck.TUPLES}", {duck.TUPLES: right.empty_table()})
    raise QueryTypeError(
        f"{what} names {name!r}, which has type {one} in this stream and {other} in the other; cast one of them, such as"
        f" s.with_columns({name}='CAST({name} AS {kind})')"
    )


def wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of two different number types, or None if there is none."""
    kinds = (one, other)
    if all(pa.types.is_integer(kind) and not pa.types.is_uint64(kind) for kind in kinds):
        return pa.int64()
    return pa.float64() if all(pa.types.is_floating(kind) for kind in kinds) else None


def asof_summary(by: Sequence[str], within: int | None, keep: bool) -> str:
    limit = "" if within is None else f" within {format_duration(within)}"
    return f"{'left ' if keep else ''}asof by {', '.join(by) or 'nothing'}{limit}"


@dataclass(frozen=True, eq=False)
class TableDefinition:
    """A table: rows without event time. Each version of a table is read as a whole.

    A table is not a stream, so this record is not a `Node`. `origin` is the handle of its data.
    """

    name: str | None
    schema: pa.Schema
    refresh: int | None  # microseconds until the table is read again; None: one version per start of a run
    origin: Any = field(repr=False)

    def __post_init__(self) -> None:
        if TS in (name.lower() for name in self.schema.names):
            raise QueryError(
                f"a table has no event time, so it cannot have a column 'ts'; found {', '.join(self.schema.names)};"
                " rename the column; if rows are valid from some time on, use a stream: s.asof(changes, by=[...])"
            )
        check_names(self.schema.names)

    @property
    def summary(self) -> str:
        again = "" if self.refresh is None else f", read again every {format_duration(self.refresh)}"
        return f"({_columns(self.schema)}) of {self.origin.place}{again}"


@dataclass(frozen=True, eq=False)
class TableJoin(Unary):
    """A join with a table: each tuple with all rows of the table for which `on` is true. `ts` is that of the tuple.

    keep: tuples without a match are emitted too, once, with nulls.
    """

    table: TableDefinition
    on: expressions.JoinPredicate
    keep: bool

    def __post_init__(self) -> None:
        named_tables(self)
        _check_names(self.schema.names, self.input)

    @property
    def columns(self) -> tuple[JoinColumn, ...]:
        """Return every column of the result after `ts`."""
        return _paired_columns(self.input.schema, self.table.schema)

    @property
    def schema(self) -> pa.Schema:
        return _paired_schema(self.columns, self.input.schema, self.table.schema)

    @property
    def summary(self) -> str:
        return table_join_summary(self.table.name or "", self.on.text, self.keep)

    def describe(self) -> dict[str, Any]:
        how = "left" if self.keep else "inner"
        named = {"table": self.table.name, "schema": describe_schema(self.table.schema)}
        return {"operator": "table", **named, "on": self.on.sql, "how": how}


def table_join_summary(name: str, on: str, keep: bool) -> str:
    return f"{'left ' if keep else ''}join {f'table {name}' if name else 'a table'} on {_flat(on)}"


def _paired_columns(left: pa.Schema, right: pa.Schema) -> tuple[JoinColumn, ...]:
    visible = join_columns(*([name for name in side.names if name != SUBSTREAM] for side in (left, right)))
    return (*visible, JoinColumn(SUBSTREAM, "l", SUBSTREAM)) if SUBSTREAM in left.names else visible


def _paired_schema(columns: Iterable[JoinColumn], left: pa.Schema, right: pa.Schema) -> pa.Schema:
    sides = {"l": left, "r": right}
    return pa.schema([(TS, TS_TYPE), *((name, sides[side].field(column).type) for name, side, column in columns)])


def join_columns(left: list[str], right: list[str]) -> tuple[JoinColumn, ...]:
    """Return the columns of a join's result, without `ts`.

    A name gets the prefix of its side if it occurs on both sides or equals a name that a prefix has created.

    >>> [column.name for column in join_columns(["ts", "a", "b"], ["ts", "b", "c"])]
    ['l_ts', 'a', 'l_b', 'r_ts', 'r_b', 'c']
    """
    return prefixed_columns([("l", left), ("r", right)])


def prefixed_columns(sides: Sequence[tuple[str, Sequence[str]]]) -> tuple[JoinColumn, ...]:
    """Return the columns of all sides, given as (side, names).

    A name gets the prefix of its side if it occurs on several sides or equals a name that a prefix has created.
    """
    pairs = [(side, name) for side, names in sides for name in names]
    times = Counter(name for _, name in pairs)
    prefixed = {pair for pair in pairs if times[pair[1]] > 1}
    while True:
        made = {f"{side}_{name}" for side, name in prefixed} | {TS}
        more = {pair for pair in pairs if pair[1] in made} | prefixed
        if more == prefixed:
            break
        prefixed = more
    return tuple(JoinColumn(f"{side}_{name}" if (side, name) in prefixed else name, side, name) for side, name in pairs)


@dataclass(frozen=True, eq=False)
class Aggregation(Unary):
    """The common part of all aggregates: the input, the grouping columns and the functions."""

    by: tuple[str, ...]
    functions: tuple[tuple[str, expressions.Aggregate], ...]

    def __post_init__(self) -> None:
        if not self.functions:
            raise QueryError("aggregate has no function; give at least one, such as calls='count(*)'")
        refuse_added_names(self.by, self.added, "aggregate", _rename_first(self.by, self.added))
        refuse_added_names((name for name, _ in self.functions), self.added, "aggregate")
        _check_names(self.schema.names, self.input)

    @property
    def added(self) -> Mapping[str, str]:
        """Return the columns that every result has in addition to grouping columns and functions, with their meanings."""
        return EVENT_TIME

    @property
    def ordered(self) -> bool:
        return any(function.ordered for _, function in self.functions)

    def _grouped(self) -> list[tuple[str, pa.DataType]]:
        return [(name, self.input.schema.field(name).type) for name in self.by]

    def _computed(self) -> list[tuple[str, pa.DataType]]:
        return [(name, function.type) for name, function in self.functions]

    def _described(self) -> dict[str, Any]:
        return {
            "operator": "aggregate",
            "by": list(self.by),
            "functions": [[name, function.sql] for name, function in self.functions],
        }


@dataclass(frozen=True, eq=False)
class BoundedAggregation(Aggregation):
    """An aggregate whose results have the columns `window_start` and `window_end`."""

    @property
    def added(self) -> Mapping[str, str]:
        return {**EVENT_TIME, **BOUNDS}

    @property
    def schema(self) -> pa.Schema:
        bounds = [(name, TS_TYPE) for name in BOUNDS]
        return pa.schema([(TS, TS_TYPE), *self._grouped(), *bounds, *self._computed()])


@dataclass(frozen=True)
class TimeWindows:
    """The windows [k*every + offset, k*every + offset + window), in microseconds.

    With a zone, windows consist of whole local days: window, every and offset are multiples of a day, and a window begins
    at the first moment of its first local day. Days count from 1970-01-01, local time.
    """

    window: int
    every: int
    offset: int = 0
    zone: str | None = None

    @property
    def summary(self) -> str:
        offset = f" offset {format_duration(self.offset)}" if self.offset else ""
        zone = f" in {self.zone}" if self.zone else ""
        return f"window {format_duration(self.window)} every {format_duration(self.every)}{offset}{zone}"

    def describe(self) -> dict[str, Any]:
        offset = {"offset": self.offset} if self.offset else {}
        zone = {"zone": self.zone} if self.zone else {}
        return {"window": self.window, "every": self.every, **offset, **zone}


@dataclass(frozen=True, eq=False)
class TimeAggregate(BoundedAggregation):
    """One result per group and window that contains at least one tuple.

    The result is emitted when the watermark reaches the end of the window.
    """

    over: TimeWindows

    @property
    def summary(self) -> str:
        return f"aggregate by {', '.join(self.by) or 'nothing'} {self.over.summary}: {_functions(self)}"

    def describe(self) -> dict[str, Any]:
        return {**self._described(), **self.over.describe()}


@dataclass(frozen=True, eq=False)
class SessionAggregate(BoundedAggregation):
    """One result per session of a group. Consecutive tuples of a session are at most `gap` microseconds apart.

    The result is emitted when the watermark rules out further tuples of the session.
    """

    gap: int

    @property
    def summary(self) -> str:
        return f"aggregate by {', '.join(self.by) or 'nothing'} session {format_duration(self.gap)}: {_functions(self)}"

    def describe(self) -> dict[str, Any]:
        return {**self._described(), "session": self.gap}


RANKED = {
    **EVENT_TIME,
    **BOUNDS,
    "rank": "the rank of the tuple in its window, which every result of top has",
    "tuple_ts": "the event time of the tuple, which every result of top has",
}


@dataclass(frozen=True, eq=False)
class Top(Unary):
    """The first `n` tuples of each group and window in an order, ranked from 1. Ties are decided by the sequence."""

    by: tuple[str, ...]
    n: int
    order: tuple[expressions.OrderTerm, ...]

    def __post_init__(self) -> None:
        names = [name for name in self.input.schema.names if name != TS]
        refuse_added_names(names, RANKED, "top", _rename_first(names, RANKED, self.by))
        _check_names(self.schema.names, self.input)

    @property
    def others(self) -> tuple[str, ...]:
        """Return the columns of a tuple that are neither its event time nor part of the group."""
        return tuple(name for name in self.input.schema.names if name != TS and name not in self.by)

    @property
    def schema(self) -> pa.Schema:
        kinds = self.input.schema
        grouped, others = ([(name, kinds.field(name).type) for name in names] for names in (self.by, self.others))
        bounds = [(name, TS_TYPE) for name in BOUNDS]
        ranked = [("rank", pa.int64()), ("tuple_ts", TS_TYPE)]
        return pa.schema([(TS, TS_TYPE), *grouped, *bounds, *ranked, *others])

    @property
    def order_text(self) -> str:
        return ", ".join(term.text for term in self.order)

    def _summary(self, window: str) -> str:
        return top_summary(self.n, self.by, window, self.order_text)

    def _described(self) -> dict[str, Any]:
        order = [[term.expression.sql, "desc" if term.descending else "asc"] for term in self.order]
        return {"operator": "top", "by": list(self.by), "n": self.n, "order": order}


def top_summary(n: int, by: Sequence[str], window: str, order: str) -> str:
    return f"top {n} by {', '.join(by) or 'nothing'} {window}: {_flat(order)}"


@dataclass(frozen=True, eq=False)
class TimeTop(Top):
    """The first tuples of each time window; emitted when the watermark reaches the end of the window."""

    over: TimeWindows

    @property
    def summary(self) -> str:
        return self._summary(self.over.summary)

    def describe(self) -> dict[str, Any]:
        return {**self._described(), **self.over.describe()}


@dataclass(frozen=True, eq=False)
class SessionTop(Top):
    """The first tuples of each session; emitted when the watermark rules out further tuples of the session."""

    gap: int

    @property
    def summary(self) -> str:
        return self._summary(f"session {format_duration(self.gap)}")

    def describe(self) -> dict[str, Any]:
        return {**self._described(), "session": self.gap}


@dataclass(frozen=True, eq=False)
class CountAggregate(Aggregation):
    """An aggregate over the last `last` tuples of a group: one result at tuple number `last`, then every `every` tuples."""

    last: int
    every: int

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(TS, TS_TYPE), *self._grouped(), *self._computed()])

    @property
    def summary(self) -> str:
        return f"aggregate by {', '.join(self.by) or 'nothing'} last {self.last} every {self.every}: {_functions(self)}"

    def describe(self) -> dict[str, Any]:
        return {**self._described(), "last": self.last, "every": self.every}


@dataclass(frozen=True, eq=False)
class Distinct(Selection):
    """The tuples left after removing repeated keys.

    In sequence, a tuple is kept unless a tuple with the same key was kept at most `within` microseconds before it. A null
    key is a value.
    """

    by: tuple[str, ...]
    within: int

    @property
    def summary(self) -> str:
        return f"distinct by {', '.join(self.by) or 'nothing'} within {format_duration(self.within)}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "distinct", "by": list(self.by), "within": self.within}


@dataclass(frozen=True, eq=False)
class Sample(Selection):
    """The tuples whose hash falls below `fraction` of all hashes.

    The hash is that of the values in the columns `by`, or of the whole tuple, `ts` included, if `by` is None.
    """

    fraction: float
    by: tuple[str, ...] | None

    @property
    def hashed(self) -> tuple[str, ...]:
        """Return the columns that the hash is computed from, in order of their names.

        A user cannot see the substream of a tuple, so the hash does not depend on it.
        """
        return tuple(sorted(name for name in self.by or self.schema.names if name != SUBSTREAM))

    @property
    def text(self) -> str:
        """Return the arguments as text, for `explain`."""
        return f"{self.fraction!r} by {'whole tuple' if self.by is None else ', '.join(self.by)}"

    @property
    def summary(self) -> str:
        return f"sample {self.text}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "sample", "fraction": self.fraction, "by": None if self.by is None else list(self.by)}


@dataclass(frozen=True, eq=False)
class Limit(Selection):
    """The first `count` tuples of the sequence, emitted as the watermark passes them.

    by: empty, except that the compiler adds the substream inside `each`; then the first tuples of every substream.
    """

    count: int
    by: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return limit_summary(self.count)

    def describe(self) -> dict[str, Any]:
        return {"operator": "limit", "count": self.count}


def limit_summary(count: int) -> str:
    return f"limit {count}"


def _check_names(names: Iterable[str], input: Node) -> None:
    """Raise if a column name of a result is not allowed; the compiler's own column `__substream` is exempt."""
    hidden = SUBSTREAM in input.schema.names
    check_names(name for name in names if not (hidden and name == SUBSTREAM))


def _rename_first(names: Iterable[str], added: Mapping[str, str], kept: Sequence[str] | None = None) -> str:
    """Return how to make room for the columns that a verb adds.

    kept: the columns that the verb needs; only others can be dropped. None: it needs all of them.
    """
    taken = [name for name in names if fold_name(name) in added]
    renames = ", ".join(f"{name!r}: {'old_' + name!r}" for name in taken)
    if kept is None or not set(taken).isdisjoint(kept):
        return f"choose another name first: s.rename({{{renames}}})"
    return f"drop or rename the columns first: s.drop({', '.join(map(repr, taken))}) or s.rename({{{renames}}})"


# --- splits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """The rule of a split: to which of q substreams a tuple goes.

    A tuple goes to all substreams if `broadcast` is true, else to the substream that `route` gives. Without a route, the
    hash of the columns `by` gives the substream. A tuple whose route is null goes to no substream.
    """

    substreams: int
    by: tuple[str, ...] | None
    route: expressions.Expression | Function | None
    broadcast: expressions.Expression | Function | None

    @property
    def way(self) -> str:
        """Return what determines the substream of a tuple, for `explain`."""
        way = f"hash of {', '.join(self.by) or 'nothing'}" if self.by is not None else _rule_text(self.route)
        return way + (f", to all where {_rule_text(self.broadcast)}" if self.broadcast else "")

    @property
    def summary(self) -> str:
        return f"into {self.substreams} substream{'s' if self.substreams > 1 else ''} by {self.way}"

    def describe(self) -> dict[str, Any]:
        return {
            "substreams": self.substreams,
            "split_by": None if self.by is None else list(self.by),
            "route": _rule_described(self.route),
            "broadcast": _rule_described(self.broadcast),
        }


@dataclass(frozen=True, eq=False)
class Split(Unary):
    """Tuples with a column for the substream of each; tuples without a substream are dropped. Made by the compiler only.

    A tuple for every substream is marked with EVERYWHERE or, with `replicate`, copied once per substream.
    """

    rule: Rule
    replicate: bool
    name: str  # key of the split's counters

    @property
    def schema(self) -> pa.Schema:
        return self.input.schema.append(pa.field(SUBSTREAM, pa.int32()))

    @property
    def summary(self) -> str:
        return f"split {self.rule.summary}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "split", **self.rule.describe()}


@dataclass(frozen=True, eq=False)
class Substream(Node):
    """One substream: the leaf of the query that runs on each substream."""

    schema_: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        return self.schema_

    @property
    def summary(self) -> str:
        return "substream"

    def describe(self) -> dict[str, Any]:
        return {"operator": "substream", "schema": describe_schema(self.schema)}


@dataclass(frozen=True, eq=False)
class Body:
    """The operators that run on each substream separately, from a leaf to a root."""

    leaf: Substream
    root: Node

    @property
    def summary(self) -> tuple[str, ...]:
        return tuple(node.summary for node in walk_nodes(self.root) if node is not self.leaf)

    def describe(self) -> list[dict[str, Any]]:
        return graph(walk_nodes(self.root))


@dataclass(frozen=True, eq=False)
class Splitting(Unary):
    """The common part of `Each` and `Apply`: the stream, the rule, and the operators that run on each substream."""

    rule: Rule
    body: Body

    def _described(self) -> dict[str, Any]:
        return {**self.rule.describe(), "body": self.body.describe()}

    @property
    def outline(self) -> str:
        """Return this operator on one line, without the split and the body, which an outline prints below."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        return ", ".join([f"split {self.rule.summary}", *self.body.summary, self.outline])


@dataclass(frozen=True, eq=False)
class Each(Splitting):
    """Operators that run on each substream separately. The last column of the result is `substream`."""

    @property
    def schema(self) -> pa.Schema:
        return self.body.root.schema.append(pa.field("substream", pa.int64()))

    @property
    def outline(self) -> str:
        return f"on each of {self.rule.substreams} substreams"

    def describe(self) -> dict[str, Any]:
        return {"operator": "each", **self._described()}


@dataclass(frozen=True, eq=False)
class Apply(Splitting):
    """A processor that runs on each substream. Its outputs are read through `ProcessorOutput` nodes.

    The compiler moves the split and the body below this node. `split` is then the name of that split, and the body is
    empty.
    """

    processor: Processor = field(repr=False)
    declared: Declaration
    split: str = ""

    @property
    def schema(self) -> pa.Schema:
        return self.declared.outputs[0][1]

    @property
    def outline(self) -> str:
        return f"apply {self.declared.name} to each of {self.rule.substreams} substreams{self.declared.summary}"

    def describe(self) -> dict[str, Any]:
        return {"operator": "apply", **self._described(), **self.declared.describe()}


@dataclass(frozen=True, eq=False)
class ProcessorOutput(Unary):
    """One named output of a processor."""

    input: Apply
    number: int

    @property
    def schema(self) -> pa.Schema:
        return self.input.declared.outputs[self.number][1]

    @property
    def summary(self) -> str:
        name = self.input.declared.outputs[self.number][0]
        return f"output {name}" if name else ""

    def describe(self) -> dict[str, Any]:
        return {"operator": "output", "number": self.number}


def _rule_text(given: expressions.Expression | Function | None) -> str:
    if isinstance(given, Function):
        return given.summary
    return _flat(given.text) if given else "nothing"


def _rule_described(given: expressions.Expression | Function | None) -> Any:
    return [given.name, given.version] if isinstance(given, Function) else given and given.sql


def walk_nodes(*roots: Node) -> Iterator[Node]:
    """Yield every node reachable from the roots once, inputs before the nodes that use them."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.inputs))


def sources(*roots: Node) -> tuple[Source, ...]:
    return tuple(node for node in walk_nodes(*roots) if isinstance(node, Source))


def named_sources(*roots: Node) -> dict[str, Source]:
    """Return the sources by name. A source without a name is called `source-N`, where N is its position."""
    named: dict[str, Source] = {}
    for index, source in enumerate(sources(*roots), start=1):
        name = source.name or f"source-{index}"
        if name in named:
            raise QueryError(f"two sources are called {name!r}; give each its own name=")
        named[name] = source
    return named


def named_tables(*roots: Node) -> dict[str, TableDefinition]:
    """Return the tables by name, including tables that are joined on substreams.

    A table without a name is called `table-N`, where N is its position.
    """
    found: dict[int, TableDefinition] = {}
    for node in walk_nodes(*roots):
        inside = walk_nodes(node.body.root) if isinstance(node, Splitting) else ()
        for each in (*inside, node):
            if isinstance(each, TableJoin):
                found.setdefault(id(each.table), each.table)
    named: dict[str, TableDefinition] = {}
    for index, table in enumerate(found.values(), start=1):
        name = table.name or f"table-{index}"
        if name in named:
            raise QueryError(f"two tables are called {name!r}; give each its own name=")
        named[name] = table
    return named


def logical_query(roots: Sequence[Node], ordered: Sequence[bool], order: str) -> list[dict[str, Any]]:
    """Return the logical query as JSON: every operator in order, with the numbers of its inputs.

    The JSON does not depend on slots or layouts.
    """
    nodes = list(walk_nodes(*roots))
    numbers = {id(node): index for index, node in enumerate(nodes)}
    return graph(nodes, {id(source): name for name, source in named_sources(*roots).items()}) + [
        {"operator": "result", "ordered": sorts, "order": order, "inputs": [numbers[id(root)]]}
        for root, sorts in zip(roots, ordered, strict=True)
    ]


def graph(nodes: Iterable[Node], names: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    """Return nodes as JSON. `nodes` must list inputs before their users; `names` maps ids of sources to names."""
    listed, names = list(nodes), names or {}
    numbers = {id(node): index for index, node in enumerate(listed)}
    return [
        {
            **({"name": names[id(node)]} if id(node) in names else {}),
            **node.describe(),
            "inputs": [numbers[id(child)] for child in node.inputs],
        }
        for node in listed
    ]


def outline(*roots: Node) -> list[str]:
    """Return each result as an indented outline of printable lines, the root first.

    Sources have the names that they have in the query of all roots.
    """
    names = _names(*roots)
    return ["\n".join(_outline(root, names, {})) for root in roots]


def outline_body(node: Splitting) -> str:
    """Return an outline of the operators that run on each substream, down to the sources."""
    return "\n".join(_outline(node.body.root, _names(node), {id(node.body.leaf): node}))


def _names(*roots: Node) -> dict[int, str]:
    """Return the names of sources and tables by the ids of their objects."""
    named: list[tuple[str, Source | TableDefinition]] = [*named_sources(*roots).items(), *named_tables(*roots).items()]
    return {id(each): name for name, each in named}


def _outline(node: Node, names: Mapping[int, str], split: Mapping[int, Splitting], depth: int = 0) -> Iterator[str]:
    """Yield the lines of a node and its inputs. `split` maps the id of a body's leaf to the node that owns the body."""
    below: tuple[Node, ...] = node.inputs
    match node:
        case Substream() if id(node) in split:
            line, below = f"split {split[id(node)].rule.summary}", (split[id(node)].input,)
        case Splitting():
            line, below, split = node.outline, (node.body.root,), {**split, id(node.body.leaf): node}
        case _:
            line = f"source {names[id(node)]} {node.summary}" if id(node) in names else node.summary
    if line:
        yield printable("  " * depth + line)
    if isinstance(node, TableJoin):
        yield printable(f"{'  ' * (depth + 1)}table {names.get(id(node.table), '')} {node.table.summary}")
    for child in below:
        yield from _outline(child, names, split, depth + bool(line))


def _flat(text: str) -> str:
    """Return the text on one line."""
    return " ".join(text.split())


def _functions(node: Aggregation) -> str:
    return ", ".join(f"{name} = {function.text}" for name, function in node.functions)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
