"""Made-up streams: they have the shapes they are called by, and are the same however they are cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import headrace as hr
from headrace import cli
from headrace.reference import reference
from headrace.showing import progress_bar
from headrace.sources.files import FilesOrigin
from headrace.testing import table_stream
from headrace_demo import generate
from headrace_demo.workloads import SCHEMA, BModel, Hot, Uniform, Workload, Written, ramp, writing
from headrace_demo.workloads.arrivals import HIGHEST, Schedule
from headrace_demo.workloads.stream import BEGIN
from tests.patience import PATIENCE

SECOND = 1_000_000
Ints = npt.NDArray[np.int64]


def whole(workload: Workload, seconds: int) -> pa.Table:
    return pa.concat_tables(workload.tables(seconds))


def times(table: pa.Table) -> Ints:
    """Microseconds after the beginning."""
    return np.asarray(table["ts"].cast(pa.int64())) - BEGIN * SECOND


def read(folder: Path) -> pa.Table:
    """In the order of hr.files."""
    return FilesOrigin(None, folder, None).table()


def close(found: float, expected: float, trials: int) -> bool:
    """A share of so many trials, within five standard deviations."""
    return abs(found - expected) <= 5 * (expected * (1 - expected) / trials) ** 0.5


# --- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("count", [10_000_000, 1 << 20, 1000])
def test_the_lower_half_gets_the_bias_at_every_level(bias: float, count: int) -> None:
    keys = BModel(bias, count).draw(np.random.default_rng(1), 200_000)
    assert keys.min() >= 0 and keys.max() < count
    low, size = 0, count
    for level in range(9):
        inside = keys[(keys >= low) & (keys < low + size)]
        half = size - size // 2
        assert close(float((inside < low + half).mean()), bias, len(inside)), level
        low, size = (low, half) if level % 3 else (low + half, size - half)  # down the lower and the upper halves
        if size < 2:
            break


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_few_keys_have_the_shares_of_the_recursion(count: int) -> None:
    def shares(size: int) -> list[float]:
        if size == 1:
            return [1.0]
        lower, upper = shares(size - size // 2), shares(size // 2)
        return [0.8 * s for s in lower] + [0.2 * s for s in upper]

    found = np.bincount(BModel(0.8, count).draw(np.random.default_rng(2), 50_000), minlength=count) / 50_000
    assert all(close(f, e, 50_000) for f, e in zip(found, shares(count), strict=True))


def test_uniform_keys_are_uniform() -> None:
    keys = Uniform(10).draw(np.random.default_rng(3), 100_000)
    assert all(close(n / 100_000, 0.1, 100_000) for n in np.bincount(keys, minlength=10))


def test_keys_of_a_stream_are_those_of_its_model() -> None:
    table = whole(Workload(20_000, BModel(0.7), seed=5), 3)
    keys = np.asarray(table["key"])
    assert close(float((keys < 5_000_000).mean()), 0.7, len(keys))
    assert close(float((keys < 2_500_000).mean()), 0.49, len(keys))


def test_a_hot_key_has_its_share_and_moves() -> None:
    workload = Workload(5000, hot=Hot(0.5, every=2.5), seed=4)
    table = whole(workload, 10)
    turns, keys = times(table) // (2 * SECOND + SECOND // 2), np.asarray(table["key"])
    hot = [workload.hot_key(2.5 * turn) for turn in range(4)]
    assert len(set(hot)) == 4
    for turn in range(4):
        then = keys[turns == turn]
        assert close(float((then == hot[turn]).mean()), 0.5, len(then))
        assert all((then == other).mean() < 0.001 for other in hot if other != hot[turn])


def test_a_hot_key_that_never_moves() -> None:
    workload = Workload(1000, hot=Hot(0.3))
    assert workload.hot_key(0) == workload.hot_key(1e6)
    assert Workload(1000).hot_key(0) is None


@pytest.mark.parametrize("count", [2, 3, 12, 97])
def test_a_hot_key_visits_all_keys_before_it_returns(count: int) -> None:
    workload = Workload(1, Uniform(count), hot=Hot(0.5, every=1))
    assert sorted(workload.hot_key(turn) or 0 for turn in range(count)) == list(range(count))
    assert workload.hot_key(0) == workload.hot_key(count)


# --- arrivals ------------------------------------------------------------------------------------------------------


def test_poisson_arrivals() -> None:
    at = times(whole(Workload(2000, seed=2), 30))
    assert abs(len(at) - 60_000) < 5 * 60_000**0.5
    gaps = np.diff(at)
    assert abs(gaps.mean() - 500) < 15
    assert abs(gaps.std() - 500) < 20  # as large as the mean: gaps are exponential
    per_second = np.bincount(at // SECOND)
    assert 0.3 < per_second.var() / per_second.mean() < 2.2  # a Poisson number


@pytest.mark.parametrize("rate", [0.4, 7.3, 1000])
def test_uniform_gaps_are_within_their_bounds_also_over_seconds(rate: float) -> None:
    gaps = np.diff(times(whole(Workload(rate, arrivals="uniform"), 30))) * rate / SECOND
    assert gaps.min() >= 0.5 - 2e-6 * rate and gaps.max() <= 2 + 2e-6 * rate
    if rate == 1000:
        assert abs(gaps.mean() - 1.25) < 0.02
        assert gaps.min() < 0.51 and gaps.max() > 1.99


@pytest.mark.parametrize(("rate", "expected"), [(1000, 10_000), (3, 30), (0.25, 3), (0.01, 1)])
def test_fixed_arrivals_are_even(rate: float, expected: int) -> None:
    at = times(whole(Workload(rate, arrivals="fixed"), 10))
    assert len(at) == expected
    assert abs(at - np.arange(expected) * SECOND / rate).max() <= 1


@pytest.mark.parametrize("kind", ["poisson", "uniform", "fixed"])
def test_rates_change_in_turn(kind: str) -> None:
    left, right = (
        np.bincount(times(whole(Workload(rates, every=3, arrivals=kind), 12)) // (3 * SECOND))
        for rates in ((1000, 8000), (8000, 1000))
    )
    mean = 0.8 if kind == "uniform" else 1
    for found, expected in ((left, [3000, 24_000] * 2), (right, [24_000, 3000] * 2)):
        assert all(abs(f - e * mean) < 5 * e**0.5 for f, e in zip(found, expected, strict=True))
    if kind == "fixed":
        assert left.tolist() == [3000, 24_000] * 2


def test_rates_may_change_within_a_second() -> None:
    at = times(whole(Workload((100, 900), every=0.3, arrivals="fixed"), 3))
    assert np.bincount(at // (3 * SECOND // 10)).tolist() == [30, 270] * 5
    at = times(whole(Workload((10, 1000), every=0.3, arrivals="uniform"), 30))
    gaps = np.diff(at) / SECOND
    assert gaps.min() >= 0.5 / 1000 - 2e-6 and gaps.max() <= 2 / 10 + 2e-6


def test_a_ramp_goes_up_and_down() -> None:
    assert ramp(1000) == (1000, 2000, 4000, 8000, 4000, 2000)
    assert ramp(5, times=4, steps=2) == (5, 20)
    at = times(whole(Workload(ramp(100), every=1, arrivals="fixed"), 7))
    assert np.bincount(at // SECOND).tolist() == [100, 200, 400, 800, 400, 200, 100]


def test_a_schedule_counts_what_is_to_be_expected() -> None:
    schedule = Schedule((1.0, 8.0), 30 * SECOND)
    assert [schedule.expected(s * SECOND) for s in (0, 30, 60, 75, 90)] == [0, 30, 270, 285, 300]
    assert schedule.moments(29 * SECOND, 31 * SECOND) == [29 * SECOND, 30 * SECOND, 31 * SECOND]
    assert schedule.moments(0, SECOND) == [0, SECOND]


# --- streams -------------------------------------------------------------------------------------------------------

MIXED = Workload((300, 900), BModel(0.7), "uniform", every=1.5, hot=Hot(0.5, every=0.7), seed=9, name="mixed")


def test_tables_are_seconds_in_order_of_time() -> None:
    tables = list(MIXED.tables(5))
    assert len(tables) == 5
    for second, table in enumerate(tables):
        assert table.schema.equals(SCHEMA)
        table.validate(full=True)
        assert set((times(table) // SECOND).tolist()) == {second}
    assert (np.diff(times(pa.concat_tables(tables))) >= 0).all()


def test_a_tuple_has_64_bytes_and_a_payload_of_its_own() -> None:
    table = whole(MIXED, 5)
    payloads = table["payload"].to_pylist()
    assert {len(p) for p in payloads} == {40} and len(set(payloads)) == len(payloads)
    values = np.asarray(table["value"])
    assert values.min() >= 0 and values.max() < 1000 and (values * 8 % 1 == 0).all()
    assert 64 <= table.nbytes / table.num_rows < 69  # Arrow keeps the end of every text too


def test_same_description_same_stream() -> None:
    assert whole(MIXED, 4).equals(whole(MIXED, 4))


@pytest.mark.parametrize("change", [{"seed": 10}, {"name": "other"}])
def test_another_seed_or_name_is_another_stream(change: dict[str, Any]) -> None:
    other = Workload((300, 900), BModel(0.7), "poisson", every=1.5, **{"seed": 9, "name": "mixed", **change})
    same = Workload((300, 900), BModel(0.7), "poisson", every=1.5, seed=9, name="mixed")
    for column in SCHEMA.names:
        assert whole(same, 2)[column].to_pylist() != whole(other, 2)[column].to_pylist()


def test_streams_of_one_seed_are_hot_together() -> None:
    left, right = (Workload(10, hot=Hot(0.5, every=1), seed=9, name=name) for name in ("left", "right"))
    assert [left.hot_key(s) for s in range(5)] == [right.hot_key(s) for s in range(5)]
    assert left.hot_key(0) != Workload(10, hot=Hot(0.5), seed=10).hot_key(0)


def test_a_longer_stream_begins_with_a_shorter_one() -> None:
    short = whole(MIXED, 2)
    assert whole(MIXED, 6).slice(0, short.num_rows).equals(short)


def test_other_keys_leave_the_times_alone_and_begin_moves_only_them() -> None:
    one, two = Workload(500, Uniform()), Workload(500, BModel(0.9), hot=Hot(0.2), begin=BEGIN + 60)
    assert whole(one, 3)["payload"].equals(whole(two, 3)["payload"])
    assert (times(whole(two, 3)) - times(whole(one, 3)) == 60 * SECOND).all()


@pytest.mark.parametrize(("per_second", "files"), [(0.1, 1), (0.5, 3), (1, 6), (1.7, 11), (10, 60)])
def test_the_cut_into_files_changes_nothing(tmp_path: Path, per_second: float, files: int) -> None:
    written = MIXED.write(tmp_path / "new" / "folder", 6, files_per_second=per_second)
    assert (written.files, written.seconds) == (files, 6.0)
    found = read(tmp_path / "new" / "folder")
    assert written.tuples == found.num_rows
    assert found.equals(whole(MIXED, 6).combine_chunks())


def test_a_file_is_a_stretch_of_time(tmp_path: Path) -> None:
    Workload(2, arrivals="poisson").write(tmp_path, 4, files_per_second=5)
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files[:2]] == ["stream-000000.parquet", "stream-000001.parquet"]
    assert len(files) == 20
    tables = [pq.read_table(file) for file in files]
    assert any(table.num_rows == 0 for table in tables)
    for number, table in enumerate(tables):
        assert set((times(table) // (SECOND // 5)).tolist()) <= {number}


def test_files_have_modification_times_in_order_also_when_the_clock_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(2 * 10**18, 10**18, -(10**17)))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    MIXED.write(tmp_path, 4)
    files = sorted(tmp_path.iterdir())
    assert FilesOrigin(None, tmp_path, None).listing() == files
    assert [f.stat().st_mtime_ns for f in files] == sorted(f.stat().st_mtime_ns for f in files)


def test_live_files_wait_for_their_end(tmp_path: Path) -> None:
    waited: list[float] = []

    def wait(moment: float) -> float:
        assert len(list(tmp_path.iterdir())) == len(waited)  # the next is not there before its time
        waited.append(moment)
        return 0.25

    told: list[Written] = []
    parts = writing.cut(MIXED.tables(2), BEGIN * SECOND, writing.ends(2, 2))
    writing.write(parts, writing.into_files(tmp_path, "x"), wait, told.append)
    assert waited == [0.5, 1.0, 1.5, 2.0]
    assert [(w.files, w.seconds, w.behind) for w in told] == [(n, n / 2, 0.25) for n in range(1, 5)]


def test_live_takes_as_long_as_the_stream(tmp_path: Path) -> None:
    began = time.monotonic()
    assert Workload(100).write(tmp_path, 1, files_per_second=4, live=True).files == 4
    assert time.monotonic() - began >= 1.0
    modified = [p.stat().st_mtime for p in sorted(tmp_path.iterdir())]
    assert modified[-1] - modified[0] > 0.5


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: pa.Table, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(hr.WorkloadError, match=r"stream-000000\.parquet': No space left on device"):
        Workload(10).write(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_query_reads_it() -> None:
    table = whole(MIXED, 3)
    per_key = table_stream(table, "ts").aggregate(by=["key"], window="1 second", n="count(*)", total="sum(value)")
    counts = reference(per_key)
    assert sum(counts["n"].to_pylist()) == table.num_rows
    assert sum(counts["total"].to_pylist()) == sum(table["value"].to_pylist())


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BModel(0.4), "bias of the b-model must be at least 0.5 and less than 1; found 0.4"),
        (lambda: BModel(1), "less than 1; found 1"),
        (lambda: BModel(float("nan")), "must be a number; found nan"),
        (lambda: BModel("0.7"), "must be a number; found '0.7'"),
        (lambda: BModel(0.7, 0), "number of keys must be a whole number, from 1"),
        (lambda: Uniform(2.5), "number of keys must be a whole number"),
        (lambda: Hot(1.0), "share of the hot key must be at least 0 and less than 1; found 1.0"),
        (lambda: Hot(-0.1), "found -0.1"),
        (lambda: Hot(0.5, every=0), "at least a millisecond, given in seconds; found 0"),
        (lambda: Hot(0.5, every="20 seconds"), "must be a number; found '20 seconds'"),
        (lambda: Workload(0), "rate must be more than 0"),
        (lambda: Workload(-5), "found -5"),
        (lambda: Workload(HIGHEST + 1), "at most 10,000,000"),
        (lambda: Workload((100, 0), every=1), "rate must be more than 0"),
        (lambda: Workload(()), "found none"),
        (lambda: Workload("fast"), "rate must be a number; found 'fast'"),
        (lambda: Workload((1, 8)), "2 rates without a duration"),
        (lambda: Workload((1, 8), every=-1), "the time between changes of the rate"),
        (lambda: Workload(1, keys="uniform"), r"keys must be Uniform\(...\) or BModel"),
        (lambda: Workload(1, arrivals="normal"), "unknown arrivals 'normal'; expected one of poisson, uniform, fixed"),
        (lambda: Workload(1, hot=0.5), "hot must be Hot"),
        (lambda: Workload(1, Uniform(1), hot=Hot(0.5)), "a hot key needs at least two keys; found one"),
        (lambda: Workload(1, seed=-1), "seed must be a whole number, at least 0"),
        (lambda: Workload(1, name="_x"), "name of a stream must begin with a letter"),
        (lambda: Workload(1, name="a/b"), "found 'a/b'"),
        (lambda: Workload(1, begin=float("inf")), "begin must be a number"),
        (lambda: Workload(1).tables(0), "seconds must be a whole number, at least 1; found 0"),
        (lambda: Workload(1).write("never", 1, files_per_second=0), "files per second must be more than 0"),
        (lambda: Workload(1).write("never", 0), "seconds must be"),
        (lambda: ramp(1, steps=3), "must be even"),
        (lambda: ramp(1, times=-8), "height of a ramp"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, message: str) -> None:
    with pytest.raises(hr.WorkloadError, match=message):
        make()
    assert not Path("never").exists()


# --- the command ---------------------------------------------------------------------------------------------------


def call(*arguments: object) -> Any:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.app, ["generate", *map(str, arguments)], env=environment)


def test_the_command_writes_what_the_api_does(tmp_path: Path) -> None:
    options = "--rates 100,800 --every 1.5:seconds --bias 0.8 --hot 0.5 --hot-every 2:seconds --seed 3 --name left"
    arguments = [word.replace(":", " ") for word in options.split()]
    found = call(tmp_path / "out", "--seconds", 5, "--files-per-second", 2, *arguments)
    assert found.exit_code == 0, found.output
    same = Workload((100, 800), BModel(0.8), every=1.5, hot=Hot(0.5, every=2), seed=3, name="left")
    assert read(tmp_path / "out").equals(whole(same, 5).combine_chunks())
    assert f"{whole(same, 5).num_rows:,} tuples in 10 files in " in found.output
    assert "hr.files(spark, " in found.output


def test_other_kinds(tmp_path: Path) -> None:
    options = ["--rate", 50, "--seconds", 2, "--begin", "2026-03-01 12:00:00"]
    assert call(tmp_path, *options, "--keys", "uniform", "--domain", 5, "--arrivals", "fixed").exit_code == 0
    table = read(tmp_path)
    assert table.num_rows == 100
    assert set(table["key"].to_pylist()) == set(range(5))
    assert table["ts"][0].as_py().isoformat() == "2026-03-01T12:00:00+00:00"


def test_help_names_everything() -> None:
    shown = call("--help").output
    names = "rate seconds rates every arrivals keys bias domain hot hot-every files-per-second live kafka partitions begin seed name"
    assert [name for name in names.split() if f"--{name} " not in shown] == []
    assert "DIR" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "rate must be more than 0"),
        (["--bias", "0.3"], "bias of the b-model must be at least 0.5"),
        (["--keys", "uniform", "--bias", "0.7"], "--bias applies to skewed keys"),
        (["--hot", "1"], "share of the hot key"),
        (["--hot-every", "2 seconds"], "give its share"),
        (["--hot", "0.5", "--hot-every", "soon"], "--hot-every is not a duration"),
        (["--rates", "1000;8000", "--every", "1 second"], "--rates must be numbers separated by commas"),
        (["--rates", "1000,8000"], "2 rates without a duration"),
        (["--every", "1 second"], "--every is the time between --rates"),
        (["--seconds", "0"], "seconds must be a whole number"),
        (["--files-per-second", "0"], "files per second"),
        (["--begin", "noon"], "--begin is not a time; found 'noon'"),
        (["--seed", "-1"], "seed must be a whole number"),
        (["--name", "../x"], "name of a stream"),
        (["--domain", "0"], "number of keys"),
    ],
)
def test_bad_options_are_one_message_and_no_folder(tmp_path: Path, arguments: list[str], message: str) -> None:
    found = call(tmp_path / "out", *arguments)
    assert found.exit_code == 1
    assert found.stderr.startswith("error: ") and message in found.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    found = call(tmp_path)
    assert found.exit_code == 1 and "is not empty" in found.stderr
    assert "is a file" in call(tmp_path / "mine.txt").stderr
    assert "cannot use the folder" in call(tmp_path / "mine.txt" / "below").stderr
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_progress_is_lines_anywhere_and_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "LINES_EVERY", 0.0)
    for terminal, expected in ((False, "2 s: 5 tuples in 1 file, 1.5 s behind the clock"), (True, "2 of 4 s")):
        console = Console(width=120, force_terminal=terminal, no_color=True)
        with console.capture() as capture, progress_bar.show_progress(console, 4) as show:
            show(2.0, generate._line(Written(1, 5, 2.0, 1.5), generate._in_files))
        assert expected in capture.get()


def test_ctrl_c_ends_a_live_stream_cleanly(tmp_path: Path) -> None:
    arguments = ["generate", str(tmp_path), "--live", "--seconds", "600", "--files-per-second", "20"]
    command = [sys.executable, "-m", "headrace.cli", *arguments]
    before = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob("stream-*.parquet")) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert out.splitlines()[-2].startswith("stopped after ") and "of 600 seconds: " in out
    assert list(tmp_path.glob("_*")) == []
    table = read(tmp_path)
    assert table.num_rows > 0
    assert before <= table["ts"][0].as_py().timestamp() <= time.time()  # live: the times are now
