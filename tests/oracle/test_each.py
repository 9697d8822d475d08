"""`each`: a query on every substream is that query on the tuples of each substream alone.

The other answer is made here: the rows of a substream are picked by plain Python, and the body of the `each`, as an
ordinary query over them, is handed to the reference, one substream after the other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.types import SUBSTREAM, TS_TYPE
from headrace.compile import substreams
from headrace.difference import difference
from headrace.errors import DataError
from headrace.kernels.stateless import split
from headrace.kernels.windows import order
from headrace.operators import count_join
from headrace.reference import failed_tuples, reference
from headrace.routing.base import EVERYWHERE
from headrace.routing.hashing import groups_of
from headrace.state import merge_planning
from headrace.stream import Stream
from headrace.task import step_runner
from headrace.testing import LocalRun, table_stream

from .driving import drive, shrink
from .strategies import AGGREGATES, ALL, SECOND, Case, Table, cut, make_case, transplanted
from .test_failing import check_counts, expected_failures, kept_failures, one_step, steps, tuples
from .test_local import same, seeds

Row = dict[str, Any]
SPLIT = "split-1"


@dataclass(frozen=True)
class Rule:
    """A split as a user writes it, and the same of one tuple in plain Python: a substream, or all of them, or none."""

    substreams: int
    given: dict[str, Any]
    target: Callable[[Row], int | None]
    to_all: Callable[[Row], bool]
    by: tuple[str, ...] = ()

    def targets(self, rows: pa.Table) -> list[list[int]]:
        """Of every row, the substreams that it goes to."""
        hashed = groups_of(rows, self.by, self.substreams).tolist() if self.by else [None] * rows.num_rows
        found = []
        for row, number in zip(rows.to_pylist(), hashed, strict=True):
            target = self.target(row) if number is None else number
            found.append([*range(self.substreams)] if self.to_all(row) else [] if target is None else [target])
        return found


def vectorised(rule: Callable[[Row], Any], form: int) -> Callable[[pa.Table], Any]:
    """As users write them: what they give is a list, or an array of Arrow, in one piece or in several, or of NumPy."""

    def call(table: pa.Table) -> Any:
        values = [rule(row) for row in table.to_pylist()]
        arrow = pa.array(values)
        if form == 1:
            return arrow
        if form == 2:
            return pa.chunked_array([pa.array([value], arrow.type) for value in values])
        return np.array(values) if form == 3 and None not in values else values

    return call


def random_rule(r: random.Random) -> Rule:
    q = r.choice([1, 2, 3, 5, 8, 40])
    way = r.choice(["by", "sql", "sql", "function"])
    to_all, broadcast = random_broadcast(r) if r.random() < 0.5 else (lambda row: False, {})
    if way == "by":
        by = tuple(r.sample(["k", "x", "f"], r.choice([1, 1, 2])))
        return Rule(q, {"by": list(by), **broadcast}, lambda row: None, to_all, by)
    text, target = random_route(r, q)
    route = text if way == "sql" else vectorised(target, r.randrange(4))
    return Rule(q, {"route": route, **broadcast}, target, to_all)


def random_route(r: random.Random, q: int) -> tuple[str, Callable[[Row], int | None]]:
    return r.choice(
        [
            (f"k % {q}", lambda row: None if row["k"] is None else row["k"] % q),
            (f"CAST(coalesce(abs(x), 0) % {q} AS TINYINT)", lambda row: abs(row["x"] or 0) % q),
            ("0", lambda row: 0),  # all in one
            (
                f"CASE WHEN x > 30 THEN {q - 1} WHEN x < 0 THEN NULL ELSE k % {q} END",
                lambda row: (
                    q - 1 if (row["x"] or 0) > 30 else None if (row["x"] or 0) < 0 or row["k"] is None else row["k"] % q
                ),
            ),
            ("CAST(NULL AS INT)", lambda row: None),
        ]
    )


def random_broadcast(r: random.Random) -> tuple[Callable[[Row], bool], dict[str, Any]]:
    text, rule = r.choice(
        [
            ("abs(x) % 7 = 3", lambda row: None if row["x"] is None else abs(row["x"]) % 7 == 3),
            ("k = 3", lambda row: None if row["k"] is None else row["k"] == 3),
            ("false", lambda row: False),
        ]
    )
    return lambda row: bool(rule(row)), {"broadcast": text if r.random() < 0.5 else vectorised(rule, r.randrange(4))}


# --- the two answers -------------------------------------------------------------------------------------------------


def over(query: Stream, stream: Stream) -> Stream:
    return transplanted(query, {"a": stream})


def each(case: Case, rule: Rule) -> Stream:
    table = case.tables["a"]
    source = table_stream(table.rows, lateness=table.lateness, name="a")
    return source.split(rule.substreams, **rule.given).each(lambda stream: over(case.query, stream))


def one_by_one(case: Case, rule: Rule, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The body over the rows of every substream alone."""
    targets, found = rule.targets(rows), [schema.empty_table()]
    for number in sorted({target for those in targets for target in those}):
        mine = rows.filter(pa.array([number in those for those in targets], pa.bool_()))
        answer = reference(over(case.query, table_stream(mine, name="a")))
        found.append(answer.append_column(schema.field("substream"), pa.array([number] * answer.num_rows, pa.int64())))
    return pa.concat_tables(found)


def all_rows(epochs: Sequence[dict[str, pa.Table]], case: Case) -> pa.Table:
    return pa.concat_tables([case.tables["a"].rows.slice(0, 0), *(epoch["a"] for epoch in epochs if "a" in epoch)])


def without(rows: pa.Table, some: pa.Table) -> pa.Table:
    """The rows that are left when some, each once, are taken away."""
    left = Counter(map(repr, some.to_pylist()))
    keep = []
    for row in map(repr, rows.to_pylist()):
        keep.append(not left[row])
        left[row] -= not keep[-1]
    return rows.filter(pa.array(keep, pa.bool_()))


def counted(rule: Rule, rows: pa.Table) -> list[int]:
    targets, everywhere = rule.targets(rows), [rule.to_all(row) for row in rows.to_pylist()]
    pairs = list(zip(targets, everywhere, strict=True))
    return [
        sum(bool(to) and not every for to, every in pairs),
        sum(every for _, every in pairs),
        sum(not to and not every for to, every in pairs),
    ]


def check(case: Case, rule: Rule, seed: int, epochs: int | None = None, **options: Any) -> pa.Table:
    query = each(case, rule)
    arrived = cut(case.tables, epochs or random.Random(seed).choice([1, 2, 3, 4, 6]), seed)
    late: list[pa.Table] = []

    def look(run: Any) -> None:
        late.append(run.late_of("a", "late", case.tables["a"].rows.schema))
        rows = without(all_rows(arrived, case), late[0])
        assert run.last.splits == ({SPLIT: max(rows["ts"].cast(pa.int64()).to_pylist())} if rows.num_rows else {})
        if rows.num_rows and "strategies" not in options:
            assert run.last.work["counts"]["split"] == {SPLIT: counted(rule, rows)}

    found = drive(query, arrived, seed, check=look, change_slots=0.5, **options)
    expected = one_by_one(case, rule, without(all_rows(arrived, case), late[0]), query.schema)
    assert found.schema.equals(expected.schema)
    if (text := difference(expected, found)) is not None:
        pytest.fail(explained(case, rule, query, seed, arrived, text, **options))
    same(reference(query, epochs=arrived), found)
    return found


def explained(
    case: Case, rule: Rule, query: Stream, seed: int, arrived: list[dict[str, pa.Table]], text: str, **options: Any
) -> str:
    def differs(epochs: list[dict[str, pa.Table]]) -> str | None:
        late: list[pa.Table] = []
        schema = case.tables["a"].rows.schema
        found = drive(
            query,
            epochs,
            seed,
            change_slots=0.5,
            check=lambda run: late.append(run.late_of("a", "late", schema)),
            **options,
        )
        return difference(one_by_one(case, rule, without(all_rows(epochs, case), late[0]), query.schema), found)

    few = shrink(arrived, lambda epochs: differs(epochs) is not None)
    shown = "\n".join(f"epoch {n}: {table.to_pylist()}" for n, epoch in enumerate(few) for table in epoch.values())
    return f"seed {seed}: {text}\n{query!r}\n{rule}\nwith few rows:\n{shown}\n{differs(few)}"


def of_one_source(seed: object, operators: tuple[str, ...] = ALL, **options: Any) -> Case:
    return make_case(seed, operators, suitable=lambda case: case.names == ["a"], **options)


# --- exactness -------------------------------------------------------------------------------------------------------


@seeds(40)
def test_a_query_on_each_substream(seed: int) -> None:
    case = of_one_source(f"each-{seed}")
    check(case, random_rule(random.Random(f"rule-{seed}")), seed)


@seeds(20)
@pytest.mark.parametrize(
    "operators", [("count_join",), ("time_join", "count_join", "filter"), (*AGGREGATES, "distinct")]
)
def test_operators_that_count_or_order(operators: tuple[str, ...], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are merged at once: what a merge of counted tuples drops is not missed."""
    monkeypatch.setattr(merge_planning, "FAN_IN", 2)
    case = of_one_source(f"{operators}-{seed}", operators, depth=(1, 1, 2))
    check(case, random_rule(random.Random(f"rule-{seed}")), seed, epochs=8, reopen=0.1)


@seeds(12)
def test_under_another_strategy_in_every_life(seed: int) -> None:
    case = of_one_source(f"strategies-{seed}")
    strategies = random.Random(seed).sample(["subquery", "operator", "query"], 3)
    check(case, random_rule(random.Random(f"rule-{seed}")), seed, reopen=0.7, strategies=strategies)


@seeds(15)
def test_late_tuples_are_in_no_substream(seed: int) -> None:
    case = of_one_source(f"late-{seed}", disorder=15 * SECOND)
    check(case, random_rule(random.Random(f"rule-{seed}")), seed)


@seeds(10)
def test_what_each_gives_goes_on_like_any_stream(seed: int) -> None:
    """Into another split: behind it, substreams of both are told apart."""
    case = of_one_source(f"chain-{seed}", depth=(1, 2))
    first, r = random_rule(random.Random(f"rule-{seed}")), random.Random(seed)
    inner = each(case, first)
    q, step = r.choice([1, 3, 7]), r.choice([1, 2])
    query = inner.split(q, route=f"(substream // {step}) % {q}").each(
        lambda t: t.aggregate(by=["substream"], last=2, every=1, n="count(*)", t="max(ts)").map(
            "n", "t", one="substream"
        )
    )
    found = drive(query, cut(case.tables, 4, seed), seed, change_slots=0.5)
    answer = one_by_one(case, first, case.tables["a"].rows, inner.schema)
    source = table_stream(answer, name="a")
    expected = [query.schema.empty_table()]
    for number in range(q):
        mine = source.filter(f"(substream // {step}) % {q} = {number}")
        part = reference(mine.aggregate(by=["substream"], last=2, every=1, n="count(*)", t="max(ts)"))
        part = part.rename_columns({"substream": "one"}).select(["ts", "n", "t", "one"])
        expected.append(part.append_column("substream", pa.array([number] * part.num_rows, pa.int64())))
    same(pa.concat_tables(expected), found)


ROWS = pa.table(
    {
        "ts": pa.array([n * SECOND for n in range(30)], TS_TYPE),
        "k": [n % 4 for n in range(30)],
        "l___substream": [n % 3 for n in range(30)],
    }
)


@pytest.mark.parametrize(
    "body",
    [
        lambda t: t.join(t, on="l.k = r.k -- alike", within="9 seconds"),
        lambda t: t.join(t, on="l.k < r.k or l.l___substream = r.k", within="3 seconds"),
        lambda t: t.join(t, on="l.k = r.k", last=3).join(t, on="l.l_k = r.k", within="2 seconds"),
        lambda t: t.join(t, on="10 / (l.k - r.k - 0.5) > 0", within="9 seconds"),
        lambda t: t.aggregate(window="7 seconds", every="3 seconds", rows="list(k)", first="first(l___substream)"),
        lambda t: t.aggregate(by=["k"], last=3, n="count(*)").union(t.map("k", n="l___substream")),
        lambda t: t.map("k").union(t.aggregate(by=["k"], window="5 seconds", n="count(*)").map("k")),
        lambda t: t.case("k > 1")[1].distinct(by=[], within="3 seconds"),
        lambda t: t,
        lambda t: t.map(),
    ],
)
def test_the_hidden_column_changes_no_answer_and_no_name(body: Any, tmp_path: Path) -> None:
    """Names that a user could give, text that ends in a comment, streams whose columns stand in another order."""
    case = Case(body(table_stream(ROWS, name="a")), {"a": Table("a", ROWS, "0 seconds")}, frozenset())
    rule = Rule(
        3, {"route": "l___substream", "broadcast": "k = 3"}, lambda row: row["l___substream"], lambda row: row["k"] == 3
    )
    assert each(case, rule).columns == [*case.query.columns, "substream"]
    check(case, rule, 1)


@seeds(12)
def test_the_same_tuples_fail_whatever_the_cut_the_slots_and_the_restarts(seed: int) -> None:
    """In the rules of a split and in what runs behind it; the reference is the judge."""
    query, epochs = failing_case(seed)
    failed = failed_tuples(query, epochs)

    def look(run: Any) -> None:
        assert kept_failures(run) == expected_failures(failed)
        check_counts(run.last, failed)

    found = drive(query, epochs, seed, errors="keep", change_slots=0.3, check=look, strategies=("subquery", "query"))
    same(reference(query, epochs, errors="keep"), found, query)


def failing_case(seed: int) -> tuple[Stream, list[dict[str, pa.Table]]]:
    for attempt in range(30):
        r = random.Random(f"failing-{seed}-{attempt}")
        tables = {"a": Table("a", tuples(f"{seed}-{attempt}", 45), "40 seconds")}
        stream = table_stream(tables["a"].rows, lateness="40 seconds", name="a")
        rule: dict[str, Any] = (
            {"by": ["k"]} if r.random() < 0.3 else {"route": r.choice(["abs(s::int) % 4", "abs(v) % 4", "4 // abs(v)"])}
        )
        if r.random() < 0.5:
            rule["broadcast"] = r.choice(["s::int > 20", "100 // v > 20", "k = 1"])
        if r.random() < 0.3:
            stream = one_step(r, stream)
        query = stream.split(5, **rule).each(lambda t, r=r: windowed(r, steps(r, t, 2)))  # type: ignore[misc]
        epochs = cut(tables, r.choice([1, 2, 4]), attempt)
        try:
            if failed_tuples(query, epochs) and reference(query, epochs, errors="keep").num_rows:
                return query, epochs
        except DataError:  # a route below zero
            continue
    raise AssertionError("no query fails")


def windowed(r: random.Random, stream: Stream) -> Stream:
    match r.choice(["none", "join", "count", "aggregate"]):
        case "join":
            return stream.join(stream, on="l.k = r.k", within="1 second").map(k="l_k", s="l_s", n="r_n", v="r_v")
        case "count":
            return stream.aggregate(by=["k"], last=3, v="sum(v)", all="list(s)")
        case "aggregate":
            return steps(
                r,
                stream.aggregate(by=["k"], window="5 seconds", s="max(s)", n="max(n)", v="min(v)").map(
                    "k", "s", "n", "v"
                ),
                1,
            )
    return stream


def test_a_silent_substream_does_not_hold_what_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_planning, "FAN_IN", 2)
    rows = pa.table({"ts": pa.array([n * SECOND for n in range(600)], TS_TYPE), "k": [int(n > 20) for n in range(600)]})
    query = table_stream(rows, name="a").split(2, route="k").each(lambda t: t.join(t, on="l.ts < r.ts", last=3))
    run = LocalRun(query, tmp_path / "state", slots=2, groups=8)
    for number in range(30):
        run.epoch(rows.slice(number * 20, 20))
    last = run.store.last
    assert last is not None
    held = [sum(block.rows for block in blocks) for blocks in last.operators["join-1"].inputs]
    assert all(6 <= many <= 150 for many in held), "the last of both, and what came since runs were merged"
    run.end()
    same(reference(query), run.results())
    run.close()


# --- engines that are broken on purpose ------------------------------------------------------------------------------


def joins_across(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(substreams, "_within_substreams", lambda on, left, right: on)


def ranks_across(patch: pytest.MonkeyPatch) -> None:
    def together(left: pa.Table, right: pa.Table, by: str, given: Any) -> Any:
        before = given.get(0, (0, 0))
        after = (before[0] + left.num_rows, before[1] + right.num_rows)
        return *order.rank_tuples(left, right, before), {0: after}

    patch.setattr(order, "rank_within", together)


def forgets_ranks(patch: pytest.MonkeyPatch) -> None:
    real = order.rank_within
    patch.setattr(order, "rank_within", lambda left, right, by, given: real(left, right, by, {}))


def drops_one_too_many(patch: pytest.MonkeyPatch) -> None:
    real = count_join.last_of_substream
    patch.setattr(count_join, "last_of_substream", lambda state, last: real(state, last - 1))


def sends_to_one_instead_of_all(patch: pytest.MonkeyPatch) -> None:
    real = split.SplitTuples.tuples.fget

    def to_one(self: split.SplitTuples) -> pa.Table:
        targets = np.where(self.targets == EVERYWHERE, np.int32(0), self.targets)
        return real(replace(self, targets=targets, counts=replace(self.counts, broadcast=0)))

    patch.setattr(split.SplitTuples, "tuples", property(to_one))


def counts_in_every_edge(patch: pytest.MonkeyPatch) -> None:
    real = step_runner.EdgeWalk.along

    def along(self: Any, edge: Any) -> Any:
        self._done = {(): self._done[()]}
        return real(self, edge)

    patch.setattr(step_runner.EdgeWalk, "along", along)


def groups_across(patch: pytest.MonkeyPatch) -> None:
    real = substreams._with_substream

    def without_key(node: Any, made: Any) -> Any:
        found = real(node, made)
        return replace(found, by=(SUBSTREAM, *node.by[1:])) if getattr(node, "by", ()) else found

    patch.setattr(substreams, "_with_substream", without_key)


@pytest.mark.parametrize(
    ("canary", "operators"),
    [
        (joins_across, ("time_join",)),
        (ranks_across, ("count_join",)),
        (forgets_ranks, ("count_join",)),
        (drops_one_too_many, ("count_join",)),
        (sends_to_one_instead_of_all, ("filter",)),
        (counts_in_every_edge, ("time_join",)),
        (groups_across, ("distinct", "count_aggregate")),
    ],
)
@pytest.mark.thorough
def test_a_broken_one_is_seen(canary: Any, operators: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        try:
            test_operators_that_count_or_order(operators, seed, monkeypatch)
        except (AssertionError, pytest.fail.Exception):
            return True
        return False

    monkeypatch.setitem(globals(), "shrink", lambda epochs, fails: epochs)  # to find one is enough
    assert any(wrong(seed) for seed in range(25))
