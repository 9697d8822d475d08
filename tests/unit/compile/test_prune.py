"""Queries in, columns out: what every edge carries, what state holds, and what must be carried whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace import compile as compiler
from headrace.columnar.types import TS_TYPE
from headrace.compile import STRATEGIES, compile_query
from headrace.difference import difference
from headrace.errors import DataError, QueryChanged
from headrace.operators.joins import JoinOperator
from headrace.reference import reference
from headrace.routing.hashing import HASH, hash_rows, scale
from headrace.state import merge_planning
from headrace.state.blocks import BlockReader, OpenBlock
from headrace.stream import Stream, node_of
from headrace.testing import LocalRun, run_locally, table_stream

from . import queries


def carried(query: Stream, *, ordered: bool = False, strategy: str = "subquery") -> str:
    """What every edge carries, and what a join puts out."""
    plan = compile_query([node_of(query)], [ordered], strategy)
    lines = [f"{e.producer} -> {e.target} {e.input}: {', '.join(e.schema.names)}" for e in plan.edges]
    joins = [o for o in plan.operators if isinstance(o, JoinOperator)]
    return "\n".join(sorted([*lines, *(f"{o.name} puts out {', '.join(o.schema.names)}" for o in joins)]))


def calls_with_suspects(on: str = "l.caller = r.phone") -> Stream:
    return queries.calls().join(queries.suspects(), on=on, within="60 seconds")


# --- what each edge carries -------------------------------------------------------------------------------------------


def test_figure_1_carries_what_the_map_reads() -> None:
    assert (
        carried(queries.figure_1())
        == """\
aggregate-1 -> result-0 0: ts, minutes, window_start, window_end, n
calls -> join-1 0: ts, caller, began, ended
join-1 -> aggregate-1 0: ts, minutes
join-1 puts out ts, began, ended
suspects -> join-1 1: ts, phone"""
    )


@pytest.mark.parametrize("by", [None, ["began", "callee"]], ids=str)
def test_a_sample_carries_what_it_hashes_and_no_further(by: list[str] | None) -> None:
    joined = (
        calls_with_suspects().sample(0.5, by=by).map("reason").aggregate(by=["reason"], window="1 day", n="count(*)")
    )
    whole = "ts, l_ts, caller, callee, began, ended, r_ts, phone, reason"
    assert (
        carried(joined)
        == f"""\
aggregate-1 -> result-0 0: ts, reason, window_start, window_end, n
calls -> join-1 0: ts, caller, {"callee, began, ended" if by is None else "callee, began"}
join-1 -> aggregate-1 0: ts, reason
join-1 puts out {whole if by is None else "ts, callee, began, reason"}
suspects -> join-1 1: ts, phone, reason"""
    )


def test_a_result_is_whole() -> None:
    assert (
        carried(calls_with_suspects())
        == """\
calls -> join-1 0: ts, caller, callee, began, ended
join-1 -> result-0 0: ts, l_ts, caller, callee, began, ended, r_ts, phone, reason
join-1 puts out ts, l_ts, caller, callee, began, ended, r_ts, phone, reason
suspects -> join-1 1: ts, phone, reason"""
    )


def test_every_part_of_a_predicate_is_read_in_any_case_of_letters() -> None:
    """`reason` stands in what is left of the predicate, `BEGAN` in what went below it."""
    query = calls_with_suspects("l.caller = r.phone and length(R.Reason) > l.ended % 7 and l.BEGAN > 5").map(w="Callee")
    assert (
        carried(query)
        == """\
calls -> join-1 0: ts, caller, callee, began, ended
join-1 -> result-0 0: ts, w
join-1 puts out ts, callee
suspects -> join-1 1: ts, phone, reason"""
    )


def test_a_filter_behind_a_join_is_read_and_its_columns_go_no_further() -> None:
    query = calls_with_suspects().filter("ended > 9").aggregate(by=["reason"], window="60 seconds", n="count(*)")
    assert (
        carried(query)
        == """\
aggregate-1 -> result-0 0: ts, reason, window_start, window_end, n
calls -> join-1 0: ts, caller, ended
join-1 -> aggregate-1 0: ts, reason
join-1 puts out ts, ended, reason
suspects -> join-1 1: ts, phone, reason"""
    )


def test_without_an_equality_the_producer_puts_out_everything_and_few_columns_are_carried() -> None:
    """The group is the hash of the whole tuple: join-1 is not narrowed for join-2, the edge between them is."""
    joined = calls_with_suspects().join(queries.calls("more"), on="l.began < r.began", within="9 seconds")
    assert (
        carried(joined.map(o="r_callee"))
        == """\
calls -> join-1 0: ts, caller, callee, began, ended
join-1 -> join-2 0: ts, began
join-1 puts out ts, l_ts, caller, callee, began, ended, r_ts, phone, reason
join-2 -> result-0 0: ts, o
join-2 puts out ts, r_callee
more -> join-2 1: ts, callee, began
suspects -> join-1 1: ts, phone, reason"""
    )


def test_ranks_are_given_to_whole_tuples_and_then_columns_are_dropped() -> None:
    query = queries.calls().join(queries.suspects(), on="l.caller = r.phone", last=10).map("reason")
    assert (
        carried(query)
        == """\
calls -> rank-1 0: ts, caller, callee, began, ended
join-1 -> result-0 0: ts, reason
join-1 puts out ts, reason
rank-1 -> join-1 0: ts, caller, __rank, __other
rank-1 -> join-1 1: ts, phone, reason, __rank, __other
suspects -> rank-1 1: ts, phone, reason"""
    )


@pytest.mark.parametrize(
    ("function", "carries"),
    [
        ("sum(began)", "ts, caller, began"),  # partials
        ("sum(began) FILTER (WHERE ended > 3)", "ts, caller, began, ended"),
        ("median(began)", "ts, caller, began"),  # tuples in any order
        ("list(began)", "ts, caller, callee, began, ended"),  # tuples in sequence, which is of all columns
        ("first(began ORDER BY ended)", "ts, caller, callee, began, ended"),
    ],
)
def test_time_aggregates_carry_what_they_read_unless_they_depend_on_order(function: str, carries: str) -> None:
    query = queries.calls().aggregate(by=["caller"], window="60 seconds", n=function)
    assert f"calls -> aggregate-1 0: {carries}\n" in carried(query) + "\n"


def test_what_is_counted_or_ordered_is_whole() -> None:
    counted = queries.calls().aggregate(by=["caller"], last=3, n="count(*)")
    assert "calls -> aggregate-1 0: ts, caller, callee, began, ended" in carried(counted)
    assert "join-1 -> order-1 0: ts, l_ts, caller" in carried(calls_with_suspects(), ordered=True)


def test_a_self_join_holds_the_union_so_that_it_is_written_once() -> None:
    calls = queries.calls()
    query = calls.join(calls, on="l.caller = r.caller and l.began < r.ended", within="9 seconds").map("l_callee")
    assert (
        "calls -> join-1 0: ts, caller, callee, began, ended\ncalls -> join-1 1: ts, caller, callee, began, ended"
        in (carried(query))
    )
    other = calls.join(calls, on="l.caller = r.callee", within="9 seconds").map("l_began")  # in other groups
    assert "calls -> join-1 0: ts, caller, began\ncalls -> join-1 1: ts, callee\n" in carried(other)


def test_a_union_carries_the_same_columns_from_each_of_its_streams() -> None:
    """calls and more go into one input, calls alone into the other: all three edges hold what either input needs."""
    calls, more = queries.calls(), queries.calls("more")
    query = calls.union(more).join(calls, on="l.caller = r.caller", within="9 seconds").map("l_began", "r_ended")
    assert (
        carried(query)
        == """\
calls -> join-1 0: ts, caller, began, ended
calls -> join-1 1: ts, caller, began, ended
join-1 -> result-0 0: ts, l_began, r_ended
join-1 puts out ts, l_began, r_ended
more -> join-1 0: ts, caller, began, ended"""
    )


def test_inputs_that_share_with_one_share_with_all() -> None:
    """join-1 shares the blocks of calls with join-2, which shares those of more with join-3."""
    calls, more = queries.calls(), queries.calls("more")
    suspects = queries.suspects()
    read = [(calls, "length(callee)"), (calls.union(more), "began"), (more, "ended")]
    joined = [s.join(suspects, on="l.caller = r.phone", within="9 seconds").map(v=v) for s, v in read]
    edges = [edge for edge in carried(joined[0].union(*joined[1:])).splitlines() if edge.startswith(("calls", "more"))]
    assert len(edges) == 4 and all(edge.endswith(": ts, caller, callee, began, ended") for edge in edges)


def test_stateless_operators_with_slots_of_their_own_carry_what_is_read_behind_them() -> None:
    assert (
        carried(queries.figure_2(), strategy="operator")
        == """\
aggregate-1 -> map-2 0: ts, reason, n
calls -> map-1 0: ts, caller, began, ended
filter-1 -> join-1 0: ts, caller, length
filter-2 -> aggregate-1 0: ts, reason
join-1 -> filter-2 0: ts, length, reason
join-1 puts out ts, length, reason
map-1 -> filter-1 0: ts, caller, length
map-2 -> result-0 0: ts, reason, twice
suspects -> join-1 1: ts, phone, reason"""
    )


# --- in a run ---------------------------------------------------------------------------------------------------------

ROWS = 60


def wide(name: str, seed: int) -> Stream:
    r = np.random.default_rng(seed)
    columns = {f"{name}{i}": pa.array(r.integers(0, 50, ROWS), pa.int64()) for i in range(8)}
    lists = pa.array([[int(n)] for n in r.integers(0, 5, ROWS)], pa.list_(pa.int64()))
    ts = pa.array(np.arange(ROWS) * 500_000).cast(TS_TYPE)
    columns |= {f"{name}l": lists, f"{name}j": pa.array(['{"a": 1}' if name == "a" else "a"] * ROWS)}
    return table_stream(pa.table({f"{name}k": r.integers(0, 6, ROWS), "ts": ts, **columns}), name=name)


def in_epochs(query: Stream, folder: Path, **options: object) -> LocalRun:
    run = LocalRun(query, folder, slots=2, **options)
    tables = {s.name: s for s in run.plan.sources}
    for start in range(0, ROWS, 10):
        run.epoch({name: SOURCES[name].slice(start, 10) for name in tables}, splitters=2)
    return run


SOURCES = {name: node_of(wide(name, seed)).origin.table() for seed, name in enumerate("ab")}  # type: ignore[attr-defined]


def blocks(run: LocalRun, operator: str, side: int) -> list[OpenBlock]:
    assert run.store.last is not None
    reader = BlockReader(run.store.storage)
    return [reader.open(block) for block in run.store.last.operators[operator].inputs[side]]


EQUAL, LESS = "l.ak = r.bk and l.a3 <> r.b4", "l.a3 < r.b4 and (l.a0 + r.b0) % 3 = 0"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("on", "window", "left", "right"),
    [
        (EQUAL, {"within": "1 hour"}, "ak, ts, a1, a3, __h", "bk, ts, b4, __h"),
        (LESS, {"within": "1 hour"}, "ts, a0, a1, a3, __h", "ts, b0, b4, __h"),
        (EQUAL, {"last": 99}, "ak, ts, a1, a3, __rank, __other, __h", "bk, ts, b4, __rank, __other, __h"),
        (LESS, {"last": 99}, "ts, a0, a1, a3, __rank, __other, __h", "ts, b0, b4, __rank, __other, __h"),
    ],
)
def test_blocks_hold_only_what_is_read(
    on: str, window: dict[str, object], left: str, right: str, strategy: str, tmp_path: Path
) -> None:
    query = wide("a", 0).join(wide("b", 1), on=on, **window).map(v="a1")
    run = in_epochs(query, tmp_path / "state", strategy=strategy)
    for side, columns in enumerate((left, right)):
        found = blocks(run, "join-1", side)
        assert found and {", ".join(block.table.column_names) for block in found} == {columns}
    run.end()
    expected = reference(query)
    assert expected.num_rows > 0 and difference(expected, run.results()) is None
    run.close()


@pytest.mark.parametrize("window", [{"within": "1 hour"}, {"last": 99}])
@pytest.mark.parametrize("fan_in", [2, 99])
def test_the_group_is_that_of_the_whole_tuple_also_when_runs_are_merged(
    window: dict[str, object], fan_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_planning, "FAN_IN", fan_in)
    query = wide("a", 0).join(wide("b", 1), on=LESS, **window).map(v="a1")
    run = in_epochs(query, tmp_path / "state")
    whole = SOURCES["a"]
    hashes = hash_rows(whole, whole.column_names)
    expected = dict(zip(whole["ts"].to_pylist(), hashes.tolist(), strict=True))
    tables = [block.table for block in blocks(run, "join-1", 0)]
    found = {row["ts"]: row[HASH] for table in tables for row in table.to_pylist()}
    assert len(found) > ROWS * 0.9 and found.items() <= expected.items()  # a few may wait for their ranks
    assert run.store.last is not None
    for block in blocks(run, "join-1", 0):
        assert block.offsets is not None
        groups = scale(np.asarray(block.table[HASH]), run.store.last.groups)
        assert np.repeat(np.arange(run.store.last.groups), np.diff(block.offsets)).tolist() == groups.tolist()
        ts = np.asarray(block.table["ts"].cast(pa.int64()))
        assert np.array_equal(np.lexsort((ts, groups)), np.arange(len(ts)))  # by group, then by position
    run.close()


def test_a_self_join_that_reads_other_columns_of_each_side_shares_its_blocks(tmp_path: Path) -> None:
    a = wide("a", 0)
    query = a.join(a, on="l.ak = r.ak and l.a1 < r.a2", within="1 hour").map(v="l_a5")
    run = in_epochs(query, tmp_path / "state")
    assert run.store.last is not None
    left, right = run.store.last.operators["join-1"].inputs
    assert left == right
    run.end()
    assert difference(reference(query), run.results()) is None
    run.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_expression_that_fails_fails_though_nobody_reads_it(strategy: str, tmp_path: Path) -> None:
    query = (
        wide("a", 0).map("ak", never="CAST('x' || a1 AS BIGINT)").aggregate(by=["ak"], window="1 hour", n="count(*)")
    )
    with pytest.raises(DataError, match="never"):
        run_locally(query, tmp_path / "state", strategy=strategy)


@pytest.mark.parametrize(
    "expression",
    ["list_transform(al, lambda x: x + a1)", "list_transform(al, lambda a2: a2 + a1)", "aj -> bj"],  # JSON -> its field
)
def test_columns_of_lambdas_and_of_arrows_are_carried(expression: str, tmp_path: Path) -> None:
    query = wide("a", 0).join(wide("b", 1), on="l.ak = r.bk", within="1 second").map(v=expression)
    found = run_locally(query, tmp_path / "state", slots=2)
    assert found.num_rows and difference(reference(query), found) is None


def test_state_that_holds_more_columns_goes_on_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = wide("a", 0).join(wide("b", 1), on=EQUAL, within="1 hour").map(v="a1")
    with monkeypatch.context() as other_version:
        other_version.setattr(compiler, "prune", lambda plan, given=None: plan)
        in_epochs(query, tmp_path / "state").close()
    run = LocalRun(query, tmp_path / "state")
    assert run.plan.by_name["join-1"].schemas[0].names == wide("a", 0).columns
    run.close()


def test_state_that_lacks_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = wide("a", 0).join(wide("b", 1), on=EQUAL, within="1 hour").map(v="a1")
    in_epochs(query, tmp_path / "state").close()
    with monkeypatch.context() as other_version:
        other_version.setattr(compiler, "columns_missing", lambda plan, given: {})
        wider = wide("a", 0).join(wide("b", 1), on=EQUAL, within="1 hour").map(v="a1 + a2")
        LocalRun(wider, tmp_path / "state").close()  # what the next look must find
    with pytest.raises(QueryChanged, match="but not a2, which is read now"):
        LocalRun(wider, tmp_path / "state")
