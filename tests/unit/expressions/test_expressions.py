"""What may stand in a query and what is refused, when, and with which words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.columnar.types import TS_TYPE
from headrace.difference import difference
from headrace.errors import ExpressionError, HeadraceError, QueryError, QueryTypeError
from headrace.expressions import join_predicate
from headrace.expressions.predicates import _SAFE_ON_FLOATS
from headrace.kernels.joins.theta_join import pairing_method
from headrace.reference import reference
from headrace.stream import Stream
from headrace.testing import run_locally, table_stream
from tests.patience import PATIENCE

T = pa.array([0, 1_000_000], pa.int64()).cast(TS_TYPE)
ROWS = pa.table(
    {
        "ts": T,
        "k": pa.array([1, None], pa.int64()),
        "x": pa.array([7, 8], pa.int64()),
        "f": pa.array([1.5, float("nan")]),
        "s": pa.array(["a", None]),
        "b": pa.array([True, None]),
        "l": pa.array([[1, 2], None], pa.list_(pa.int64())),
    }
)
COLUMNS = "ts, k, x, f, s, b, l"


@pytest.fixture(scope="module")
def stream() -> Stream:
    return table_stream(ROWS, name="a")


def source(columns: dict[str, Any], time: str = "ts", **how: Any) -> Stream:
    return table_stream(pa.table(columns), time=time, **how)


# --- scalar expressions ----------------------------------------------------------------------------------------------

ALLOWED = {
    "x + 1": pa.int64(),
    "x / 2": pa.float64(),
    "x // 2": pa.int64(),
    "X": pa.int64(),
    '"x"': pa.int64(),
    "upper(s) || '!'": pa.string(),
    "CASE WHEN x > 1 THEN 'a' ELSE 'b' END": pa.string(),
    "x IN (1, 2, NULL)": pa.bool_(),
    "x BETWEEN 1 AND 2 OR s LIKE 'a%'": pa.bool_(),
    "TRY_CAST(s AS INTEGER)": pa.int32(),
    "x::DOUBLE": pa.float64(),
    "coalesce(k, 0)": pa.int64(),
    "l[1]": pa.int64(),
    "list_transform(l, lambda y: y + x)": pa.list_(pa.int64()),
    "{'a': x}.a": pa.int64(),
    "ts + INTERVAL 1 SECOND": TS_TYPE,
    "date_trunc('hour', ts)": TS_TYPE,
    "timezone('Europe/Berlin', ts)": pa.timestamp("us"),
    "epoch(age(ts, TIMESTAMPTZ '2020-01-01 00:00:00+00'))": pa.float64(),
    "regexp_matches(s, 'a')": pa.bool_(),
    "x -- a comment": pa.int64(),
    "/* a comment */ x": pa.int64(),
    "md5(s)": pa.string(),
    "NOT b": pa.bool_(),
}


@pytest.mark.parametrize("text", ALLOWED)
def test_allowed(stream: Stream, text: str) -> None:
    query = stream.map(y=text)
    assert query.schema.field("y").type == ALLOWED[text]
    assert reference(query).num_rows == 2


REFUSED = {
    "(SELECT 1)": "subquery",
    "(SELECT max(x) FROM a)": "subquery",
    "EXISTS (SELECT 1)": "no subquery",
    "x IN (SELECT 1)": "subquery",
    "x = ANY(l)": "subquery",
    "x UNION SELECT 1": "no subquery",
    "1; DROP TABLE a": "exactly one expression",
    "x; SELECT 1": "exactly one expression",
    "": "exactly one expression",
    "  ": "exactly one expression",
    "x, k": "not an expression",
    "x FROM a": "not an expression",
    "x WHERE b": "not an expression",
    "x +": "not an expression",
    "SELECT x": "refused",
    "DROP TABLE a": "refused",
    "COPY a TO '/tmp/x'": "refused",
    "PRAGMA version": "refused",
    "read_csv('/etc/passwd')": "'read_csv' that does not exist",
    "read_text('/etc/passwd')": "'read_text' that does not exist",
    "glob('*')": "does not exist",
    "unnest(l)": "does not exist",
    "nofunc(x)": "'nofunc' that does not exist",
    "random()": "'random', which is not a function of its arguments alone",
    "now()": "not a function of its arguments alone",
    "today()": "not a function of its arguments alone",
    "get_current_timestamp()": "not a function of its arguments alone",
    "current_timestamp": "current_timestamp",
    "current_date": "current_date",
    "localtimestamp": "localtimestamp",
    "uuid()": "not a function of its arguments alone",
    "uuidv7()": "not a function of its arguments alone",
    "hash(x)": "not a function of its arguments alone",
    "version()": "not a function of its arguments alone",
    "current_setting('TimeZone')": "not a function of its arguments alone",
    "current_user": "current_user",
    "getenv('HOME')": "getenv",
    "getvariable('a')": "not a function of its arguments alone",
    "pg_sleep(1)": "not a function of its arguments alone",
    "nextval('q')": "not a function of its arguments alone",
    "txid_current()": "not a function of its arguments alone",
    "setseed(0.5)": "not a function of its arguments alone",
    "json_serialize_plan('select now()', optimize := true)": "not a function of its arguments alone",
    "json_serialize_plan(s)": "not a function of its arguments alone",
    "json_serialize_sql('select 1')": "not a function of its arguments alone",
    "json_deserialize_sql('{}')": "not a function of its arguments alone",
    "alias(x)": "not a function of its arguments alone",
    "list_aggregate(l, 'approx_count_distinct')": "approximate",
    "list_approx_count_distinct(l)": "approximate",
    "list_aggr(l, s)": "needs the name of a function",
    "array_aggregate(l, 'nosuch')": "'nosuch' that does not exist",
    "md5_number(s)": "UHUGEINT, which streams do not carry",
    "'infinity'::timestamp_s": "TIMESTAMP_S, which streams do not carry",
    "get_type(x)": "which streams do not carry",
    "row()": "which streams do not carry",
    "[" * 70 + "x" + "]" * 70: "which streams do not carry",
    "x::bit": "BIT, which streams do not carry",
    "[x::bit]": "BIT[], which streams do not carry",
    "'12:00:00+01'::timetz": "which streams do not carry",
    "ts::timestamp_ns": "TIMESTAMP_NS, which streams do not carry",
    "write_log('a')": "not a function of its arguments alone",
    "error('a')": "refused",
    "epoch(age(ts))": "'age' with one argument, which depends on today's date",
    "strftime(now(), '%Y')": "'now', which is not a function of its arguments alone",
    "nosuch": f"unknown column 'nosuch'; there are {COLUMNS}",
    "x + nosuch": f"unknown column 'nosuch'; there are {COLUMNS}",
    "__seq": f"unknown column '__seq'; there are {COLUMNS}",
    "a.x": f"unknown column 'a'; there are {COLUMNS}",
    "sum(x)": "aggregate function 'sum'; aggregates belong in .aggregate",
    "count(*)": "aggregates belong in .aggregate",
    "avg(x) + 1": "aggregates belong in .aggregate",
    "row_number() OVER ()": "window function",
    "sum(x) OVER (ORDER BY ts)": "window function",
    "?": "parameter",
    "$1": "parameter",
    "$name": "parameter",
    ":name": "parameter",
    "x AS y": "alias",
    "x y": "alias",
    "*": "a star",
    "COLUMNS(*)": "a star",
    "#1": "positional",
    "DEFAULT": "DEFAULT",
    "s + 1": "does not fit the stream",
    "upper(x, k)": "number of provided arguments (2)",
    "upper(l)": "does not fit the stream",
    "l + 1": "does not fit the stream",
    "CAST(x AS nosuchtype)": "nosuchtype",
    "s.a": "does not fit the stream",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(stream: Stream, text: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(REFUSED[text])) as caught:
        stream.map(y=text)
    assert "y = " in str(caught.value)  # says which expression it is about


def test_the_message_names_columns_and_types(stream: Stream) -> None:
    with pytest.raises(ExpressionError, match=r"columns: ts timestamp\[us, tz=UTC\], k int64, x int64"):
        stream.map(y="s + 1")


@pytest.mark.parametrize("text", ["INTERVAL 1 DAY", "NULL", "ts - ts", "union_value(a := 1)"])
def test_values_that_streams_do_not_carry(stream: Stream, text: str) -> None:
    with pytest.raises(QueryTypeError, match=r"column 'y' has type .*, which streams do not carry"):
        stream.map(y=text)


@pytest.mark.parametrize("text", ["x", "x + 1", "s", "f * 2"])
def test_a_predicate_must_be_true_or_false(stream: Stream, text: str) -> None:
    for build in (stream.filter, lambda t: stream.case("b", t)):
        with pytest.raises(ExpressionError, match=r"must be true or false; its type is .*; compare it with something"):
            build(text)


@pytest.mark.parametrize("text", ["s > 1", "s + 1 > 2"])
def test_a_predicate_must_fit_the_types(stream: Stream, text: str) -> None:
    with pytest.raises(ExpressionError, match="does not fit the stream"):
        stream.filter(text)


# --- join predicates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("k = 1", "names 'k'; in a join write l.column or r.column, here l.k or r.k"),
        ("a.k = r.k", "names 'a.k'; in a join write l.column or r.column, here l.k or r.k"),
        ("l = r", "in a join write l.column or r.column"),
        ("l.nosuch = r.k", f"unknown column 'nosuch' of l; there are {COLUMNS}"),
        ("l.k", "must be true or false"),
        ("sum(l.x) > 1", "aggregates belong in .aggregate"),
        ("l.k = r.k and random() < 0.5", "not a function of its arguments alone"),
        ("l.k IN (SELECT 1)", "subquery"),
        ("l.l + r.x > 1", "does not fit the stream"),
    ],
)
def test_refused_in_a_join(stream: Stream, on: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(message)):
        stream.join(stream, on=on, within="1 second")


@pytest.mark.parametrize(
    ("on", "keys"),
    [
        ("l.k = r.x", [("k", "x")]),
        ("r.x = l.k", [("k", "x")]),
        ("L.K = R.X", [("k", "x")]),
        ("l.k = r.k and l.s = r.s", [("k", "k"), ("s", "s")]),
        ("(l.k = r.k and l.x < r.x) and l.f = r.f", [("k", "k"), ("f", "f")]),
        ("l.l = r.l", [("l", "l")]),
        ("l.k = r.k or l.x = r.x", []),
        ("l.k = r.f", []),  # whole numbers and doubles do not hash alike
        ("l.k + 1 = r.k", []),
        ("l.k = l.x", []),
        ("l.k = 1", []),
        ("l.k is not distinct from r.k", []),  # null meets null: a key would drop it
        ("NOT (l.k = r.k)", []),
        ("l.k <= r.k", []),
    ],
)
def test_the_equalities_that_routing_may_use(on: str, keys: list[tuple[str, str]]) -> None:
    found = join_predicate(on, ROWS.schema, ROWS.schema)
    assert [(key.left, key.right) for key in found.keys] == keys


@pytest.mark.parametrize(
    ("on", "safe"),
    [
        ("l.k = r.k", True),
        ("l.x <= r.x and r.f < l.f", True),
        ("l.f * 2 < r.f + 1", True),
        ("l.x + r.x > 1", False),  # can overflow
        ("CAST(l.s AS INTEGER) = r.k", False),
        ("l.s = r.s", True),
        ("l.k = r.s", False),  # text is cast to a number
        ("l.x // r.x > 1", False),
        ("l.s = 5", False),  # and so beside a number
        ("l.s = true", False),
        ("l.b = true and not r.b", True),
        ("l.b = 1", False),
        ("not l.s", False),
        ("l.k = r.k and l.s", False),
        ("l.k = r.k and l.x", True),
        ("l.x < 0.5", True),
        ("l.x < 0.12345678901234567890", False),  # no decimal has room for both
        ("l.f < 0.12345678901234567890", True),
        ("l.l is null", True),
        ("2 * asin(sqrt(pow(sin(radians(l.f - r.f) / 2), 2))) <= r.f", True),  # NaN at worst
        ("sqrt(l.x - r.x) < 1", False),  # the difference of whole numbers
        ("2 * 6371 * asin(sqrt(l.f - r.f)) < 1 / 2", True),  # numbers alone are computed beforehand
        ("l.f * pi() / 180 < round(1.26, 1) * r.f", True),
        ("l.x < 2 * 6371", True),
        ("l.f < least(1.0, r.f) and greatest(l.f, -1.0) < r.f", True),
        ("l.f < 5 // 0", False),  # a number that cannot be computed
        ("l.f < 9223372036854775807 * 2", False),
        ("l.f * (0 / 0) < r.f", False),  # nor is NaN a number
        ("l.x * (2 * 3) < r.x", False),  # whole numbers can overflow beside a constant
        ("l.x < 1.0123456789 * 1.0123456789", False),  # 20 decimals
    ],
)
def test_what_can_fail_is_not_evaluated_outside_the_window(on: str, safe: bool) -> None:
    assert join_predicate(on, ROWS.schema, ROWS.schema).safe is safe


def test_the_part_that_rules_out_an_index_is_named() -> None:
    found = join_predicate("abs(l.f - r.f) < 2 * 5 and l.x % 3 = r.x", ROWS.schema, ROWS.schema)
    assert found.near is None and found.near_if_safe is not None and found.near_if_safe.width == 10.0
    assert pairing_method(found, in_time=True).endswith("; no index, because (l.x % 3) may fail")
    found = join_predicate("abs(l.f - r.f) < 2 * 5 and l.f / 3 = r.f", ROWS.schema, ROWS.schema)
    assert pairing_method(found, in_time=True).startswith("index, looked up along")


@pytest.mark.parametrize("name", sorted(name for name in _SAFE_ON_FLOATS if name.isidentifier()))
def test_what_is_taken_for_safe_fails_on_no_number(name: str) -> None:
    odd = [
        float(text)
        for text in [
            "nan",
            "inf",
            "-inf",
            "0",
            "-0.0",
            "1",
            "-1",
            "2",
            "-2",
            "0.5",
            "-0.5",
            "1e308",
            "-1e308",
            "5e-324",
            "1e-9",
            "709.9",
            "-746",
        ]
    ]
    pairs = pa.table({"x": [x for x in odd for _ in odd], "y": odd * len(odd)})
    given = "x, y" if name in ("pow", "power", "atan2", "least", "greatest") else "x"
    assert duck.run_select(f"SELECT {name}({given}) AS found FROM pairs", {"pairs": pairs}).num_rows == len(odd) ** 2


@pytest.mark.parametrize(("on", "pushed"), [("l.k = r.k and l.x > 1", 1), ("l.k = r.k and l.x", 0), ("l.b and r.b", 2)])
def test_only_what_a_filter_takes_is_pushed_below_a_join(on: str, pushed: int) -> None:
    assert len(join_predicate(on, ROWS.schema, ROWS.schema).one_sided) == pushed


# --- aggregates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "no aggregate function"),
        ("1", "no aggregate function"),
        ("x + sum(x)", "uses 'x' outside an aggregate function; add it to by=[...] or aggregate it"),
        ("approx_count_distinct(x)", "approximate"),
        ("approx_quantile(f, 0.5)", "approximate"),
        ("reservoir_quantile(f, 0.5)", "approximate"),
        ("arg_max(s, x, 2)", "several values"),
        ("max_by(s, x, 2)", "several values"),
        ("max(x, k)", "the second argument of max must be the same for all tuples; use a constant"),
        ("min(s, x + 1)", "the second argument of min"),
        ("histogram(x, l)", "the second argument of histogram"),
        ("histogram_exact(x, [k])", "the second argument of histogram_exact"),
        ("max(s COLLATE nocase)", "may be equal under a collation"),
        ("mode() WITHIN GROUP (ORDER BY s)", "ORDER BY"),
        ("bit_count(bitstring_agg(x))", "bitstring_agg needs the smallest and the largest value"),
        ("max(md5_number(s))", "UHUGEINT, which streams do not carry"),
        ("sum(sum(x))", "cannot be nested"),
        ("sum(x) OVER ()", "window function"),
        ("sum(nosuch)", f"unknown column 'nosuch'; there are {COLUMNS}"),
        ("sum(s)", "does not fit the stream"),
        ("list(x) FILTER (WHERE random() < 0.5)", "not a function of its arguments alone"),
        ("max(now())", "not a function of its arguments alone"),
        ("nofunc(x)", "does not exist"),
    ],
)
def test_refused_in_an_aggregate(stream: Stream, text: str, message: str) -> None:
    for window in ({"window": "1 second"}, {"last": 2}):
        with pytest.raises(ExpressionError, match=re.escape(message)):
            stream.aggregate(by=["k"], y=text, **window)


@pytest.mark.parametrize(
    ("text", "partial"),
    [
        ("count(*)", True),
        ("sum(x) / count(*)", True),
        ("avg(x) FILTER (WHERE b)", True),
        ("max(s)", True),
        ("bool_and(b)", True),
        ("k + sum(x)", True),
        ("coalesce(sum(x), 0)", True),
        ("median(x)", False),
        ("count(DISTINCT x)", False),
        ("sum(x) + median(x)", False),
        ("list(x)", False),
        ("avg(ts)", False),
        ("max(x, 2)", False),
        ("max(x::hugeint)", False),
        ("sum(x::hugeint)", False),
        ("max(x::bit)::varchar", False),
        ("{'n': count(*), 'm': max(x)}", True),
    ],
)
def test_which_aggregates_are_kept_as_partials(stream: Stream, text: str, partial: bool) -> None:
    from headrace.expressions import parse_aggregate

    assert (parse_aggregate(text, stream.schema, ("k",), "y").partials is not None) is partial


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("list(x)", True),
        ("mode(s)", True),
        ("arg_max(s, x)", True),
        ("first(x)", True),
        ("string_agg(s, ',')", True),
        ("sum(x)", False),
        ("median(x)", False),
        ("count(DISTINCT s)", False),
    ],
)
def test_which_aggregates_depend_on_order(stream: Stream, text: str, ordered: bool) -> None:
    from headrace.expressions import parse_aggregate

    assert parse_aggregate(text, stream.schema, (), "y").ordered is ordered


# --- everything else that is known when a query is built -------------------------------------------------------------

Build = Callable[[Stream], object]
TWINS = {"\u00e9": "x", "e\u0301": "k"}

WRONG: dict[str, tuple[Build, type[HeadraceError], str]] = {
    "outer join over count windows": (
        lambda s: s.join(s, on="true", last=5, how="left"),
        QueryError,
        "over count windows is an inner join; found how='left'",
    ),
    "join of an unknown kind": (
        lambda s: s.join(s, on="true", within="1 second", how="outer"),
        QueryError,
        "join takes how='inner' or 'left' or 'right' or 'full'; found 'outer'",
    ),
    "join without window": (lambda s: s.join(s, on="true"), QueryError, "exactly one window"),
    "join with two windows": (
        lambda s: s.join(s, on="true", within="1 second", last=1),
        QueryError,
        "exactly one window",
    ),
    "aggregate without window": (lambda s: s.aggregate(by=["k"], n="count(*)"), QueryError, "exactly one window"),
    "aggregate with two windows": (
        lambda s: s.aggregate(window="1 day", last=2, n="count(*)"),
        QueryError,
        "exactly one",
    ),
    "window zero": (
        lambda s: s.aggregate(window="0 seconds", n="count(*)"),
        QueryError,
        "more than zero; found '0 seconds'",
    ),
    "window negative": (
        lambda s: s.join(s, on="true", within="-1 second"),
        QueryError,
        "zero or more; found '-1 second'",
    ),
    "both windows zero": (
        lambda s: s.join(s, on="true", within=("0 seconds", "0 seconds")),
        QueryError,
        "more than zero on at least one side; found ('0 seconds', '0 seconds')",
    ),
    "months": (
        lambda s: s.aggregate(window="1 month", n="count(*)"),
        QueryError,
        "length varies; found '1 month'; use days",
    ),
    "years": (lambda s: s.aggregate(window="2 years", n="count(*)"), QueryError, "length varies"),
    "unknown unit": (lambda s: s.aggregate(window="2 parsecs", n="count(*)"), QueryError, "unknown unit 'parsecs'"),
    "no unit": (lambda s: s.aggregate(window="2", n="count(*)"), QueryError, "is not a duration; found '2'"),
    "window as a number": (
        lambda s: s.aggregate(window=60, n="count(*)"),
        QueryTypeError,
        "write it like '60 seconds'",
    ),
    "too fine": (
        lambda s: s.aggregate(window="0.0001 milliseconds", n="count(*)"),
        QueryError,
        "finer than a microsecond",
    ),
    "slide longer than window": (
        lambda s: s.aggregate(window="1 second", every="2 seconds", n="count(*)"),
        QueryError,
        "every ('2 seconds') is longer than the window ('1 second')",
    ),
    "count slide longer": (lambda s: s.aggregate(last=2, every=3, n="count(*)"), QueryError, "longer than the window"),
    "last zero": (lambda s: s.join(s, on="true", last=0), QueryError, "last must be at least 1; found 0"),
    "last fractional": (lambda s: s.join(s, on="true", last=1.5), QueryTypeError, "whole number of tuples; found 1.5"),
    "last true": (lambda s: s.join(s, on="true", last=True), QueryTypeError, "whole number of tuples; found True"),
    "last of three": (lambda s: s.join(s, on="true", last=(1, 2, 3)), QueryError, "one value or a pair"),
    "every as a time": (lambda s: s.aggregate(last=2, every="1 second", n="count(*)"), QueryTypeError, "whole number"),
    "aggregate without function": (lambda s: s.aggregate(by=["k"], window="1 second"), QueryError, "has no function"),
    "by a number": (
        lambda s: s.aggregate(by=3, window="1 second", n="count(*)"),
        QueryTypeError,
        "such as by='caller'",
    ),
    "by ts": (lambda s: s.aggregate(by=["ts"], window="1 second", n="count(*)"), QueryError, "by cannot contain 'ts'"),
    "by twice": (lambda s: s.aggregate(by=["k", "k"], window="1 second", n="count(*)"), QueryError, "column twice"),
    "by unknown": (
        lambda s: s.aggregate(by=["q"], window="1 second", n="count(*)"),
        QueryError,
        f"by names an unknown column 'q'; there are {COLUMNS}",
    ),
    "result called like its key": (
        lambda s: s.aggregate(by=["k"], window="1 day", k="count(*)"),
        QueryError,
        "columns 'k' and 'k' have the same name; rename one of them",
    ),
    "result called like its key in capitals": (
        lambda s: s.aggregate(by=["k"], window="1 day", K="count(*)"),
        QueryError,
        "'k' and 'K' differ only in case",
    ),
    "result called window_start": (
        lambda s: s.aggregate(window="1 day", window_start="count(*)"),
        QueryError,
        "aggregate cannot make a column 'window_start': it is the start of the window, which every result",
    ),
    "result of a session called Window_End": (
        lambda s: s.aggregate(session="1 day", Window_End="count(*)"),
        QueryError,
        "cannot make a column 'Window_End': 'window_end', from which it differs only in case, is the end of the window",
    ),
    "key called window_end": (
        lambda s: s.map(window_end="k").aggregate(by=["window_end"], window="1 day", n="count(*)"),
        QueryError,
        "it is the end of the window, which every result over time windows or sessions has; choose another name",
    ),
    **{
        f"result called ts over {window}": (
            lambda s, window=window: s.aggregate(by=["k"], ts="count(*)", **window),
            QueryError,
            "aggregate cannot make a column 'ts': it is the event time, which every result has; choose another name",
        )
        for window in ({"window": "1 day"}, {"session": "1 day"}, {"last": 3})
    },
    "result called TS": (
        lambda s: s.aggregate(last=3, TS="count(*)"),
        QueryError,
        "cannot make a column 'TS': 'ts', from which it differs only in case, is the event time, which every result has",
    ),
    "result called ts on substreams": (
        lambda s: s.split(2, by=["k"]).each(lambda t: t.aggregate(last=3, ts="count(*)")),
        QueryError,
        "it is the event time",
    ),
    "ts redefined": (
        lambda s: s.map(ts="x"),
        QueryError,
        "map cannot make a column 'ts': it is the event time, which every result has; choose another name",
    ),
    "ts in capitals": (lambda s: s.map(TS="x"), QueryError, "'ts', from which it differs only in case, is the event"),
    "ts redefined on substreams": (lambda s: s.split(2, by=["k"]).map(ts="x"), QueryError, "it is the event time"),
    "name twice": (lambda s: s.map("x", x="k"), QueryError, "names a column twice; found x, x"),
    "kept twice": (lambda s: s.map("x", "x"), QueryError, "names a column twice"),
    "unknown kept": (lambda s: s.map("q"), QueryError, f"unknown column 'q'; there are {COLUMNS}"),
    "not text": (lambda s: s.map(3), QueryTypeError, "column names as text; found 3"),
    "expression not text": (lambda s: s.map(y=3), ExpressionError, "must be an expression as text; found 3"),
    "case twins": (lambda s: s.map("x", X="k"), QueryError, "'x' and 'X' differ only in case"),
    "Unicode twins": (
        lambda s: s.map(**TWINS),
        QueryError,
        "Unicode form; rename one",
    ),
    "reserved name": (lambda s: s.map(__y="x"), QueryError, "begin with '__' are reserved; found '__y'"),
    "empty name": (lambda s: s.map(**{"": "x"}), QueryError, "must not be empty"),
    "name with a space at its end": (lambda s: s.map(**{"a ": "x"}), QueryError, "begin or end with a space"),
    "name of 10,000 characters": (lambda s: s.map(**{"a" * 10_000: "x"}), QueryError, "10000 characters; at most 255"),
    "unprintable name": (lambda s: s.map(**{"a\0b": "x"}), QueryError, "has an unprintable character"),
    "union of other schemas": (lambda s: s.union(s.map("x")), QueryTypeError, "streams with the same schema"),
    "union of nothing": (lambda s: s.union(), QueryError, "at least one other stream"),
    "union with a number": (lambda s: s.union(3), QueryTypeError, "union takes streams; found 3"),
    "join with a number": (lambda s: s.join(3, on="true", within="1 second"), QueryTypeError, "join takes streams"),
    "case without predicate": (lambda s: s.case(), QueryError, "at least one predicate"),
    "no time column": (lambda s: source({"x": [1]}), QueryError, "no time column 'ts'; the source has x"),
    "time is a number": (lambda s: source({"ts": [1]}), QueryTypeError, "must be a timestamp; found int64"),
    "time in nanoseconds": (
        lambda s: source({"ts": pa.array([1], pa.timestamp("ns"))}),
        QueryTypeError,
        "has nanoseconds, but streams have microseconds",
    ),
    "another ts": (
        lambda s: source({"t": T, "ts": [1, 2]}, "t"),
        QueryError,
        "a column 'ts' beside its time column 't'",
    ),
    "another ts in capitals": (
        lambda s: source({"t": T, "Ts": [1, 2]}, "t"),
        QueryError,
        "a column 'Ts' beside its time column 't'; 'ts' is headrace's name of the event time; rename the column first",
    ),
    "source with case twins": (
        lambda s: source({"ts": T, "a": [1, 2], "A": [1, 2]}),
        QueryError,
        "differ only in case",
    ),
    "source with a reserved name": (lambda s: source({"ts": T, "__a": [1, 2]}), QueryError, "are reserved"),
    "source with durations": (
        lambda s: source({"ts": T, "a": pa.array([1, 2], pa.duration("us"))}),
        QueryTypeError,
        "column 'a' has type duration[us]",
    ),
    "negative lateness": (
        lambda s: source({"ts": T}, lateness="-1 second"),
        QueryError,
        "lateness must be zero or more",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_when_built(stream: Stream, what: str) -> None:
    build, kind, message = WRONG[what]
    with pytest.raises(kind, match=re.escape(message)) as caught:
        build(stream)
    assert isinstance(caught.value, HeadraceError) and isinstance(caught.value, ValueError)
    if kind is QueryTypeError:
        assert isinstance(caught.value, TypeError)


def test_a_slide_that_does_not_divide_the_window_is_allowed(stream: Stream) -> None:
    assert stream.aggregate(window="10 seconds", every="3 seconds", n="count(*)").columns[-1] == "n"


# --- naughty identifiers that must work ------------------------------------------------------------------------------

NAUGHTY = ["a.b", 'a"b', "a'b", "a b", "`a`", "ünï", "日本語", "\U0001f600", "select", "from", "order", "table", "null"]
NAUGHTY += ["true", "l", "r", "c", "keep", "1a", "%s", "{x}", "$1", "?", "a;b", "--a", "/*a*/", "a\\b", "rowid", "x,y"]
NAUGHTY += ["count(*)", "*", "_source", "current_date", "tuples", "l.x", "r_ts", "window", "__"[:1] + "a", "#1", "(a)"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize(
    "name", [*NAUGHTY[::5], *(pytest.param(n, marks=pytest.mark.thorough) for n in NAUGHTY if n not in NAUGHTY[::5])]
)
def test_naughty_identifiers(name: str) -> None:
    rows = pa.table(
        {
            "ts": pa.array(range(6), pa.int64()).cast(TS_TYPE),
            name: pa.array([1, 2, None, 1, 2, 3], pa.int64()),
            "v": pa.array([5, 4, 3, 2, 1, 0], pa.int64()),
        }
    )
    s, q = table_stream(rows, name="a"), quoted(name)
    for query in (
        s.map(name, y=f"{q} + 1").filter(f"{q} > 1 OR {q} IS NULL"),
        s.map(**{name: f"{q} * 2"}).case(f"{q} = 2")[1],
        s.aggregate(by=[name], window="1 day", n="count(*)", **{name + "2": f"sum({q})"}),
        s.aggregate(by=[name], last=2, m=f"list({q} ORDER BY v)"),
        s.join(s, on=f"l.{q} = r.{q}", within="1 day"),
        s.join(s, on=f"l.{q} < r.{q} + 1", last=3),
    ):
        with tempfile.TemporaryDirectory() as folder:
            found = run_locally(query, Path(folder) / "state", slots=2)
        assert difference(reference(query), found) is None
        assert found.schema.equals(query.schema)


# --- what a gate must not let in, and what it must not do itself ----------------------------------------------------


@pytest.mark.thorough
def test_the_functions_that_may_be_used_are_known() -> None:
    """A new version of DuckDB brings new functions: somebody must look at each before it may be used."""
    from headrace.expressions.gates import NOT_REPEATABLE, _repeatable, allowed_functions

    known = Path(__file__).with_name("functions.txt").read_text().split("\n")
    allowed = {
        name
        for name in allowed_functions()
        if name not in NOT_REPEATABLE and not name.startswith(("__internal", "collate_", "icu_")) and _repeatable(name)
    }
    assert sorted(allowed) == [name for name in known if name]


BUILDING = """
import resource, time
import pyarrow as pa
from headrace.testing import table_stream
table = pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC")), "x": [1]})
stream = table_stream(table, name="a")
resource.setrlimit(resource.RLIMIT_DATA, (2_000_000_000, resource.RLIM_INFINITY))
stream.map(n="len(range(1000000000))")
stream.filter("len(repeat('abc', 1000000000)) > x")
stream.aggregate(window="1 second", n="sum(x) + len(range(1000000000))")
stream.join(stream, on="l.x = r.x and len(range(1000000000)) > 1", within="1 second")
print("built")
"""


def test_constants_are_not_computed_while_a_query_is_built() -> None:
    done = subprocess.run([sys.executable, "-c", BUILDING], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "built\n", done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "(" * 200 + "x" + ")" * 200,
        " + ".join(["x"] * 500),
        " or ".join(f"x = {n}" for n in range(1_000)),
        "case when x = 1 then 1 else " * 150 + "0" + " end" * 150,
    ],
)
def test_long_and_deep_expressions(stream: Stream, text: str) -> None:
    before = sys.getrecursionlimit()
    assert "y" in stream.map(y=text).columns
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("text", ["(" * 3_000 + "x" + ")" * 3_000, " + ".join(["x"] * 3_000), "-" * 5_000 + "x"])
def test_expressions_that_are_too_deep(stream: Stream, text: str) -> None:
    for build in (stream.filter, lambda t: stream.map(y=t), lambda t: stream.aggregate(last=2, y=f"max({t})")):
        with pytest.raises(ExpressionError):
            build(text)


@pytest.mark.parametrize("by", [None, 5, {"k"}])
def test_by_must_be_a_column_or_a_list(stream: Stream, by: Any) -> None:
    with pytest.raises(QueryTypeError, match="by must be a column or a list of columns"):
        stream.aggregate(by=by, last=2, n="count(*)")


def test_fields_of_a_struct_that_differ_in_case_only() -> None:
    with pytest.raises(QueryError, match="'c' is a struct whose fields 'a' and 'A' differ only in case"):
        source({"ts": pa.array([1], pa.timestamp("us")), "c": pa.array([{"a": 1, "A": 2}])})


@pytest.mark.parametrize(
    "text",
    [
        "json_extract_string('{\"a\": 1}', '$.a')",
        "('{\"a\": 1}'::json) ->> 'a'",
        "json_object('a', x)::varchar",
        "ts AT TIME ZONE 'UTC'",
        "[e + 1 for e in l]",
        "list_transform(l, lambda V: v + x)",
        "md5_number(s)::varchar",
    ],
)
def test_usual_ways_to_json_zones_and_lists(stream: Stream, text: str, tmp_path: Path) -> None:
    query = stream.map(y=text)
    assert difference(reference(query), run_locally(query, tmp_path / "state", slots=2)) is None


def test_a_struct_without_a_field_is_not_carried(stream: Stream) -> None:
    with pytest.raises(QueryTypeError, match="which streams do not carry"):
        stream.map(y="struct_pack()")


SMALL = """
import os, pyarrow as pa
from headrace.columnar import duck
from headrace.errors import HeadraceError
duck.guard_memory()
try:
    print(duck.run_select("SELECT a + 1 AS b FROM t", {"t": pa.table({"a": [1]})}).column(0)[0])
except HeadraceError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("-1", "2"),
        ("none", "2"),
        ("500MB", "2"),
        ("lots", "HEADRACE_TASK_MEMORY is 'lots'"),
        ("5 apples", "not a valid size"),
    ],
)
def test_limits_of_memory_as_users_write_them(limit: str, words: str) -> None:
    given = {**os.environ, "HEADRACE_TASK_MEMORY": limit}
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, timeout=PATIENCE, env=given)
    assert words in done.stdout, done.stderr
