"""`select`, `with_columns`, `rename` and `drop`: against plain Python over rows, and what they refuse; `by="k"` everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import QueryError, QueryTypeError
from headrace.query import nodes
from headrace.reference import reference
from headrace.stream import Stream, node_of
from headrace.testing import run_locally, table_stream

from . import processing
from .driving import in_random_epochs
from .strategies import make_case, make_table
from .test_local import check, same, seeds


def source(table: pa.Table | None = None) -> Stream:
    return table_stream(make_table(1, 50).select(["k", "ts", "x", "b"]) if table is None else table, name="a")


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=repr)


EXPECTED = {
    "select": (lambda s: s.select("x", "ts", y="k * 2"), lambda r: {"x": r["x"], "y": twice(r["k"])}),
    "select nothing": (lambda s: s.select(), lambda r: {}),
    "with_columns": (
        lambda s: s.with_columns(y="x + 1", x="k", k="x"),
        lambda r: {"k": r["x"], "x": r["k"], "b": r["b"], "y": r["x"] + 1},
    ),
    "with_columns of nothing": (lambda s: s.with_columns(), lambda r: {"k": r["k"], "x": r["x"], "b": r["b"]}),
    "rename": (lambda s: s.rename({"k": "x", "x": "k"}), lambda r: {"x": r["k"], "k": r["x"], "b": r["b"]}),
    "rename to itself": (lambda s: s.rename({"k": "k"}), lambda r: {"k": r["k"], "x": r["x"], "b": r["b"]}),
    "drop": (lambda s: s.drop("x", "x"), lambda r: {"k": r["k"], "b": r["b"]}),
    "drop nothing": (lambda s: s.drop(), lambda r: {"k": r["k"], "x": r["x"], "b": r["b"]}),
}


def twice(value: int | None) -> int | None:
    return None if value is None else 2 * value


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_are_those_of_plain_python(name: str, tmp_path: Path) -> None:
    act, expected = EXPECTED[name]
    table = make_table(1, 50).select(["k", "ts", "x", "b"])
    query = act(source(table))
    wanted = [{"ts": row["ts"], **expected(row)} for row in table.to_pylist()]
    assert query.columns == list(wanted[0])
    found = run_locally(query, tmp_path / "state")
    assert rows(found) == rows(reference(query)) == sorted(wanted, key=repr)


@seeds(24)
def test_among_other_operators(seed: int) -> None:
    case = make_case(f"columns-{seed}", ("columns", "columns", "time_join", "time_aggregate", "distinct", "filter"))
    check(case, seed, change_slots=0.5)


@pytest.mark.parametrize("how", ["each", "apply"])
def test_on_substreams(how: str, tmp_path: Path) -> None:
    table = make_table(3, 60)
    split = table_stream(table, name="a").split(3, by="k").with_columns(y="x + 1").rename({"k": "key"}).drop("b", "s")
    assert split.columns == ["ts", "key", "x", "f", "y"]
    split = split.select("key", "y")
    if how == "each":
        query = split.each(lambda t: t.with_columns(z="y * 2").drop("y"))
        assert query.columns == ["ts", "key", "z", "substream"]
    else:
        query = split.apply(processing.SINGLE[0]("key", pa.int64(), "y"))
    same(reference(query), in_random_epochs(query, table, tmp_path / "state", 1))


REFUSED = {
    "select ts": (lambda s: s.select(ts="x"), QueryError, "select cannot make a column 'ts': it is the event time"),
    "select twice": (lambda s: s.select("x", x="k"), QueryError, "select names a column twice; found x, x"),
    "select an expression": (lambda s: s.select("x + 1"), QueryError, "select names an unknown column 'x + 1'"),
    "select *": (lambda s: s.select("*"), QueryError, "select takes no '*'; use s.with_columns(new='a + 1')"),
    "map *": (lambda s: s.map("*"), QueryError, "map takes no '*'; use s.with_columns(new='a + 1')"),
    "with ts": (lambda s: s.with_columns(ts="ts"), QueryError, "with_columns cannot make a column 'ts'"),
    "with Ts": (lambda s: s.with_columns(Ts="x"), QueryError, "differs only in case"),
    "with X": (lambda s: s.with_columns(X="k"), QueryError, "columns 'x' and 'X' differ only in case"),
    "with the new": (lambda s: s.with_columns(y="x", z="y"), QueryError, "unknown column 'y'"),
    "with a number": (lambda s: s.with_columns(y=3), QueryError, "y must be an expression as text; found 3"),
    "rename ts": (lambda s: s.rename({"ts": "t"}), QueryError, "rename cannot rename 'ts': it is the event time"),
    "rename to ts": (lambda s: s.rename({"x": "ts"}), QueryError, "rename cannot make a column 'ts'"),
    "rename to another": (lambda s: s.rename({"x": "k"}), QueryError, "rename makes two columns called 'k'"),
    "rename the unknown": (lambda s: s.rename({"q": "k"}), QueryError, "unknown column 'q'; there are k, ts, x, b"),
    "rename to a number": (lambda s: s.rename({"x": 3}), QueryTypeError, "names as text; found 3 for 'x'"),
    "rename a list": (lambda s: s.rename(["x"]), QueryTypeError, "rename takes a dict from old to new names"),
    "rename to reserved": (lambda s: s.rename({"x": "__x"}), QueryError, "begin with '__' are reserved"),
    "drop ts": (lambda s: s.drop("ts"), QueryError, "drop cannot drop 'ts': it is the event time"),
    "drop the unknown": (lambda s: s.drop("q"), QueryError, "drop names an unknown column 'q'; there are k, ts, x, b"),
    "drop a list": (lambda s: s.drop(["x", "k"]), QueryTypeError, "write the names without a list: drop('x', 'k')"),
    "by several": (lambda s: s.distinct("k, x", "1 s"), QueryError, "write by=['k', 'x']"),
    "drop several": (lambda s: s.drop("k, x"), QueryError, "pass each name as a separate argument: 'k', 'x'"),
    "rename several": (lambda s: s.rename({"k, x": "y"}), QueryError, "s.rename({'k': 'new_k', 'x': 'new_x'})"),
    "by ts": (lambda s: s.distinct("ts", "1 s"), QueryError, "by cannot contain 'ts'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    act, kind, words = REFUSED[name]
    with pytest.raises(kind) as error:
        act(source())
    assert words in str(error.value)


def test_one_name_is_a_list_of_one() -> None:
    s, t = source(), table_stream(make_table(2, 30), name="b")
    pairs = [
        (s.aggregate(by=by, window="1 s", n="count(*)") for by in ("k", ["k"])),
        (s.aggregate(by=by, last=3, n="count(*)") for by in ("k", ["k"])),
        (s.aggregate(by=by, session="1 s", n="count(*)") for by in ("k", ["k"])),
        (s.distinct(by=by, within="1 s") for by in ("k", ["k"])),
        (s.asof(t, by=by) for by in ("k", ["k"])),
        (s.split(3, by=by).each(lambda e: e.filter("x > 1")) for by in ("k", ["k"])),
        (s.join(t, using=by, within="1 s") for by in ("k", ["k"])),
    ]
    for one, listed in pairs:
        assert described(one) == described(listed)


def described(query: Stream) -> list[dict[str, Any]]:
    return nodes.graph(nodes.walk_nodes(node_of(query)))


def test_they_are_maps() -> None:
    """So whatever is known of maps holds for them: failing tuples, pruning, shared slots."""
    s = source()
    for query in (s.select("x"), s.with_columns(y="x"), s.rename({"x": "y"}), s.drop("x")):
        assert isinstance(node_of(query), nodes.Map)
    joined = s.join(s, using="k", within="1 s").rename({"k": "key"}).drop("l_ts")
    assert joined.aggregate(by="key", window="1 minute", n="count(*)").plan(slots=4).shuffles == 1
    assert issubclass(hr.QueryTypeError, TypeError)
