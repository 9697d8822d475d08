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
from headrace.query.join_chains import chain_hints
from headrace.query.labels import check_label
from headrace.query.using import join_condition, once, using_columns
from headrace.support.argument_errors import argument_kind, describe_argument, instead_of_dataframe
from headrace.support.durations import Duration, format_duration, parse_duration
from headrace.support.habits import answer_habits, check_option_words, check_window_words, missing_verb
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
    """A stream of tuples with one schema and one event time, the column `ts`. It is immutable.

    Streams come from `headrace.files`, `headrace.kafka` and `headrace.stream`, and in tests from
    `headrace.testing.source` and `headrace.testing.table_stream`. A wrong column, type or expression raises an error
    when the method is called.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
        >>> long = calls.filter("seconds > 60").map("caller", minutes="seconds / 60")
        >>> long
        Stream(ts, caller, minutes)
        map caller, minutes = seconds / 60
          filter seconds > 60
            source calls (ts timestamp[us, tz=UTC], caller string, seconds int64)
    """

    def __init__(self, node: nodes.Node, label: str | None = None) -> None:
        self._node, self._label = node, label

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns, `ts` among them: a `pyarrow.Schema`.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> calls.schema.field("ts").type
            TimestampType(timestamp[us, tz=UTC])
        """
        return self._node.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order: a list of texts.

        Examples:
            >>> hr.testing.source("calls", {"caller": "string", "seconds": "int64"}).columns
            ['ts', 'caller', 'seconds']
        """
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
        """Return the same stream with a name for its results, in place of result-0, in progress, records, logs and
        tables.

        The names of one run differ. A name is no part of the query: with another one, a checkpoint continues as before.
        What is made of the stream afterwards has no name, so name a result last.

        Args:
            name: at most 255 printable characters, without spaces around them.

        Returns:
            The named stream.

        Raises:
            QueryError: the name is not of this form.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.filter("seconds > 3600").named("alarms")
            Stream(ts, caller, seconds) named alarms
            filter seconds > 3600
              source calls (ts timestamp[us, tz=UTC], caller string, seconds int64)
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
        """Return a stream with the columns that are kept and those that are computed. `ts` always stays.

        Args:
            *keep: names of columns to keep, in the order that they get.
            **new: SQL expressions over the columns of this stream, by the name of their new column, which cannot be
                `ts`.

        Returns:
            A stream with `ts`, the kept columns and the computed columns.

        Raises:
            ExpressionError: an expression is not valid SQL, or names a column that the stream lacks.
            QueryError: a kept column does not exist, or a name appears twice.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> minutes = calls.map("caller", minutes="seconds / 60")
            >>> [step] = hr.testing.play(minutes, [hr.testing.epoch(calls=[(1, "ann", 90)])])
            >>> step.results.drop_columns("ts").to_pylist()
            [{'caller': 'ann', 'minutes': 1.5}]
        """
        return Stream(column_verbs.computed_map(self._node, keep, new, "map"))

    def select(self, *keep: str, **new: str) -> Stream:
        """Return a stream with these columns alone, like `map`. `ts` always stays.

        Args:
            *keep: names of columns to keep, in the order that they get.
            **new: SQL expressions by the name of their column.

        Returns:
            A stream with `ts`, the kept columns and the computed columns.

        Raises:
            QueryError: a column does not exist, a name appears twice, or an expression is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.select("caller", minutes="seconds / 60").columns
            ['ts', 'caller', 'minutes']
        """
        return Stream(column_verbs.computed_map(self._node, keep, new, "select"))

    def with_columns(self, **new: str) -> Stream:
        """Return a stream with all columns and new ones. A new column with the name of an existing one replaces it;
        others come last.

        Args:
            **new: SQL expressions by the name of their column. They see the columns of this stream, not each other.

        Returns:
            A stream with the old and the new columns.

        Raises:
            QueryError: an expression is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.with_columns(minutes="seconds / 60", caller="upper(caller)").columns
            ['ts', 'caller', 'seconds', 'minutes']
        """
        return Stream(column_verbs.extended_map(self._node, new))

    def rename(self, names: Mapping[str, str]) -> Stream:
        """Return a stream with the same columns in the same places, some of them under new names.

        Args:
            names: new names by old names. Two columns may swap their names.

        Returns:
            A stream with the renamed columns.

        Raises:
            QueryError: a column does not exist, is `ts`, or would have the name of another one.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.rename({"caller": "user"}).columns
            ['ts', 'user', 'seconds']
        """
        return Stream(column_verbs.renamed_map(self._node, names))

    def drop(self, *names: str) -> Stream:
        """Return a stream with all columns except these.

        Args:
            *names: names of columns to leave out.

        Returns:
            A stream with the remaining columns.

        Raises:
            QueryError: a column does not exist, or is `ts`.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.drop("seconds").columns
            ['ts', 'caller']
        """
        return Stream(column_verbs.reduced_map(self._node, names))

    def unnest(self, column: str, outer: bool = False, index: str | None = None) -> Stream:
        """Return a stream with one tuple for each element of a list or map, or with a struct replaced by its fields.

        An element takes the place and the name of the column; the fields of a struct take its place; a map gives two
        columns, such as items_key and items_value. A null element stays. Each tuple keeps all other columns.

        Args:
            column: a column whose type is a list, a map or a struct.
            outer: True: keep a tuple whose list is null or empty, with null. False, the default: drop it.
            index: the name of one more column, the last, with the position of the element from 0. None: no such column.

        Returns:
            A stream with the elements.

        Raises:
            QueryError: the column does not exist or has another type, or a name appears twice.

        Examples:
            >>> orders = hr.testing.source("orders", {"items": "struct(a int, b int)[]", "shop": "string"})
            >>> orders.unnest("items", index="i").columns
            ['ts', 'a', 'b', 'shop', 'i']
        """
        return Stream(column_verbs.unnested(self._node, column, outer, index))

    def filter(self, predicate: str) -> Stream:
        """Return a stream with the tuples for which the predicate is true. False and null drop a tuple.

        Args:
            predicate: an SQL condition over the columns of this stream, such as "seconds > 60".

        Returns:
            A stream with the same columns.

        Raises:
            ExpressionError: the condition is not valid SQL, is not a condition, or names a column that the stream
                lacks.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> long = calls.filter("seconds > 60")
            >>> [step] = hr.testing.play(long, [hr.testing.epoch(calls=[(1, "ann", 90), (2, "bob", 5)])])
            >>> step.expect([{"caller": "ann"}])
        """
        return Stream(nodes.Filter(self._node, expressions.parse_condition(predicate, self.schema, "filter")))

    def case(self, *predicates: str) -> tuple[Stream, ...]:
        """Return one stream for each predicate and one for the rest. A tuple goes to the first predicate that is true
        for it.

        Args:
            *predicates: SQL conditions over the columns of this stream.

        Returns:
            A tuple of streams, one more than there are predicates; the last has the tuples that satisfy none.

        Raises:
            ExpressionError: a condition is refused.
            QueryError: there is no predicate.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> long, short = calls.case("seconds > 60")
            >>> [step] = hr.testing.play([long, short], [hr.testing.epoch(calls=[(1, "ann", 90), (2, "bob", 5)])])
            >>> step.expect([{"caller": "bob"}], result=1)
        """
        if not predicates:
            raise QueryError("case needs at least one predicate; found none; such as s.case('amount > 1000')")
        checked = tuple(expressions.parse_condition(p, self.schema, f"case {i + 1}") for i, p in enumerate(predicates))
        return tuple(Stream(nodes.Case(self._node, checked, i)) for i in range(len(checked) + 1))

    def union(self, *others: Stream) -> Stream:
        """Return one stream with the tuples of this stream and of others.

        Args:
            *others: streams with the same columns and types.

        Returns:
            A stream with the same columns.

        Raises:
            QueryError: the schemas differ, or there is no other stream.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> texts = hr.testing.source("texts", {"caller": "string"})
            >>> calls.union(texts)
            Stream(ts, caller)
            union
              source calls (ts timestamp[us, tz=UTC], caller string)
              source texts (ts timestamp[us, tz=UTC], caller string)
        """
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
        """Return the pairs of this stream (`l`) and another stream or table (`r`) that satisfy a predicate.

        A join of two streams needs a window: of time (`within`) or of a number of tuples (`last`). A join with a table
        has none: each tuple is paired with every row of the table that satisfies the predicate.

        The result has `ts`, then the other columns of both; a name that both have gets the prefix `l_` or `r_`.

        Args:
            other: a stream or a table.
            on: any predicate over the columns of both, such as "l.caller = r.number and l.x < r.y". Give `on`, `using`
                or both.
            within: the time window: one duration for both sides, or a pair (W1, W2): `r` is at most W1 after `l` and at
                most W2 before it. One of the two may be zero: with W1 = 0, `r` is not after `l`; with W2 = 0, `r` is
                not before `l`.
            last: the count window: a number of tuples, or a pair of numbers, one for each side.
            how: "inner": pairs alone. "left", "right" or "full" keep tuples without a partner too, with nulls; only
                over time windows, and "left" with a table.
            using: columns that both sides have and that must be equal. The result has each of them once, after `ts`.

        Returns:
            A stream of pairs.

        Raises:
            QueryError: there is not exactly one window, or `how` does not fit it.
            ExpressionError: the predicate is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> answers = hr.testing.source("answers", {"number": "string"})
            >>> pairs = calls.join(answers, on="l.caller = r.number", within="60 seconds")
            >>> given = hr.testing.epoch(calls=[(1, "ann")], answers=[(9, "ann"), (70, "ann")])
            >>> [step] = hr.testing.play(pairs, [given])
            >>> step.expect([{"caller": "ann", "number": "ann", "r_ts": 9}])
        """
        _refuse_a_third(other, on)
        if isinstance(other, Table):
            return self._join_table(other, on, using, how, within=within, last=last)
        right = _node(other, "join")
        if how not in nodes.KEPT_SIDES:
            anti = (
                "; for tuples without a partner use how='left' and then filter('r_ts IS NULL')"
                if "anti" in str(how)
                else ""
            )
            raise QueryError(f"join takes how={' or '.join(map(repr, nodes.KEPT_SIDES))}; found {how!r}{anti}")
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
        """Return aggregate functions for each group, over time windows, count windows or sessions.

        Give exactly one of `window`, `last` and `session`. The result has `ts`, the columns `by`, then over time
        windows and sessions `window_start` and `window_end`, then one column for each function.

        Args:
            by: the columns whose values make a group. (), the default: all tuples are one group.
            window: the length of time windows, which begin at the multiples of `every`.
            every: the time from the beginning of one window to the next; None: `window`. For count windows the number
                of tuples from one result to the next; None: `last`.
            last: the number of tuples of a count window.
            session: the longest pause within a session.
            offset: how long after the multiples of `every` time windows begin; less than `every`. None: no time.
            zone: time windows of whole local days, such as zone="Europe/Berlin" with window="1 day". A window begins at
                the first moment of its local day, so days have 23, 24 or 25 hours. None: UTC.
            **functions: SQL aggregates by the name of their column, such as n="count(*)", mean="avg(seconds)".

        Returns:
            A stream of results.

        Raises:
            QueryError: there is not exactly one kind of window, or an option does not fit it.
            ExpressionError: a function is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"district": "string"})
            >>> counts = calls.aggregate(by=["district"], window="60 seconds", every="10 seconds", n="count(*)")
            >>> given = hr.testing.epoch(calls=[(1, "north"), (55, "north")])
            >>> steps = hr.testing.play(counts, [given, hr.testing.end()])
            >>> steps[0].results["n"].to_pylist()
            [1, 1, 1, 1, 1]
        """
        check_window_words(functions)
        windows = {"window": window, "every": every, "last": last, "session": session, "offset": offset, "zone": zone}
        check_option_words(self.columns, by=by, **windows)
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
        """Return a share of the tuples, chosen by a hash of their values, so that every run chooses the same tuples.

        Args:
            fraction: the share that is kept, more than 0 and at most 1. Tuples kept by a smaller fraction are also kept
                by a larger one.
            by: columns whose values decide. All tuples with the same values are kept, or none of them. A null is a
                value, and the order of the columns makes no difference. None: the whole tuple decides, `ts` included.

        Returns:
            A stream with the same columns.

        Raises:
            QueryError: the fraction is out of range, or a column does not exist.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> calls.sample(0.1, by=["caller"])
            Stream(ts, caller)
            sample 0.1 by caller
              source calls (ts timestamp[us, tz=UTC], caller string)
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
        """Return the first `n` tuples of each group and window in an order, ranked from 1, when the window closes.

        The result has `ts` (as a result of `aggregate`), the columns `by`, `window_start`, `window_end`, `rank`,
        `tuple_ts` and the other columns of the tuples.

        Args:
            n: how many tuples of each group and window, at least 1.
            by: the columns whose values make a group. (): all tuples are one group.
            order: expressions of columns, each with a direction, such as "distance asc, id". Nulls are last in both
                directions, NaN is above the numbers, and the sequence decides between equal tuples.
            window: the length of time windows. Give `window` or `session`.
            every: the time from the beginning of one window to the next. None: `window`.
            session: the longest pause within a session.

        Returns:
            A stream of ranked tuples.

        Raises:
            QueryError: there is not exactly one window, or a column does not exist.
            ExpressionError: the order is refused.

        Examples:
            >>> trips = hr.testing.source("trips", {"rider": "string", "distance": "double"})
            >>> best = trips.top(3, by=["rider"], order="distance desc", window="1 minute")
            >>> given = hr.testing.epoch(trips=[(1, "ann", 2.5), (2, "ann", 7.0)])
            >>> steps = hr.testing.play(best, [given, hr.testing.end()])
            >>> steps[1].expect([{"rank": 1, "distance": 7.0}, {"rank": 2, "distance": 2.5}])
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
        """Return the first tuple of each key, then none of that key until `within` has passed since the tuple that was
        kept.

        Args:
            by: the columns of the key.
            within: how long after a kept tuple others with its key are dropped.

        Returns:
            A stream with the same columns.

        Raises:
            QueryError: a column does not exist, or the duration is invalid.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> first = calls.distinct(by=["caller"], within="10 seconds")
            >>> given = hr.testing.epoch(calls=[(1, "ann"), (5, "ann"), (20, "ann")])
            >>> steps = hr.testing.play(first, [given, hr.testing.end()])
            >>> steps[0].results.num_rows + steps[1].results.num_rows
            2
        """
        grouped = self._grouping(by)
        return Stream(nodes.Distinct(self._node, grouped, parse_duration(within, "within")))

    def limit(self, n: int) -> Stream:
        """Return the first `n` tuples of the sequence; inside `each`, the first `n` of every substream.

        A tuple is emitted when the watermark passes it. `start` takes such a query only with `once=True` or when every
        source is static, because the first tuples of a stream without an end are soon all that it will ever give.

        Args:
            n: how many tuples, at least 1.

        Returns:
            A stream with the same columns.

        Raises:
            QueryError: `n` is less than 1.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> given = hr.testing.epoch(calls=[(5, "bob"), (6, "ann")])
            >>> steps = hr.testing.play(calls.limit(1), [given, hr.testing.end()])
            >>> [row for step in steps for row in step.results["caller"].to_pylist()]
            ['bob']
        """
        return Stream(nodes.Limit(self._node, count_of_tuples(n, "n")))

    def asof(
        self,
        other: Stream,
        by: Names,
        within: Duration | None = None,
        how: Literal["inner", "left"] = "inner",
    ) -> Stream:
        """Return each tuple of this stream (`l`) with the latest tuple of another (`r`) that has its key and is not
        later than it.

        Args:
            other: another stream that has the columns `by` too.
            by: the columns of the key.
            within: how much older the tuple of `r` may be. None: any time.
            how: "inner": pairs alone. "left": tuples of `l` without a match are kept too, with nulls.

        Returns:
            A stream of pairs, with the columns of a join.

        Raises:
            QueryError: a column of `by` is missing on one side, or `how` is neither of the two.

        Examples:
            >>> orders = hr.testing.source("orders", {"item": "string"})
            >>> prices = hr.testing.source("prices", {"item": "string", "price": "int64"})
            >>> priced = orders.asof(prices, by=["item"])
            >>> given = hr.testing.epoch(prices=[(1, "tea", 3), (5, "tea", 4)], orders=[(7, "tea")])
            >>> steps = hr.testing.play(priced, [given, hr.testing.end()])
            >>> [row for step in steps for row in step.results["price"].to_pylist()]
            [4]
        """
        right = _node(other, "asof")
        if how not in ("inner", "left"):
            raise QueryError(f"asof takes how='inner' or how='left'; found {how!r}")
        grouped = self._grouping(by)
        for name in grouped:
            if name not in right.schema.names:
                raise QueryError(
                    f"by names a column {name!r} that the other stream lacks; it has {', '.join(right.schema.names)};"
                    f" rename its column first, such as t.rename({{'old': {name!r}}})"
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
        """Split the stream into substreams, by the hash of columns or by a rule, to run something on each with `each`
        or `apply`.

        Args:
            substreams: how many substreams.
            by: columns; tuples with equal values are in one substream. Give `by` or `route`.
            route: an SQL expression, or a function of a `pyarrow.Table`, that gives whole numbers from 0 to substreams
                - 1. A tuple whose number is null goes to no substream.
            broadcast: a condition, or a function of a `pyarrow.Table` that gives booleans. A tuple for which it is true
                goes to every substream. None: no tuple does.
            version: of the functions; raise it when they mean something else.

        Returns:
            The substreams, a `Substreams`.

        Raises:
            QueryError: the number is out of range, or there is not exactly one of `by` and `route`.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "lane": "int64"})
            >>> calls.split(8, by=["caller"])
            Substreams(ts, caller, lane)
            split into 8 substreams by hash of caller
              source calls (ts timestamp[us, tz=UTC], caller string, lane int64)
            >>> calls.split(4, route="lane % 4").each(lambda lane: lane.filter("caller is not null")).columns
            ['ts', 'caller', 'lane', 'substream']
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
        """Return how this query is cut into subqueries and routed: a plan that can be printed, drawn, saved and
        compared.

        Args:
            slots: tasks per stage.
            strategy: "subquery", or "operator" or "query" to compare.
            figures: what `headrace.calibrate(q)` measured. None: every source is assumed to deliver as much as any
                other.
            costs: microseconds per tuple by subquery, instead of measured ones. None: those of `figures`.

        Returns:
            The plan.

        Raises:
            QueryError: an option is invalid.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> print(calls.aggregate(by=["caller"], window="1 minute", n="count(*)").plan(slots=8))
            strategy subquery, 8 slots, 1 shuffle
            <BLANKLINE>
            subquery-1 <- calls
              router: hash of caller; slots: 8
              aggregate by caller window 1 minute every 1 minute: count(*)
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
        """Return the query and its plan, with what each way of routing costs, as text.

        Args:
            slots: tasks per stage.
            strategy: "subquery", or "operator" or "query" to compare.
            figures: what `headrace.calibrate(q)` measured. None: every source is assumed to deliver as much as any
                other.
            costs: microseconds per tuple by subquery, instead of measured ones. None: those of `figures`.

        Returns:
            The text.

        Raises:
            QueryError: an option is invalid.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> print(calls.aggregate(by=["caller"], window="1 minute", n="count(*)").explain(slots=8))
            aggregate by caller window 1 minute every 1 minute: n = count(*)
              source calls (ts timestamp[us, tz=UTC], caller string)
            ...
        """
        from headrace.showing.explain import explain

        plan, hints = self.plan(slots, strategy, figures, costs), chain_hints(self._node)
        return explain(nodes.outline(self._node), plan, hints=hints)

    def collect(
        self,
        slots: int | None = None,
        strategy: Literal["subquery", "operator", "query"] = "subquery",
        plan: Plan | None = None,
        errors: Literal["stop", "keep"] = "stop",
        late: AnySink | None = None,
    ) -> pa.Table:
        """Run the query on Spark over bounded input, to its end, and return the results.

        Args:
            slots: tasks per stage. None: one per core of the session.
            strategy: "subquery", or "operator" or "query" to compare.
            plan: a plan that `q.plan` made, perhaps edited, whose strategy, slots and shapes are used. None: a new
                plan.
            errors: "stop": a tuple on which an expression fails, or a message that cannot be decoded, ends the run.
                "keep": such a message, or a tuple that fails in `map`, `filter` or `case`, is counted, and sent to the
                `late` sink if one is given; a tuple that fails in a join or an aggregate still ends the run.
            late: a sink for rejected and failed tuples. None: they are only counted.

        Returns:
            All results, a `pyarrow.Table` in no particular order.

        Raises:
            QueryError: a source has no end; use `start` or `peek`.
            DataError: an expression failed on a tuple, with errors="stop".

        Examples:
            >>> times = pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))
            >>> table = pa.table({"ts": times, "caller": ["ann", "bob"], "seconds": [90, 5]})
            >>> calls = hr.stream(spark.createDataFrame(table), time="ts")
            >>> calls.filter("seconds > 60").collect(slots=2)["caller"].to_pylist()
            ['ann']
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
        until_idle: bool = False,
        cache: int | str | None = None,
        splitters: int | None = None,
        physical_window: int | str | None = None,
    ) -> Run:
        """Start a run of this query, continuously on Spark. `headrace.start` starts several results in one run.

        Args:
            sink: where the results go, such as `hr.sinks.parquet("out/")`.
            checkpoint: a folder that belongs to this run alone. A second start with the same folder resumes where the
                first ended.
            epoch: the shortest time between the beginnings of two epochs. "0 seconds": the next epoch begins at once.
            slots: tasks per stage. None: one per core of the session. "auto": few at first, then as many as the load
                needs. The number may differ from one start to the next.
            order: "transparent": exactly the sequential answer. "best-effort": the run does not wait, so joins may miss
                results and count windows give other results.
            late: a sink for late, rejected and failed tuples, with their source and the reason. None: they are only
                counted.
            errors: "stop": a tuple on which an expression fails, or a message that cannot be decoded, ends the run.
                "keep": such a message, or a tuple that fails in `map`, `filter` or `case`, is counted, and sent to the
                `late` sink if one is given; a tuple that fails in a join or an aggregate still ends the run.
            show: whether standard error shows a live line of progress. None: only if standard error is a terminal.
            strategy: "subquery", or "operator" or "query" to compare. It may differ from one start to the next.
            plan: a plan that `q.plan` made, perhaps edited. The run uses its strategy, slots and shapes, and does not
                adapt. None: a new plan.
            policy: how the run adapts: a `headrace.Policy`, a mapping of its fields, or the path of a TOML file with
                them. None: the defaults of `headrace.Policy`.
            most_slots: the largest number of slots that "auto" and `set_slots` may choose. None: four per core of the
                session.
            once: True: take what is there now, epoch after epoch, then end the input: windows and checkpoint are
                closed, `wait` returns. False: run until `stop`.
            until_idle: True: stop, as `stop` does, when all input is processed and no tuple has come for 2 seconds. The
                next start continues. False: run until `stop`.
            cache: bytes that state tables may take on each machine between epochs, such as "4g". 0: every epoch reads
                the tables. None: the environment variable `HEADRACE_CACHE_BYTES`, or 4 GiB without it.
            splitters: tasks that read files and topics. None: one for each slot at first, then as the load needs.
            physical_window: bytes that such a task reads at once, such as "16 MiB". None: 16 MiB at first, then as the
                load needs. If splitters or physical_window is given, the run changes neither. No answer depends on
                them.

        Returns:
            The run, which is in progress.

        Raises:
            QueryError: an option is invalid.
            StateError: the checkpoint belongs to another run or another query, or is damaged.

        Examples:
            >>> q = hr.files(spark, "calls/", time="ts").filter("seconds > 60")
            >>> run = q.start(hr.sinks.parquet("out/"), checkpoint="ckpt/")
            >>> run.stop()

            Read all files that are there, then end:

            >>> run = q.start(hr.sinks.memory(), checkpoint="ckpt-once/", once=True)
            >>> run.wait(timeout=60)
            True

            Read all files that are there, and stop; the next start continues:

            >>> q.start(hr.sinks.memory(), checkpoint="ckpt-nightly/", until_idle=True).wait(timeout=60)
            True
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
            until_idle=until_idle,
            cache=cache,
            splitters=splitters,
            physical_window=physical_window,
        )

    def head(self, n: int = 10, *, slots: int | None = None) -> pa.Table:
        """Return the first `n` tuples of the sequence, in sequence: `limit(n).collect()`. For a stream without an end
        use `peek`.

        Args:
            n: how many tuples, at least 1.
            slots: tasks per stage. None: one per core of the session.

        Returns:
            A `pyarrow.Table` with at most `n` rows.

        Raises:
            QueryError: a source has no end, or `n` is less than 1.

        Examples:
            >>> times = pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))
            >>> table = pa.table({"ts": times, "caller": ["ann", "bob"], "seconds": [90, 5]})
            >>> calls = hr.stream(spark.createDataFrame(table), time="ts")
            >>> calls.head(2)["caller"].to_pylist()
            ['ann', 'bob']
        """
        from headrace.run.first_tuples import head

        return head(self, n, slots)

    def show(self, n: int = 10, *, slots: int | None = None) -> None:
        """Print the first `n` tuples of the sequence as a table.

        Args:
            n: how many tuples, at least 1.
            slots: tasks per stage. None: one per core of the session.

        Raises:
            QueryError: a source has no end, or `n` is less than 1.

        Examples:
            >>> times = pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))
            >>> table = pa.table({"ts": times, "caller": ["ann", "bob"], "seconds": [90, 5]})
            >>> calls = hr.stream(spark.createDataFrame(table), time="ts")
            >>> calls.map("caller", "seconds").show(2)
            ┏━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━┓
            ┃ ts                        ┃ caller ┃ seconds ┃
            ┡━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━┩
            │ 1970-01-01 00:00:01+00:00 │ ann    │ 90      │
            │ 1970-01-01 00:00:02+00:00 │ bob    │ 5       │
            └───────────────────────────┴────────┴─────────┘
        """
        from headrace.showing.preview import print_rows

        print_rows(self.head(n, slots=slots))

    def peek(self, n: int = 10, timeout: Duration = "10 seconds") -> pa.Table:
        """Return the first `n` tuples that arrive, in order of arrival, or fewer if the time is over before.

        It works on every source and needs no checkpoint; nothing is committed. The query may have sources and stateless
        verbs only, such as `map`, `filter`, `case`, `union` and joins with tables.

        Args:
            n: how many tuples, at least 1.
            timeout: how long to wait for them.

        Returns:
            A `pyarrow.Table` with at most `n` rows.

        Raises:
            QueryError: the query has an operator with state.

        Examples:
            >>> calls = hr.files(spark, "calls/", time="ts")
            >>> calls.filter("seconds < 60").peek(1)["caller"].to_pylist()
            ['bob']
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
                raise QueryError("by cannot contain 'ts', the event time; copy it first: s.with_columns(time='ts')")
        if len(set(by)) != len(by):
            raise QueryError(f"by names a column twice; found {list(by)!r}")
        return tuple(by)


answer_habits(Stream)


class Table:
    """Rows without time, which streams are joined with: `s.join(table, on=...)`. Immutable.

    Tables come from `headrace.table`, and in tests from `headrace.testing.table` and `headrace.testing.arrow_table`.

    Examples:
        >>> zones = hr.testing.table("zones", {"number": "string", "zone": "int64"}, [("ann", 1)])
        >>> calls = hr.testing.source("calls", {"caller": "string"})
        >>> calls.join(zones, on="l.caller = r.number").columns
        ['ts', 'l_ts', 'caller', 'number', 'zone']
    """

    def __init__(self, table: nodes.TableDefinition) -> None:
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns: a `pyarrow.Schema`.

        Examples:
            >>> hr.testing.table("zones", {"number": "string", "zone": "int64"}).schema.field("zone").type
            DataType(int64)
        """
        return self._table.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order: a list of texts.

        Examples:
            >>> hr.testing.table("zones", {"number": "string", "zone": "int64"}).columns
            ['number', 'zone']
        """
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
    """A stream that `Stream.split` has split. What its methods describe runs on every substream separately. Immutable.

    `each` and `apply` give a stream again.

    Examples:
        >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
        >>> parts = calls.split(8, by=["caller"]).filter("seconds > 60")
        >>> parts.each(lambda part: part.distinct(by=["caller"], within="1 hour")).columns
        ['ts', 'caller', 'seconds', 'substream']
    """

    def __init__(self, node: nodes.Node, rule: nodes.Rule, body: nodes.Body | None = None) -> None:
        self._node, self._rule = node, rule
        leaf = nodes.Substream(node.schema)
        self._body = body or nodes.Body(leaf, leaf)

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns: a `pyarrow.Schema`.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).schema.field("seconds").type
            DataType(int64)
        """
        return self._body.root.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order: a list of texts.

        Examples:
            >>> hr.testing.source("calls", {"caller": "string"}).split(8, by=["caller"]).columns
            ['ts', 'caller']
        """
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
        """Compute columns as `Stream.map` does. It runs in the splitters, before tuples are sent to their substream.

        Args:
            *keep: names of columns to keep.
            **new: SQL expressions by the name of their column.

        Returns:
            The substreams with the new columns.

        Raises:
            QueryError: a column does not exist, or an expression is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).map("caller", minutes="seconds / 60").columns
            ['ts', 'caller', 'minutes']
        """
        return self._then(Stream(self._body.root).map(*keep, **new))

    def select(self, *keep: str, **new: str) -> Substreams:
        """Keep and compute columns as `Stream.select` does. It runs in the splitters.

        Args:
            *keep: names of columns to keep.
            **new: SQL expressions by the name of their column.

        Returns:
            The substreams with these columns.

        Raises:
            QueryError: a column does not exist, or an expression is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).select("seconds").columns
            ['ts', 'seconds']
        """
        return self._then(Stream(self._body.root).select(*keep, **new))

    def with_columns(self, **new: str) -> Substreams:
        """Add or replace columns as `Stream.with_columns` does. It runs in the splitters.

        Args:
            **new: SQL expressions by the name of their column.

        Returns:
            The substreams with the old and the new columns.

        Raises:
            QueryError: an expression is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).with_columns(minutes="seconds / 60").columns
            ['ts', 'caller', 'seconds', 'minutes']
        """
        return self._then(Stream(self._body.root).with_columns(**new))

    def rename(self, names: Mapping[str, str]) -> Substreams:
        """Rename columns as `Stream.rename` does. It runs in the splitters.

        Args:
            names: new names by old names.

        Returns:
            The substreams with the renamed columns.

        Raises:
            QueryError: a column does not exist, is `ts`, or would have the name of another one.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> calls.split(8, by=["caller"]).rename({"caller": "user"}).columns
            ['ts', 'user']
        """
        return self._then(Stream(self._body.root).rename(names))

    def drop(self, *names: str) -> Substreams:
        """Leave out columns as `Stream.drop` does. It runs in the splitters.

        Args:
            *names: names of columns to leave out.

        Returns:
            The substreams with the remaining columns.

        Raises:
            QueryError: a column does not exist, or is `ts`.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).drop("seconds").columns
            ['ts', 'caller']
        """
        return self._then(Stream(self._body.root).drop(*names))

    def filter(self, predicate: str) -> Substreams:
        """Keep the tuples that satisfy a predicate, as `Stream.filter` does. It runs in the splitters.

        Args:
            predicate: an SQL condition over the columns.

        Returns:
            The substreams with the same columns.

        Raises:
            ExpressionError: the condition is refused.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).filter("seconds > 60")
            Substreams(ts, caller, seconds)
            filter seconds > 60
              split into 8 substreams by hash of caller
                source calls (ts timestamp[us, tz=UTC], caller string, seconds int64)
        """
        return self._then(Stream(self._body.root).filter(predicate))

    def sample(self, fraction: float, by: Names | None = None) -> Substreams:
        """Keep a share of the tuples, as `Stream.sample` does. It runs in the splitters.

        Args:
            fraction: the share that is kept, more than 0 and at most 1.
            by: columns whose values decide. None: the whole tuple decides.

        Returns:
            The substreams with the same columns.

        Raises:
            QueryError: the fraction is out of range, or a column does not exist.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> calls.split(8, by=["caller"]).sample(0.1)
            Substreams(ts, caller)
            sample 0.1 by whole tuple
              split into 8 substreams by hash of caller
                source calls (ts timestamp[us, tz=UTC], caller string)
        """
        return self._then(Stream(self._body.root).sample(fraction, by))

    def unnest(self, column: str, outer: bool = False, index: str | None = None) -> Substreams:
        """Give one tuple for each element of a list or map, as `Stream.unnest` does. It runs in the splitters.

        Args:
            column: a column whose type is a list, a map or a struct.
            outer: True: keep a tuple whose list is null or empty, with null. False, the default: drop it.
            index: the name of one more column with the position of the element. None: no such column.

        Returns:
            The substreams with the elements.

        Raises:
            QueryError: the column does not exist or has another type, or a name appears twice.

        Examples:
            >>> orders = hr.testing.source("orders", {"shop": "string", "items": "string[]"})
            >>> orders.split(8, by=["shop"]).unnest("items", index="i").columns
            ['ts', 'shop', 'items', 'i']
        """
        return self._then(Stream(self._body.root).unnest(column, outer, index))

    def each(self, query: Callable[[Stream], Stream]) -> Stream:
        """Run a query of operators on every substream separately.

        Args:
            query: a function of one stream, the substream, that returns one stream made from it.

        Returns:
            A stream of the results of all substreams, with the further column `substream`.

        Raises:
            QueryError: the function uses another stream or splits again, or its result has a column `substream`.
            QueryTypeError: `query` is no function, or returns something other than a stream.

        Examples:
            >>> calls = hr.testing.source("calls", {"caller": "string", "lane": "int64"})
            >>> counts = calls.split(4, route="lane").each(lambda lane: lane.aggregate(last=2, n="count(*)"))
            >>> counts.columns
            ['ts', 'n', 'substream']
        """
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
        if taken := next((name for name in root.schema.names if name.lower() == "substream"), None):
            raise QueryError(
                "each adds a column 'substream', and there is one already; rename it, such as"
                f" t.rename({{{taken!r}: 'old_substream'}}); found {', '.join(root.schema.names)}"
            )
        return Stream(nodes.Each(self._node, self._rule, nodes.Body(self._body.leaf, root)))

    @overload
    def apply(self, processor: SeveralOutputs) -> dict[str, Stream]: ...
    @overload
    def apply(self, processor: Processor) -> Stream: ...
    def apply(self, processor: Processor | SeveralOutputs) -> Stream | dict[str, Stream]:
        """Run a processor on every substream, each with its own state.

        Args:
            processor: an instance of a class that derives from `headrace.Processor`.

        Returns:
            The stream of its results; if the class has `outputs`, a dict with one stream for each of them.

        Raises:
            QueryError: the class lacks something or has a wrong declaration.
            QueryTypeError: `processor` is not an instance of such a class.

        Examples:
            >>> class Longest(hr.Processor):
            ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("seconds", pa.int64())])
            ...
            ...     def process(self, tuples, state):
            ...         return tuples.select(["ts", "seconds"]).filter(tuples["seconds"].is_valid())
            >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
            >>> calls.split(8, by=["caller"]).apply(Longest()).columns
            ['ts', 'seconds']
        """
        found = declared(processor)
        assert isinstance(processor, Processor)
        node = nodes.Apply(self._node, self._rule, self._body, processor, found)
        streams = {name: Stream(nodes.ProcessorOutput(node, number)) for number, (name, _) in enumerate(found.outputs)}
        return streams if found.several else streams[ONLY]

    def _then(self, stream: Stream) -> Substreams:
        return Substreams(self._node, self._rule, nodes.Body(self._body.leaf, node_of(stream)))


answer_habits(Substreams)


def node_of(stream: Stream, what: str = "a query is") -> nodes.Node:
    """The record behind a handle. what: how an error about another value begins."""
    if not isinstance(stream, Stream):
        raise QueryTypeError(f"{what} a stream; found {describe_argument(stream)}; {_instead(stream)}")
    return stream._node


def label_of(stream: Stream) -> str | None:
    """The name that `named` gave to a stream."""
    return stream._label


def _node(stream: Stream, what: str) -> nodes.Node:
    if not isinstance(stream, Stream):
        raise QueryTypeError(f"{what} takes streams; found {describe_argument(stream)}; {_instead(stream)}")
    return stream._node


def _refuse_a_third(other: Any, on: Any) -> None:
    """Raise if `join` was given several streams, as a list or one after another."""
    if isinstance(other, dict) and any(isinstance(each, Stream | Table) for each in other.values()):
        raise QueryTypeError(
            f"join takes one other stream or table at a time; found {describe_argument(other)}; choose one of its streams,"
            f" such as [{next(iter(other))!r}], or write hr.join({{'a': a, 'b': b, 'c': c}}, on=..., within=...)"
        )
    listed = isinstance(other, list | tuple) and any(isinstance(each, Stream | Table) for each in other)
    if listed or isinstance(on, Stream | Table):
        found = describe_argument(other) if listed else f"on={describe_argument(on)}"
        raise QueryTypeError(
            f"join takes one other stream or table at a time; found {found}; write"
            " a.join(b, ...).join(c, ...), or hr.join({'a': a, 'b': b, 'c': c}, on=..., within=...)"
        )


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
