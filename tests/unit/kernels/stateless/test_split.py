"""A split: where every tuple goes, against plain Python; what is wrong with a rule; what is counted and told."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.compile import STRATEGIES, compile_query
from headrace.compile.normalise import normalise
from headrace.difference import difference
from headrace.errors import DataError
from headrace.expressions import parse_condition, parse_scalar
from headrace.kernels.stateless import split as kernel
from headrace.kernels.stateless.split import SplitCounts, SplitTuples, split_window
from headrace.operators import CountAggregateOperator
from headrace.operators.count_join import last_of_substream
from headrace.plan import MapStep, SplitStep
from headrace.plan.columns_read import columns_before
from headrace.processor import function
from headrace.query import nodes
from headrace.reference import reference
from headrace.routing.base import EVERYWHERE
from headrace.routing.hashing import groups_of
from headrace.state import merge_planning
from headrace.stream import Stream, node_of
from headrace.telemetry.epoch_record import SplitFigures
from headrace.testing import LocalRun, table_stream

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64()), ("s", pa.string())])
SECOND = 1_000_000


def table(*rows: tuple[int, int | None, str | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def step(
    substreams: int = 4, by: Any = None, route: Any = None, broadcast: Any = None, replicate: bool = False
) -> SplitStep:
    rule = nodes.Rule(substreams, by, _rule(route, parse_scalar), _rule(broadcast, parse_condition))
    given = (rule.substreams, rule.by, rule.route, rule.broadcast)
    return SplitStep("split-1", *given, replicate, tuple(SCHEMA.names), rule.summary)


def _rule(given: Any, checked: Any) -> Any:
    if given is None:
        return None
    return function(given, 1) if callable(given) else checked(given, SCHEMA, "rule")


def rows_of(found: SplitTuples | pa.Table) -> Counter[tuple[Any, ...]]:
    tuples = found.tuples if isinstance(found, SplitTuples) else found
    return Counter(zip(*(column.to_pylist() for column in tuples.columns), strict=True))


# --- where tuples go -------------------------------------------------------------------------------------------------


def as_given(values: list[Any], form: int) -> Any:
    """What a function may give: a list, an array of Arrow, in one piece or several, one of NumPy."""
    whole = pa.array(values)
    forms = [values, whole, pa.chunked_array([whole.slice(0, 1), whole.slice(1)]) if len(whole) else whole]
    return [*forms, np.array(values)][form] if None not in values else forms[form % 3]


@pytest.mark.parametrize("replicate", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_tuples_go_where_plain_python_sends_them(seed: int, replicate: bool) -> None:
    r = random.Random(seed)
    q = r.choice([1, 2, 5, 1000])
    rows = table(*((r.randint(-9, 9), r.choice([None, *range(7)]), r.choice([None, "a", "b"])) for _ in range(50)))
    rows = pa.concat_tables([rows.slice(0, 20), rows.slice(20)]) if seed % 2 else rows
    routes = {
        "by": lambda row: None,
        "sql": lambda row: None if row["k"] is None or row["k"] > 5 else row["k"] % q,
    }
    way, everywhere = r.choice(["by", "sql", "function"]), r.choice([None, "sql", "function"])
    route, form = routes.get(way, routes["sql"]), r.randrange(4)
    given: dict[str, Any] = {"by": ("s", "k")}
    if way == "sql":
        given = {"route": f"CASE WHEN k <= 5 THEN k % {q} END"}
    elif way == "function":
        given = {"route": lambda t: as_given([route(row) for row in t.to_pylist()], form)}
    if everywhere == "sql":
        given["broadcast"] = "s = 'b'"
    elif everywhere == "function":
        given["broadcast"] = lambda t: as_given([s and s == "b" for s in t["s"].to_pylist()], form)
    found = split_window(rows, step(q, replicate=replicate, **given), keep=bool(seed % 3))

    hashed = groups_of(rows, ("s", "k"), q).tolist()
    expected: Counter[tuple[Any, ...]] = Counter()
    counts = Counter[str]()
    for row, number in zip(rows.to_pylist(), hashed, strict=True):
        target = number if way == "by" else route(row)
        if everywhere and row["s"] == "b":
            counts["broadcast"] += 1
            for substream in range(q) if replicate else [EVERYWHERE]:
                expected[*row.values(), substream] += 1
        elif target is None:
            counts["omitted"] += 1
        else:
            counts["routed"] += 1
            expected[*row.values(), target] += 1
    assert rows_of(found) == expected
    assert found.counts == SplitCounts(counts["routed"], counts["broadcast"], counts["omitted"])
    assert found.largest == max(rows["ts"].cast(pa.int64()).to_pylist())
    assert found.tuples.schema.names == [*SCHEMA.names, "__substream"]
    assert found.tuples.schema.field("__substream").type == pa.int32()


def test_of_no_tuples_nothing_is_asked() -> None:
    def never(_: pa.Table) -> Any:
        raise AssertionError

    found = split_window(table(), step(route=never, broadcast=never), keep=False)
    assert found.tuples.num_rows == 0 and found.largest is None and found.counts == SplitCounts(0, 0, 0)
    assert found.tuples.schema.names == [*SCHEMA.names, "__substream"]


def test_the_route_of_a_tuple_for_all_is_not_looked_at() -> None:
    asked: list[int] = []

    def route(t: pa.Table) -> Any:
        asked.extend(t["k"].to_pylist())
        return t["k"]

    rows = table((1, 1, "all"), (2, 99, "all"), (3, 2, "one"))
    found = split_window(rows, step(route=route, broadcast="s = 'all'"), keep=False)
    assert set(asked) == {2} and found.counts == SplitCounts(1, 2, 0)
    assert split_window(rows, step(route="k / 0 + k", broadcast="true"), keep=False).counts == SplitCounts(0, 3, 0)


def test_functions_see_what_a_user_sees() -> None:
    """Whatever else goes along with a tuple."""
    seen: list[list[str]] = []

    def route(t: pa.Table) -> Any:
        seen.append(t.column_names)
        return [0] * t.num_rows

    split_window(table((1, 1, "a")).append_column("__rank", pa.array([1])), step(route=route), keep=False)
    assert seen == [SCHEMA.names, SCHEMA.names]


# --- what is wrong with a rule ---------------------------------------------------------------------------------------


class Changing:
    """Another answer at every call."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self, t: pa.Table) -> Any:
        return self.answers.pop(0)(t)


def constant(value: Any) -> Any:
    return lambda t: [value] * t.num_rows


def broken(t: pa.Table) -> Any:
    return {"a": 1}["nobody has it"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"route": constant(4)}, r"gave 4 for the tuple ts=.*k=1, s=a; substreams are 0 \.\. 3, and null"),
        ({"route": "k - 2"}, r"the route of split-1 \(into 4 substreams by k - 2\), 'k - 2', gave -1 for the tuple .*k=1"),
        ({"route": lambda t: pa.array([2**63] * t.num_rows, pa.uint64())}, "gave 9223372036854775808 for the tuple"),
        ({"route": constant(1.0)}, "gave values of type double .* give whole numbers, such as an array of pa.int32"),
        ({"route": constant(True)}, "gave values of type bool"),
        ({"route": constant("1")}, "gave values of type string"),
        ({"route": lambda t: [1]}, "gave 1 values for a table of 3 tuples; give one for each"),
        ({"route": lambda t: np.zeros((3, 2), int)}, "give whole numbers, one for each tuple"),
        ({"route": lambda t: None}, "gave None; give whole numbers"),
        ({"route": lambda t: "012"}, "gave '012'; give whole numbers"),
        ({"route": lambda t: {0: 1}}, "gave a dict"),
        ({"route": lambda t: t}, "gave a Table of pyarrow"),
        ({"route": lambda t: 5}, "gave 5; give whole numbers"),
        ({"route": lambda t: [1, "a", None]}, "give whole numbers, one for each tuple"),
        ({"route": broken}, "the function broken, failed on 3 tuples, the first ts=.*\n(.*\n)*.*nobody has it"),
        ({"route": constant(1), "broadcast": constant(1)}, "the broadcast of split-1 .* gave values of type int64 .* booleans"),
        ({"route": constant(1), "broadcast": lambda t: [True]}, "the broadcast .* gave 1 values"),
        ({"route": Changing(constant(1), constant(2))}, "gave 1 and then 2 for the tuple ts=.*k=1, s=a; what it gives may"),
        ({"route": Changing(constant(1), constant(None))}, "gave 1 and then None"),
        ({"route": constant(1), "broadcast": Changing(constant(True), constant(False))}, "gave True and then False"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_followed(given: dict[str, Any], words: str) -> None:
    """It stops the run, whether or not tuples that fail are kept."""
    rows = table((1, 1, "a"), (2, 2, "b"), (3, 3, None))
    with pytest.raises(DataError, match=words) as error:
        split_window(rows, step(**given), keep=True)
    assert "split-1 (into 4 substreams by" in str(error.value)


def test_a_function_that_looks_at_the_tuples_beside_is_found() -> None:
    rows = table(*((n, n, "a") for n in range(100)))
    with pytest.raises(DataError, match="for the tuple"):
        split_window(rows, step(route=lambda t: [n % 4 for n in range(t.num_rows)]), keep=False)


def test_a_function_that_fails_says_where() -> None:
    with pytest.raises(DataError) as error:
        split_window(table((1, 1, "a")), step(route=broken), keep=False)
    assert "in broken" in str(error.value) and "KeyError" in str(error.value)
    assert "kernels/stateless/split.py" not in str(error.value), "what is ours is left out"


def test_tuples_on_which_an_expression_fails_are_kept() -> None:
    rows = table((1, 1, "3"), (2, 2, "x"), (9, 3, "y"), (3, 4, "0"), (4, 5, "9"))
    given = step(route="CAST(s AS INT) % 4", broadcast="10 / (k - 4) = 10")
    with pytest.raises(DataError):
        split_window(rows, step(route="CAST(s AS INT) % 4"), keep=False)
    found = split_window(rows, step(route="CAST(s AS INT) % 4", broadcast="CAST(s AS INT) = 9 AND k = 5"), keep=True)
    assert [each.tuples["k"].to_pylist() for each in found.failed] == [[2, 3]]
    assert found.counts == SplitCounts(2, 1, 0) and found.largest == 9, "who fails was split too"
    assert all("Could not convert" in why for each in found.failed for why in each.reasons())
    both = split_window(rows, given, keep=True)
    assert sorted(k for each in both.failed for k in each.tuples["k"].to_pylist()) == [2, 3]
    with pytest.raises(DataError, match="gave 9"):
        split_window(rows, step(route="CAST(s AS INT)"), keep=True)


# --- in a plan -------------------------------------------------------------------------------------------------------


def source(rows: pa.Table | None = None) -> Stream:
    return table_stream(table((1, 1, "a")) if rows is None else rows, name="a", lateness="3 seconds")


def test_which_columns_a_split_reads() -> None:
    assert columns_before([step(route="k % 4", broadcast="true")], frozenset({"__substream", "ts"})) == {"k", "ts"}
    assert columns_before([step(by=("s",))], frozenset({"__substream"})) == {"s"}
    assert columns_before([step(route=constant(1))], frozenset()) == {"ts", "k", "s"}, (
        "nobody knows what a function reads"
    )
    renamed = MapStep((("k", "s"),), SCHEMA, "")
    assert columns_before([step(by=("s",)), renamed], frozenset({"k"})) == {"s"}


def test_a_split_that_is_used_twice_is_one() -> None:
    parts = source().split(4, by=["k"])
    one, other = parts.each(lambda t: t.filter("k > 1")), parts.each(lambda t: t.distinct(by=["k"], within="1 second"))
    plan = compile_query([node_of(one), node_of(other)])
    assert len({s for edge in plan.edges for s in edge.steps if isinstance(s, SplitStep)}) == 1
    again = source().split(4, by=["k"]).each(lambda t: t.filter("k > 1"))
    assert [n.name for n in nodes.walk_nodes(*normalise([node_of(again)])) if isinstance(n, nodes.Split)] == ["split-1"]


def test_outputs_of_a_processor_share_it_behind_the_split() -> None:
    from headrace.processor import Processor

    class Two(Processor):
        outputs = {"a": SCHEMA, "b": pa.schema([("ts", TS)])}

        def process(self, tuples: Any, state: Any) -> Any:
            return None

    made = source().split(4, by=["k"]).filter("k > 1").map("s").apply(Two())
    a, b = normalise([node_of(made["a"]), node_of(made["b"])])
    assert isinstance(a, nodes.ProcessorOutput) and isinstance(b, nodes.ProcessorOutput) and a.input is b.input
    assert a.input.split == "split-1" and a.input.input.schema.names == ["ts", "s", "__substream"]
    below = [type(node).__name__ for node in nodes.walk_nodes(a.input)]
    assert below == ["Source", "Split", "Filter", "Map", "Apply"]
    assert b.schema.names == ["ts"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_split_is_counted_once_and_told_to_every_slot(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int | None, int | None]] = []
    run_it = CountAggregateOperator.run

    def listening(self: Any, slot: Any) -> Any:
        told.append((slot.number, slot.split_time("split-1"), slot.split_time("split-2")))
        return run_it(self, slot)

    monkeypatch.setattr(CountAggregateOperator, "run", listening)
    rows = table(*((n * SECOND, n % 5, "a" if n % 7 else "all") for n in range(20)), (19 * SECOND, 4, "a"))
    parts = source(rows).split(4, route="CASE WHEN k < 4 THEN k END", broadcast="s = 'all'")
    joined = parts.each(lambda t: t.join(t, on="l.k = r.k", within="1 second").map(k="l_k"))  # two edges at least
    query = joined.split(2, by=["k"]).each(lambda t: t.aggregate(last=1, n="count(*)"))
    expected = [0, 0, 0]
    largest = None
    for number, (start, stop) in enumerate([(0, 8), (8, 8), (8, 21)]):
        run = LocalRun(query, tmp_path / "state", slots=number + 1, strategy=strategy)
        told.clear()
        part = rows.slice(start, stop - start)
        run.epoch(part, splitters=2)
        now = [
            sum(s != "all" and k != 4 for k, s in zip(part["k"].to_pylist(), part["s"].to_pylist(), strict=True)),
            sum(s == "all" for s in part["s"].to_pylist()),
            sum(s != "all" and k == 4 for k, s in zip(part["k"].to_pylist(), part["s"].to_pylist(), strict=True)),
        ]
        largest = max([n for n in [largest] if n is not None] + part["ts"].cast(pa.int64()).to_pylist())
        expected = [a + b for a, b in zip(expected, now, strict=True)]
        last = run.driver.last
        assert last is not None and last.splits["split-1"] == largest
        assert last.work["counts"]["split"]["split-1"] == expected
        assert {slot for slot, _, _ in told} == set(range(number + 1))
        assert {split for _, split, _ in told} == {largest}
        assert {split for _, _, split in told} == {last.splits.get("split-2")}
        assert run.driver.progress.last is not None
        assert run.driver.progress.last.splits.get("split-1", SplitFigures(0, 0, 0)) == SplitFigures(*now)
        assert run.driver.progress.splits["split-1"] == SplitFigures(*expected)
        run.close()


def test_an_epoch_record_says_what_became_of_tuples(tmp_path: Path) -> None:
    rows = table((0, 1, "a"), (1, 2, "all"), (2, None, "a"), (3, None, "a"))
    run = LocalRun(source(rows).split(4, route="k", broadcast="s = 'all'").each(lambda t: t), tmp_path / "state")
    heard: list[Any] = []
    run.driver.listeners.add(heard.append)
    run.epoch(rows)
    run.driver.end(None)
    assert [record.splits for record in heard] == [{"split-1": SplitFigures(1, 1, 2)}]
    assert heard[0].to_json()["splits"] == {"split-1": {"routed": 1, "broadcast": 1, "omitted": 2}}


def test_a_route_that_is_no_substream_commits_nothing(tmp_path: Path) -> None:
    rows = table((0, 1, "a"), (1, 7, "b"))
    run = LocalRun(source(rows).split(4, route="k").each(lambda t: t), tmp_path / "state", errors="keep")
    with pytest.raises(DataError, match=r"gave 7 for the tuple .*k=7, s=b; substreams are 0 \.\. 3"):
        run.epoch(rows)
    assert run.driver.last is None
    run.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tuples_that_fail_are_put_aside_as_a_user_knows_them(strategy: str, tmp_path: Path) -> None:
    rows = table((0, 1, "1"), (1, 2, "x"), (2, None, "0"))
    query = source(rows).split(4, route="CAST(s AS INT)").each(lambda t: t.map(n="CAST(s || '!' AS INT)"))
    run = LocalRun(query, tmp_path / "state", errors="keep", strategy=strategy, slots=2)
    run.epoch(rows)
    run.end()
    failed = {name: sink.table() for name, sink in run.late.items() if name.startswith("failed:") and sink.table()}
    assert sum(t.num_rows for t in failed.values()) == 3
    for found in failed.values():
        assert set(found.column_names) <= {*SCHEMA.names, "_source", "_reason"}
    assert run.driver.last is not None
    assert sorted(run.driver.last.totals.failed.values()) == [1, 2]
    assert any("split into 4 substreams by CAST(s AS INT)" in words for words in run.driver.last.totals.failed)
    run.close()


def test_what_no_tuple_to_come_can_count_is_dropped_when_runs_are_merged() -> None:
    r = random.Random(1)
    rows = [(r.randrange(4), n) for n in range(100)]
    state = pa.table({"__substream": pa.array([s for s, _ in rows], pa.int32()), "__rank": [n for _, n in rows]})
    newest = dict(rows)
    kept = last_of_substream(state, 10)
    assert list(zip(*(c.to_pylist() for c in kept.columns), strict=True)) == [
        (s, n) for s, n in rows if newest[s] + 1 - n <= 10
    ]
    assert last_of_substream(state.slice(0, 0), 10).num_rows == 0


@pytest.mark.thorough
@pytest.mark.parametrize("slots", [1, 3])
def test_a_count_window_of_substreams_is_trimmed_however_much_it_holds(
    slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are too large to be merged in one piece are merged in several, each of some groups."""
    monkeypatch.setattr(merge_planning, "MOST_MERGED_ROWS", 100)
    r = random.Random(2)
    rows = [table(*((n * 30 + i, r.randrange(40), "a") for i in range(30))) for n in range(25)]
    stream = table_stream(rows[0], name="a").split(40, by=["k"])
    query = stream.each(lambda t: t.join(t, on="l.k = r.k", last=5))
    run = LocalRun(query, tmp_path / "state", slots=slots)
    most = 0
    for each in rows:
        run.epoch(each)
        assert run.driver.last is not None
        held = run.driver.last.operators["join-1"].inputs
        most = max(most, *(sum(block.rows for block in side) for side in held))
        assert max(block.rows for side in held for block in side) <= 150  # none is made of everything
    assert 200 <= most < 600  # 40 substreams have 200 tuples in their windows, and 750 came
    run.end()
    assert difference(reference(query, epochs=[{"a": each} for each in rows]), run.results()) is None
    run.close()


def test_the_sample_is_small_whatever_the_window() -> None:
    asked: list[int] = []

    def route(t: pa.Table) -> Any:
        asked.append(t.num_rows)
        return pa.nulls(t.num_rows, pa.int64())

    split_window(table(*((n, n, "a") for n in range(1000))), step(route=route), keep=False)
    assert asked == [1000, kernel.RECHECKED_TUPLES]


def test_what_needs_a_split_says_so() -> None:
    stream = table_stream(pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC"))}), name="a")
    for name in ("apply", "each"):
        with pytest.raises(AttributeError, match=rf"s.split\(64, by=\['user'\]\).{name}"):
            getattr(stream, name)
    with pytest.raises(AttributeError, match="`Stream` has no `fliter`; did you mean `filter`"):
        stream.fliter
