"""Bad input on the in-process engine: the same answer as the reference, or a named refusal."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import sinks
from headrace.difference import difference
from headrace.errors import (
    DataError,
    QueryChanged,
    QueryError,
    QueryTypeError,
    SinkError,
    SourceError,
    StateError,
)
from headrace.reference import late_tuples, reference
from headrace.state import StateStore
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream
from tests.helpers import sorted_rows, tuples
from tests.oracle.driving import fate_of

SECOND = 1_000_000
UTC = pa.timestamp("us", "UTC")
NAN, INF = math.nan, math.inf


def source(table: pa.Table, **options: Any) -> Stream:
    return table_stream(table, name="s", **options)


def windows(stream: Stream, **functions: str) -> Stream:
    return stream.aggregate(by=["k"], window="10 seconds", **(functions or {"n": "count(*)", "total": "sum(v)"}))


def queries(stream: Stream) -> list[Stream]:
    """One of each kind of state: panes, tuples in sequence, count windows, a join."""
    return [
        windows(stream),
        windows(stream, listed="list(v)"),
        stream.aggregate(by=["k"], last=2, every=1, n="count(*)", total="sum(v)"),
        stream.join(stream, on="l.k = r.k", within="3 seconds"),
    ]


class Check:
    """Runs epochs on the engine and compares each result, the late and the rejected with the reference."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, query: Stream | Sequence[Stream], epochs: Sequence[pa.Table], *, slots: int = 3, end: bool = True
    ) -> LocalRun:
        given = [query] if isinstance(query, Stream) else list(query)
        run = LocalRun(given, self.folder / "state", slots=slots)
        for table in epochs:
            run.epoch(table, splitters=2)
        if end:
            run.end()
        for index, one in enumerate(given):
            wanted = reference(one, epochs=epochs, end=end)
            assert (found := difference(wanted, run.results(f"result-{index}"))) is None, found
        late, rejected = late_tuples(given[0], epochs)["s"]
        self._kept_aside(run, late, rejected)
        assert run.store.last is not None
        totals = run.store.last.totals
        assert totals.delivered == sum(table.num_rows for table in epochs)
        assert totals.delivered == totals.accepted + totals.late + totals.rejected
        assert (totals.late, totals.rejected) == (late.num_rows, rejected.num_rows)
        run.close()
        return run

    def _kept_aside(self, run: LocalRun, late: pa.Table, rejected: pa.Table) -> None:
        kept = run.late["late:s"].table()
        for reason, wanted in (("late", late), ("rejected", rejected)):
            found = wanted.slice(0, 0)
            if kept is not None:
                mask = pa.array([fate_of(r) == reason for r in kept["_reason"].to_pylist()])
                found = kept.filter(mask).select(wanted.column_names)
            assert (text := difference(wanted, found)) is None, f"{reason}: {text}"


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(tmp_path)


# --- nothing, null, strange numbers -------------------------------------------------------------------------------------


def test_empty_batch(check: Check):
    some = tuples((0, "a", 1), (11 * SECOND, "a", 2))
    run = check(queries(source(some)), [tuples(), some, tuples(), tuples()])
    assert run.store.last is not None
    assert run.store.last.number == 4


def test_empty_batch_moves_no_watermark_and_invents_nothing(tmp_path: Path):
    some = tuples((0, "a", 1), (9 * SECOND, "a", 2))
    run = LocalRun(queries(source(some)), tmp_path / "state", slots=2)
    run.epoch(some)
    assert run.store.last is not None
    before, results = run.store.last.sources["s"], [run.results(f"result-{i}") for i in range(4)]
    for _ in range(3):
        run.epoch(tuples())
        run.epoch(None)
    assert run.store.last.number == 6
    assert run.store.last.sources["s"] == before
    assert run.store.last.outbox == ()
    assert [run.results(f"result-{i}").num_rows for i in range(4)] == [table.num_rows for table in results]


def test_batch_of_only_late_rows(check: Check):
    first = tuples((100 * SECOND, "a", 1))
    late = tuples((1, "a", 2), (99 * SECOND, "b", 3), (100 * SECOND - 1, "a", 4))
    run = check(queries(source(first)), [first, late, late])
    assert run.store.last is not None
    assert run.store.last.totals.late == 6


def test_null_key_is_a_group_and_meets_nothing_in_a_join(check: Check, tmp_path: Path):
    table = tuples((0, None, 1), (1, "a", 2), (2, None, 3), (3, "a", 4), (12 * SECOND, None, 5))
    run = check(queries(source(table)), [table.slice(0, 2), table.slice(2)])
    assert (None, 2, 4) in sorted_rows(run.results("result-0"), "k", "n", "total")
    assert all(k is not None for (k,) in sorted_rows(run.results("result-3"), "l_k"))


def test_null_time_is_rejected_counted_and_kept(check: Check):
    table = tuples((0, "a", 1), (None, "a", 2), (5, "b", 3), (None, None, None))
    run = check(queries(source(table)), [table, table.slice(1, 1)])
    assert run.store.last is not None
    assert run.store.last.totals.rejected == 3


def test_null_values_follow_sql(check: Check):
    table = tuples((0, "a", None), (1, "a", 2), (2, "b", None))
    functions = {"n": "count(*)", "values": "count(v)", "total": "sum(v)", "mean": "avg(v)", "low": "min(v)"}
    run = check(windows(source(table), **functions), [table])
    assert sorted_rows(run.results(), "k", "n", "values", "total", "low") == [
        ("a", 2, 1, 2, 2),
        ("b", 1, 0, None, None),
    ]


DOUBLES = [NAN, -NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 5e-324, -5e-324, 1.7976931348623157e308, None]


def test_doubles_as_groups_keys_and_values(check: Check):
    table = tuples(*((i * 1000, v, v) for i, v in enumerate(DOUBLES * 3)), k=pa.float64(), v=pa.float64())
    stream = source(table)
    wanted = [
        windows(stream, n="count(*)", low="min(v)", high="max(v)"),
        stream.aggregate(by=["k"], last=2, every=1, n="count(*)", high="max(v)"),
        stream.join(stream, on="l.k = r.k", within="1 second"),
        stream.join(stream, on="l.k <= r.k and l.v > r.v", within="1 second"),
    ]
    run = check(wanted, [table.slice(0, 13), table.slice(13, 9), table.slice(22)])
    groups = sorted_rows(run.results("result-0"), "k", "n")
    assert len(groups) == len(DOUBLES) - 2, "NaN is one group whatever its sign, and so is zero"
    assert sorted(n for _, n in groups) == [3] * 8 + [6, 6]


def test_sums_with_infinities_and_nan(check: Check):
    values = [("p", INF), ("p", 1.0), ("m", INF), ("m", -INF), ("n", NAN), ("n", 1.0), ("z", -0.0)]
    table = tuples(*((i, k, v) for i, (k, v) in enumerate(values)), k=pa.string(), v=pa.float64())
    stream = source(table)
    try:
        wanted = reference(windows(stream, total="sum(v)"), epochs=[table])
    except DataError:
        with pytest.raises(DataError):
            check(windows(stream, total="sum(v)"), [table.slice(0, 3), table.slice(3)])
        return
    run = check(windows(stream, total="sum(v)"), [table.slice(0, 3), table.slice(3)])
    assert difference(wanted, run.results()) is None


def test_zero_and_minus_zero_join(check: Check):
    table = tuples((0, 0.0, 1), (1, -0.0, 2), k=pa.float64(), v=pa.int64())
    stream = source(table)
    run = check(stream.join(stream, on="l.k = r.k", within="1 second"), [table.slice(0, 1), table.slice(1)], slots=4)
    assert run.results().num_rows == 4


# --- overflow -------------------------------------------------------------------------------------------------------------


def test_sum_of_whole_numbers_is_wider_than_they_are(check: Check):
    most = 2**63 - 1
    table = tuples((0, "a", most), (1, "a", most), (2, "a", most), (3, "b", -most - 1), (4, "b", -most - 1))
    run = check([*queries(source(table))[:3]], [table.slice(0, 1), table.slice(1, 3), table.slice(4)])
    assert sorted_rows(run.results("result-0"), "k", "total") == [("a", 3 * most), ("b", 2 * (-most - 1))]


def test_arithmetic_that_overflows_stops_and_names_the_row(tmp_path: Path):
    table = tuples((0, "a", 1), (1, "b", 2**63 - 1))
    run = LocalRun(source(table).map("k", w="v + 1"), tmp_path / "state", slots=2)
    with pytest.raises(DataError, match=r"w = v \+ 1.*[Oo]verflow.*9223372036854775807"):
        run.epoch(table)
    assert run.store.last is None, "nothing was committed"


def test_decimal_overflow_stops(tmp_path: Path):
    kind = pa.decimal128(38, 0)
    most = Decimal("9" * 38)
    table = tuples((0, "a", most), (1, "a", most), k=pa.string(), v=kind)
    query = windows(source(table), total="sum(v)")
    with pytest.raises(DataError):
        reference(query, epochs=[table])
    for cut in ([table], [table.slice(0, 1), table.slice(1)]):
        run = LocalRun(query, tmp_path / f"state-{len(cut)}", slots=2)
        with pytest.raises(DataError, match="sum"):
            for part in cut:
                run.epoch(part)
            run.end()
        run.close()


def test_decimals_within_their_range_are_exact(check: Check):
    kind = pa.decimal128(18, 6)
    table = tuples(*((i, "a", Decimal("0.000001") * i) for i in range(100)), k=pa.string(), v=kind)
    run = check(windows(source(table), total="sum(v)"), [table.slice(0, 33), table.slice(33)])
    assert run.results()["total"].to_pylist() == [Decimal("0.004950")]


# --- time -----------------------------------------------------------------------------------------------------------------

YEAR_9999 = 253_402_300_799_999_999


def test_far_future_with_ahead_is_rejected_and_the_watermark_stays(check: Check):
    first = tuples((0, "a", 1))
    second = tuples((SECOND, "a", 2), (YEAR_9999, "a", 3), (61 * SECOND, "a", 4), (60 * SECOND, "a", 5))
    third = tuples((2 * SECOND, "b", 6), (60 * SECOND, "b", 7))
    stream = source(first, ahead="1 minute", lateness="1 hour")
    run = check(queries(stream), [first, second, third], end=False)
    assert run.store.last is not None
    assert run.store.last.totals.rejected == 2
    assert run.store.last.sources["s"].largest == 60 * SECOND


def test_far_future_without_ahead_makes_later_rows_late(check: Check):
    first, second = tuples((0, "a", 1), (YEAR_9999, "a", 2)), tuples((SECOND, "a", 3))
    run = check(queries(source(first)), [first, second])
    assert run.store.last is not None
    assert run.store.last.totals.late == 1


@pytest.mark.parametrize("ts", [2**63 - 1, -(2**63), 2**61 + 1, -(2**61) - 1])
def test_time_at_the_ends_of_the_type_is_rejected(tmp_path: Path, ts: int):
    table = tuples((0, "a", 1), (ts, "a", 2), (SECOND, "a", 3))
    run = LocalRun(queries(source(table)), tmp_path / "state", slots=2)
    run.epoch(table)
    run.end()
    assert run.store.last is not None
    assert run.store.last.totals.rejected == 1
    assert sorted_rows(run.results("result-0"), "n", "total") == [(2, 4)]


def test_seconds_that_do_not_fit_are_refused_by_name(tmp_path: Path):
    """Microseconds read as seconds: some 54 million years."""
    table = pa.table({"at": pa.array([0, 1_700_000_000_000_000], pa.int64()).cast(pa.timestamp("s")), "v": [1, 2]})
    stream = table_stream(table, time="at", name="s")
    run = LocalRun(stream.filter("v > 0"), tmp_path / "state")
    with pytest.raises(SourceError, match=r"'at'.*'?s'?"):
        run.epoch(table)
    assert run.store.last is None


def test_before_1970(check: Check):
    table = tuples(*((-35 * SECOND + i * 1_700_000, "a", i) for i in range(30)))
    run = check(queries(source(table)), [table.slice(0, 7), table.slice(7, 11), table.slice(18)])
    starts = {start for (start,) in sorted_rows(run.results("result-0"), "window_start")}
    assert min(starts) == -40 * SECOND
    assert all(start % (10 * SECOND) == 0 for start in starts)


def test_nanoseconds_are_refused_at_definition():
    table = pa.table({"ts": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(QueryTypeError, match=r"has nanoseconds.*cast it to timestamp\[us\]"):
        table_stream(table)
    other = tuples((0, 1), at=pa.timestamp("ns"))
    with pytest.raises(QueryTypeError, match="'at' has nanoseconds"):
        table_stream(other)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.date32(), pa.float64()])
def test_time_that_is_not_a_timestamp_is_refused(kind: pa.DataType):
    with pytest.raises(QueryTypeError, match="must be a timestamp"):
        table_stream(pa.table({"ts": pa.array([], kind)}))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+05:30", "America/St_Johns", "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_time_zones_keep_the_instant(tmp_path: Path, zone: str, unit: str):
    plain = tuples((1_711_846_800 * SECOND, "a", 1), (1_711_850_400 * SECOND, "a", 2))  # the night of a clock change
    there = plain.set_column(0, "ts", plain["ts"].cast(pa.timestamp(unit, zone)))
    run = LocalRun(windows(source(there)), tmp_path / "state")
    run.epoch(there)
    run.end()
    assert difference(reference(windows(source(plain)), epochs=[plain]), run.results()) is None


def test_a_zone_that_comes_or_goes_mid_stream_is_refused(tmp_path: Path):
    aware = tuples((0, "a", 1))
    naive = aware.set_column(0, "ts", aware["ts"].cast(pa.timestamp("us")))
    run = LocalRun(windows(source(aware)), tmp_path / "state")
    run.epoch(aware)
    with pytest.raises(
        SourceError, match=r"'ts' of s changed its type from timestamp\[us, tz=UTC\] to timestamp\[us\]"
    ):
        run.epoch(naive)


@pytest.mark.parametrize("tick", [-1, 0, 1])
def test_on_a_window_edge(check: Check, tick: int):
    """[start, end): a tuple at the end belongs to the next window."""
    table = tuples((5 * SECOND, "a", 1), (10 * SECOND + tick, "a", 2), (30 * SECOND, "a", 3))
    run = check(queries(source(table)), [table.slice(0, 1), table.slice(1, 1), table.slice(2)])
    first = [n for start, n in sorted_rows(run.results("result-0"), "window_start", "n") if start == 0]
    assert first == [2 if tick < 0 else 1]


@pytest.mark.parametrize("tick", [-1, 0, 1])
def test_on_the_watermark(check: Check, tick: int):
    """Late is what is strictly before the watermark."""
    first, second = tuples((100 * SECOND, "a", 1)), tuples((95 * SECOND + tick, "a", 2))
    run = check(queries(source(first, lateness="5 seconds")), [first, second])
    assert run.store.last is not None
    assert run.store.last.totals.late == (1 if tick < 0 else 0)


@pytest.mark.parametrize("tick", [-1, 0, 1])
def test_a_window_closes_when_the_watermark_reaches_its_end(tmp_path: Path, tick: int):
    table = tuples((0, "a", 1), (10 * SECOND + tick, "b", 2))
    run = LocalRun(windows(source(table)), tmp_path / "state")
    run.epoch(table)
    assert run.results().num_rows == (0 if tick < 0 else 1)


@pytest.mark.parametrize("tick", [-1, 0, 1])
def test_on_the_edge_of_a_join_window(check: Check, tick: int):
    """Both ends of a join's window belong to it."""
    table = tuples((0, "a", 1), (3 * SECOND + tick, "a", 2))
    stream = source(table)
    run = check(stream.join(stream, on="l.k = r.k", within="3 seconds"), [table.slice(0, 1), table.slice(1)])
    assert run.results().num_rows == (2 if tick > 0 else 4)


@pytest.mark.parametrize("tick", [-1, 0, 1])
def test_exactly_as_far_ahead_as_allowed(check: Check, tick: int):
    first, second = tuples((0, "a", 1)), tuples((60 * SECOND + tick, "a", 2))
    run = check(queries(source(first, ahead="1 minute")), [first, second])
    assert run.store.last is not None
    assert run.store.last.totals.rejected == (1 if tick > 0 else 0)


# --- keys, repeats, disorder ------------------------------------------------------------------------------------------------


def test_all_rows_one_key(check: Check):
    table = tuples(*((i * 50_000, "a", i) for i in range(400)))
    check(queries(source(table)), [table.slice(i * 100, 100) for i in range(4)], slots=4)


def test_every_row_a_new_key(check: Check):
    table = tuples(*((i * 50_000, f"key {i}", i) for i in range(1000)))
    check(queries(source(table)), [table.slice(i * 250, 250) for i in range(4)], slots=4)


def test_duplicates_count_each_time(check: Check):
    row = (SECOND, "a", 7)
    table = tuples(row, row, row)
    run = check(queries(source(table)), [table, table, tuples(row)])
    assert sorted_rows(run.results("result-0"), "n", "total") == [(7, 49)]
    assert run.results("result-3").num_rows == 49


@pytest.mark.parametrize("disorder", [1, 5, 20])
def test_out_of_order_within_and_beyond_the_lateness(check: Check, disorder: int):
    """Five seconds are allowed: with more disorder tuples are late, the same ones as in the reference."""
    rng = np.random.default_rng(disorder)
    times = np.arange(300) * 200_000 + rng.integers(0, disorder * SECOND + 1, 300)
    table = tuples(*((int(t), "abc"[i % 3], i) for i, t in enumerate(times)))
    stream = source(table, lateness="5 seconds")
    run = check(queries(stream), [table.slice(i * 60, 60) for i in range(5)])
    assert run.store.last is not None
    assert (run.store.last.totals.late > 0) == (disorder > 5)


# --- schemas, names, text, windows --------------------------------------------------------------------------------------------

CHANGED = {
    "missing": (lambda t: t.drop_columns(["v"]), r"missing \['v'\], which the query reads; there are ts, k;"),
    "renamed": (
        lambda t: t.rename_columns(["ts", "k", "w"]),
        r"missing \['v'\], which the query reads; there are ts, k, w",
    ),
    "retyped": (
        lambda t: t.set_column(2, "v", t["v"].cast(pa.float64())),
        "column 'v' of s changed its type from int64 to double",
    ),
    "narrowed": (
        lambda t: t.set_column(2, "v", t["v"].cast(pa.int32())),
        "column 'v' of s changed its type from int64 to int32",
    ),
}


@pytest.mark.parametrize("change", CHANGED)
def test_schema_changes_mid_stream(tmp_path: Path, change: str):
    """The run stops, nothing of the epoch is kept, and good rows in its place are taken afterwards. The reference refuses them
    too."""
    changed, message = CHANGED[change]
    first, second = tuples((0, "a", 1)), tuples((SECOND, "a", 2))
    with pytest.raises(SourceError, match="of s changed"):
        reference(windows(source(first)), epochs=[first, changed(second)])
    run = LocalRun(windows(source(first)), tmp_path / "state")
    run.epoch(first)
    with pytest.raises(SourceError, match=message):
        run.epoch(changed(second))
    assert run.store.last is not None
    assert run.store.last.number == 0
    run.epoch(second)
    run.end()
    assert sorted_rows(run.results(), "n", "total") == [(2, 3)]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.null(), pa.duration("s"), pa.float16()])
def test_a_column_becomes_a_type_that_no_stream_carries(tmp_path: Path, kind: pa.DataType):
    first = tuples((0, "a", 1))
    run = LocalRun(windows(source(first)), tmp_path / "state")
    with pytest.raises(SourceError, match=f"'v' of s changed its type from int64 to {kind}".replace("[", r"\[")):
        run.epoch(first.set_column(2, "v", pa.nulls(1, kind)))


def test_a_column_comes_twice(tmp_path: Path):
    first = tuples((0, "a", 1))
    run = LocalRun(windows(source(first)), tmp_path / "state")
    with pytest.raises(SourceError, match=r"same name: \['v'\]"):
        run.epoch(first.append_column("v", first["v"]))


def test_another_order_of_the_columns_is_no_change(check: Check):
    first, second = tuples((0, "a", 1)), tuples((SECOND, "a", 2))
    check(windows(source(first)), [first, second.select(["v", "ts", "k"])])


def test_another_encoding_of_the_same_type_is_no_change(check: Check):
    first, second = tuples((0, "a", 1)), tuples((SECOND, "a", 2))
    encoded = second.set_column(1, "k", second["k"].combine_chunks().dictionary_encode())
    large = second.set_column(1, "k", second["k"].cast(pa.large_string()))
    run = LocalRun(windows(source(first)), check.folder / "state")
    for table in (first, encoded, large):
        run.epoch(table)
    run.end()
    assert sorted_rows(run.results(), "n", "total") == [(3, 5)]


GOOD_NAMES = [
    "a.b",
    "a`b",
    "it's",
    'say "no"',
    "ünï",
    "select",
    "group",
    "order by",
    "l",
    "r.x",
    "%s",
    "{x}",
    "a;b--",
    "数",
    "n" * 253,
    "rowid",
    "_x",
    "\\",
    "$1",
    "?",
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_odd_names_work(check: Check, name: str):
    table = tuples((0, "a", 1), (1, "a", 2), (12 * SECOND, "b", 3), **{name: pa.string(), "v": pa.int64()})
    stream = source(table)
    quoted = '"' + name.replace('"', '""') + '"'
    check(
        [
            stream.aggregate(by=[name], window="10 seconds", n=f"count({quoted})", listed=f"list({quoted})"),
            stream.aggregate(by=[name], last=1, every=1, low=f"min({quoted})"),
            stream.join(stream, on=f"l.{quoted} = r.{quoted}", within="1 second"),
            stream.filter(f"{quoted} = 'a'").map(name, twice=f"{quoted} || {quoted}"),
        ],
        [table.slice(0, 1), table.slice(1)],
    )


@pytest.mark.parametrize(
    "name", ["", " ", " x", "x ", "x" * 256, "x" * 10_000, "__x", "a\0b", "a\nb", "a\u200bb", "\ufeffa"]
)
def test_impossible_names_are_refused_at_definition(name: str):
    with pytest.raises(QueryError, match=r"column name"):
        source(tuples((0, 1), **{name: pa.int64()}))


@pytest.mark.parametrize("twins", [("a", "A"), ("é", "e\u0301"), ("ß", "SS"), ("K", "\u212a")])
def test_twins_are_refused_at_definition(twins: tuple[str, str]):
    with pytest.raises(QueryError, match="differ only in case or in Unicode form"):
        source(tuples((0, 1, 2), **dict.fromkeys(twins, pa.int64())))


def test_the_same_name_twice_is_refused():
    table = pa.table([pa.array([0], UTC), pa.array([1]), pa.array([2])], names=["ts", "x", "x"])
    with pytest.raises(QueryError):
        source(table)


TEXTS = [
    "../../etc/passwd",
    "/",
    "..",
    "a\0b",
    "\0",
    "a\nb\r\n",
    "",
    " ",
    "'; DROP TABLE x; --",
    '"',
    "\\",
    "\u202e",
    "💧" * 10,
    "e\u0301",
    "é",
    "\ufffe",
    "x" * 1_000_000,
]


def test_texts_are_stored_exactly_and_never_reach_a_path(check: Check):
    table = tuples(*((i, text, i) for i, text in enumerate(TEXTS * 2)))
    run = check(queries(source(table)), [table.slice(0, 5), table.slice(5, 17), table.slice(22)], slots=4)
    assert {k for (k,) in sorted_rows(run.results("result-0"), "k")} == set(TEXTS)
    names = [path.name for path in (check.folder / "state").rglob("*")]
    assert all(len(name) < 100 and name.isascii() and name.isprintable() for name in names)
    assert sorted(path.name for path in check.folder.iterdir()) == ["state"]


def test_a_text_with_a_lone_surrogate_cannot_become_arrow():
    with pytest.raises((UnicodeEncodeError, pa.ArrowException)):
        tuples((0, "\ud800", 1))


@pytest.mark.parametrize(
    "window",
    ["0 seconds", "-1 seconds", "1 month", "2 years", "1 quarter", "0.0000001 seconds", "ten", "", "100001 days"],
)
def test_impossible_windows_are_refused_at_definition(window: str):
    stream = source(tuples())
    with pytest.raises(QueryError, match="window"):
        stream.aggregate(by=["k"], window=window, n="count(*)")
    with pytest.raises(QueryError, match="every"):
        stream.aggregate(by=["k"], window="1 day", every=window, n="count(*)")
    with pytest.raises(QueryError, match="within"):
        stream.join(stream, on="l.k = r.k", within=window)


@pytest.mark.parametrize("window", [10, 1.5, None, b"1 second", datetime.timedelta(0)])
def test_windows_are_lengths_of_time(window: Any):
    with pytest.raises(QueryError):
        source(tuples()).aggregate(by=["k"], window=window, n="count(*)")


def test_a_slide_longer_than_its_window_is_refused():
    stream = source(tuples())
    with pytest.raises(QueryError, match="longer than the window"):
        stream.aggregate(by=["k"], window="10 seconds", every="11 seconds", n="count(*)")
    with pytest.raises(QueryError, match="longer than the window"):
        stream.aggregate(by=["k"], last=3, every=4, n="count(*)")


@pytest.mark.parametrize("last", [0, -1, 1.5, "3", True])
def test_count_windows_are_positive_whole_numbers(last: Any):
    stream = source(tuples())
    with pytest.raises(QueryError, match="last"):
        stream.aggregate(by=["k"], last=last, n="count(*)")
    with pytest.raises(QueryError, match="last"):
        stream.join(stream, on="l.k = r.k", last=last)


def test_a_slide_that_does_not_divide_its_window_is_fine(check: Check):
    table = tuples(*((i * 700_000, "a", i) for i in range(60)))
    query = source(table).aggregate(by=["k"], window="10 seconds", every="3 seconds", n="count(*)", total="sum(v)")
    check(query, [table.slice(0, 31), table.slice(31)])


# --- user code --------------------------------------------------------------------------------------------------------------


def test_a_callback_that_raises_loses_nothing(tmp_path: Path):
    table = tuples((0, "a", 1), (11 * SECOND, "a", 2))
    seen: list[tuple[int, list[Any]]] = []

    def fragile(results: pa.Table, epoch: int) -> None:
        seen.append((epoch, results.to_pylist()))
        if len(seen) < 3:
            raise RuntimeError("the table is locked")

    query = windows(source(table))
    run = LocalRun(query, tmp_path / "state", sink=sinks.foreach(fragile))
    with pytest.raises(SinkError, match=r"epoch 0: RuntimeError: the table is locked.*committed.*delivered again"):
        run.epoch(table)
    assert run.store.last is not None
    assert run.store.last.number == 0
    run.close()
    with pytest.raises(SinkError):
        LocalRun(query, tmp_path / "state", sink=sinks.foreach(fragile))
    run = LocalRun(query, tmp_path / "state", sink=sinks.foreach(fragile))  # the failed one has let go of the folder
    assert [epoch for epoch, _ in seen] == [0, 0, 0]
    assert seen[0] == seen[1] == seen[2]
    run.epoch(tuples((25 * SECOND, "a", 3)))
    assert seen[-1][0] == 1
    run.close()


def test_a_callback_that_changes_its_table_harms_nobody(tmp_path: Path):
    table = tuples((0, "a", 1), (11 * SECOND, "a", 2), (22 * SECOND, "b", 3))
    kept: list[pa.Table] = []

    def greedy(results: pa.Table, epoch: int) -> None:
        kept.append(results)
        results.slice(0, 1).to_pylist()
        results = results.drop_columns(["n"]).append_column("x", pa.array([None] * results.num_rows))
        column = kept[-1]["total"].chunk(0)
        for buffer in column.buffers():
            if buffer is not None and buffer.is_mutable:
                np.frombuffer(buffer, np.uint8)[:] = 255
        frame = kept[-1].to_pandas()
        frame["n"] = -1

    query = windows(source(table))
    run = LocalRun(query, tmp_path / "state", sink=sinks.foreach(greedy))
    run.epoch(table.slice(0, 2))
    run.epoch(table.slice(2))
    run.end()
    run.close()
    assert difference(reference(query, epochs=[table.slice(0, 2), table.slice(2)]), pa.concat_tables(kept)) is None
    assert StateStore.open(tmp_path / "state", read_only=True).last is not None


def test_a_callback_must_be_callable():
    with pytest.raises(QueryTypeError, match="takes a function"):
        sinks.foreach("print")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["random()", "now()", "uuid()", "current_date", "getenv('HOME')"])
def test_expressions_that_are_not_deterministic_are_refused(text: str):
    with pytest.raises(QueryError):
        source(tuples()).map("k", x=text)


def test_an_expression_that_fails_names_itself_and_the_row(tmp_path: Path):
    table = tuples((0, "1", 1), (1, "zwei", 2))
    run = LocalRun(source(table).map(n="CAST(k AS INTEGER)"), tmp_path / "state")
    with pytest.raises(DataError, match=r"CAST\(k AS INTEGER\).*zwei"):
        run.epoch(table)
    assert run.store.last is None


# --- many and large -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_300_tiny_epochs_leave_few_files(tmp_path: Path):
    table = tuples(*((i * 400_000, "abc"[i % 3], i) for i in range(300)))
    stream = source(table)
    wanted = queries(stream)
    store = StateStore.open(tmp_path / "state", fsync=False)
    run = LocalRun(wanted, tmp_path / "state", slots=2, store=store)
    most = 0
    for i in range(300):
        run.epoch(table.slice(i, 1))
        if i % 10 == 0:
            most = max(most, len(store.storage.list("blocks")))
            assert len(store.storage.list("manifests")) <= 3
    run.end()
    assert most < 250, most
    for index, query in enumerate(wanted):
        assert difference(reference(query), run.results(f"result-{index}")) is None


def test_one_huge_batch(tmp_path: Path):
    count = 1_000_000
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "ts": pa.array(np.arange(count) * 100, pa.int64()).cast(UTC),
            "k": pa.array(rng.integers(0, 1000, count)),
            "v": pa.array(rng.integers(0, 1_000_000, count)),
        }
    )
    run = LocalRun(windows(source(table)), tmp_path / "state", slots=4)
    run.epoch(table, splitters=2)
    run.end()
    found = run.results()
    assert sum(found["n"].to_pylist()) == count
    assert sum(found["total"].to_pylist()) == int(np.asarray(table["v"]).sum())


# --- another query, another folder ----------------------------------------------------------------------------------------------

BASE = tuples((0, "a", 1))
LATE = {"lateness": "1 second"}


def _changed_queries() -> dict[str, tuple[Stream, str]]:
    stream = source(BASE, **LATE)
    return {
        "window": (
            stream.aggregate(by=["k"], window="20 seconds", n="count(*)", total="sum(v)"),
            r"window was 10000000, is 20000000",
        ),
        "function": (windows(stream, n="count(*)", total="sum(v + 1)"), r"functions was .*sum"),
        "group": (stream.aggregate(window="10 seconds", n="count(*)", total="sum(v)"), r"by was \['k'\], is \[\]"),
        "lateness": (
            windows(source(BASE)),
            r"lateness was 1000000, is 0: while the state continues it can only become longer",
        ),
        "schema": (
            windows(source(tuples((0, "a", 1.0), k=pa.string(), v=pa.float64()), **LATE)),
            r"lost: aggregate-1: column 'v' of s was int64, is double",
        ),
        "name": (windows(table_stream(BASE, name="t", **LATE)), r"name was 's', is 't'"),
        "more": (windows(stream.filter("v > 0")), r"its input was s, is s, filter v > 0"),
    }


@pytest.mark.parametrize("change", ["window", "function", "group", "lateness", "schema", "name", "more"])
def test_a_changed_query_is_refused_and_the_change_named(tmp_path: Path, change: str):
    run = LocalRun(windows(source(BASE, **LATE)), tmp_path / "state")
    run.epoch(BASE)
    run.close()
    before = _contents(tmp_path / "state")
    query, message = _changed_queries()[change]
    with pytest.raises(QueryChanged, match=message):
        LocalRun(query, tmp_path / "state")
    assert _contents(tmp_path / "state") == before
    again = LocalRun(windows(source(BASE, **LATE)), tmp_path / "state", slots=5)
    again.end()
    assert again.results().num_rows == 1


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock"}


def test_slots_and_writing_are_no_change(tmp_path: Path):
    first = LocalRun(windows(source(BASE)), tmp_path / "state", slots=1)
    first.epoch(BASE)
    first.close()
    stream = table_stream(BASE, name="s", lateness="0 milliseconds")
    same = stream.aggregate(by=("k",), window="10000 milliseconds", n="count( * )", total="SUM(v)")
    again = LocalRun(same, tmp_path / "state", slots=3)
    again.end()
    assert sorted_rows(again.results(), "n", "total") == [(1, 1)]


def test_a_file_in_place_of_the_folder(tmp_path: Path):
    (tmp_path / "state").write_text("mine")
    with pytest.raises(StateError, match="is a file"):
        StateStore.open(tmp_path / "state")
    assert (tmp_path / "state").read_text() == "mine"


def test_a_symbolic_link(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with pytest.raises(StateError, match="symbolic link"):
        StateStore.open(tmp_path / "state")
    assert list((tmp_path / "real").iterdir()) == []


def test_foreign_files(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StateError, match=r"not state: \['notes.txt'\]"):
        StateStore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("path", ["/proc/headrace/state", "/sys/headrace/state"])
def test_a_place_where_nothing_can_be_made(path: str):
    with pytest.raises(StateError, match="cannot create"):
        StateStore.open(Path(path))


def test_a_relative_path_works_and_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = LocalRun(windows(source(BASE)), Path("relative/state"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.epoch(BASE)
    run.end()
    assert run.results().num_rows == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_manifests_hold_plain_json(tmp_path: Path):
    run = LocalRun(queries(source(BASE)), tmp_path / "state")
    run.epoch(BASE)
    for path in (tmp_path / "state" / "manifests").iterdir():
        assert json.loads(path.read_text())["number"] == 0


def test_a_tuple_that_is_put_aside_has_its_reason(tmp_path: Path) -> None:
    s = table_stream(tuples(), lateness="1 second", ahead="90 seconds", name="s")
    run = LocalRun(s, tmp_path, slots=1)
    run.epoch(tuples((10 * SECOND, "a", 1)))
    run.epoch(
        tuples((None, "b", 2), (101 * SECOND, "c", 3), (2**62, "d", 4), (8 * SECOND, "e", 5), (100 * SECOND, "f", 6))
    )
    kept, progress = run.late["late:s"].table().sort_by("k"), run.driver.progress
    run.close()
    assert (kept.num_rows, progress.late, progress.rejected, progress.accepted) == (4, 1, 3, 2)
    assert dict(zip(kept["k"].to_pylist(), kept["_reason"].to_pylist(), strict=True)) == {
        "b": "time is null",
        "c": "more than 90 seconds (ahead) past 1970-01-01T00:00:10+00:00",
        "d": "time is beyond 73,000 years from 1970",
        "e": "late",
    }
