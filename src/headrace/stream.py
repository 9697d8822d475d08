"""The handle that a user holds: a thin layer of verbs over the records of `headrace.query.nodes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from headrace import expressions
from headrace.columnar.table_view import schema_text
from headrace.errors import NoSuchVerb, QueryError, QueryTypeError
from headrace.processor import ONLY, Function, Processor, SeveralOutputs, check_version, declared, function
from headrace.query import column_verbs, nodes
from headrace.query.labels import check_label
from headrace.query.using import join_condition, once, using_columns
from headrace.support.argument_errors import argument_kind, describe_argument, instead_of_dataframe
from headrace.support.durations import Duration, format_duration, parse_duration
from headrace.support.habits import answer_habits, missing_verb
from headrace.support.limits import MOST_GROUPS
from headrace.support.local_days import DAY, check_zone
from headrace.support.terminal_text import printable

if TYPE_CHECKING:
    import os

    from headrace.compile.subqueries import Plan
    from headrace.control.policy import Policy
    from headrace.plan.figures import Figures
    from headrace.run.run import Run
    from headrace.sinks import AnySink

MOST_TUPLES = 2**63 - 1  # a number of 64 bits
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
        >>> s.filter("x > 100").named("alarms")
        Stream(ts, k, x) named alarms
        filter x > 100
          source source-1 (ts timestamp[us, tz=UTC], k string, x int64)
        """
        return Stream(self._node, check_label(name))

    def __str__(self) -> str:
        """The columns with their types as a table, and how the stream is made."""
        called = "" if self._label is None else f"named {self._label}\n"
        return f"{schema_text(self.schema)}\n\n{called}{nodes.outline(self._node)[0]}"

    def _repr_html_(self) -> str:
        """The same for a notebook. No data is read."""
        from headrace.showing.notebook import stream_html

        return stream_html("Stream", self.schema, nodes.outline(self._node)[0])

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
        how: Literal["inner", "left", "right", "full"] = "inner",
        using: Names | None = None,
    ) -> Stream:
        """Pairs of this stream (`l`) and another (`r`) that satisfy any predicate, over time or count windows.

        within: one length for both sides, or (W1, W2): r is at most W1 after l and at most W2 before it. One of the two
        may be zero: with W1 = 0, r is not after l; with W2 = 0, r is not before l.
        how: over time windows "left", "right" or "full" keep tuples without a partner too, with nulls.
        using: columns that both sides have and that must be equal, beside `on` if that is given too; the result has each of
        them once, after `ts`. `s.join(t, using="k", within="1 minute")`
        With a table: each tuple with every row of it that satisfies the predicate, without a window; how="left" keeps tuples
        without one, with nulls.

        on: any predicate over the columns of both, such as "l.caller = r.number and l.x < r.y".
        within: the time window: a duration, or a pair of durations, one for each side.
        last: the count window: a number of tuples, or a pair of numbers, one for each side.
        The result has `ts`, then the other columns of both; a name that both have gets the prefix `l_` or `r_`.

        calls.join(answers, on="l.caller = r.number", within="60 seconds")
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
            w1, w2 = _windows(within)
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
        offset: Duration | None = None,
        zone: str | None = None,
        **functions: str,
    ) -> Stream:
        """Aggregate functions per group over time windows (window, every), count windows (last, every) or sessions.

        by: the columns whose values make a group; (), the default: all tuples are one group.
        window: the length of time windows, which begin at the multiples of `every`, by default of `window`.
        offset: how long after the multiples of `every` time windows begin; less than `every`. Default: no time.
        zone: time windows of whole local days, such as zone="Europe/Berlin" with window="1 day"; a window begins at the first
        moment of its local day, so days have 23, 24 or 25 hours. Default: UTC.
        last: the number of tuples of a count window; every: results come at each such multiple, by default of `last`.
        session: the longest pause within a session. Exactly one of window, last and session is given.
        functions: SQL by the name of its column, such as n="count(*)", mean="avg(duration)". The result has `ts`, the columns
        `by`, then over time windows and sessions `window_start` and `window_end`, then these.

        calls.aggregate(by=["district"], window="60 seconds", every="10 seconds", n="count(*)")
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

    def sample(self, fraction: float, by: Names | None = None) -> Stream:
        """A share of the tuples, chosen by a hash of their values, so that every run chooses the same tuples.

        fraction: the share that is kept, more than 0 and at most 1. Tuples kept by a smaller fraction are also kept by a
            larger one.
        by: columns whose values decide. All tuples with the same values are kept, or none of them. A null is a value, and
            the order of the columns makes no difference. None, the default: the whole tuple decides, `ts` included.

        >>> import pyarrow as pa
        >>> from headrace.testing import table_stream
        >>> calls = table_stream(pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "user": ["a", "b"]}), name="calls")
        >>> calls.sample(0.1, by=["user"])
        Stream(ts, user)
        sample 0.1 by user
          source calls (ts timestamp[us, tz=UTC], user string)
        """
        checked, grouped = _checked_fraction(fraction), None if by is None else self._grouping(by)
        if grouped == ():
            raise QueryError(
                f"sample needs at least one column in by; found by={by!r}; leave by out to choose tuples one by one"
            )
        return Stream(nodes.Sample(self._node, checked, grouped))

    def top(
        self,
        n: int,
        by: Names = (),
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
        `tuple_ts` and the other columns of the tuples.

        trips.top(3, by=["rider"], order="distance", window="1 minute")
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

    def distinct(self, by: Names, within: Duration) -> Stream:
        """The first tuple of each key, and then none of that key for so long after one that was kept."""
        grouped = self._grouping(by)
        return Stream(nodes.Distinct(self._node, grouped, parse_duration(within, "within")))

    def limit(self, n: int) -> Stream:
        """Return the first `n` tuples of the sequence; inside `each`, the first `n` of every substream.

        n: at least 1. A tuple is emitted when the watermark passes it. `start` takes such a query only with `once=True` or
        when every source is static, because the first tuples of a stream without an end are soon all that it will ever give.
        """
        return Stream(nodes.Limit(self._node, count_of_tuples(n, "n")))

    def asof(
        self,
        other: Stream,
        by: Names,
        within: Duration | None = None,
        how: Literal["inner", "left"] = "inner",
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
        strategy: Literal["subquery", "operator", "query"] = "subquery",
        figures: Figures | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> Plan:
        """Return how this query is cut into subqueries and routed: a plan that can be printed, drawn, saved and compared.

        slots: tasks per stage.
        strategy: "subquery"; or "operator" or "query", to compare.
        figures: what `headrace.calibrate(q)` measured. None: every source is taken to deliver as much as any other.
        costs: microseconds per tuple by subquery, instead of measured ones.

        print(q.plan(slots=8))
        """
        from headrace.compile import plan_of

        return plan_of([self._node], [False], strategy, slots, figures, costs)

    def explain(
        self,
        slots: int = 2,
        strategy: Literal["subquery", "operator", "query"] = "subquery",
        figures: Figures | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> str:
        """Return the query and its plan, with what each way of routing costs, as text. The options are those of `plan`.

        print(q.explain(slots=8))
        """
        from headrace.showing.explain import explain

        return explain(nodes.outline(self._node), self.plan(slots, strategy, figures, costs))

    def collect(
        self,
        slots: int | None = None,
        strategy: Literal["subquery", "operator", "query"] = "subquery",
        plan: Plan | None = None,
        errors: Literal["stop", "keep"] = "stop",
        late: AnySink | None = None,
    ) -> pa.Table:
        """Run on Spark over bounded input, to the end, and return the results.

        slots: tasks per stage. None: one per core of the session.
        strategy: "subquery"; or "operator" or "query", to compare.
        plan: a plan that `q.plan` made, perhaps edited, whose strategy, slots and shapes are used.
        errors: "stop": a tuple on which an expression fails ends the run. "keep": a tuple that fails in a `map`, `filter` or
            `case` is counted and kept apart.
        late: a sink for rejected and failed tuples. None: they are only counted.

        table = q.collect(slots=4)
        """
        from headrace.run.collect import collect

        return collect(self, slots=slots, strategy=strategy, plan=plan, errors=errors, late=late)

    def start(
        self,
        sink: AnySink,
        *,
        checkpoint: str | os.PathLike[str],
        epoch: Duration = "1 second",
        slots: int | Literal["auto"] | None = None,
        order: Literal["transparent", "best-effort"] = "transparent",
        late: AnySink | None = None,
        errors: Literal["stop", "keep"] = "stop",
        show: bool | None = None,
        strategy: Literal["subquery", "operator", "query"] = "subquery",
        plan: Plan | None = None,
        policy: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        most_slots: int | None = None,
        once: bool = False,
        cache: int | str | None = None,
        splitters: int | None = None,
        physical_window: int | str | None = None,
    ) -> Run:
        """Start a run of this query, continuously on Spark. `headrace.start` starts several results in one run.

        sink: where the results go, such as `hr.sinks.parquet("out/")`.
        checkpoint: a folder that belongs to this run alone. A second start with the same folder resumes where the first ended.
        epoch: the shortest time between the beginnings of two epochs. "0 seconds": the next epoch begins at once.
        slots: tasks per stage; None: one per core of the session. "auto": few at first, then as many as the load needs. The number
            may differ from one start to the next.
        order: "transparent": exactly the sequential answer. "best-effort": the run does not wait, so joins may miss results and
            count windows give other results.
        late: a sink for late, rejected and failed tuples, with their source and the reason. None: they are only counted.
        errors: "stop": a tuple on which an expression fails ends the run. "keep": in `map`, `filter` and `case` such a tuple is
            counted and kept apart; in joins and aggregates it still ends the run.
        show: whether standard error shows a live line of progress. None: only if standard error is a terminal.
        strategy: "subquery"; or "operator" or "query", to compare. It may differ from one start to the next.
        plan: a plan that `q.plan` made, perhaps edited. The run uses its strategy, slots and shapes, and does not adapt.
        policy: how the run adapts: a `headrace.Policy`, a mapping of its fields, or the path of a TOML file with them.
        most_slots: the largest number of slots that "auto" and `set_slots` may choose. None: four per core of the session.
        once: take what is there now, epoch after epoch, then end the input: windows and checkpoint are closed, `wait` returns.
        cache: bytes that state tables may take on each machine between epochs, such as "4g". 0: every epoch reads the tables.
        splitters: tasks that read files and topics. None: one for each slot at first, then as the load needs.
        physical_window: bytes that such a task reads at once, such as "16 MiB". None: 16 MiB at first, then as the load needs. If
            splitters or physical_window is given, the run changes neither. No answer depends on them.

        run = q.start(hr.sinks.parquet("out/"), checkpoint="ckpt/")
        """
        from headrace.run.start import start

        return start(
            [(self, sink)],
            checkpoint=checkpoint,
            epoch=epoch,
            slots=slots,
            order=order,
            late=late,
            errors=errors,
            show=show,
            strategy=strategy,
            plan=plan,
            policy=policy,
            most_slots=most_slots,
            once=once,
            cache=cache,
            splitters=splitters,
            physical_window=physical_window,
        )

    def head(self, n: int = 10, *, slots: int | None = None) -> pa.Table:
        """Return the first `n` tuples of the sequence, in sequence: `limit(n).collect()`.

        n: at least 1. slots: tasks per stage, by default one for each core of the Spark session.
        The input must be bounded; for a stream without an end use `peek`.
        """
        from headrace.run.first_tuples import head

        return head(self, n, slots)

    def show(self, n: int = 10, *, slots: int | None = None) -> None:
        """Print the first `n` tuples of the sequence; the options are those of `head`."""
        from headrace.showing.preview import print_rows

        print_rows(self.head(n, slots=slots))

    def peek(self, n: int = 10, timeout: Duration = "10 seconds") -> pa.Table:
        """Return the first `n` tuples that arrive, in order of arrival, or fewer if the time is over before.

        timeout: a duration such as "10 seconds". Sources and stateless verbs only, such as `map`, `filter`, `case`, `union`
        and joins with tables. Works on every source and needs no checkpoint; nothing is committed.
        """
        from headrace.run.peek import peek

        return peek(self, n, timeout)

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

    def _repr_html_(self) -> str:
        """The same for a notebook. No data is read."""
        from headrace.showing.notebook import stream_html

        return stream_html("Table", self.schema, self._table.summary)

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

    def _repr_html_(self) -> str:
        """The same for a notebook. No data is read."""
        from headrace.showing.notebook import stream_html

        return stream_html("Substreams", self.schema, repr(self).partition("\n")[2])

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

    def sample(self, fraction: float, by: Names | None = None) -> Substreams:
        """As `Stream.sample`; runs in the splitters."""
        return self._then(Stream(self._body.root).sample(fraction, by))

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

    @overload
    def apply(self, processor: SeveralOutputs) -> dict[str, Stream]: ...
    @overload
    def apply(self, processor: Processor) -> Stream: ...
    def apply(self, processor: Processor | SeveralOutputs) -> Stream | dict[str, Stream]:
        """Run a processor on every substream, each with its own state.

        processor: an instance of a class that derives from `headrace.Processor`.
        Return the stream of its results; if the class has `outputs`, a dict with one stream for each of them.

        tolls = reports.split(8, route="xway").apply(Tolls())
        """
        found = declared(processor)
        assert isinstance(processor, Processor)
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
    if value > MOST_TUPLES:
        raise QueryError(f"{what} must be at most {MOST_TUPLES:,}; found {value:,}")
    return value


def _checked_fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QueryTypeError(
            f"fraction must be a number, more than 0 and at most 1; found {describe_argument(value)}; such as s.sample(0.1)"
        )
    if not 0 < value <= 1:
        raise QueryError(
            f"fraction must be more than 0 and at most 1; found {value!r}; 0.1 keeps one tuple in ten, 1 keeps all"
        )
    return float(value)


def _check_slide(slide: int, size: int, slide_text: str, size_text: str) -> None:
    if slide > size:
        msg = f"every ({slide_text}) is longer than the window ({size_text}): tuples in between would count nowhere"
        raise QueryError(msg)
