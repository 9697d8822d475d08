"""The handle that a user holds: a thin layer of verbs over the records of `headrace.query.nodes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import expressions
from headrace.errors import NoSuchVerb, QueryError, QueryTypeError
from headrace.processor import ONLY, Function, Processor, check_version, declared, function
from headrace.query import nodes
from headrace.support.argument_errors import argument_kind, describe_argument, instead_of_dataframe
from headrace.support.durations import Duration, format_duration, parse_duration
from headrace.support.limits import MOST_GROUPS
from headrace.support.local_days import DAY, check_zone
from headrace.support.terminal_text import printable

if TYPE_CHECKING:
    from headrace.compile.subqueries import Plan
    from headrace.plan.figures import Figures
    from headrace.run.run import Run
    from headrace.sinks import AnySink

Route = str | Callable[[pa.Table], Any]
RESERVED_BY_JOIN = ("on", "within", "last", "how")


class Stream:
    """A stream of tuples with one schema and one event time, the column `ts`. Immutable."""

    def __init__(self, node: nodes.Node) -> None:
        self._node = node

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
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"Stream({', '.join(self.columns)})\n{nodes.outline(self._node)[0]}"

    def map(self, *keep: str, **new: str) -> Stream:
        """New columns from expressions: positional names are kept, keywords are computed; `ts` always stays."""
        for name in keep:
            self._demand_column(name, "map")
        names = [name for name in keep if name != "ts"] + list(new)
        if len(set(names)) != len(names):
            raise QueryError(f"map names a column twice; found {', '.join(names)}")
        kept = [(name, self._column(name)) for name in keep if name != "ts"]
        made = [(name, expressions.parse_scalar(text, self.schema, name)) for name, text in new.items()]
        return Stream(nodes.Map(self._node, tuple(kept + made)))

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
        on: str,
        within: Duration | tuple[Duration, Duration] | None = None,
        last: int | tuple[int, int] | None = None,
        how: str = "inner",
    ) -> Stream:
        """Pairs of this stream (`l`) and another (`r`) that satisfy any predicate, over time or count windows.

        within: one length for both sides, or (W1, W2): r is at most W1 after l and at most W2 before it. One of the two
        may be zero: with W1 = 0, r is not after l; with W2 = 0, r is not before l.
        how: over time windows "left", "right" or "full" keep tuples without a partner too, with nulls.
        With a table: each tuple with every row of it that satisfies the predicate, without a window; how="left" keeps tuples
        without one, with nulls.
        """
        if isinstance(other, Table):
            return self._join_table(other, on, how, within=within, last=last)
        right = _node(other, "join")
        if how not in nodes.KEPT_SIDES:
            raise QueryError(f"join takes how={' or '.join(map(repr, nodes.KEPT_SIDES))}; found {how!r}")
        if (within is None) == (last is None):
            msg = "join needs exactly one window: within='60 seconds' (time) or last=1000 (count)"
            raise QueryError(msg)
        predicate = expressions.join_predicate(on, self.schema, right.schema)
        if within is not None:
            w1, w2 = _windows(within)
            return Stream(nodes.TimeJoin(self._node, right, predicate, w1, w2, how))
        if how != "inner":
            raise QueryError(
                f"a join over count windows is an inner join; found how={how!r}; leave it out,"
                " or give a time window: within='60 seconds'"
            )
        n1, n2 = (count_of_tuples(n, "last") for n in _pair(last, "last"))
        return Stream(nodes.CountJoin(self._node, right, predicate, n1, n2))

    def _join_table(self, table: Table, on: str, how: str, **windows: Any) -> Stream:
        for window, given in windows.items():
            if given is not None:
                raise QueryError(
                    f"a table has no time, so a join with it has no window; found {window}={given!r}; leave it out"
                )
        if how not in ("inner", "left"):
            raise QueryError(f"a join with a table takes how='inner' or how='left'; found {how!r}")
        predicate = expressions.join_predicate(on, self.schema, table.schema)
        return Stream(nodes.TableJoin(self._node, table._table, predicate, how == "left"))

    def aggregate(
        self,
        by: list[str] | tuple[str, ...] = (),
        window: Duration | None = None,
        every: Duration | int | None = None,
        last: int | None = None,
        session: Duration | None = None,
        offset: Duration | None = None,
        zone: str | None = None,
        **functions: str,
    ) -> Stream:
        """Aggregate functions per group over time windows (window, every), count windows (last, every) or sessions.

        offset: how long after the multiples of `every` time windows begin; less than `every`. Default: no time.
        zone: time windows of whole local days, such as zone="Europe/Berlin" with window="1 day"; a window begins at the first
        moment of its local day, so days have 23, 24 or 25 hours. Default: UTC.
        """
        if sum(given is not None for given in (window, last, session)) != 1:
            raise QueryError(
                "aggregate needs exactly one window: window='60 seconds' (time), last=100 (count)"
                " or session='30 minutes' (the longest pause)"
            )
        if session is not None and every is not None:
            raise QueryError(f"a session ends by itself, so it has no every; found every={every!r}; leave it out")
        if window is None:
            _refuse_given(offset=offset, zone=zone)
        grouped = self._grouping(by)
        checked = tuple(
            (name, expressions.parse_aggregate(text, self.schema, grouped, name, number))
            for number, (name, text) in enumerate(functions.items())
        )
        if session is not None:
            return Stream(nodes.SessionAggregate(self._node, grouped, checked, parse_duration(session, "session")))
        if window is not None:
            over = _time_windows(window, every, offset, zone)
            return Stream(nodes.TimeAggregate(self._node, grouped, checked, over))
        count = count_of_tuples(last, "last")
        step = count if every is None else count_of_tuples(every, "every")
        _check_slide(step, count, str(every), str(last))
        return Stream(nodes.CountAggregate(self._node, grouped, checked, count, step))

    def top(
        self,
        n: int,
        by: list[str] | tuple[str, ...] = (),
        *,
        order: str,
        window: Duration | None = None,
        every: Duration | None = None,
        session: Duration | None = None,
    ) -> Stream:
        """The first `n` tuples of each group and window in an order, ranked from 1, when the window closes.

        order: expressions with directions, such as "distance asc, id". Nulls are last in both directions, NaN is above the
        numbers, and ties are decided by the sequence.
        window, every, session: as in `aggregate`.

        The results have the columns `ts` (as a result of `aggregate`), those of `by`, `window_start`, `window_end`, `rank`,
        `tuple_ts` and the other columns of the tuples: `trips.top(3, by=["rider"], order="distance", window="1 minute")`.
        """
        if (window is None) == (session is None):
            raise QueryError("top needs exactly one window: window='60 seconds' or session='30 minutes'")
        count, grouped = count_of_tuples(n, "n"), self._grouping(by)
        checked = expressions.parse_order(order, self.schema)
        if window is not None:
            over = _time_windows(window, every, None, None)
            return Stream(nodes.TimeTop(self._node, grouped, count, checked, over))
        _refuse_given(every=every)
        gap = parse_duration(session, "session")  # type: ignore[arg-type]
        return Stream(nodes.SessionTop(self._node, grouped, count, checked, gap))

    def distinct(self, by: list[str] | tuple[str, ...], within: Duration) -> Stream:
        """The first tuple of each key, and then none of that key for so long after one that was kept."""
        grouped = self._grouping(by)
        return Stream(nodes.Distinct(self._node, grouped, parse_duration(within, "within")))

    def asof(
        self, other: Stream, by: list[str] | tuple[str, ...], within: Duration | None = None, how: str = "inner"
    ) -> Stream:
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
        by: list[str] | tuple[str, ...] | None = None,
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

    def _column(self, name: str) -> expressions.Expression:
        quoted = '"' + name.replace('"', '""') + '"'
        found = expressions.parse_scalar(quoted, self.schema, name)
        return expressions.Expression(name, found.sql, self.schema.field(name).type, found.columns)

    def _demand_column(self, name: str, what: str) -> None:
        if not isinstance(name, str):
            raise QueryTypeError(
                f"{what} takes column names as text; found {describe_argument(name)}{_as_names(name, what)}"
            )
        if name not in self.columns:
            raise QueryError(f"{what} names an unknown column {name!r}; there are {', '.join(self.columns)}")

    def _grouping(self, by: list[str] | tuple[str, ...]) -> tuple[str, ...]:
        if not isinstance(by, list | tuple):
            example = f"; write by=[{by!r}]" if isinstance(by, str) else "; such as by=['caller'], or by=[]"
            raise QueryTypeError(f"by must be a list of columns; found {describe_argument(by)}{example}")
        for name in by:
            self._demand_column(name, "by")
            if name == "ts":
                raise QueryError("by cannot contain 'ts', the event time; map it to another column first")
        if len(set(by)) != len(by):
            raise QueryError(f"by names a column twice; found {list(by)!r}")
        return tuple(by)


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
        if name.startswith("_") or name not in vars(Stream):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
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
        if name.startswith("_") or name not in vars(Stream):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        raise NoSuchVerb(
            f"{name} is for streams, and this one was split; say what runs on every substream:"
            f" .each(lambda t: t.{name}(...)) or .apply(processor), which give a stream"
        )

    def map(self, *keep: str, **new: str) -> Substreams:
        """As `Stream.map`; runs in the splitters."""
        return self._then(Stream(self._body.root).map(*keep, **new))

    def filter(self, predicate: str) -> Substreams:
        """As `Stream.filter`; runs in the splitters."""
        return self._then(Stream(self._body.root).filter(predicate))

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


def node_of(stream: Stream) -> nodes.Node:
    """The record behind a handle."""
    if not isinstance(stream, Stream):
        raise QueryTypeError(f"a query is a stream; found {describe_argument(stream)}; {_instead(stream)}")
    return stream._node


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


def _as_names(given: Any, what: str) -> str:
    """How what was given instead of names is said."""
    if what == "map" and isinstance(given, dict):
        return "; new columns are keywords with SQL text: s.map('kept', new='a + 1')"
    if argument_kind(given) == "pyspark Column":
        return "; write the column's name, or a new column as a keyword with SQL text: s.map(new='a + 1')"
    return "; such as 'caller'"


def _pair(value: Any, what: str) -> tuple[Any, Any]:
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise QueryError(f"{what} takes one value or a pair; found {value!r}")
        return value[0], value[1]
    return value, value


def _windows(within: Duration | tuple[Duration, Duration]) -> tuple[int, int]:
    """W1 and W2 in microseconds. One of them may be zero: no tuple of that side may be the earlier one of a pair."""
    w1, w2 = (parse_duration(w, "within", zero=True) for w in _pair(within, "within"))
    if w1 == w2 == 0:
        raise QueryError(
            f"within must be more than zero on at least one side; found {within!r};"
            " within=('0 seconds', '30 seconds') lets r be up to 30 seconds before l, and not after it"
        )
    return w1, w2


def _time_windows(window: Duration, every: Any, offset: Duration | None, zone: str | None) -> nodes.TimeWindows:
    size = parse_duration(window, "window")
    slide = size if every is None else parse_duration(every, "every")
    _check_slide(slide, size, f"{every!r}", f"{window!r}")
    begin = 0 if offset is None else parse_duration(offset, "offset", zero=True)
    if begin >= slide:
        same = f"offset={format_duration(begin % slide)!r} gives" if begin % slide else "without it there are"
        raise QueryError(
            f"offset must be shorter than the time from window to window, {format_duration(slide)}; found {offset!r};"
            f" {same} the same windows"
        )
    if zone is not None:
        check_zone(zone)
        for option, length in (("window", size), ("offset", begin)):
            if length % DAY:
                raise QueryError(f"with a zone, {option} must be whole days; found {format_duration(length)!r}")
        if slide != size:
            raise QueryError(f"with a zone, every is the window, {window!r}; found every={every!r}; leave it out")
    return nodes.TimeWindows(size, slide, begin, zone)


def _refuse_given(**options: Any) -> None:
    for option, given in options.items():
        if given is not None:
            raise QueryError(f"{option} is for time windows, window='1 day'; found {option}={given!r}; leave it out")


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
