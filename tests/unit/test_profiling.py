"""What a profile is made of: windows that are the sample, shares that are counted, costs that the equations give back.

Times are made up where something depends on them; what is really measured is only looked at for its form.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headrace import cli
from headrace.cli import splitting
from headrace.control import parasplit
from headrace.control.parasplit import Costs, Split
from headrace.engine import profiling
from headrace.engine.profiling import Nothing, Profile, Ran, Step, Subject, Turn
from headrace.engine.work import Work
from headrace.errors import QueryError
from headrace.query import nodes
from headrace.sources.files import FilesOrigin, read_file
from headrace.stream import Stream, node_of
from headrace.testing import table_stream
from headrace.types import TS_TYPE, stream_schema

ROWS = 4_000


def reports(seed: int = 1, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "ts": pa.array(np.sort(rng.integers(0, 100, rows)) * 1_000_000, TS_TYPE),
            "kind": rng.choice(["P", "A", "D"], rows, p=[0.9, 0.06, 0.04]),
            "xway": rng.integers(0, 8, rows),
        }
    )


def files(folder: Path, *tables: pa.Table, suffix: str = ".parquet", name: str = "reports") -> Stream:
    folder.mkdir()
    for number, table in enumerate(tables):
        write = pq.write_table if suffix == ".parquet" else feather.write_feather
        write(table, folder / f"{number}{suffix}")
    schema = reports(rows=1).schema
    origin = FilesOrigin(None, folder, None, schema)
    return Stream(nodes.Source(name, schema, "ts", 0, None, None, origin, stream_schema(schema, "ts")))


def split(stream: Stream, q: int = 8) -> Stream:
    rule = {"route": "case when kind = 'P' then xway end", "broadcast": "kind = 'A'"}
    return stream.split(q, **rule).apply(Nothing())


# --- which split -------------------------------------------------------------------------------------------------------


def test_the_split_of_the_largest_source_is_looked_at(tmp_path: Path) -> None:
    small, large = (
        files(tmp_path / name, reports(rows=rows), name=name) for name, rows in (("small", 10), ("large", 99))
    )
    table = table_stream(reports(rows=500), name="table")
    found = Subject.of([node_of(split(small.union(large, table).filter("xway < 6")))])
    assert found.source.name == "large" and found.step.substreams == 8
    assert "case when kind" in found.words


def test_a_query_without_such_a_split_is_refused(tmp_path: Path) -> None:
    stream = files(tmp_path / "in", reports(rows=10))
    behind = stream.aggregate(by=["xway"], window="5 seconds", n="count(*)").split(4, by=["xway"]).apply(Nothing())
    for query in (stream.filter("xway = 1"), behind, split(table_stream(reports(rows=5)))):
        with pytest.raises(QueryError, match=r"no split of hr\.files .* such as hr\.files\(\.\.\.\)\.split"):
            Subject.of([node_of(query)])


def test_an_empty_folder_has_nothing_to_measure_with(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match=r"no tuples in .* to measure with"):
        profiling.profile([node_of(split(files(tmp_path / "in")))], 1e6)


# --- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("W", [1_000, 20_000, 10_000_000])
def test_windows_are_the_sample_in_pieces_of_their_size(tmp_path: Path, suffix: str, W: int) -> None:
    tables = [reports(seed, 1_500) for seed in (1, 2, 3)]
    subject = Subject.of([node_of(split(files(tmp_path / "in", *tables, suffix=suffix)))])
    sample = profiling.take_sample(subject, 4_000)
    whole = pa.concat_tables([read_file(path) for path in subject.origin.listing()])
    assert sample.equals(whole.slice(0, 4_000))
    windows = profiling.cut_windows(subject, sample, W, tmp_path / "windows")
    read = [read_file(path) for path in windows]
    assert pa.concat_tables(read).equals(sample)
    assert all(window.nbytes <= 1.2 * W for window in read) and all(path.suffix == suffix for path in windows)
    for splitters in (1, 2, 5):
        parts = profiling.dealt(windows, splitters)
        assert sorted(path for part in parts for path in part) == windows
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


# --- W -----------------------------------------------------------------------------------------------------------------


def test_windows_are_doubled_until_that_gains_too_little() -> None:
    """A window of W bytes takes W + 1000: doubling gains less than 0.15 % once W is above some 333,000."""
    steps = profiling.doubled(lambda W: W / (W + 1_000), 1_024, 1 << 30, rounds=3)
    assert [step.W for step in steps] == [1_024 << power for power in range(len(steps))]
    gains = [b.rate / a.rate - 1 for a, b in pairwise(steps)]
    assert all(gain >= 0.0015 for gain in gains[:-1]) and gains[-1] < 0.0015
    assert [step.gain for step in steps[1:]] == pytest.approx(gains)
    assert profiling.chosen(steps) == steps[-2].W == 262_144 * 2


def test_a_window_is_no_larger_than_it_may_be_and_there_is_always_one() -> None:
    growing = profiling.doubled(float, 1_024, 5_000, rounds=2)
    assert [step.W for step in growing] == [1_024, 2_048, 4_096] and profiling.chosen(growing) == 4_096
    assert profiling.chosen(profiling.doubled(lambda _: 1.0, 1_024, 1_024, rounds=2)) == 1_024
    assert profiling.chosen(profiling.doubled(lambda W: 1 / W, 1_024, 1 << 20, rounds=2)) == 1_024


@pytest.mark.parametrize(("rates", "rounds"), [((130.0, 90.0, 101.0), 12), ((102.0, 101.0, 103.0), 3), ((99.0,), 3)])
def test_a_gain_that_may_be_chance_is_asked_for_again_before_it_ends_the_search(
    rates: tuple[float, ...], rounds: int
) -> None:
    """Windows of 1 have a rate of 100: 130, 90 and 101 are 1 % more in the median, which says nothing."""
    turns = cycle(rates)
    asked = Counter[int]()

    def rate(W: int) -> float:
        asked[W] += 1
        return 100.0 if W == 1 else next(turns) if W == 2 else 1.0

    steps = profiling.doubled(rate, 1, 4, rounds=3)
    assert asked[2] - (3 if len(steps) == 3 else 0) == rounds
    assert profiling.chosen(steps) == (2 if rates[0] == 102.0 else 1)


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=30))
def test_the_noise_of_a_median_shrinks_with_rounds_and_is_none_where_all_agree(gains: list[float]) -> None:
    median, noise = profiling.gained(gains)
    again, less = profiling.gained(gains * 4)
    assert median == pytest.approx(again) and less == pytest.approx(noise / 2)
    assert profiling.gained([gains[0]] * 3) == (gains[0], 0.0)


# --- costs -------------------------------------------------------------------------------------------------------------

COST = st.floats(1e-9, 1e-5)


@given(COST, COST, COST, COST, COST, COST, st.integers(1, 512), st.floats(0, 0.5), st.floats(0, 0.4), st.booleans())
def test_costs_are_found_again_in_turns_that_the_equations_make(
    cr_W: float, cs: float, ce: float, cr: float, cp: float, cm: float, q: int, b: float, o: float, once: bool
) -> None:
    made = Costs(cr_W=cr_W, cs=cs, ce=ce, cr=cr, cp=cp, cm=cm, cr_PR=0.0)
    split, n = Split(q, 1 - b - o, b, o, 1 if once else q, 1), 1_000

    def turn(p: int) -> Turn:
        each = parasplit.C_PS(made, split) * n / p
        given = split.delivered * n
        merging = parasplit.C_PQ(made, p) * given
        return Turn([each] * p, [merging], Work(), cr_W * n, (cr / 2 + cp * p) * given)

    found = profiling.costs_of({p: [turn(p)] * 3 for p in (1, 2, 4)}, [cs * n], split, n)
    for name in ("cr_W", "cs", "ce", "cr", "cp", "cm"):
        assert getattr(found, name) == pytest.approx(getattr(made, name), rel=1e-6, abs=1e-12), name


def test_costs_are_never_below_nothing() -> None:
    """Noise can make more splitters look cheaper, and steps dearer than all of it."""
    turns = {p: [Turn([1.0], [1.0 / p], Work(), 0.5, 0.1 / p)] for p in (1, 2, 4)}
    found = profiling.costs_of(turns, [5.0], Split(4, 1.0, 0.0), 1_000)
    assert all(value >= 0 for value in vars(found).values()) and found.ce == found.cp == found.cm == 0.0
    opened = {p: [Turn([1.0], [1.0 + p], Work(), 0.5, 3.0 * p)] for p in (1, 2, 4)}
    found = profiling.costs_of(opened, [0.1], Split(4, 1.0, 0.0), 1_000)
    assert found.cp == pytest.approx(1e-3) and found.cm == 0.0  # both together are what a splitter more costs
    steep = {p: [Turn([1.0], [p - 0.9], Work(), 0.5, 0.1)] for p in (1, 2, 4)}
    assert all(value >= 0 for value in vars(profiling.costs_of(steep, [0.1], Split(4, 1.0, 0.0), 1_000)).values())


# --- all of it ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    query = split(files(tmp_path_factory.mktemp("profile") / "in", reports(1), reports(2)))
    return profiling.profile([node_of(query)], 1e6, tuples=6_000, rounds=1)


def test_shares_are_those_of_the_tuples(found: Profile) -> None:
    kinds = pa.concat_tables([reports(1), reports(2)]).slice(0, 6_000)["kind"].to_pylist()
    shares = [kinds.count(kind) / 6_000 for kind in ("P", "A", "D")]
    assert [found.split.r, found.split.b, found.split.o] == pytest.approx(shares)
    assert (found.split.q, found.split.copies, found.tuples) == (8, 1, 6_000)


def test_a_filter_before_the_split_leaves_out_tuples(tmp_path: Path) -> None:
    query = split(files(tmp_path / "in", reports(1)).filter("xway < 4"))
    only = profiling.profile([node_of(query)], 1e6, W=20_000, rounds=1)
    kept = reports(1).filter(pa.compute.less(reports(1)["xway"], 4))["kind"].to_pylist()
    assert only.split.r == pytest.approx(kept.count("P") / ROWS) and only.split.b == pytest.approx(
        kept.count("A") / ROWS
    )
    assert only.steps == [] and only.W == 20_000


def test_a_profile_says_what_it_chose(found: Profile) -> None:
    assert found.W in [step.W for step in found.steps]
    assert found.rate(found.p_model) >= 1e6 or found.p_model == max(range(1, 513), key=found.rate)
    assert found.p_hat <= found.p_paper  # a tuple for all is sent once
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [row["p"] for row in data["table"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert data["p"]["model"] == found.p_model and data["W"] == found.W


def test_tuples_that_are_replicated_count_once_in_the_rate_of_one_splitter() -> None:
    """The factor of equation 6 counts their copies; 512 of 0.5 % are 2.55 tuples more for each that is read."""
    once = made_up()
    each = replace(once, split=replace(once.split, copies=512))
    assert each.phi_PS_1 == once.phi_PS_1 and each.p_paper == once.p_paper
    assert once.p_hat == 4 and each.p_hat == 13  # 6 M / 1.67 M, and that times 3.555


def made_up() -> Profile:
    costs = Costs(cr_W=1e-7, cs=2e-7, ce=3e-7, cr=2e-7, cp=1e-9, cm=4e-9, cr_PR=0.0)
    steps = [Step(65_536, 1e6), Step(131_072, 1.5e6, 0.5, 0.02), Step(262_144, 1.5e6, 0.001, 0.02)]
    ran = [Ran(1, 1.5e6, 0.01, 1.667e6, 0.7, 0.72), Ran(2, 3.0e6, 0.02, 3.333e6, 0.7, 0.71)]
    split = Split(512, 0.99, 0.005, 0.005, copies=1, processors=1)
    return Profile("reports", "split by $xway\x1b[2J", 1_000_000, 72, 6e6, steps, 131_072, costs, 0.01, split, ran)


def test_a_profile_is_shown() -> None:
    text = io.StringIO()
    splitting.show(made_up(), Console(file=text, width=110))
    shown = text.getvalue()
    for part in (
        "128 KiB  1,500,000  +50.00%",
        "chosen",
        "\\x1b[2J",
        "equation 6 as printed",
        "cr_W     100.0",
        "+11.1%",
    ):
        assert part in shown, shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["22", "equation", "6", "as", "printed"] in [row[:5] for row in rows]
    assert ["4", "equation", "6,", "b"] in [row[:4] for row in rows]  # sent once
    assert any(row[:1] == ["512"] for row in rows)


@pytest.mark.thorough
def test_a_profile_is_drawn(tmp_path: Path) -> None:
    assert splitting.draw(made_up(), tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_is_explained() -> None:
    from typer.testing import CliRunner

    shown = CliRunner().invoke(cli.app, ["split", "profile", "--help"], env={"COLUMNS": "160", "TERM": "dumb"})
    assert shown.exit_code == 0 and "--rate" in shown.stdout and "Tuples per second to choose p for" in shown.stdout
