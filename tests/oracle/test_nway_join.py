"""Joins of several streams: against a nested loop in plain Python that shares nothing with engine or reference."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar import arrow
from headrace.compile import STRATEGIES, compile_query
from headrace.compile.subqueries import Plan
from headrace.errors import DataError, ExpressionError, HeadraceError, QueryError, QueryTypeError
from headrace.kernels.joins import nway_probe, pairs, stored_orders
from headrace.kernels.joins.probed_tuples import ProbedBlock, ProbedTuples, RowOrder
from headrace.kernels.joins.stored_orders import KeyColumns
from headrace.operators import nway_join as nway_operator
from headrace.operators.nway_join import NWayJoinOperator
from headrace.plan.figures import Figures
from headrace.reference import reference
from headrace.routing import EverywhereGrouping, HotGroup
from headrace.routing.hashing import hash_rows
from headrace.state import merge_planning
from headrace.stream import Stream, node_of
from headrace.support.event_time import move_back
from headrace.task import block_writer, stages
from headrace.testing import table_stream
from tests.helpers import count_rows, rows_of, tuples

from .driving import drive, random_layouts
from .nway import PlainJoin, counted, random_join
from .strategies import SECOND, Table, cut
from .test_local import seeds

TRIED = 300


def stream(name: str, *rows: tuple[Any, ...], **kinds: pa.DataType) -> Stream:
    return table_stream(tuples(*rows, **kinds), name=name)


A = stream("a", (0, "x", 1))
B = stream("b", (0, "x", 1), (5, "y", 2))
C = stream("c", (0, "x", 1))


# --- the meaning -----------------------------------------------------------------------------------------------------


@seeds(TRIED)
def test_the_reference_is_a_nested_loop(seed: int) -> None:
    join = random_join(seed)
    assert counted(reference(join.query)) == join.answer()


@seeds(40)
def test_the_reference_leaves_out_late_tuples(seed: int) -> None:
    join = random_join(seed, late=True)
    arrived = cut(join.tables, random.Random(seed).choice([2, 3, 5]), seed)
    assert counted(reference(join.query, epochs=arrived)) == join.answer(arrived)


def test_the_joins_are_of_all_kinds() -> None:
    joins = [random_join(seed) for seed in range(60)]
    assert {len(join.sources) for join in joins} == {2, 3, 4, 5}
    assert any(len(set(join.sources.values())) < len(join.sources) for join in joins)  # one stream, several aliases
    assert any(0 in join.windows.values() for join in joins)
    assert sum(bool(join.answer()) for join in joins) > 50
    words = Counter(
        word for join in joins for word in (" = ", "abs", "between", "%", " or ", "distinct") if word in join.on
    )
    assert len(words) == 6, words
    assert any(not join.conditions for join in joins)


def test_windows_end_at_the_latest_tuple_of_a_combination() -> None:
    """10, 5 and -4 seconds: a chain of joins would take them, as each is within 10 seconds of the next."""
    streams = {n: stream(n, (ts, "x", 1)) for n, ts in (("a", 10 * SECOND), ("b", 5 * SECOND), ("c", -4 * SECOND))}
    on = "a.k = b.k and b.k = c.k"
    assert reference(hr.join(streams, on=on, within="10 seconds")).num_rows == 0
    found = reference(hr.join(streams, on=on, within="14 seconds"))
    assert rows_of(found, "ts", "a_ts", "b_ts", "c_ts") == [(-4 * SECOND, 10 * SECOND, 5 * SECOND, -4 * SECOND)]


def test_the_window_is_that_of_the_alias_of_the_older_tuple() -> None:
    streams = {"a": stream("a", (0, "x", 1)), "b": stream("b", (3 * SECOND, "x", 1))}
    for within, results in (({"a": "3 s", "b": "0 s"}, 1), ({"a": "2.999999 s", "b": "9 s"}, 0)):
        assert reference(hr.join(streams, on="true", within=within)).num_rows == results


def test_columns() -> None:
    a, b, c = (
        stream("a", k=pa.int64(), x=pa.int64()),
        stream("b", k=pa.int64()),
        stream("c", y=pa.int64(), b_k=pa.int64()),
    )
    joined = hr.join({"c": c, "b": b, "a": a}, on="a.k = b.k", within="1 s")
    assert joined.columns == ["ts", "c_ts", "y", "c_b_k", "b_ts", "b_k", "a_ts", "a_k", "x"]


# --- the engine ------------------------------------------------------------------------------------------------------


SMALL: list[tuple[Any, str, int]] = [
    (nway_probe, "FIRST_SEEDS", 2),
    (nway_probe, "MOST_SEEDS", 7),
    (nway_probe, "MOST_TOGETHER", 20),
    (pairs, "MOST_PAIRS", 15),
    (arrow, "MOST_TABLE_BYTES", 4_000),
    (merge_planning, "FAN_IN", 2),
]


def trouble(seed: int, *, late: bool = False) -> str | None:
    """The difference between a run, with restarts and any slots and layouts, and the nested loop; None: there is none.

    Every other run has small batches and merges early.
    """
    join = random_join(seed, late=late)
    arrived = cut(join.tables, random.Random(seed).choice([1, 2, 3, 5, 8]), seed)
    options = {"layouts": random_layouts(seed)} if seed % 3 else {"strategies": STRATEGIES}
    options["groups"] = random.Random(seed).choice([None, 3, 7])
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in SMALL if seed % 2 else ():
            patch.setattr(module, name, value)
        found = counted(drive(join.query, arrived, seed, reopen=0.3, change_slots=0.4, **options))
    expected = join.answer(arrived)
    if found == expected:
        return None
    wrong = f"missing {list((expected - found).items())[:3]}, too many {list((found - expected).items())[:3]}"
    return f"seed {seed}: {wrong}\n{join.query!r}\n{join.windows}"


@seeds(TRIED)
def test_any_cut_any_slots_any_layouts(seed: int) -> None:
    assert (found := trouble(seed)) is None, found


@seeds(40)
def test_any_key_may_decide_the_slots(seed: int) -> None:
    """The rates choose the key, and the state keeps it, however many slots there are."""
    case = next(found for n in range(1_000) if needs_rates((found := random_join(f"rates-{seed}-{n}")).query))
    r = random.Random(seed)
    rates = Figures(rates={name: r.choice([1.0, 1e6]) for name in case.tables})
    chosen = case.query.plan(slots=5, figures=rates).subqueries[-1]

    def plan(query: Stream, slots: int) -> Plan:
        own = query.plan(slots=slots)
        return replace(own, subqueries=(*own.subqueries[:-1], replace(own.subqueries[-1], router=chosen.router)))

    arrived = cut(case.tables, 4, seed)
    assert counted(drive(case.query, arrived, seed, reopen=0.5, plans=plan)) == case.answer(arrived)


def needs_rates(query: Stream) -> bool:
    return any(operator.needs_rates for operator in compile_query([node_of(query)]).operators)


@seeds(60)
def test_late_tuples(seed: int) -> None:
    assert (found := trouble(seed, late=True)) is None, found


def failing_streams(bad: str) -> dict[str, Stream]:
    """Many tuples of which one text, of the stream `bad`, is no number; it meets others by `v` alone."""
    rows = {n: [(at * SECOND, "1" if (n, at) != (bad, 3) else "none", at % 3) for at in range(6)] for n in "abc"}
    return {name: stream(name, *each) for name, each in rows.items()}


@pytest.mark.parametrize("first", ["abc", "cba", "bca"])
@pytest.mark.parametrize("bad", "abc")
@pytest.mark.parametrize(
    ("more", "fails"), [("", True), (" and a.v <> b.v", False), (" and c.ts < a.ts and a.ts < c.ts", False)]
)
def test_failing_depends_neither_on_cuts_nor_on_the_order_of_aliases(
    first: str, bad: str, more: str, fails: bool
) -> None:
    streams = {name: failing_streams(bad)[name] for name in first}
    on = f"CAST({bad}.k AS INTEGER) = 1 and a.v = b.v and b.v = c.v{more}"
    query = hr.join(streams, on=on, within="1 minute")
    for seed in range(3):
        run = lambda seed=seed: drive(query, cut_tables(streams, seed), seed, layouts=random_layouts(seed))  # noqa: E731
        if fails:
            with pytest.raises(DataError, match="none"):
                run()
        else:
            assert run().num_rows == reference(query).num_rows


def cut_tables(streams: dict[str, Stream], seed: int) -> list[dict[str, pa.Table]]:
    return cut({n: Table(n, reference(s), "0 milliseconds") for n, s in streams.items()}, 3, seed)


def test_best_effort_trims_by_arrival_and_emits_nothing_else() -> None:
    for seed in range(12):
        join = random_join(seed)
        arrived = cut(join.tables, 4, seed)
        found = counted(drive(join.query, arrived, seed, best_effort=True))
        assert found <= join.answer(arrived)


def test_on_substreams_the_substream_is_one_more_equality() -> None:
    r = random.Random(5)
    rows = [(r.randrange(40) * SECOND // 4, r.choice("xyz"), r.randrange(6)) for _ in range(60)]
    source = stream("s", *sorted(rows))
    query = source.split(3, route="v % 3").each(
        lambda t: hr.join({"a": t, "b": t.filter("v > 1"), "c": t}, on="a.k = b.k and b.v < c.v", within="1 second")
    )
    expected = Counter[tuple[Any, ...]]()
    for (at, ak, av), (bt, bk, bv), (ct, ck, cv) in itertools.product(rows, repeat=3):
        times = (at, bt, ct)
        if av % 3 == bv % 3 == cv % 3 and ak == bk and 1 < bv < cv and max(times) - min(times) <= SECOND:
            expected[min(times), at, ak, av, bt, bk, bv, ct, ck, cv, av % 3] += 1
    assert expected and count_rows(reference(query)) == expected
    for seed in range(4):
        arrived = cut({"s": Table("s", reference(source), "0 milliseconds")}, 4, seed)
        assert count_rows(drive(query, arrived, seed, layouts=random_layouts(seed))) == expected


# --- the engine, broken on purpose -----------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def skips_a_window(patch: pytest.MonkeyPatch) -> None:
    """A lookup by key that does not ask for the time."""
    real = nway_probe.NWayProbe._with_alias

    def without(probe: Any, begun: Any, alias: int, i: Any, rows: Any, at: Any) -> Any:
        endless = nway_probe.Combinations(begun.rows, begun.latest * 0 - 2**60, begun.until * 0 + 2**60)
        found = real(probe, endless, alias, i, rows, at)
        return nway_probe.Combinations(found.rows, begun.latest[i], begun.until[i])

    patch.setattr(nway_probe.NWayProbe, "_with_alias", without)


def divides_a_combination_twice(patch: pytest.MonkeyPatch) -> None:
    def all_for_all(start: int, fresh: Any, past: Any) -> Any:
        sides = zip(fresh, past, strict=True)
        return [ProbedTuples(new if alias == start else [*old, *new]) for alias, (new, old) in enumerate(sides)]

    patch.setattr(nway_probe, "probed_aliases", all_for_all)


def divides_a_combination_never(patch: pytest.MonkeyPatch) -> None:
    def old_for_all(start: int, fresh: Any, past: Any) -> Any:
        sides = zip(fresh, past, strict=True)
        return [ProbedTuples(new if alias == start else old) for alias, (new, old) in enumerate(sides)]

    patch.setattr(nway_probe, "probed_aliases", old_for_all)


def takes_the_window_of_another_alias(patch: pytest.MonkeyPatch) -> None:
    real = nway_probe.NWayProbe._with_alias

    def turned(probe: Any, begun: Any, alias: int, *found: Any) -> Any:
        own = probe.spec
        try:
            probe.spec = replace(own, windows=(*own.windows[1:], own.windows[0]))
            return real(probe, begun, alias, *found)
        finally:
            probe.spec = own

    patch.setattr(nway_probe.NWayProbe, "_with_alias", turned)


def expires_by_the_wrong_window(patch: pytest.MonkeyPatch) -> None:
    def keep(operator: NWayJoinOperator, inputs: Any, notes: Any) -> list[int]:
        return [move_back(min(inputs), min(operator.windows))] * len(inputs)

    patch.setattr(NWayJoinOperator, "keep_from", keep)


def searches_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """A block that is not sorted by the key of the probe is searched as if it were."""

    def unsorted(block: ProbedBlock, key: KeyColumns) -> tuple[Any, RowOrder]:
        return hash_rows(block.table, key.columns, key.types), RowOrder(None)

    patch.setattr(ProbedBlock, "_ordered", unsorted)


def keeps_the_orders_of_merged_blocks(patch: pytest.MonkeyPatch) -> None:
    """A merged block whose second order has the rows of the first of the blocks that were merged."""
    real = block_writer.write_merged

    def first_order(epoch: Any, task: Any, operator: Any, side: int, blocks: Any, *piece: Any) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            whole = stored_orders.with_orders
            rows = blocks[0].rows

            def of_the_first(tuples: Any, keys: Any, arrangement: Any) -> Any:
                order = whole(tuples, keys, arrangement)
                names = [name for name in order.column_names if name.startswith("__r(")]
                for name in names:
                    kept = np.minimum(np.asarray(order.column(name)), rows - 1)
                    order = order.set_column(order.column_names.index(name), name, pa.array(kept))
                return order

            inside.setattr(nway_operator, "with_orders", of_the_first)
            return real(epoch, task, operator, side, blocks, *piece)

    patch.setattr(stages, "write_merged", first_order)


def partitions_what_every_slot_must_read(patch: pytest.MonkeyPatch) -> None:
    real = EverywhereGrouping.groups
    patch.setattr(
        EverywhereGrouping,
        "groups",
        lambda g, table, total: real(g, table, total) * 0 + np.arange(table.num_rows) % total,
    )


def drops_conjuncts_of_the_last_alias(patch: pytest.MonkeyPatch) -> None:
    real = nway_probe.NWayProbe._decided
    patch.setattr(
        nway_probe.NWayProbe,
        "_decided",
        lambda probe, bound, alias: [] if len(bound) == len(probe.tuples) - 1 else real(probe, bound, alias),
    )


def splits_the_third_stream_of_a_hot_group(patch: pytest.MonkeyPatch) -> None:
    real = HotGroup.cell
    patch.setattr(HotGroup, "cell", lambda hot, slot, side: real(hot, slot, min(side, 1)))


def noticed(seed: int) -> bool:
    try:
        return trouble(seed) is not None
    except (HeadraceError, AssertionError):
        return True


@pytest.mark.parametrize(
    "canary",
    [
        skips_a_window,
        divides_a_combination_twice,
        divides_a_combination_never,
        takes_the_window_of_another_alias,
        expires_by_the_wrong_window,
        searches_in_the_wrong_order,
        keeps_the_orders_of_merged_blocks,
        partitions_what_every_slot_must_read,
        drops_conjuncts_of_the_last_alias,
        pytest.param(splits_the_third_stream_of_a_hot_group, marks=pytest.mark.thorough),
    ],
)
def test_a_broken_one_is_seen(canary: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)
    assert any(noticed(seed) for seed in range(TRIED))


# --- errors ----------------------------------------------------------------------------------------------------------

TWICE = {"a": stream("a", k=pa.int64(), b_x=pa.int64()), "a_b": stream("b", x=pa.int64(), b_x=pa.int64())}


@pytest.mark.parametrize(
    ("streams", "given", "error", "words"),
    [
        ({"a": A}, {}, QueryError, "2 to 8 streams; found 1"),
        ({f"a{n}": A for n in range(9)}, {}, QueryError, "2 to 8 streams; found 9"),
        ([A, B], {}, QueryTypeError, "by alias, as a dict; found a list"),
        ({"a": A, "b": 3}, {}, QueryTypeError, "the value of 'b' must be a stream; found 3"),
        ({"a": A, 1: B}, {}, QueryTypeError, "an alias must be text; found 1"),
        ({"a": A, "b c": B}, {}, QueryError, "a name of letters, digits and _.* found 'b c'"),
        ({"a": A, "ts": B}, {}, QueryError, "cannot be 'ts'"),
        ({"a": A, "order": B}, {}, QueryError, "'order' is a reserved word of SQL.*'orders'"),
        ({"a": A, "A": B}, {}, QueryError, "'a' and 'A' differ only in case"),
        ({**TWICE, "c": stream("c", x=pa.int64())}, {}, QueryError, "would be called 'a_b_x'.* another alias"),
        ({"a": A, "b": B}, {"within": None}, QueryError, "needs a window.* within={'a': '60 seconds', 'b'"),
        ({"a": A, "b": B}, {"within": {"a": "1 s"}}, QueryError, "within lacks the window of 'b'; write within="),
        ({"a": A, "b": B}, {"within": {"a": "1 s", "b": "1 s", "c": "1 s"}}, QueryError, "unknown alias 'c'; the join"),
        ({"a": A, "b": B}, {"within": ("1 s", "2 s")}, QueryTypeError, "one for each alias by its name"),
        ({"a": A, "b": B}, {"within": "0 seconds"}, QueryError, "more than zero for at least one alias"),
        ({"a": A, "b": B}, {"last": 10}, QueryError, r"takes no last; found last=10.*a\.join\(b"),
        ({"a": A, "b": B}, {"how": "left"}, QueryError, r"takes no how; found how='left'.*a\.join\(b"),
        ({"a": A, "b": B}, {"using": "k"}, QueryError, "takes no using.*write the equalities"),
        ({"a": A, "b": B}, {"wihtin": 3}, QueryTypeError, "found wihtin=3"),
        ({"a": A, "b": B}, {"on": None}, QueryError, "found no on"),
        ({"a": A, "b": B}, {"on": 3}, ExpressionError, "on must be an expression as text; found 3"),
        (
            {"a": A, "b": B},
            {"on": "k = v"},
            ExpressionError,
            r"names 'k'; in a join write a\.column or b\.column, here a\.k",
        ),
        (
            {"a": A, "b": B},
            {"on": "a.k = c.k"},
            ExpressionError,
            r"names 'c\.k'; in a join write a\.column or b\.column",
        ),
        ({"a": A, "b": B}, {"on": "a.k = b.nope"}, ExpressionError, "unknown column 'nope' of b; there are ts, k, v"),
        ({"a": A, "b": B}, {"on": "a.k || b.k"}, ExpressionError, "must be true or false"),
    ],
)
def test_bad_arguments(streams: Any, given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    with pytest.raises(error, match=words):
        hr.join(streams, **{"on": "true", "within": "60 seconds", **given})


def test_streams_without_aliases_are_refused_by_name() -> None:
    with pytest.raises(QueryTypeError, match="by alias, as a dict; found a stream, a stream; write"):
        hr.join(A, B, on="a.k = b.k", within="1 second")


def test_a_join_of_a_list_of_streams_names_the_join_of_several() -> None:
    with pytest.raises(QueryTypeError, match=r"hr\.join\({"):
        A.join([B, C], on="true", within="1 s")  # type: ignore[arg-type]
    with pytest.raises(QueryTypeError, match=r"such as \['b'\], or write hr\.join\({"):
        A.join({"b": B, "c": C}, on="true", within="1 s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a.k", "; after a join it is a_k"),
        ("B.ts", "; after a join it is B_ts"),
        ("k", "; did you mean a_k or B_k? A join adds the alias to names of several streams"),
        ("d.k", ""),
    ],
)
def test_a_column_of_an_alias_has_another_name_behind_the_join(name: str, hint: str) -> None:
    found = hr.join({"a": A, "B": B}, on="a.k = B.k", within="1 s")
    with pytest.raises(ExpressionError, match=re.escape(", ".join(found.columns) + hint) + "$"):
        found.filter(f"{name} IS NULL")
    with pytest.raises(QueryError, match=re.escape(", ".join(found.columns) + hint)):
        found.select(name)


def test_a_part_that_can_fail_sees_only_what_all_others_let_through() -> None:
    texts = stream("a", (0, "1", 1), (1, "none", 2))
    on = "CAST(a.k AS INTEGER) = b.v and a.v = b.v"
    assert reference(hr.join({"a": texts, "b": stream("b", (0, "", 1))}, on=on, within="1 s")).num_rows == 1
    with pytest.raises(DataError, match="none"):
        reference(hr.join({"a": texts, "b": stream("b", (0, "", 2))}, on=on, within="1 s"))


def test_the_loop_itself_is_plain() -> None:
    rows = tuples((0, "x", 1), (SECOND, "x", 2))
    join = PlainJoin(random_join(0).tables, {}, {}, [])
    assert counted(rows)[0, "'x'", "1"] == 1 and join.on == "true"
