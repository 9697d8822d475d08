"""Measured costs of a split: the split that is measured, shares that are counted, costs that the equations give back.

Times are made up where a test depends on them; of what is really measured, only the form is tested.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from headrace import cli
from headrace.cli import profile_output as shown
from headrace.columnar.types import TS_TYPE, stream_schema
from headrace.control import parasplit_model
from headrace.control.parasplit_model import ModelCosts, SplitShares
from headrace.errors import QueryError
from headrace.query import nodes
from headrace.sources.files import FilesOrigin
from headrace.stream import Stream, node_of
from headrace.task.work import WorkCounts
from headrace.testing import table_stream
from headrace.tools import split_profile
from headrace.tools.split_profile import MeasuredEpoch, NullProcessor, ProfiledSplit, SplitProfile

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
    return stream.split(q, **rule).apply(NullProcessor())


# --- which split -------------------------------------------------------------------------------------------------------


def test_the_split_of_the_largest_source_is_looked_at(tmp_path: Path) -> None:
    small, large = (
        files(tmp_path / name, reports(rows=rows), name=name) for name, rows in (("small", 10), ("large", 99))
    )
    table = table_stream(reports(rows=500), name="table")
    found = ProfiledSplit.of([node_of(split(small.union(large, table).filter("xway < 6")))])
    assert found.source.name == "large" and found.step.substreams == 8
    assert "case when kind" in found.summary


def test_a_query_without_such_a_split_is_refused(tmp_path: Path) -> None:
    stream = files(tmp_path / "in", reports(rows=10))
    behind = (
        stream.aggregate(by=["xway"], window="5 seconds", n="count(*)").split(4, by=["xway"]).apply(NullProcessor())
    )
    for query in (stream.filter("xway = 1"), behind, split(table_stream(reports(rows=5)))):
        with pytest.raises(
            QueryError,
            match=r"the query does not split a stream of hr\.files .* for example, hr\.files\(\.\.\.\)\.split",
        ):
            ProfiledSplit.of([node_of(query)])


def test_an_empty_folder_has_nothing_to_measure_with(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match=r"there are no tuples to measure in .*; add a file"):
        split_profile.profile_split([node_of(split(files(tmp_path / "in")))], 1e6)


# --- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_the_sample_is_the_first_windows_of_the_files(tmp_path: Path, suffix: str) -> None:
    tables = [reports(seed, 1_500) for seed in (1, 2, 3)]
    subject = ProfiledSplit.of([node_of(split(files(tmp_path / "in", *tables, suffix=suffix)))])
    epoch: Any = SimpleNamespace(plan=subject.plan, readers={}, keep_late=False, keep_failed=False)
    whole = pa.concat_tables(tables)
    for wanted, read in ((1, 1_500), (1_501, 3_000), (3_000, 3_000), (10_000, 4_500)):
        work = WorkCounts()
        found = [*subject.windows(epoch, 1 << 20, wanted, work)]
        assert pa.concat_tables(window.rows for _, window in found).equals(whole.slice(0, read))
        sizes = [path.stat().st_size for path in subject.origin.listing()]
        assert [portion.piece.size for portion, _ in found] == sizes[: len(found)]
        assert work.cpu[split_profile.READING_TERM] > 0


def test_splitters_share_every_window(tmp_path: Path) -> None:
    windows: Any = [split_profile.PhysicalWindow("s", reports(seed, rows)) for seed, rows in ((1, 10), (2, 3), (3, 1))]
    shares = [split_profile._share(windows, number, 4) for number in range(4)]
    for place, window in enumerate(windows):
        assert pa.concat_tables(share[place].rows for share in shares).equals(window.rows)
        assert max(len(share[place].rows) for share in shares) <= len(window.rows) / 4 + 1


# --- costs -------------------------------------------------------------------------------------------------------------

COST = st.floats(1e-9, 1e-5)


@given(COST, COST, COST, COST, COST, st.integers(1, 512), st.floats(0, 0.5), st.floats(0, 0.4), st.booleans())
def test_costs_are_found_again_in_turns_that_the_equations_make(
    cr_W: float, cs: float, ce: float, cr: float, cm: float, q: int, b: float, o: float, once: bool
) -> None:
    made = ModelCosts(cr_W=cr_W, cs=cs, ce=ce, cr=cr, cm=cm, cr_PR=0.0)
    split, n = SplitShares(q, 1 - b - o, b, o, 1 if once else q, 1), 1_000

    def turn(p: int) -> MeasuredEpoch:
        splitting = (parasplit_model.C_PS(made, split) - cr_W) * n
        return MeasuredEpoch(
            n, 1, cr_W * n, cs * n, splitting, parasplit_model.C_PQ(made, p) * split.delivered * n, (0, 0)
        )

    found = split_profile.costs_of({p: [turn(p)] * 3 for p in (1, 4)}, split)
    for name in ("cr_W", "cs", "ce", "cr", "cm"):
        assert getattr(found, name) == pytest.approx(getattr(made, name), rel=1e-6, abs=1e-12), name


@pytest.mark.parametrize("merging", [(1.0, 0.5), (1.0, 9.0)], ids=["more splitters look cheaper", "steep"])
def test_costs_are_never_below_zero(merging: tuple[float, float]) -> None:
    turns = {p: [MeasuredEpoch(1_000, 1, 0.5, 5.0, 1.0, each, (0, 0))] for p, each in zip((1, 4), merging, strict=True)}
    found = split_profile.costs_of(turns, SplitShares(4, 1.0, 0.0))
    assert min(found.cr, found.cm, found.ce) >= 0 and found.ce == 0.0  # the steps alone took longer than all of it


# --- what is measured ----------------------------------------------------------------------------------------------------


def test_shares_and_costs_are_those_of_the_tuples(tmp_path: Path) -> None:
    query = split(files(tmp_path / "in", reports(1), reports(2)))
    found = split_profile.profile_split([node_of(query)], 1e6, tuples=6_000, rounds=1)
    kinds = pa.concat_tables([reports(1), reports(2)])["kind"].to_pylist()
    shares = [kinds.count(kind) / (2 * ROWS) for kind in ("P", "A", "D")]
    assert [found.split.r, found.split.b, found.split.o] == pytest.approx(shares)
    assert (found.split.q, found.split.copies, found.tuples) == (8, 1, 2 * ROWS)
    assert found.row_bytes == pytest.approx(sum(f.stat().st_size for f in (tmp_path / "in").iterdir()) / (2 * ROWS))
    assert min(found.costs.cr_W, found.costs.cs, found.costs.cr, *found.sizes.values()) > 0
    assert sorted(found.sizes) == [1 << 20, 4 << 20, 16 << 20, 64 << 20]


def test_a_filter_before_the_split_leaves_out_tuples(tmp_path: Path) -> None:
    query = split(files(tmp_path / "in", reports(1)).filter("xway < 4"))
    only = split_profile.profile_split([node_of(query)], 1e6, rounds=1).split
    kept = reports(1).filter(pa.compute.less(reports(1)["xway"], 4))["kind"].to_pylist()
    assert (only.r, only.b) == pytest.approx((kept.count("P") / ROWS, kept.count("A") / ROWS))


# --- what is recommended -------------------------------------------------------------------------------------------------

SIZES = {1 << 20: 9e-7, 4 << 20: 6.2e-7, 16 << 20: 6e-7, 64 << 20: 7e-7}


def made_up(wanted: float, **changes: Any) -> SplitProfile:
    """A splitter takes 0.6 microseconds per tuple, a slot 0.2 and 0.005 for each splitter."""
    costs = ModelCosts(cr_W=1e-7, cs=2e-7, ce=3e-7, cr=2e-7, cm=5e-9, cr_PR=0.0)
    split = SplitShares(8, 1.0, 0.0, copies=1, processors=1)
    found = SplitProfile("reports", "split by $xway\x1b[2J", wanted, 1_000_000, 20.0, SIZES, costs, split)
    return replace(found, **changes)


def test_the_smallest_window_that_is_about_as_cheap_as_any() -> None:
    assert split_profile.cheapest_size(SIZES) == 4 << 20  # 3 % dearer than 16 MiB
    assert split_profile.cheapest_size(SIZES | {4 << 20: 6.4e-7}) == 16 << 20


@pytest.mark.parametrize(("wanted", "p"), [(1.0, 1), (1.2e6, 1), (1.3e6, 2), (10e6, 9)])
def test_the_fewest_splitters_that_reach_the_rate(wanted: float, p: int) -> None:
    found = made_up(wanted)
    assert found.p == p and found.rate(p) >= wanted
    assert p == 1 or found.rate(p - 1) < wanted


def test_a_splitter_has_four_windows_of_an_epoch_of_a_second() -> None:
    assert made_up(1e6, row_bytes=100.0).W == 4 << 20  # 100 MB for one splitter: the cheapest size
    assert made_up(1e6, row_bytes=10.0).W == 2 << 20
    assert made_up(1e3).W == 1 << 20  # no smaller
    assert made_up(4e6, row_bytes=10.0).p == 4 and made_up(4e6, row_bytes=10.0).W == 2 << 20


def output(found: SplitProfile, file: str = "q.py") -> str:
    text = io.StringIO()
    shown.print_profile(found, file, Console(file=text, width=100))
    return text.getvalue()


def test_the_output_ends_with_the_options_to_pass() -> None:
    text = output(made_up(1.3e6))
    lines = text.splitlines()
    assert lines[-2:] == [
        "  headrace run q.py --splitters 2 --physical-window 2MiB",
        '  start(..., splitters=2, physical_window="2 MiB")',
    ]
    assert "for 1,300,000 tuples/s: p = 2 reaches 2,469,136 tuples/s by the model, with as many slots" in text
    assert "\\x1b[2J" in text and "cr_W     100.0" in text and "16 MiB     600.0" in text


def test_a_rate_that_no_number_of_splitters_reaches() -> None:
    assert "; no p reaches more" in output(made_up(1e9))
    assert "no p reaches more" not in output(made_up(1e6))


def test_the_command_is_explained() -> None:
    found = CliRunner().invoke(cli.app, ["split", "profile", "--help"], env={"COLUMNS": "160", "TERM": "dumb"})
    assert (
        found.exit_code == 0
        and "--rate" in found.stdout
        and "Tuples per second that the recommendation must sustain" in found.stdout
    )
