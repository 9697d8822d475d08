"""`unnest`: against plain Python over the rows, against DuckDB's own unnest, and in random queries among all other operators."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar import duck
from headrace.compile import compile_query
from headrace.difference import difference
from headrace.errors import QueryChanged, QueryError, QueryTypeError
from headrace.kernels.stateless import unnest
from headrace.reference import reference
from headrace.stream import Stream, node_of
from headrace.testing import LocalRun, run_locally, table_stream
from tests.helpers import SECOND, rows_of

from . import processing
from .driving import in_random_epochs
from .strategies import AGGREGATES, STATELESS, make_case
from .test_local import check, same, seeds

TS = pa.timestamp("us", "UTC")
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
COLUMNS = {
    "k": pa.int64(),
    "n": pa.list_(pa.int64()),
    "t": pa.list_(pa.string()),
    "p": pa.list_(PAIR),
    "m": pa.map_(pa.string(), pa.int64()),
    "s": PAIR,
    "d": pa.list_(pa.list_(pa.int64())),
}


def made_up(seed: int, rows: int = 70, lateness: int = 5) -> pa.Table:
    r = random.Random(seed)
    times = sorted(r.randrange(60) * SECOND for _ in range(rows))
    times.sort(key=lambda ts: ts + r.random() * lateness * SECOND)
    held = {name: pa.array([value_of(r, kind) for _ in range(rows)], kind) for name, kind in COLUMNS.items()}
    return pa.table({"ts": pa.array(times, TS), **held})


def value_of(r: random.Random, kind: pa.DataType) -> Any:
    if r.random() < 0.2:
        return None
    if pa.types.is_map(kind):
        return [(key, value_of(r, kind.item_type)) for key in r.sample("xyz", r.choice([0, 0, 1, 3]))]
    if pa.types.is_list(kind):
        return [value_of(r, kind.value_type) for _ in range(r.choice([0, 0, 1, 2, 4]))]
    if pa.types.is_struct(kind):
        return {field.name: value_of(r, field.type) for field in kind}
    return r.choice(["", "a", "ä"]) if pa.types.is_string(kind) else r.randint(0, 3)


def plain(table: pa.Table, column: str, outer: bool, index: bool) -> Counter[str]:
    """The rows that should come out, as text: lists and dicts are not hashable."""
    kind, found = table.schema.field(column).type, Counter[str]()
    times = table["ts"].cast(pa.int64()).to_pylist()
    for ts, row in zip(times, table.drop_columns(["ts"]).to_pylist(), strict=True):
        held = [row[column]] if pa.types.is_struct(kind) else row[column]
        elements = list(enumerate(held or []))
        if not elements and outer:
            elements = [(None, None)]  # type: ignore[list-item]
        for position, element in elements:
            values: list[Any] = [ts]
            for name, value in row.items():
                values += taken_apart(kind, element) if name == column else [value]
            found[repr(tuple(values + ([position] if index else [])))] += 1
    return found


def taken_apart(kind: pa.DataType, element: Any) -> list[Any]:
    inner = kind.value_type if pa.types.is_list(kind) else kind
    if pa.types.is_map(kind):
        return list(element or (None, None))
    if pa.types.is_struct(inner):
        return [(element or {}).get(field.name) for field in inner]
    return [element]


def as_text(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows_of(table)))


def asked(seed: int) -> tuple[str, dict[str, Any]]:
    r = random.Random(f"asked {seed}")
    column = list(COLUMNS)[1 + seed % (len(COLUMNS) - 1)]
    if column == "s":
        return column, {"outer": r.random() < 0.5, "index": None}
    return column, {"outer": r.random() < 0.5, "index": r.choice([None, "i"])}


@seeds(36)
def test_elements_are_those_of_plain_python(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made_up(seed)
    column, options = asked(seed)
    if seed % 2:
        monkeypatch.setattr(unnest, "MOST_ROWS", 3)
    query = table_stream(table, lateness="5 seconds", name="a").unnest(column, **options)
    expected = plain(table, column, options["outer"], options["index"] is not None)
    found = in_random_epochs(query, table, tmp_path / "state", seed)
    assert found.schema.equals(query.schema)
    assert as_text(found) == expected
    assert as_text(reference(query)) == expected


ELEMENTS = {"n": "unnest(n) AS n", "t": "unnest(t) AS t", "d": "unnest(d) AS d", "s": "s.a AS a, s.b AS b"}


@pytest.mark.parametrize("column", ELEMENTS)
def test_duckdb_says_the_same(column: str, tmp_path: Path) -> None:
    table = made_up(7, 200)
    query = table_stream(table, name="a").unnest(column).select("k", *query_columns(column))
    direct = duck.run_select(f"SELECT ts, k, {ELEMENTS[column]} FROM rows", {"rows": table})
    found = run_locally(query, tmp_path / "state")
    same(direct.cast(found.schema), found)


def query_columns(column: str) -> list[str]:
    return ["a", "b"] if column == "s" else [column]


@seeds(40)
def test_unnest_among_other_operators(seed: int) -> None:
    case = make_case(f"unnest-{seed}", (*STATELESS, "unnest", "unnest", "time_join", "distinct", *AGGREGATES))
    check(case, seed, change_slots=0.4)


@seeds(20)
def test_on_the_substreams_of_a_split(seed: int, tmp_path: Path) -> None:
    table = made_up(seed)
    stream = table_stream(table, lateness="5 seconds", name="a")
    split = stream.split(3, by="k").unnest("n", outer=seed % 2 == 0, index="i")
    queries = [
        split.each(lambda t: t.unnest("t").aggregate(by="t", window="10 seconds", n="count(*)", i="sum(i)")),
        split.select("k", "n", "i").apply(processing.SINGLE[0]("k", pa.int64(), "n")),
        stream.unnest("n").split(3, route="abs(n) % 3").each(lambda t: t.distinct(by="n", within="5 seconds")),
    ]
    for number, query in enumerate(queries):
        found = in_random_epochs(query, table, tmp_path / str(number), seed)
        same(reference(query), found, query)


def test_a_tuple_that_fails_in_a_later_step_is_kept_by_element(tmp_path: Path) -> None:
    table = pa.table({"ts": pa.array([0, SECOND], TS), "w": [["1", "x"], ["2"]]})
    stream = table_stream(table, name="a")
    query = stream.unnest("w").map(v="CAST(w AS INT)")
    run = LocalRun(query, tmp_path / "state", errors="keep")
    run.epoch(table, final=True)
    assert run.results()["v"].to_pylist() == [1, 2]
    (sink,) = [sink for name, sink in run.late.items() if name.startswith("failed:")]
    assert sink.table()["w"].to_pylist() == ["x"]
    assert run.driver.progress.failed == 1
    same(reference(query, errors="keep"), run.results())
    run.close()


def test_columns_that_nobody_reads_are_not_read() -> None:
    query = table_stream(made_up(1), name="a").unnest("p", index="i").aggregate(by="b", window="1 minute", n="sum(i)")
    (source,) = compile_query([node_of(query)]).sources
    assert source.read.names == ["ts", "p"]
    counted = table_stream(made_up(1), name="a").unnest("n").aggregate(by="k", window="1 minute", n="count(*)")
    assert compile_query([node_of(counted)]).sources[0].read.names == ["ts", "k", "n"]


def test_keys_that_pass_stay_where_they_are() -> None:
    stream = table_stream(made_up(1), name="a")
    listed = stream.aggregate(by="k", window="2 seconds", n="list(k)")
    assert listed.unnest("n").aggregate(by="k", window="1 minute", c="count(*)").plan(slots=4).shuffles == 1
    assert listed.unnest("n").aggregate(by="n", window="1 minute", c="count(*)").plan(slots=4).shuffles == 2
    by_list = stream.aggregate(by="d", window="2 seconds", c="count(*)")
    assert by_list.aggregate(by="d", window="1 minute", c="count(*)").plan(slots=4).shuffles == 1
    assert by_list.unnest("d").aggregate(by="d", window="1 minute", c="count(*)").plan(slots=4).shuffles == 2


def test_explain_and_repr_name_it() -> None:
    query = table_stream(made_up(1), name="a").unnest("n", outer=True, index="i")
    assert "outer unnest n with position i" in repr(query)
    assert "outer unnest n with position i" in query.explain()
    assert query.columns == ["ts", "k", "n", "t", "p", "m", "s", "d", "i"]
    assert query.unnest("m").columns == ["ts", "k", "n", "t", "p", "m_key", "m_value", "s", "d", "i"]


@pytest.mark.parametrize("changed", [{"outer": True}, {"column": "d"}])
def test_another_unnest_is_another_query(changed: dict[str, Any], tmp_path: Path) -> None:
    table = made_up(1)

    def query(**options: Any) -> Stream:
        given = {"column": "n", **options}
        return table_stream(table, name="a").unnest(**given).aggregate(by="k", window="1 hour", n="count(*)")

    first = LocalRun(query(), tmp_path / "state")
    first.epoch(table)
    first.close()
    LocalRun(query(), tmp_path / "state").close()
    with pytest.raises(QueryChanged, match="its input was a, unnest n, is a, unnest"):
        LocalRun(query(**changed), tmp_path / "state")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"column": "x"}, QueryError, "unnest names an unknown column 'x'; there are ts, k, n"),
        ({"column": "k"}, QueryTypeError, "unnest takes a column of lists, maps or structs; 'k' is int64"),
        ({"column": ["n"]}, QueryTypeError, "unnest takes column names as text; found a list"),
        ({"column": "n", "index": "k"}, QueryError, "unnest makes a column 'k', and there is one already"),
        ({"column": "n", "index": "n"}, QueryError, "unnest makes a column 'n', and there is one already"),
        ({"column": "n", "index": "ts"}, QueryError, "unnest cannot make a column 'ts'"),
        ({"column": "n", "index": 0}, QueryTypeError, "index must be the name of a new column; found 0"),
        ({"column": "n", "outer": "yes"}, QueryTypeError, "outer must be True or False; found 'yes'"),
        ({"column": "s", "index": "i"}, QueryError, "unnest of a struct makes one tuple of one, so it takes no index="),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    with pytest.raises(error) as found:
        table_stream(made_up(1), name="a").unnest(**given)
    assert words in str(found.value)


def test_fields_that_are_there_already() -> None:
    stream = table_stream(made_up(1), name="a").rename({"k": "A"})
    with pytest.raises(
        QueryError, match=r"unnest makes a column 'a', and there is one already.*rename that one before"
    ):
        stream.unnest("p")
    assert stream.rename({"A": "other"}).unnest("p").columns[:2] == ["ts", "other"]


# --- broken on purpose -------------------------------------------------------------------------------------------------


def forgets_null_elements(patch: pytest.MonkeyPatch) -> None:
    real = unnest._elements

    def without(lists: Any, *, outer: bool) -> Any:
        parents, made, position = real(lists, outer=outer)
        valid = made[0].is_valid()
        return (
            parents[valid.to_numpy(zero_copy_only=False)],
            [each.filter(valid) for each in made],
            position.filter(valid),
        )

    patch.setattr(unnest, "_elements", without)


def takes_the_tuple_before(patch: pytest.MonkeyPatch) -> None:
    real = unnest._elements
    patch.setattr(
        unnest, "_elements", lambda lists, *, outer: ((found := real(lists, outer=outer))[0] * 0, found[1], found[2])
    )


def is_never_outer(patch: pytest.MonkeyPatch) -> None:
    real = unnest._elements
    patch.setattr(unnest, "_elements", lambda lists, *, outer: real(lists, outer=False))


def loses_a_piece(patch: pytest.MonkeyPatch) -> None:
    real = unnest._pieces
    patch.setattr(unnest, "_pieces", lambda lengths: list(real(lengths))[:1])


@pytest.mark.parametrize("canary", [forgets_null_elements, takes_the_tuple_before, is_never_outer, loses_a_piece])
def test_a_broken_one_is_seen(canary: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary(monkeypatch)
    monkeypatch.setattr(unnest, "MOST_ROWS", 3)

    def wrong(seed: int) -> bool:
        table = made_up(seed)
        column, options = asked(seed)
        query = table_stream(table, name="a").unnest(column, **options)
        return difference(reference(query), run_locally(query, tmp_path / str(seed))) is not None

    assert any(wrong(seed) for seed in range(12))
