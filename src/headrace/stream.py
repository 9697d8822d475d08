"""The handle that a user holds: a thin layer of verbs over the records of `headrace.query.nodes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import expressions
from headrace.errors import NoSuchVerb, QueryError, QueryTypeError
from headrace.processor import ONLY, Function, Processor, check_version, declared, function
from headrace.query import column_verbs, nodes
from headrace.query.labels import check_label
from headrace.query.using import join_condition, once, using_columns
from headrace.support.argument_errors import argument_kind, describe_argument, instead_of_dataframe
from headrace.support.durations import Duration, parse_duration
from headrace.support.habits import answer_habits, missing_verb
from headrace.support.limits import MOST_GROUPS
from headrace.support.terminal_text import printable

if TYPE_CHECKING:
    from headrace.compile.subqueries import Plan
    from headrace.plan.figures import Figures
    from headrace.run.run import Run
    from headrace.sinks import AnySink

Route = str | Callable[[pa.Table], Any]
Names = str | list[str] | tuple[str, ...]  # of columns: one name, or several


class Stream:
    """A stream of tuples with one schema and one event time, the column `ts`. Immutable."""

    def __init__(self, node: nodes.Node, label: str | None = None) -> None:
        self._node, self._label = node, label

    @property
    def schema(self) -> pa.Schema:
        return self._node.schema

    @property
    def columns(self) -> list[str]:
        return list(self._node.schema.names)

    if not TYPE_CHECKING:  # a checker of types finds names that do not exist

        def __getattr__(self, name: str) -> Any:
            if name in ("apply", "each"):
                msg = f"a stream has no {name}: it runs on the substreams of a split; such as s.split(64, by=['user']).{name}(...)"
                raise AttributeError(msg)
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise missing_verb("Stream", name, self.columns, vars(Stream))

    def __repr__(self) -> str:
        called = "" if self._label is None else f" named {self._label}"
        return f"Stream({', '.join(self.columns)}){called}\n{nodes.outline(self._node)[0]}"

    def named(self, name: str) -> Stream:
        """The same stream with a name for its results, in place of result-0, in progress, records, logs and tables.

        The names of one run differ. A name is no part of the query: with another one, a checkpoint continues as before.
        What is made of the stream afterwards has no name, so name a result last.

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "k": ["a"], "x": [1]}))
        >>> print(s.filter("x > 100").named("alarms"))
        Stream(ts, k, x) named alarms
        filter x > 100
          source source-1 (ts timestamp[us, tz=UTC], k string, x int64)
        """
        return Stream(self._node, check_label(name))

    def map(self, *keep: str, **new: str) -> Stream:
        """New columns from expressions: positional names are kept, keywords are computed; `ts` always stays."""
        return Stream(column_verbs.computed_map(self._node, keep, new, "map"))

    def select(self, *keep: str, **new: str) -> Stream:
        """These columns alone: positional names are kept, keywords are computed, as by `map`; `ts` always stays.

        keep: names of columns, in the order that they get; new: SQL expressions by the name of their column.

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "k": ["a"], "x": [1]}))
        >>> s.select("k", y="x + 1").columns
        ['ts', 'k', 'y']
        """
        return Stream(column_verbs.computed_map(self._node, keep, new, "select"))

    def with_columns(self, **new: str) -> Stream:
        """All columns, and new ones: one with the name of a column takes its place, the others come last.

        new: SQL expressions by the name of their column; they see the columns of this stream, not each other.

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "k": ["a"], "x": [1]}))
        >>> s.with_columns(y="x + 1", k="upper(k)").columns
        ['ts', 'k', 'x', 'y']
        """
        return Stream(column_verbs.extended_map(self._node, new))

    def rename(self, names: Mapping[str, str]) -> Stream:
        """The same columns in the same places, some under new names.

        names: old names and new ones; two columns may swap theirs.

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "k": ["a"], "x": [1]}))
        >>> s.rename({"k": "user"}).columns
        ['ts', 'user', 'x']
        """
        return Stream(column_verbs.renamed_map(self._node, names))

    def drop(self, *names: str) -> Stream:
        """All columns but these.

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "k": ["a"], "x": [1]}))
        >>> s.drop("x").columns
        ['ts', 'k']
        """
        return Stream(column_verbs.reduced_map(self._node, names))

    def unnest(self, column: str, outer: bool = False, index: str | None = None) -> Stream:
        """A tuple for each element of a list or map, or a struct replaced by its fields; each with all other columns.

        The element takes the column's place and name; the fields of a struct take its place; a map gives two columns, such as
        items_key and items_value. A null element stays.
        outer: keep a tuple whose list is null or empty, with null; without it such a tuple is dropped
        index: name of a further column, the last, with the position of the element, from 0

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "items": [[{"a": 1, "b": 2}]], "k": ["x"]}))
        >>> s.unnest("items", index="i").schema.names
        ['ts', 'a', 'b', 'k', 'i']
        """
        return Stream(column_verbs.unnested(self._node, column, outer, index))

    def filter(self, predicate: str) -> Stream:
        """Only the tuples for which the predicate is true."""
        return Stream(nodes.Filter(self._node, expressions.parse_condition(predicate, self.schema, "filter")))

    def case(self, *predicates: str) -> tuple[Stream, ...]:
        """One stream per predicate, for the tuples whose first true predicate it is, and one for the rest."""
        if not predicates:
            raise QueryError("case needs at least one predicate; found none; such as s.case('amount > 1000')")
        checked = tuple(expressions.parse_condition(p, self.schema, f"case {i + 1}") for i, p in enumerate(predicates))
        return tuple(Stream(nodes.Case(self._node, checked, i)) for i in range(len(checked) + 1))

    def union(self, *others: Stream) -> Stream:
        """This stream and others of the same schema as one stream."""
        if not others:
            raise QueryError("union needs at least one other stream; found none")
        return Stream(nodes.Union((self._node, *(_node(other, "union") for other in others))))

    def join(
        self,
        other: Stream | Table,
        on: str | None = None,
        within: Duration | tuple[Duration, Duration] | None = None,
        last: int | tuple[int, int] | None = None,
        how: str = "inner",
        using: Names | None = None,
    ) -> Stream:
        """Pairs of this stream (`l`) and another (`r`) that satisfy any predicate, over time or count windows.

        how: over time windows "left", "right" or "full" keep tuples without a partner too, with nulls.
        using: columns that both sides have and that must be equal, beside `on` if that is given too; the result has each of
        them once, after `ts`. `s.join(t, using="k", within="1 minute")`
        With a table: each tuple with every row of it that satisfies the predicate, without a window; how="left" keeps tuples
        without one, with nulls.
        """
        if isinstance(other, Table):
            return self._join_table(other, on, using, how, within=within, last=last)
        right = _node(other, "join")
        if how not in nodes.KEPT_SIDES:
            raise QueryError(f"join takes how={' or '.join(map(repr, nodes.KEPT_SIDES))}; found {how!r}")
        columns = using_columns(using, self.schema, right.schema)
        predicate = join_condition(on, columns, self.schema, right.schema)
        if (within is None) == (last is None):
            msg = "join needs exactly one window: within='60 seconds' (time) or last=1000 (count)"
            raise QueryError(msg)
        if within is not None:
            pair = _pair(within, "within")
            w1, w2 = (parse_duration(w, "within") for w in pair)
            return Stream(once(nodes.TimeJoin(self._node, right, predicate, w1, w2, how), columns, how))
        if how != "inner":
            raise QueryError(
                f"a join over count windows is an inner join; found how={how!r}; leave it out,"
                " or give a time window: within='60 seconds'"
            )
        n1, n2 = (count_of_tuples(n, "last") for n in _pair(last, "last"))
        return Stream(once(nodes.CountJoin(self._node, right, predicate, n1, n2), columns, how))

    def _join_table(self, table: Table, on: str | None, using: Names | None, how: str, **windows: Any) -> Stream:
        for window, given in windows.items():
            if given is not None:
                raise QueryError(
                    f"a table has no time, so a join with it has no window; found {window}={given!r}; leave it out"
                )
        if how not in ("inner", "left"):
            raise QueryError(f"a join with a table takes how='inner' or how='left'; found {how!r}")
        columns = using_columns(using, self.schema, table.schema)
        predicate = join_condition(on, columns, self.schema, table.schema)
        return Stream(once(nodes.TableJoin(self._node, table._table, predicate, how == "left"), columns, how))

    def aggregate(
        self,
        by: Names = (),
        window: Duration | None = None,
        every: Duration | int | None = None,
        last: int | None = None,
        session: Duration | None = None,
        **functions: str,
    ) -> Stream:
        """Aggregate functions per group over time windows (window, every), count windows (last, every) or sessions."""
        if sum(given is not None for given in (window, last, session)) != 1:
            raise QueryError(
                "aggregate needs exactly one window: window='60 seconds' (time), last=100 (count)"
                " or session='30 minutes' (the longest pause)"
            )
        if session is not None and every is not None:
            raise QueryError(f"a session ends by itself, so it has no every; found every={every!r}; leave it out")
        grouped = self._grouping(by)
        checked = tuple(
            (name, expressions.parse_aggregate(text, self.schema, grouped, name, number))
            for number, (name, text) in enumerate(functions.items())
        )
        if session is not None:
            return Stream(nodes.SessionAggregate(self._node, grouped, checked, parse_duration(session, "session")))
        if window is not None:
            size = parse_duration(window, "window")
            slide = size if every is None else parse_duration(every, "every")  # type: ignore[arg-type]
            _check_slide(slide, size, f"{every!r}", f"{window!r}")
            return Stream(nodes.TimeAggregate(self._node, grouped, checked, size, slide))
        count = count_of_tuples(last, "last")
        step = count if every is None else count_of_tuples(every, "every")
        _check_slide(step, count, str(every), str(last))
        return Stream(nodes.CountAggregate(self._node, grouped, checked, count, step))

    def distinct(self, by: Names, within: Duration) -> Stream:
        """The first tuple of each key, and then none of that key for so long after one that was kept."""
        grouped = self._grouping(by)
        return Stream(nodes.Distinct(self._node, grouped, parse_duration(within, "within")))

    def asof(self, other: Stream, by: Names, within: Duration | None = None, how: str = "inner") -> Stream:
        """Each tuple of this stream (`l`) with the last of another (`r`) that has its key and is not later than it.

        within: how much older that may be; how: "left" keeps tuples without one, with nulls.
        """
        right = _node(other, "asof")
        if how not in ("inner", "left"):
            raise QueryError(f"asof takes how='inner' or how='left'; found {how!r}")
        grouped = self._grouping(by)
        for name in grouped:
            if name not in right.schema.names:
                raise QueryError(
                    f"by names a column {name!r} that the other stream lacks; it has {', '.join(right.schema.names)};"
                    " rename one of them with map"
                )
        limit = None if within is None else parse_duration(within, "within")
        return Stream(nodes.AsOf(self._node, right, grouped, limit, how == "left"))

    def split(
        self,
        substreams: int,
        *,
        by: Names | None = None,
        route: Route | None = None,
        broadcast: Route | None = None,
        version: int = 1,
    ) -> Substreams:
        """Into so many substreams: by the hash of columns, or by a rule of your own, to run something on each.

        route: an SQL expression, or a function pa.Table -> whole numbers, 0 .. substreams - 1; null: the tuple goes nowhere
        broadcast: a condition, or a function pa.Table -> booleans; where it is true a tuple goes to every substream
        version: of the functions; raise it when they mean something else
        """
        if isinstance(substreams, bool) or not isinstance(substreams, int) or not 1 <= substreams <= MOST_GROUPS:
            raise QueryError(
                f"split takes a number of substreams, 1 .. {MOST_GROUPS}; found {describe_argument(substreams)}"
            )
        if (by is None) == (route is None):
            raise QueryError(
                "split needs exactly one of by=['user'] (hash of columns) and route='xway' (your own rule)"
            )
        check_version(version)
        rule = nodes.Rule(
            substreams,
            None if by is None else self._grouping(by),
            None if route is None else self._route(route, version),
            None if broadcast is None else self._broadcast(broadcast, version),
        )
        return Substreams(self._node, rule)

    def _route(self, given: Route, version: int) -> expressions.Expression | Function:
        if callable(given):
            return function(given, version)
        found = expressions.parse_scalar(given, self.schema, "route")
        if not pa.types.is_integer(found.type):
            raise QueryTypeError(
                f"route must be a whole number, the substream; {given!r} is {found.type}; cast it, such as CAST(... AS INT)"
            )
        return found

    def _broadcast(self, given: Route, version: int) -> expressions.Expression | Function:
        return (
            function(given, version)
            if callable(given)
            else expressions.parse_condition(given, self.schema, "broadcast")
        )

    def plan(
        self,
        slots: int = 2,
        strategy: str = "subquery",
        figures: Figures | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> Plan:
        """How this query is cut into subqueries and routed, as an object that can be printed, saved and compared.

        figures: what `headrace.calibrate(q)` measured; costs: microseconds per tuple by subquery, instead of measured ones.
        """
        from headrace.compile import plan_of

        return plan_of([self._node], [False], strategy, slots, figures, costs)

    def explain(
        self,
        slots: int = 2,
        strategy: str = "subquery",
        figures: Figures | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> str:
        """The query and its plan with what each way of routing costs, as text."""
        from headrace.showing.explain import explain

        return explain(nodes.outline(self._node), self.plan(slots, strategy, figures, costs))

    def collect(
        self,
        slots: int | None = None,
        strategy: str = "subquery",
        plan: Plan | None = None,
        errors: str = "stop",
        late: AnySink | None = None,
    ) -> pa.Table:
        """Run on Spark over bounded input, to the end, and return the results.

        errors="keep": tuples that fail in a `map`, `filter` or `case` go to the sink `late`, if there is one.
        """
        from headrace.run.collect import collect

        return collect(self, slots=slots, strategy=strategy, plan=plan, errors=errors, late=late)

    def start(self, sink: AnySink, *, checkpoint: Any, **options: Any) -> Run:
        """Run continuously on Spark, with the options of `headrace.start`."""
        from headrace.run.start import start

        return start([(self, sink)], checkpoint=checkpoint, **options)

    def _demand_column(self, name: str, what: str) -> None:
        column_verbs.check_column(name, self.schema, what)

    def _grouping(self, by: Names) -> tuple[str, ...]:
        """The checked columns of an argument `by`: a list, or one name."""
        if isinstance(by, str):
            by = [by]
        if not isinstance(by, list | tuple):
            raise QueryTypeError(
                f"by must be a column or a list of columns; found {describe_argument(by)}; such as by='caller', or by=[]"
            )
        for name in by:
            self._demand_column(name, "by")
            if name == "ts":
                raise QueryError("by cannot contain 'ts', the event time; map it to another column first")
        if len(set(by)) != len(by):
            raise QueryError(f"by names a column twice; found {list(by)!r}")
        return tuple(by)


answer_habits(Stream)


class Table:
    """Rows without time, to join streams with: every tuple meets all of them. Immutable."""

    def __init__(self, table: nodes.TableDefinition) -> None:
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def __repr__(self) -> str:
        return printable(f"Table {self._table.summary}")

    def __getattr__(self, name: str) -> Any:
        """What a stream can do and a table cannot."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        if name not in vars(Stream):
            raise missing_verb("Table", name, self.columns, vars(Table))
        raise NoSuchVerb(f"{name} is for streams, and a table is none; join a stream with it: s.join(table, on=...)")


class Substreams:
    """A stream that was split: what is said here runs on every substream alone. Immutable."""

    def __init__(self, node: nodes.Node, rule: nodes.Rule, body: nodes.Body | None = None) -> None:
        self._node, self._rule = node, rule
        leaf = nodes.Substream(node.schema)
        self._body = body or nodes.Body(leaf, leaf)

    @property
    def schema(self) -> pa.Schema:
        return self._body.root.schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def __repr__(self) -> str:
        outline = nodes.outline_body(nodes.Each(self._node, self._rule, self._body))
        return f"Substreams({', '.join(self.columns)})\n{outline}"

    def __getattr__(self, name: str) -> Any:
        """What a stream can do and substreams cannot, said as what to write instead."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        if name not in vars(Stream):
            raise missing_verb("Substreams", name, self.columns, vars(Substreams))
        raise NoSuchVerb(
            f"{name} is for streams, and this one was split; say what runs on every substream:"
            f" .each(lambda t: t.{name}(...)) or .apply(processor), which give a stream"
        )

    def map(self, *keep: str, **new: str) -> Substreams:
        """As `Stream.map`; runs in the splitters."""
        return self._then(Stream(self._body.root).map(*keep, **new))

    def select(self, *keep: str, **new: str) -> Substreams:
        """As `Stream.select`; runs in the splitters."""
        return self._then(Stream(self._body.root).select(*keep, **new))

    def with_columns(self, **new: str) -> Substreams:
        """As `Stream.with_columns`; runs in the splitters."""
        return self._then(Stream(self._body.root).with_columns(**new))

    def rename(self, names: Mapping[str, str]) -> Substreams:
        """As `Stream.rename`; runs in the splitters."""
        return self._then(Stream(self._body.root).rename(names))

    def drop(self, *names: str) -> Substreams:
        """As `Stream.drop`; runs in the splitters."""
        return self._then(Stream(self._body.root).drop(*names))

    def filter(self, predicate: str) -> Substreams:
        """As `Stream.filter`; runs in the splitters."""
        return self._then(Stream(self._body.root).filter(predicate))

    def unnest(self, column: str, outer: bool = False, index: str | None = None) -> Substreams:
        """As `Stream.unnest`; runs in the splitters."""
        return self._then(Stream(self._body.root).unnest(column, outer, index))

    def each(self, query: Callable[[Stream], Stream]) -> Stream:
        """A query of operators on every substream alone; its result has the column `substream`."""
        if not callable(query):
            raise QueryTypeError(
                f"each takes a function of one stream; found {describe_argument(query)}; such as lambda t: t.distinct(...)"
            )
        found = query(Stream(self._body.root))
        if not isinstance(found, Stream):
            raise QueryTypeError(
                f"the function that each was given must return one stream; found {describe_argument(found)}; such as lambda t: t.filter(...)"
            )
        root = found._node
        for node in nodes.walk_nodes(root):
            if isinstance(node, nodes.Splitting):
                raise QueryError(
                    f"each cannot have a split inside; found: {node.summary}; split the stream that each gives"
                )
            if not node.inputs and node is not self._body.leaf:
                raise QueryError(
                    f"the function that each was given uses another stream, {node.summary}; it may use only its argument;"
                    " join or unite the streams before the split"
                )
        if "substream" in (name.lower() for name in root.schema.names):
            raise QueryError(
                "each adds a column 'substream', and there is one already; rename it with map;"
                f" found {', '.join(root.schema.names)}"
            )
        return Stream(nodes.Each(self._node, self._rule, nodes.Body(self._body.leaf, root)))

    def apply(self, processor: Processor) -> Any:
        """A processor on every substream: a stream of what it puts out, or a dict of streams if it has `outputs`."""
        found = declared(processor)
        node = nodes.Apply(self._node, self._rule, self._body, processor, found)
        streams = {name: Stream(nodes.ProcessorOutput(node, number)) for number, (name, _) in enumerate(found.outputs)}
        return streams if found.several else streams[ONLY]

    def _then(self, stream: Stream) -> Substreams:
        return Substreams(self._node, self._rule, nodes.Body(self._body.leaf, node_of(stream)))


answer_habits(Substreams)


def node_of(stream: Stream) -> nodes.Node:
    """The record behind a handle."""
    if not isinstance(stream, Stream):
        raise QueryTypeError(f"a query is a stream; found {describe_argument(stream)}; {_instead(stream)}")
    return stream._node


def label_of(stream: Stream) -> str | None:
    """The name that `named` gave to a stream."""
    return stream._label


def _node(stream: Stream, what: str) -> nodes.Node:
    if not isinstance(stream, Stream):
        raise QueryTypeError(f"{what} takes streams; found {describe_argument(stream)}; {_instead(stream)}")
    return stream._node


def _instead(given: Any) -> str:
    """How to get a stream from what was given."""
    if isinstance(given, Table):
        return "a table is joined: s.join(table, on=...)"
    if argument_kind(given) == "pyspark DataFrame":
        return "wrap it: headrace.stream(df, time=...)"
    return instead_of_dataframe(given)


def _pair(value: Any, what: str) -> tuple[Any, Any]:
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise QueryError(f"{what} takes one value or a pair; found {value!r}")
        return value[0], value[1]
    return value, value


def count_of_tuples(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise QueryTypeError(f"{what} must be a whole number of tuples; found {value!r}")
    if value < 1:
        raise QueryError(f"{what} must be at least 1; found {value!r}")
    return value


def _check_slide(slide: int, size: int, slide_text: str, size_text: str) -> None:
    if slide > size:
        msg = f"every ({slide_text}) is longer than the window ({size_text}): tuples in between would count nowhere"
        raise QueryError(msg)
