"""`sample`: against the hash written once more in SQL of DuckDB, and in random queries with the other operators."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar.types import SUBSTREAM
from headrace.errors import QueryChanged, QueryError, QueryTypeError, SourceError
from headrace.kernels.stateless import sample as kernel
from headrace.plan import columns_read
from headrace.query import nodes
from headrace.reference import reference
from headrace.routing.hashing import hash_rows
from headrace.stream import Stream
from headrace.task import step_runner
from headrace.testing import LocalRun, run_locally, table_stream
from tests.helpers import count_rows, rows_of

from .driving import in_random_epochs
from .strategies import SECOND, STATELESS, make_case
from .test_changes import counted, emitted, rows, run_on, since, stream
from .test_local import check, same, seeds
from .test_migrate import migrate_queries

TS = pa.timestamp("us", "UTC")
Row = tuple[int, Any, Any]
FRACTIONS = (1.0, 0.75, 0.5, 0.3, 0.05)
BY = (None, ["k"], ["v"], ["v", "k"])

SALT, NULL, ALL = 15111065706836454659, 11160318154034397263, 2**64
ROUNDS = ((30, 13787848793156543929), (27, 10723151780598845931), (31, 1))  # of SplitMix64's finaliser


def expected_rows(rows: Sequence[Row], fraction: float, by: Sequence[str] | None) -> Counter[Row]:
    """The tuples of the sample, by the definition in docs/GUARANTEES.md, in SQL over the whole input at once."""
    given = pa.table(dict(zip(("ts", "k", "v"), map(list, zip(*rows, strict=True)), strict=True)))
    places = {f"h{place}": name for place, name in enumerate(sorted(by or given.column_names))}
    bits = (
        f"(CASE WHEN {name} < 0 THEN {name}::HUGEINT + {ALL} ELSE {name} END)::UHUGEINT" for name in places.values()
    )
    with duckdb.connect() as connection:
        connection.register("given", given)
        columns = ", ".join(f"{text} AS {column}" for text, column in zip(bits, places, strict=True))
        connection.execute(f"CREATE TABLE hashed AS SELECT *, {columns}, 0::UHUGEINT AS total FROM given")
        for place, (column, name) in enumerate(places.items()):
            mix(connection, column)
            value = f"CASE WHEN {name} IS NULL THEN {NULL}::UHUGEINT ELSE {column} END"
            connection.execute(f"UPDATE hashed SET {column} = (31 * {value} + {place}) % {ALL}::UHUGEINT")
            mix(connection, column)
        connection.execute(f"UPDATE hashed SET total = ({SALT}::UHUGEINT + {' + '.join(places)}) % {ALL}::UHUGEINT")
        mix(connection, "total")
        found = connection.execute(f"SELECT ts, k, v FROM hashed WHERE total < {fraction!r}::DOUBLE * {ALL}::DOUBLE")
        return Counter(found.fetchall())


def mix(connection: duckdb.DuckDBPyConnection, column: str) -> None:
    for shift, factor in ROUNDS:
        text = f"xor({column}, {column} >> {shift}) * {factor}::UHUGEINT % {ALL}::UHUGEINT"
        connection.execute(f"UPDATE hashed SET {column} = {text}")


def made_up(r: random.Random, lateness: int) -> list[Row]:
    times = sorted(r.randrange(-30, 60) * SECOND for _ in range(120))
    rows = [(ts, r.choice([None, -1, 0, 1, 2, 3, 2**40]), r.choice([None, *range(-3, 9)])) for ts in times]
    return sorted(rows, key=lambda row: row[0] + r.random() * lateness)


def as_table(rows: Sequence[Row]) -> pa.Table:
    ts, k, v = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(ts, TS), "k": pa.array(k, pa.int64()), "v": pa.array(v, pa.int64())})


def source(table: pa.Table, lateness: int = 0) -> Stream:
    return table_stream(table, lateness=f"{lateness} seconds", name="a")


ROWS = as_table(made_up(random.Random(1), 0))


@seeds(20)
def test_the_same_tuples_are_kept_as_by_the_hash_in_sql(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    lateness, fraction, by = r.choice([0, 5]), r.choice(FRACTIONS), r.choice(BY)
    given = made_up(r, lateness * SECOND)
    query = source(as_table(given), lateness).sample(fraction, by=by)
    expected = expected_rows(given, fraction, by)
    assert count_rows(in_random_epochs(query, as_table(given), tmp_path / "state", seed)) == expected
    assert count_rows(reference(query)) == expected


@seeds(40)
def test_sample_among_other_operators(seed: int) -> None:
    others = ("sample", "sample", "time_join", "time_aggregate", "count_aggregate", "distinct", "each", "apply")
    check(make_case(f"sample-{seed}", (*STATELESS, *others)), seed)


@seeds(12)
def test_late_tuples_are_in_no_sample(seed: int) -> None:
    check(make_case(f"late-sample-{seed}", ("sample", "filter"), depth=(1, 2), disorder=9 * SECOND), seed)


@seeds(12)
def test_a_sample_under_every_strategy(seed: int) -> None:
    case = make_case(f"planned-sample-{seed}", ("sample", "map", "time_join", "time_aggregate"))
    check(case, seed, strategies=("operator", "subquery", "query"))


# --- samples of samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", BY, ids=str)
def test_a_sample_of_a_sample_is_the_smaller_fraction(by: Any) -> None:
    s = source(ROWS)
    smaller = reference(s.sample(0.3, by=by))
    assert 0 < smaller.num_rows < ROWS.num_rows
    for first, second in ((0.3, 0.7), (0.7, 0.3), (0.3, 0.3), (0.3, 1)):
        same(smaller, reference(s.sample(first, by=by).sample(second, by=by)))


def test_the_order_of_columns_makes_no_difference() -> None:
    s = source(ROWS)
    smaller = reference(s.sample(0.3, by=["k", "v"]).map("v", "k"))
    same(smaller, reference(s.sample(0.7, by=["v", "k"]).map("v", "k").sample(0.3, by=["k", "v"])))
    whole = reference(s.sample(0.3).map("v", "k"))
    same(whole, reference(s.sample(0.7).map("v", "k").sample(0.3)))


# --- columns and substreams that nobody reads -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["subquery", "operator", "query"])
def test_the_whole_tuple_counts_though_few_columns_are_read(strategy: str, tmp_path: Path) -> None:
    """Without late tuples to keep, splitters read only the columns that the plan names."""
    options = {"strategy": strategy, "keep_late": False}
    s = source(ROWS).sample(0.5)
    expected = expected_rows(rows_of(ROWS), 0.5, None)
    found = run_locally(s.map("k"), tmp_path / "map", **options)
    assert count_rows(found, "k") == Counter((k,) for _, k, _ in expected.elements())
    found = run_locally(s.aggregate(window="1 day", n="count(*)"), tmp_path / "count", **options)
    assert sum(found["n"].to_pylist()) == expected.total()


def test_a_column_that_only_the_hash_reads_must_be_there(tmp_path: Path) -> None:
    query = source(ROWS).sample(0.5).map("k")
    with pytest.raises(SourceError, match="changed"):
        reference(query, epochs=[ROWS.drop_columns(["v"])])
    with pytest.raises(SourceError, match="'v'"):
        LocalRun(query, tmp_path, keep_late=False).epoch(ROWS.drop_columns(["v"]))
    without = source(ROWS).sample(0.5, by=["k"]).map("k")
    same(reference(without), reference(without, epochs=[ROWS.drop_columns(["v"])]))


@pytest.mark.parametrize("by", BY, ids=str)
@pytest.mark.parametrize("broadcast", [None, "v = 3"])
def test_a_substream_keeps_what_the_stream_keeps(by: Any, broadcast: str | None, tmp_path: Path) -> None:
    """The substream is no part of the tuple, and a tuple for all substreams is kept on all or on none."""
    s = source(ROWS)
    expected = reference(s.sample(0.5, by=by).split(3, route="abs(v) % 3", broadcast=broadcast).each(lambda t: t))
    split = s.split(3, route="abs(v) % 3", broadcast=broadcast)
    for number, query in enumerate(
        (split.each(lambda t: t.sample(0.5, by=by)), split.sample(0.5, by).each(lambda t: t))
    ):
        same(expected, reference(query))
        same(expected, run_locally(query, tmp_path / str(number)))


class Counting(hr.Processor):
    schema = pa.schema([("ts", TS), ("n", pa.int64())])

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return pa.table([tuples["ts"], tuples["v"]], schema=self.schema)


def test_a_processor_receives_the_sample(tmp_path: Path) -> None:
    query = source(ROWS).split(3, by=["k"]).sample(0.5, by=["v"]).apply(Counting())
    expected = expected_rows(rows_of(ROWS), 0.5, ["v"])
    assert count_rows(run_locally(query, tmp_path)) == Counter((ts, v) for ts, _, v in expected.elements())
    assert count_rows(reference(query)) == Counter((ts, v) for ts, _, v in expected.elements())


# --- a changed query --------------------------------------------------------------------------------------------------


def test_another_fraction_before_state_is_another_query(tmp_path: Path) -> None:
    s = stream()
    run_on(LocalRun(counted(s.sample(0.5, by=["user"])), tmp_path / "old" / "state"), [0, 1])
    changed = counted(s.sample(0.4, by=["user"]))
    with pytest.raises(QueryChanged, match=r"its input was s, sample 0\.5 by user, is s, sample 0\.4 by user"):
        LocalRun(changed, tmp_path / "old" / "state")
    with pytest.raises(QueryChanged, match=r"is s, sample 0\.5 by kind"):
        LocalRun(counted(s.sample(0.5, by=["kind"])), tmp_path / "old" / "state")
    done = migrate_queries(tmp_path / "old", tmp_path / "new", [changed])
    assert done.lines[0].startswith("lost: aggregate-1: its input was s, sample 0.5 by user")


@pytest.mark.parametrize("by", [None, ["kind", "user"]], ids=str)
def test_the_same_sample_continues(by: Any, tmp_path: Path) -> None:
    """Also with the columns of `by` in another order, and with a column that the source did not have before."""
    query = counted(stream().sample(0.6, by=by))
    run_on(LocalRun(query, tmp_path), [0, 1])
    later = [rows(number).append_column("later", rows(number)["n"]) for number in range(4)]
    wider = table_stream(later[0], name="s", lateness="5 seconds")
    run = LocalRun(counted(wider.sample(0.6, by=by and by[::-1])), tmp_path, slots=2)
    for table in later[2:]:
        run.epoch(table)
    run.end()
    run.close()
    expected = emitted(query, 2, None)
    assert expected.num_rows
    same(expected, since(run, 2))


# --- arguments and text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((0,), QueryError, "fraction must be more than 0 and at most 1; found 0; 0.1 keeps one tuple in ten"),
        ((1.01,), QueryError, "found 1.01"),
        ((-0.5,), QueryError, "found -0.5"),
        ((float("nan"),), QueryError, "found nan"),
        ((10,), QueryError, "found 10"),
        (("0.1",), QueryTypeError, r"fraction must be a number.*found '0\.1'; such as s\.sample"),
        ((True,), QueryTypeError, "fraction must be a number"),
        ((None,), QueryTypeError, "fraction must be a number"),
        ((0.1, 7), QueryTypeError, "by must be a column or a list"),
        ((0.1, ["x"]), QueryError, "unknown column 'x'"),
        ((0.1, ["k", "k"]), QueryError, "twice"),
        ((0.1, ["ts"]), QueryError, "by cannot contain 'ts'"),
        ((0.1, []), QueryError, r"at least one column in by; found by=\[\]; leave by out"),
    ],
)
def test_bad_arguments(given: tuple[Any, ...], error: type[hr.HeadraceError], words: str) -> None:
    with pytest.raises(error, match=words):
        source(ROWS).sample(*given)
    with pytest.raises(error, match=words):
        source(ROWS).split(2, by=["k"]).sample(*given)


def test_a_plan_shows_the_sample_and_assumes_its_fraction() -> None:
    s = source(ROWS)
    text = s.sample(0.125, by=["v", "k"]).sample(0.5, by=["k", "v"]).explain()
    assert "sample 0.125 by v, k\n" in text and "results: 125/s" in text
    assert "sample 0.25 by whole tuple" in s.sample(0.25).explain(strategy="operator")
    assert "results: 250/s" in s.sample(0.25).explain(strategy="operator")
    assert "results: 62.5/s" in s.sample(0.25, by=["k"]).sample(0.25, by=["v"]).explain()


# --- broken versions --------------------------------------------------------------------------------------------------


def takes_the_hash_of_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernel, "sample_hashes", hash_rows)


def keeps_the_first_tuples_of_a_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step_runner, "sample_tuples", lambda table, step: table.slice(0, int(step.fraction * len(table))))


def forgets_the_place_of_a_value(patch: pytest.MonkeyPatch) -> None:
    real = kernel._placed
    patch.setattr(kernel, "_placed", lambda hashes, places: real(hashes, places * 0))


@pytest.mark.parametrize(
    "canary", [takes_the_hash_of_groups, keeps_the_first_tuples_of_a_window, forgets_the_place_of_a_value]
)
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary(monkeypatch)
    assert any(
        fails(lambda seed=seed: test_the_same_tuples_are_kept_as_by_the_hash_in_sql(seed, tmp_path / str(seed)))
        for seed in range(10)
    )
    assert any(fails(lambda seed=seed: test_sample_among_other_operators(seed)) for seed in range(10))


def test_a_hash_of_the_columns_that_are_left_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if columns were dropped first, and the hash taken from the others."""
    before = columns_read._before
    monkeypatch.setattr(
        columns_read,
        "_before",
        lambda step, names: names if type(step).__name__ == "SampleStep" else before(step, names),
    )
    real = kernel.sample_hashes
    monkeypatch.setattr(
        kernel, "sample_hashes", lambda table, names: real(table, [n for n in names if n in table.column_names])
    )
    assert fails(lambda: test_the_whole_tuple_counts_though_few_columns_are_read("subquery", tmp_path))


def test_a_hash_of_the_substream_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    visible = nodes.Sample.hashed.fget  # type: ignore[attr-defined]
    hidden = property(lambda self: (*visible(self), *([SUBSTREAM] if SUBSTREAM in self.schema.names else [])))
    monkeypatch.setattr(nodes.Sample, "hashed", hidden)
    assert fails(lambda: test_a_substream_keeps_what_the_stream_keeps(None, None, tmp_path))


def fails(test: Callable[[], None]) -> bool:
    try:
        test()
    except (AssertionError, pytest.fail.Exception):
        return True
    return False
