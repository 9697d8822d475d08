"""What a sample foretells, a run finds: tuples sent and tuples held, for seven queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from headrace import join
from headrace.columnar.types import TS_TYPE, stream_schema
from headrace.compile.subqueries import MeasuredRates, Plan
from headrace.difference import difference
from headrace.errors import QueryError, SourceError
from headrace.plan.figures import Figures
from headrace.query import nodes
from headrace.reference import reference
from headrace.sources.files import FilesOrigin, read_head
from headrace.stream import Stream, node_of
from headrace.support.durations import parse_duration
from headrace.testing import LocalRun
from headrace.tools.calibrate import calibrate, take_sample
from headrace.tools.measured import measured_figures

SECONDS, SLOTS, SAMPLE = 45, 3, 8_000


def second(rng: np.random.Generator, number: int, rate: int) -> pa.Table:
    ts = np.sort(rng.integers(number * 1_000_000, (number + 1) * 1_000_000, rate))
    return pa.table(
        {
            "ts": pa.array(ts, TS_TYPE),
            "k": rng.integers(0, 300, rate),
            "g": rng.integers(0, 20, rate),
            "x": rng.normal(0, 100, rate),
        }
    )


class Input:
    """A source as files of one second each."""

    def __init__(self, folder: Path, name: str, rate: int, seed: int, lateness: str = "0 seconds") -> None:
        rng = np.random.default_rng(seed)
        self.name, self.windows = name, [second(rng, number, rate) for number in range(SECONDS)]
        (folder / name).mkdir()
        for number, table in enumerate(self.windows):
            pq.write_table(table, folder / name / f"{number:03}.parquet")
        schema = self.windows[0].schema
        origin = FilesOrigin(None, folder / name, None)
        waits = parse_duration(lateness, "lateness", zero=True)
        self.stream = Stream(nodes.Source(name, schema, "ts", waits, None, None, origin, stream_schema(schema, "ts")))


def equality(l: Stream, r: Stream) -> Stream:
    return l.filter("g < 10").join(r, on="l.k = r.k", within=("8 seconds", "4 seconds"))


def theta(l: Stream, r: Stream) -> Stream:
    return l.join(r, on="l.x + r.x > 350 and l.g < r.g", within="3 seconds")


def band(l: Stream, r: Stream) -> Stream:
    return l.join(r, on="abs(l.x - r.x) <= 0.05", within="5 seconds")


def aggregate(l: Stream, r: Stream) -> Stream:
    return l.union(r).aggregate(by=["k"], window="10 seconds", every="5 seconds", n="count(*)", top="max(x)")


def figure_8(l: Stream, r: Stream) -> Stream:
    counted = l.aggregate(by=["k"], window="6 seconds", every="3 seconds", n="count(*)")
    joined = counted.join(r, on="l.k = r.k and l.n > 1", within="6 seconds")
    return joined.map("g", "n").aggregate(by=["g"], window="6 seconds", most="max(n)")


def counted(l: Stream, r: Stream) -> Stream:
    return l.join(r, on="l.k = r.k", last=(400, 200)).aggregate(by=["l_g"], last=20, every=5, n="count(*)")


def several(l: Stream, r: Stream) -> Stream:
    on = "a.k = b.k and b.k = c.k and a.x < c.x"
    return join(
        {"a": l, "b": r, "c": r.filter("g < 10")}, on=on, within={"a": "8 seconds", "b": "6 seconds", "c": "4 seconds"}
    )


Query = Callable[[Stream, Stream], Stream]
QUERIES: list[Query] = [equality, theta, band, aggregate, figure_8, counted, several]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Input, Input]:
    folder = tmp_path_factory.mktemp("inputs")
    return Input(folder, "left", 400, 1, "1 second"), Input(folder, "right", 100, 2)


def run(query: Stream, plan: Plan, inputs: tuple[Input, Input], folder: Path) -> dict[str, MeasuredRates]:
    """A second at a time."""
    local = LocalRun(query, folder, slots=SLOTS, plan=plan)
    for number in range(SECONDS):
        local.epoch({i.name: i.windows[number] for i in inputs})
    last = local.store.last
    local.close()
    assert last is not None
    return measured_figures(plan, last)


def totals(numbers: Iterator[tuple[float, float]]) -> tuple[float, float]:
    sent, state = zip(*numbers, strict=True)
    return sum(sent), sum(state)


@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        pytest.param(figure_8, "subquery", marks=pytest.mark.thorough),
        *(pytest.param(q, "subquery", marks=pytest.mark.long) for q in QUERIES if q is not figure_8),
        pytest.param(figure_8, "operator", marks=pytest.mark.long),
    ],
)
def test_predicted_tuples_sent_and_state_are_what_a_run_finds(
    make: Query, strategy: str, inputs: tuple[Input, Input], tmp_path: Path
) -> None:
    query = make(inputs[0].stream, inputs[1].stream)
    figures = calibrate([node_of(query)], [False], slots=SLOTS, tuples=SAMPLE)
    plan = query.plan(slots=SLOTS, strategy=strategy, figures=figures)
    found = run(query, plan, inputs, tmp_path / "state")
    assert plan.measured and plan.sources[0].rate == pytest.approx(400, rel=0.02)
    predicted = totals((s.numbers.sent, s.numbers.state) for s in plan.subqueries)
    counted = totals((found[s.name].sent, found[s.name].state) for s in plan.subqueries)
    assert counted == pytest.approx(predicted, rel=0.2)


def test_a_step_that_makes_several_tuples_of_one(inputs: tuple[Input, Input], tmp_path: Path) -> None:
    listed = inputs[0].stream.with_columns(items="CASE WHEN g < 10 THEN [g, g + 1, g + 2, g + 3] END")
    query = listed.unnest("items").aggregate(by="items", window="10 seconds", n="list(x)")
    figures = calibrate([node_of(query)], [False], slots=SLOTS, tuples=SAMPLE)
    assert max(figures.passing.values()) == pytest.approx(2, rel=0.1)
    assert Figures.from_json(figures.to_json()) == figures
    plan = query.plan(slots=SLOTS, figures=figures)
    found = run(query, plan, inputs[:1], tmp_path / "state")  # type: ignore[arg-type]
    (predicted,) = [each for each in plan.subqueries if each.router.sends]
    assert predicted.numbers.sent == pytest.approx(800, rel=0.1)
    assert found[predicted.name].sent == pytest.approx(predicted.numbers.sent, rel=0.2)


@pytest.mark.thorough
def test_a_band_join_is_routed_by_ranges_where_that_reads_less(inputs: tuple[Input, Input], tmp_path: Path) -> None:
    query = band(inputs[0].stream, inputs[1].stream)
    plan = query.plan(slots=8, figures=calibrate([node_of(query)], [False], tuples=SAMPLE))
    (only,) = plan.subqueries
    assert only.router.kind == "ranges" and {o.router.kind for o in only.rejected} == {"grid", "one"}
    assert all(only.numbers.opened < option.numbers.opened for option in only.rejected)
    local = LocalRun(query, tmp_path / "state", slots=8, plan=plan, bounded=True)
    local.epoch({i.name: pa.concat_tables(i.windows) for i in inputs}, final=True, splitters=2)
    assert difference(reference(query), local.results()) is None
    local.close()


def one_value(table: pa.Table) -> pa.Table:
    return table.set_column(3, "x", pa.array([7.0] * table.num_rows))


def rising(table: pa.Table) -> pa.Table:
    return table.set_column(3, "x", table.column("ts").cast(pa.int64()).cast(pa.float64()))


@pytest.mark.parametrize("change", [one_value, pytest.param(rising, marks=pytest.mark.long)])
@pytest.mark.thorough
def test_ranges_that_would_not_spread_the_work_are_not_taken(
    change: Callable[[pa.Table], pa.Table], inputs: tuple[Input, Input], tmp_path: Path
) -> None:
    """A column that is all one value; one whose values go on for ever, as times do."""
    made = [Input(tmp_path, name, 50, seed) for seed, name in enumerate(("a", "b"))]
    for each in made:
        for number, table in enumerate(each.windows):
            pq.write_table(change(table), tmp_path / each.name / f"{number:03}.parquet")
    query = band(made[0].stream, made[1].stream)
    plan = query.plan(slots=4, figures=calibrate([node_of(query)], [False]))
    assert plan.subqueries[0].router.kind == "grid"


def test_sources_are_sampled_over_the_same_time(tmp_path: Path) -> None:
    fast, slow = Input(tmp_path, "fast", 500, 1), Input(tmp_path, "slow", 5, 2)
    query = fast.stream.join(slow.stream, on="l.k = r.k", within="1 second")
    sample = take_sample(nodes.named_sources(node_of(query)), 5_000)
    assert len(sample.windows["fast"]) == len(sample.windows["slow"]) == 10
    assert sample.spans["slow"] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_only_the_head_of_a_large_file_is_read(ending: str, tmp_path: Path) -> None:
    table = second(np.random.default_rng(1), 0, 3_000)
    path = tmp_path / f"large.{ending}"
    if ending == "parquet":
        pq.write_table(table, path, row_group_size=1_000)
    else:
        feather.write_feather(table, path)
    assert read_head(path, 1_001).equals(table.slice(0, 1_001))
    assert read_head(path, 10).equals(table.slice(0, 10))
    with pytest.raises(SourceError, match="was deleted before it was processed"):
        read_head(tmp_path / f"none.{ending}", 5)


def test_the_share_that_a_sample_keeps_is_measured(inputs: tuple[Input, Input]) -> None:
    """Few keys: the share of the tuples differs from the fraction, which is assumed only without a measurement."""
    query = inputs[0].stream.sample(0.25, by=["g"])
    root = [node_of(query)]
    tuples = pa.concat_tables(take_sample({"left": root[0].input}, SAMPLE).windows["left"])  # type: ignore[attr-defined]
    groups = set(reference(query)["g"].to_pylist())
    kept = sum(g in groups for g in tuples["g"].to_pylist()) / tuples.num_rows
    figures = calibrate(root, [False], slots=SLOTS, tuples=SAMPLE)
    assert figures.matching["sample-1"] == pytest.approx(kept) != 0.25
    assert figures.passing["left to result-0-1"] == pytest.approx(kept)


def test_given_costs_count_instead_of_measured_ones(inputs: tuple[Input, Input]) -> None:
    query = figure_8(inputs[0].stream, inputs[1].stream)
    figures = Figures(rates={"left": 400, "right": 100}, costs={"aggregate-1": 1.0, "join-1": 1.0, "aggregate-2": 1.0})
    names = [s.name for s in query.plan(slots=9, figures=figures).subqueries]
    plan = query.plan(slots=9, figures=figures, costs={names[-1]: 500.0})
    assert plan.subqueries[-1].cost == 500.0 and plan.subqueries[-1].share == 9 - len(names) + 1
    with pytest.raises(QueryError, match="costs name an unknown subquery 'nobody'; the subqueries are "):
        query.plan(slots=2, costs={"nobody": 1.0})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"format": 9}, "format 9, this version reads 1"),
        ({"format": 1, "colour": {}}, "unknown entry 'colour'"),
        ({"format": 1, "rates": 5}, "rates must be an object of numbers; found 5"),
        ({"format": 1, "rates": {"calls": "many"}}, "rates of calls must be zero or more, at most 1e.18; found 'many'"),
        ({"format": 1, "costs": {"join-1": -1}}, "costs of join-1 must be zero or more, at most 1e.18; found -1"),
        ({"format": 1, "bounds": {"join-1": 5}}, "bounds of join-1 must be increasing numbers; found 5"),
        ({"format": 1, "bounds": {"join-1": [2, 1]}}, "bounds of join-1 must be increasing numbers"),
    ],
)
def test_what_are_no_figures_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Figures.from_json(data)


def test_figures_come_back_as_they_were(inputs: tuple[Input, Input]) -> None:
    figures = calibrate([node_of(band(inputs[0].stream, inputs[1].stream))], [False], tuples=1_000)
    assert Figures.from_json(figures.to_json()) == figures
