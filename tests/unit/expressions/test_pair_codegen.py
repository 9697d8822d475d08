"""What the source of a loop says of pairs is what DuckDB says: random predicates over every function, awkward values.

The source is run over arrays, as it is, without a compiler; some are compiled as well.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.columnar.types import value_text
from headrace.errors import DataError, ExpressionError
from headrace.expressions.loop_values import COLUMN_FORMS
from headrace.expressions.pair_codegen import _FUNCTIONS, CompiledPredicate, Obstacle, compile_predicate
from headrace.expressions.predicates import join_predicate
from headrace.expressions.syntax_tree import parse
from headrace.kernels.joins import pair_arithmetic
from headrace.kernels.joins import pair_loop as kernel
from tests import catalogue
from tests.predicates import COLUMNS, Predicates, table

SCHEMA = pa.schema(COLUMNS)
ROWS = 24


def said(found: CompiledPredicate, left: pa.Table, right: pa.Table) -> tuple[np.ndarray, np.ndarray] | None:
    """Of every pair, whether the source says true, and whether it is not sure."""
    fitted = kernel.bind_columns(found, left, right)
    if fitted is None:
        return None
    names = dict(pair_arithmetic.ON_ARRAYS)
    for variable, value in zip(fitted.source.variables, fitted.values, strict=True):
        side = variable.column[0] if variable.column else ""
        names[variable.name] = value[:, None] if side == "l" else value[None, :] if side == "r" else value
    with np.errstate(all="ignore"):
        for name, text in fitted.source.lines:
            names[name] = eval(text, names)
    shape = (left.num_rows, right.num_rows)
    true, unsure = (eval(text or "False", names) for text in (fitted.source.true, fitted.source.unsure))
    return np.broadcast_to(true, shape).ravel(), np.broadcast_to(unsure, shape).ravel()


def compiled(found: CompiledPredicate, left: pa.Table, right: pa.Table) -> tuple[np.ndarray, np.ndarray] | None:
    """The same of the source when it is compiled."""
    fitted = kernel.bind_columns(found, left, right)
    if fitted is None or not fitted.compiles(0):
        return None
    one, other = left.num_rows, right.num_rows
    reach = kernel.PairRanges.all(0, np.zeros(one, np.int64), np.zeros(other, np.int64), 0, 0)
    true, unsure = np.zeros(one * other, bool), np.zeros(one * other, bool)
    for l, r, doubtful in kernel.PairLoop(fitted, reach, patient=True):
        true[(l * other + r)[~doubtful]], unsure[(l * other + r)[doubtful]] = True, True
    return true & ~unsure, unsure


def answers(on: str, left: pa.Table, right: pa.Table) -> np.ndarray:
    """DuckDB's: 1 true, 0 not true, -1 an error."""
    l = left.take(np.repeat(np.arange(left.num_rows), right.num_rows))
    r = right.take(np.tile(np.arange(right.num_rows), left.num_rows))
    return _answers(f"SELECT coalesce(TRY(coalesce({on}, false))::INTEGER, -1) AS a FROM l POSITIONAL JOIN r", l, r)


def _answers(sql: str, l: pa.Table, r: pa.Table) -> np.ndarray:
    try:
        return np.asarray(duck.run_select(sql, {"l": l, "r": r}).column("a"))
    except duckdb.Error:  # some errors TRY does not see
        if len(l) == 1:
            return np.array([-1])
        half = len(l) // 2
        return np.concatenate([_answers(sql, l[:half], r[:half]), _answers(sql, l[half:], r[half:])])


def differing(
    on: str, left: pa.Table, right: pa.Table, how: Callable[..., Any] | None = None
) -> tuple[str | None, float | None]:
    """What differs for one predicate, and the share of pairs of which the source is not sure (None: it has no source)."""
    found = compile_predicate(parse(on, "on"), {"l": left.schema, "r": right.schema})
    if isinstance(found, Obstacle):
        return None, None
    try:
        told = (how or said)(found, left, right)
    except DataError as error:
        if "INTERNAL Error" not in str(error):
            raise
        told = None  # a fault of DuckDB's own, which ends a run whoever asks
    if told is None:
        return None, 1.0
    true, unsure = told
    wanted = answers(on, left, right)
    wrong = np.flatnonzero(~unsure & (wanted != true))
    share = float(unsure.mean())
    if not len(wrong):
        return None, share
    l, r = divmod(int(wrong[0]), right.num_rows)
    rows = [
        {n: value_text(t.column(n)[i]) for n in t.column_names if f".{n}" in on} for t, i in ((left, l), (right, r))
    ]
    return f"{on}\n said {true[wrong[0]]}, DuckDB {wanted[wrong[0]]}, {len(wrong)} pairs, such as {rows}", share


def bound(on: str) -> bool:
    try:
        duck.type_of(f"SELECT {on} AS c FROM l, r", {"l": SCHEMA.empty_table(), "r": SCHEMA.empty_table()})
    except duckdb.Error:
        return False
    return True


def check(seed: int, predicates: int) -> None:
    r = random.Random(seed)
    write, tried, shares = Predicates(r), 0, []
    while tried < predicates:
        awkward = tried % 2 == 0
        left, right = (table(r, ROWS, awkward=awkward) for _ in "lr")
        on = write(r.choice([1, 2, 3]))
        if not bound(on):
            continue
        wrong, share = differing(on, left, right)
        assert wrong is None, wrong
        tried += 1
        if share is not None and not awkward:
            shares.append(share)
    assert len(shares) > 0.4 * predicates / 2  # most have source
    assert np.mean(shares) < 0.2  # and most pairs are decided by it


@pytest.mark.parametrize("seed", range(2))
def test_oracle_random_predicates(seed):
    check(seed, 75)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 104))
def test_oracle_two_thousand_random_predicates(seed):
    check(seed, 500)


# --- everything that DuckDB binds ------------------------------------------------------------------------------------

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20261"))
MET = 12  # rows of each side


def everything(seed: int, predicates: int, check: Callable[[str, pa.Table, pa.Table], float | None]) -> None:
    """Predicates of the whole catalogue until so many had source; what is no expression at all is passed over."""
    r = random.Random(seed)
    write, shares = catalogue.Predicates(r, _FUNCTIONS), []
    while len(shares) < predicates:
        left, right = (catalogue.table(r, MET) for _ in "lr")
        for _ in range(10):
            with contextlib.suppress(ExpressionError):
                share = check(write(r.choice([0, 1, 1, 2, 3])), left, right)
                shares += [] if share is None else [share]
    assert np.mean(shares) < 0.4  # most pairs are decided by it, although the values are the worst there are


def check_answers(on: str, left: pa.Table, right: pa.Table) -> float | None:
    wrong, share = differing(on, left, right)
    assert wrong is None, wrong
    return share


def check_compiled(on: str, left: pa.Table, right: pa.Table) -> float | None:
    wrong, share = differing(on, left, right, compiled)
    assert wrong is None, wrong
    return share


def check_built(on: str, left: pa.Table, right: pa.Table) -> float:
    """A query with this predicate can be built, or the error says why not; one that is safe fails on no pair."""
    found = join_predicate(on, left.schema, right.schema)
    assert not found.safe or answers(on, left, right).min() >= 0, on
    return 0.0


@pytest.mark.parametrize("seed", range(8))
def test_oracle_everything_that_duckdb_binds(seed: int):
    everything(seed, 50, check_answers)


@pytest.mark.parametrize("seed", range(4))
def test_predicates_of_everything_that_duckdb_binds_are_built_or_refused(seed: int):
    everything(seed, 40, check_built)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_oracle_ten_thousand_predicates_of_everything(part: int):
    everything(SEED + part, 1_250, check_answers)


@pytest.mark.long
def test_predicates_of_everything_built_or_refused_at_length():
    everything(SEED, 2_000, check_built)


@pytest.mark.long
def test_oracle_everything_compiled():
    everything(SEED, 60, check_compiled)


def test_everything_is_every_function_and_every_type_that_streams_carry():
    """What a new version of DuckDB brings is drawn too."""
    assert len({each.name for each in catalogue.signatures()}) > 400
    assert _FUNCTIONS - {each.name for each in catalogue.signatures()} <= {"coalesce", "ifnull"}  # syntax
    assert set(COLUMN_FORMS) <= {kind.partition("(")[0] for kind in catalogue.COLUMNS.values()}


@pytest.mark.parametrize(
    "on",
    [
        "l.s collate nocase = r.s",
        "l.s < r.s collate noaccent",
        "r.s between l.s collate nocase and l.s",
        "r.s in (l.s collate nocase, 'b')",
        "l.s is not distinct from (r.s collate nocase)",
        "upper(l.s collate nocase) || 'x' > r.s",
        "case when l.b then l.s collate de end >= r.s",
        "l.d38 - r.i8 > 1",
        "r.i8 - 170141183460469231731687303715884105727 < l.i8",
        "-(case when l.b then cast('-170141183460469231731687303715884105728' as hugeint) else r.i8 end) > l.i8",
        "l.f8 + r.f8 <> -'nan'::double",
        "l.f8 + r.f8 <> abs(-'nan'::double)",
        "l.f4 - r.f4 = trunc('nan'::float, 1)",
        "l.i8 > r.i8 or '101'::bit > '1'::bit",
    ],
)
def test_nothing_in_a_plan_is_ignored(on: str):
    r = random.Random(3)
    for left, right in [(catalogue.table(r, 40), catalogue.table(r, 40)) for _ in range(4)]:
        check_built(on, left, right)
        check_answers(on, left, right)


def test_an_error_of_duckdb_whose_message_is_no_text_has_a_name():
    with pytest.raises(ExpressionError, match="its message is not valid text"):
        join_predicate("str_split_regex(l.s, r.s, 'É') = l.ls", catalogue.schema(), catalogue.schema())


# --- compiled for real -----------------------------------------------------------------------------------------------

EVERYTHING = """
    sin(l.x - r.y) + cos(l.x * r.x) > tan(r.x - l.y) and asin(l.x / r.y) < acos(r.x - l.x)
    or atan2(l.x, r.y) + atan(l.x + r.x) > sqrt(abs(l.y - r.y)) + cbrt(l.x - r.x)
    or pow(l.x - r.x, 2) + pow(abs(l.x), r.x) < exp(l.x - r.y) + ln(abs(l.x * r.x)) + log(l.y + r.y) + log2(l.x - r.x)
    or round(l.x + r.x) = floor(l.x - r.x) + ceil(l.y * r.x) or round(l.x * r.y, 1) > trunc(r.x - l.x)
    or sinh(l.x - r.x) < cosh(l.x + r.x) * tanh(l.x * r.x) or (l.x - r.x) % 3 > (l.n + r.n) % 7
    or (l.x - r.x)::int = (l.n - r.n) // 3 or l.f * r.f > l.i + r.q or l.m + r.m < l.w - r.n
    or greatest(l.x, r.x, l.n) = least(r.y, l.f) or l.s < r.s or l.ts - r.ts < interval 5 minutes
    or case when l.b then l.x - r.x else coalesce(r.y, l.y) end is not distinct from nullif(l.n, r.n)
    or date_diff('second', l.ts, r.ts) > 5 or sign(l.x - r.x) = 0 and l.s in ('a', r.s)
"""


@pytest.mark.parametrize("awkward", [True, False])
def test_every_function_compiled(awkward):
    r = random.Random(5)
    left, right = (table(r, ROWS, awkward=awkward) for _ in "lr")
    for on in (EVERYTHING, f"not ({EVERYTHING})"):
        found = compile_predicate(parse(on, "on"), {"l": left.schema, "r": right.schema})
        assert isinstance(found, CompiledPredicate), found
        told = compiled(found, left, right)
        assert told is not None
        true, unsure = told
        wanted = answers(on, left, right)
        assert not len(np.flatnonzero(~unsure & (wanted != true)))
        assert not unsure.all() and (awkward or true.any() or "not" in on[:4])


def test_what_is_not_compiled_is_named():
    for on, why in (
        ("levenshtein(l.s, r.s) < 3", "levenshtein"),
        ("l.s collate nocase = r.s", "collate"),
        ("case when l.x > r.x then coalesce('a'::blob, 'b'::blob)::text else l.s end > r.s", "type BLOB"),
        ("len(range(1000000000000)) > l.x - r.x", "range"),  # which is not computed to find out
        ("l.x + r.x > 1 and (l.x - r.x + sin(l.x - r.x)) % 2 > 1", "the remainder of a value that is not exact"),
    ):
        found = compile_predicate(parse(on, "on"), {"l": SCHEMA, "r": SCHEMA})
        assert isinstance(found, Obstacle) and why in str(found)


def test_what_is_about_one_side_is_computed_once_for_each_tuple():
    found = compile_predicate(parse("cos(radians(l.x)) * length(r.s) < l.y - r.x", "on"), {"l": SCHEMA, "r": SCHEMA})
    assert isinstance(found, CompiledPredicate)
    assert [given.sql for given in found.given] == ["(cos(radians(l.x)))", "(length(r.s))"]


def test_an_error_of_one_side_alone_leaves_the_pairs_to_duckdb():
    """Pair by pair it may never be asked for."""
    r = random.Random(1)
    left, right = (table(r, 8, awkward=False) for _ in "lr")
    left = left.set_column(3, "n", pa.array([2**63 - 1] * 8))
    found = compile_predicate(
        parse("case when r.b then l.n + 1 else r.n end > l.x - r.x", "on"), {"l": SCHEMA, "r": SCHEMA}
    )
    assert isinstance(found, CompiledPredicate) and found.given
    assert kernel.bind_columns(found, left, right) is None


@pytest.mark.parametrize("on", ["sin(l.x - r.y) = sin(l.x - r.y) + 0.0 * r.x", "l.n + r.n > 1"])
def test_a_source_that_forgets_its_doubts_is_seen(on, monkeypatch):
    r = random.Random(2)
    left, right = (table(r, ROWS, awkward=True) for _ in "lr")
    assert differing(on, left, right)[0] is None
    found = compile_predicate(parse(on, "on"), {"l": left.schema, "r": right.schema})
    told = said(found, left, right)
    monkeypatch.setitem(globals(), "said", lambda *_: (told[0], np.zeros_like(told[1])))
    assert differing(on, left, right)[0] is not None


# --- what random predicates rarely meet ---------------------------------------------------------------------------------


def odd_moments() -> pa.Table:
    times = [
        "2020-01-01",
        "2020-01-31",
        "2020-02-29 12:00",
        "2020-03-01",
        "2020-12-28",
        "2021-01-02",
        "1969-12-31 23:59:59",
    ]
    ts = pa.array([dt.datetime.fromisoformat(time).replace(tzinfo=dt.UTC) for time in times], pa.timestamp("us", "UTC"))
    x = [float("nan"), float("inf"), 0.0, -0.0, 1.0, -float("inf"), 2.5]
    return pa.table({"ts": ts, "x": x, "k": pa.array(range(7), pa.int64()), "b": [True, False] * 3 + [None]})


@pytest.mark.parametrize(
    "on",
    [
        "(l.x - r.x) * 0 >= 0",
        "(l.x - r.x) * 0 > 5",
        "(l.x - r.x) * (case when l.b then 0.0 else 0.0 end) >= 0",
        "greatest((l.x - r.x) * 0, 0.0) > 5",
        "epoch(l.ts - r.ts) < epoch(interval '1 year')",
        "epoch(l.ts - r.ts) < epoch(interval '31 days')",
        "epoch(greatest(l.ts - r.ts, interval '1 year')) > 31200000",
        "least(l.ts, r.ts) + '1 month'::interval > greatest(l.ts, r.ts)",
        "least(l.ts, r.ts) + interval '1 month' > greatest(l.ts, r.ts)",
        "least(l.ts, r.ts) + to_months(1) > greatest(l.ts, r.ts)",
        "l.ts + to_months(r.k) > r.ts",
        "l.ts + to_days(r.k::int) > r.ts",
        "least(l.ts, r.ts) + interval '30 days' > greatest(l.ts, r.ts)",
        "l.ts < case when l.b then r.ts else timestamptz 'infinity' end",
        "l.ts > case when l.b then r.ts else timestamptz '-infinity' end",
        "greatest(l.ts, r.ts) < timestamptz 'infinity'",
        "(case when l.b and r.b then l.ts else timestamptz 'infinity' end) is not null",
        "l.ts::date <= case when l.b and r.b then r.ts::date else date 'infinity' end",
    ],
)
def test_numbers_and_times_at_their_ends(on: str) -> None:
    table = odd_moments()
    wrong, _ = differing(on, table, table)
    assert wrong is None, wrong
