"""Joins that look up or compile their predicate give the pairs that DuckDB gives, on every kind of number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columnar import duck
from headrace.compile import compile_query
from headrace.difference import difference
from headrace.errors import DataError
from headrace.expressions.pair_codegen import number_constant
from headrace.expressions.syntax_tree import parse
from headrace.kernels.joins import band, equijoin, pair_loop
from headrace.kernels.joins import theta_join as joins
from headrace.reference import reference
from headrace.routing.hashing import HASH, hash_rows
from headrace.stream import node_of
from headrace.testing import table_stream
from tests.choosing import some

NATIVE = [
    "(l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y) < 25",
    "sqrt((l.x - r.x) * (l.x - r.x) + abs(l.y)) <= 5.5",
    "abs(l.x - r.y) < 3 and not (l.y > r.x) or l.x = r.x",
    "l.x + r.x between -1 and 1.5",
    "-l.x / 2 >= r.y and l.x <> r.x",
    "l.x < r.x + 0.12345678901234567890",
    "l.x < r.y and r.x < l.y",  # as long as a range join does not pay
    "l.n <> r.n and l.ts < r.ts",
    "r.n between 1 and l.n or l.x = r.x",
    "l.x / r.x < 3",
    "l.x * l.x * l.x * r.x * r.x * r.x * r.x < 1",  # may leave the finite numbers
    "l.s <= r.s and lower(l.s) < r.s || 'x'",
    "case when l.x > r.x then round(l.x - r.y, 1) else coalesce(l.y, 0) end = 0.5",
]
NOT_NATIVE = [
    "levenshtein(l.s, r.s) < 3",
    "l.s = r.s || l.s",
    "l.ts < r.ts + to_months(l.n)",
    "l.x < r.x or list_contains([l.n, r.n], 3)",
    "length(repeat(l.s || r.s, 3)) > 2",
    "1 = 1",  # nothing to loop over
]
RESIDUAL = [
    "l.n = r.n and l.x + r.x > 1",
    "l.n = r.n and l.ts < r.ts",
    "l.n = r.n and l.s = r.s and l.x < r.y and l.s <= r.s",  # only one of the others can be compiled
    "l.x = r.x and (l.n < r.n or l.y > 2)",
    "l.n = r.n and l.s < r.s",
    "l.n = r.n and l.x > 1 and l.n + r.n > 2",
]
NO_RESIDUAL = [
    "l.n = r.n",
    "l.n = r.n and 1 < 2",
    "l.n = r.n and l.x > r.x and levenshtein(l.s, r.s) < 3",  # may fail for all that is known, and must then fail
]
NEAR = [
    "abs(l.x - r.x) <= 2.5",
    "abs(r.y - l.x) < 1 and l.y < r.y",
    "l.x between r.x and r.y",
    "r.y between l.x and l.y and l.n < r.n",
    "l.x >= r.x and l.x < r.y",
    "r.y > l.x and r.x <= l.x and l.n < r.n",
    "l.y >= r.y and l.n <= r.n and r.y > l.x",
]

numbers = st.one_of(
    st.integers(-40, 40).map(lambda n: n / 4),
    st.sampled_from([0.0, -0.0, 2.5, 1e-9, 1e29, -1e29]),
    st.floats(-10, 10, width=32),
)
awkward = st.one_of(numbers, st.sampled_from([None, float("nan"), float("inf"), -float("inf"), 1e200]))


small = st.integers(0, 3)


def streams(values, whole=small):
    rows = st.tuples(st.integers(0, 12), values, values, whole)
    return st.lists(rows, max_size=25).map(_table)


def _table(rows) -> pa.Table:
    ts, x, y, n = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "ts": pa.array([t * 1_000_000 for t in ts], pa.timestamp("us", "UTC")),
            "x": pa.array(x, pa.float64()),
            "y": pa.array(y, pa.float64()),
            "n": pa.array(n, pa.int64()),
            "s": pa.array(["a"] * len(ts), pa.string()),
        }
    )


def _join(left: pa.Table, right: pa.Table, on: str, **window):
    query = table_stream(left, name="l").join(table_stream(right, name="r"), on=on, **window)
    return query, next(o for o in compile_query([node_of(query)]).operators if hasattr(o, "on"))


def _check(left: pa.Table, right: pa.Table, on: str) -> None:
    query, operator = _join(left, right, on, within=("5 seconds", "2 seconds"))
    assert (
        difference(
            reference(query),
            pa.concat_tables([operator.schema.empty_table(), *joins.theta_join(operator, left, right)]),
        )
        is None
    )


@pytest.fixture
def compile_always(monkeypatch):
    monkeypatch.setattr(pair_loop, "WORTH_COMPILING", 0)
    monkeypatch.setattr(joins, "FEWEST_SLICE_PAIRS", 40)  # slices as well


@pytest.mark.parametrize("on", some(NATIVE))
def test_oracle_compiled_loop(compile_always, on):
    @settings(max_examples=40, derandomize=True, deadline=None)
    @given(streams(numbers), streams(numbers))
    def check(left, right):
        _, operator = _join(left, right, on, within="5 seconds")
        assert operator.on.native is not None
        _check(left, right, on)

    check()


@pytest.mark.parametrize("share", [0.0, 1.0])  # of near pairs, from which on a loop is taken
@pytest.mark.parametrize("on", some(NEAR))
def test_oracle_near(compile_always, monkeypatch, on, share):
    monkeypatch.setattr(joins, "WORTH_LOOKING_UP", share)

    @settings(max_examples=40, derandomize=True, deadline=None)
    @given(streams(numbers), streams(numbers))
    def check(left, right):
        _, operator = _join(left, right, on, within="5 seconds")
        assert operator.on.near is not None
        assert band.is_usable(operator.on.near, left, right)
        _check(left, right, on)

    check()


@pytest.mark.parametrize("on", some([*NATIVE, *NEAR]))
def test_oracle_awkward_numbers_fall_back(compile_always, on):
    @settings(max_examples=25, derandomize=True, deadline=None)
    @given(streams(awkward, st.none() | small), streams(awkward))
    def check(left, right):
        _check(left, right, on)

    check()


@pytest.mark.parametrize("more", [[], [(0, None, 0.0, 0)], [(0, float("inf"), 0.0, 0)]])
@pytest.mark.parametrize("on", ["abs(l.x - r.x) <= 1 and l.n + r.n > 0", "l.x between r.x and r.y and l.n + r.n > 0"])
def test_whether_a_predicate_fails_does_not_depend_on_company(on, more):
    """The two are not near each other, and their sum is too large: all pairs of the window are asked, by whatever way."""
    left, right = _table([(0, 0.0, 0.0, (1 << 63) - 1), *more]), _table([(0, 100.0, 101.0, 1)])
    query, operator = _join(left, right, on, within="5 seconds")
    with pytest.raises(DataError):
        reference(query)
    with pytest.raises(DataError):
        list(joins.theta_join(operator, left, right))


# --- beside an equality ------------------------------------------------------------------------------------------------


def _run(table: pa.Table, columns: list[str]) -> pa.Table:
    table = table.append_column(HASH, pa.array(hash_rows(table, columns)))
    return equijoin.concat_runs([table, table.slice(0, 0)])


def _check_equal(left: pa.Table, right: pa.Table, on: str) -> None:
    query, operator = _join(left, right, on, within=("5 seconds", "2 seconds"))
    runs = [_run(table, [key.left for key in operator.keys]) for table in (left, right)]
    found = [operator.schema.empty_table(), *equijoin.equijoin(operator, *runs)] if all(map(len, runs)) else []
    assert difference(reference(query), pa.concat_tables(found or [operator.schema.empty_table()])) is None


@pytest.mark.parametrize("values", [numbers, pytest.param(awkward, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("on", some(RESIDUAL))
def test_oracle_residual(compile_always, monkeypatch, on, values):
    monkeypatch.setattr(pair_loop, "PAIRS_PER_BATCH", 7)

    @settings(max_examples=40, derandomize=True, deadline=None)
    @given(streams(values), streams(values))
    def check(left, right):
        assert _join(left, right, on, within="5 seconds")[1].on.residual is not None
        _check_equal(left, right, on)
        _check_equal(right, left, on)

    check()


@pytest.mark.parametrize("on", NO_RESIDUAL)
def test_what_has_no_residual(on):
    table = _table([(1, 1.0, 1.0, 1)])
    assert _join(table, table, on, within="5 seconds")[1].on.residual is None


def test_a_hot_key_is_looped_over(compile_always, monkeypatch):
    """And only over pairs that the window admits: the loop itself drops the others."""
    rng = np.random.default_rng(3)
    rows = [(int(t), float(x), 0.0, 1) for t, x in zip(rng.integers(0, 99, 200), rng.normal(size=200), strict=True)]
    left, right = _table(rows), _table(rows[:150])
    query, operator = _join(left, right, RESIDUAL[0], within="1 second")
    runs = [_run(table, ["n"]) for table in (left, right)]
    pairs = sum(len(l) for l, _ in equijoin.hash_candidates(operator, *runs))
    assert pairs == reference(query).num_rows > 0


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize(
    ("on", "equal"),
    [
        ("l.n = r.n", True),  # an index alone
        (RESIDUAL[0], True),  # a hot key, in a loop
        ("l.n = r.n and levenshtein(l.s, r.s) < 3", True),
        (NATIVE[0], False),
        (NOT_NATIVE[0], False),
        ("l.x < r.x", False),  # a range join
        ("abs(l.x - r.x) <= 0.01", None),  # looked up, along x
    ],
)
def test_pairs_that_are_compared_are_counted(monkeypatch, on, equal, compiles):
    """With an equality those of one key, looked up those near each other, else all that may be within the window."""
    if compiles:
        monkeypatch.setattr(pair_loop, "WORTH_COMPILING", 1)
    rng = np.random.default_rng(3)
    rows = [(int(t), float(x), 0.0, int(t % 2)) for t, x in zip(range(60), rng.normal(size=60), strict=True)]
    left, right = _table(rows), _table(rows[:40])
    query, operator = _join(left, right, on, within="100 seconds")
    counted: list[int] = []
    if equal:
        found = list(equijoin.equijoin(operator, *(_run(table, ["n"]) for table in (left, right)), counted.append))
    else:
        found = list(joins.theta_join(operator, left, right, counted.append))
    assert sum(table.num_rows for table in found) == reference(query).num_rows > 0
    if equal is None:
        assert reference(query).num_rows <= sum(counted) < 60 * 40 / 16
    else:
        assert sum(counted) == (2 * 30 * 20 if equal else 60 * 40)


@pytest.mark.parametrize("on", NOT_NATIVE)
def test_what_could_differ_is_not_compiled(on):
    table = _table([(1, 1.0, 1.0, 1)])
    assert _join(table, table, on, within="5 seconds")[1].on.native is None


literals = st.from_regex(r"[0-9]{1,25}(\.[0-9]{0,25})?(e-?[0-9])?", fullmatch=True)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(literals)
def test_a_literal_is_the_double_that_duckdb_compares_with(text):
    value = number_constant(parse(text, "on"))
    near = [value, np.nextafter(value, np.inf), np.nextafter(value, -np.inf)]
    table = pa.table({"x": pa.array(near, pa.float64())})
    found = duck.run_select(
        f"SELECT x < {text} AS less, x = {text} AS same FROM __tuples", {duck.TUPLES: table}
    ).to_pylist()
    assert found == [{"less": x < value, "same": x == value} for x in near]


def test_compiled_loop_over_count_windows(compile_always):
    rng = np.random.default_rng(7)
    rows = [(int(t), float(x), float(y), 1) for t, x, y in zip(range(60), rng.random(60), rng.random(60), strict=True)]
    query, _ = _join(_table(rows), _table(rows), NATIVE[0], last=(5, 3))
    from headrace.testing import run_locally

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_loop, "WORTH_COMPILING", 0)
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            assert difference(reference(query), run_locally(query, Path(folder) / "state", slots=3)) is None


def test_results_beyond_the_room_are_all_written(compile_always, monkeypatch):
    monkeypatch.setattr(pair_loop, "PAIRS_PER_BATCH", 30)
    rows = [(1, float(i % 3), 0.0, 1) for i in range(25)]
    _check(_table(rows), _table(rows), NATIVE[0])


def test_one_loop_is_compiled_for_arrays_of_one_chunk_and_of_several(compile_always):
    rows = [(1, float(i % 3), 0.5, i % 2) for i in range(20)]
    whole = _table(rows)
    parts = pa.concat_tables([whole.slice(0, 7), whole.slice(7)])
    on = "l.x * 3 < r.y and l.n <> r.n"
    for left, right in ((whole, whole), (parts, whole), (whole, parts), (parts, parts)):
        _check(left, right, on)
    _, operator = _join(whole, whole, on, within="1 second")
    kernel = pair_loop._compiled(pair_loop._generate(operator.on.native.source(plain=True), 0))
    assert len(kernel.signatures) == 1


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("l.n = r.n", "index, looked up by their key"),
        ("l.n = r.n and l.x < r.x", "index, looked up by their key; compiled where a key is hot"),
        (NEAR[0], "index, looked up along r.x"),
        ("l.x * l.y < r.x * r.y", "compiled, every pair in a loop made for the predicate"),
        (
            "sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) < 5",
            "compiled, every pair in a loop made for the predicate; DuckDB where it leaves many in doubt",
        ),
        (
            "l.x < r.y and levenshtein(l.s, r.s) < 3",
            "DuckDB, one by one, which is slow: no loop takes ((levenshtein(l.s, r.s) < 3)): levenshtein of both sides",
        ),
    ],
)
def test_it_says_how_pairs_are_found_and_what_is_to_blame(on, words):
    table = _table([(1, 1.0, 1.0, 1)])
    assert _join(table, table, on, within="5 seconds")[1].pairing == words
