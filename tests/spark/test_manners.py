"""What a run and a session leave on the terminal when all is well: nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from tests.helpers import wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

TROUBLE = (" ERROR ", "ERROR:", "Traceback", "Exception", "\tat ", "nanobind")
BEGIN = """
import logging, sys, time
import headrace as hr

logging.basicConfig(level=logging.WARNING)

spark = hr.session(slots=2)
calls = spark.readStream.option("maxFilesPerTrigger", 1).schema("ts timestamp, key long").parquet("in")
stream = hr.stream(calls, time="ts", name="s").filter("key >= 0")

def wait_for(what):
    deadline = time.monotonic() + 900
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""

# the epoch in progress ends only after stop was called, and Spark has more batches
STOP = """
run = None
def slow(table, epoch):
    wait_for(lambda: run is not None and (epoch < 1 or run._stopping.is_set()))

run = stream.start(hr.sinks.foreach(slow), checkpoint="ck", epoch="0 seconds", show=False)
wait_for(lambda: run.progress.epoch >= 0)
run.stop()
assert run.exception is None
again = stream.start(hr.sinks.memory(), checkpoint="ck", epoch="0 seconds", show=False)
wait_for(lambda: again.progress.tuples_in == 20)
again.stop()
"""

LEAVE = """
run = stream.start(hr.sinks.memory(), checkpoint="ck", epoch="0 seconds", show=False)
wait_for(lambda: run.progress.epoch >= 1)
"""

# in one task: a second one would be cancelled, and its worker may report that Spark closed the connection
FAIL = """
rows = spark.createDataFrame([("no number", 0)], "t string, s long").selectExpr("t", "timestamp_seconds(s) ts").coalesce(1)
try:
    hr.stream(rows, time="ts", name="a").map(n="cast(t as integer)").collect(slots=1)
    sys.exit("it did not fail")
except hr.DataError:
    pass
"""


def left_by(script: str, folder) -> str:
    """What a program writes on standard error, its JVM and Python workers included."""
    (folder / "in").mkdir()
    for number in range(20):
        ts = pa.array([number * 1_000_000], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"ts": ts, "key": pa.array([number], pa.int64())}), folder / "in" / f"{number}.parquet")
    done = subprocess.run(  # returns when all that hold the pipe have ended
        [sys.executable, "-c", BEGIN + script], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if any(word in line for word in TROUBLE))


def test_a_tuple_that_fails_is_an_error_and_no_log_of_spark(tmp_path):
    assert left_by(FAIL, tmp_path) == ""


@pytest.mark.smoke
@pytest.mark.parametrize(
    "script", [pytest.param(STOP, id="stop"), pytest.param(LEAVE, id="leave", marks=pytest.mark.long)]
)
def test_nothing_is_reported_when_nothing_is_wrong(script, tmp_path):
    assert left_by(script, tmp_path) == ""


def test_a_worker_goes_on_while_spark_is_there_and_ends_without_a_word_after():
    from headrace.support.shutdown import QuietStream

    ours, theirs = socket.socketpair()
    quiet = QuietStream(lambda connection, authenticated: len(connection.recv(10)))
    theirs.send(b"task")
    assert quiet(ours, True) == 4
    theirs.close()
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE))
        quiet(ours, True)
        os._exit(1)
    ours.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.smoke
def test_columns_and_tables_in_the_wrong_place_are_named_with_what_works(spark):
    df = spark.range(3).selectExpr("cast(id as timestamp) ts", "id x")
    s = hr.stream(df, time="ts")
    pandas = pd.DataFrame({"x": [1]})
    column = "found a Spark column, Column<'>(x, 1)'>; "
    cases = [
        (
            lambda: s.filter(df.x > 1),
            column + "write it as SQL text, such as 'x > 1', or use the column on the DataFrame",
        ),
        (lambda: s.map(y=df.x > 1), column),
        (lambda: s.map(df.x > 1), column + "write the column's name, or a new column as a keyword"),
        (lambda: s.join(s, on=df.x > 1, within="1s"), column),
        (lambda: s.aggregate(by=[df.x > 1], window="1s", n="count(*)"), column),
        (lambda: s.join(df, on="true", within="1s"), "found a DataFrame of pyspark; wrap it: headrace.stream(df, time"),
        (lambda: hr.stream(df, time=df.ts), "time must be text, the name of a column; found a Spark column"),
        (
            lambda: hr.stream(pandas, time="ts"),
            "found a DataFrame of pandas; convert it: headrace.stream(spark.crea",
        ),
        (
            lambda: hr.stream(pa.table({"x": [1]}), time="ts"),
            "found a Table of pyarrow; convert it: headrace.stream(spark.crea",
        ),
        (lambda: hr.stream("calls/", time="ts"), "found 'calls/'; for a folder of files use headrace.files(spark"),
        (lambda: hr.stream(s, time="ts"), "found a stream; the value is a stream already"),
        (lambda: hr.stream([(1,)], time="ts"), "found a list [(1,)]; convert its rows: spark.createDataFrame(rows"),
        (lambda: s.start(print, checkpoint="ck"), "the function print is not a sink; such as headrace.sinks.foreach(f"),
        (lambda: s.start("out/", checkpoint="ck"), "'out/' is not a sink; such as headrace.sinks.parquet('out/')"),
        (lambda: s.start(hr.sinks.memory(), late="out/", checkpoint="ck"), "late: 'out/' is not a sink"),
    ]
    for act, words in cases:
        with pytest.raises(hr.QueryError) as error:
            act()
        assert words in str(error.value)
    assert s.filter("x > 1").collect(slots=2).num_rows == 1  # the ways that the errors name
    assert hr.stream(spark.createDataFrame(pa.table({"x": [1]})).selectExpr("cast(x as timestamp) ts"), time="ts")


OTHER_PYTHON = """
import headrace as hr
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
s = hr.stream(spark.range(3).selectExpr("cast(id as timestamp) ts"), time="ts")
for act in (lambda: s.collect(), lambda: s.start(hr.sinks.memory(), checkpoint="ck", show=False)):
    try:
        act()
    except hr.EngineError as error:
        print(error)
"""


def test_a_session_with_another_python_is_told_about_it(tmp_path):
    """What `python3` leads to, as on many machines, has Spark's own modules and no others."""
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec {getattr(sys, "_base_executable", sys.executable)} -S "$@"\n')
    other.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    env.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PYTHON], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert line.startswith(
            f"this session starts its Python workers with {str(other)!r}, but this program runs with"
        )
        assert 'os.environ["PYSPARK_PYTHON"] = sys.executable' in line
        assert "has no module" in line and "executor" not in line and "deploy" not in line


def test_collect_says_what_it_left_out(spark, caplog):
    times = "case when id < 3 then null when id = 9 then timestamp '2026-01-01' else cast(id as timestamp) end ts"
    s = hr.stream(spark.range(0, 10).selectExpr(times, "id"), time="ts", name="calls")
    assert s.collect(slots=2).num_rows == 7
    found = [record for record in caplog.records if record.name.startswith("headrace")]
    assert [record.levelname for record in found] == ["WARNING"]
    assert "left out tuples of calls: 0 late and 3 rejected of 10" in found[0].getMessage()
    caplog.clear()
    s.filter("id > 5").collect(slots=2)
    hr.stream(spark.range(1, 3).selectExpr("cast(id as timestamp) ts"), time="ts").collect(slots=2)
    assert sum(record.levelname == "WARNING" for record in caplog.records if record.name.startswith("headrace")) == 1


def test_a_static_dataframe_that_changed_between_two_starts_is_said(spark, tmp_path, caplog):
    (tmp_path / "in").mkdir()

    def start(places: list[tuple[int, str]], files: int) -> list[str]:
        ts = pa.array([files * 1_000_000], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"ts": ts, "key": pa.array([1], pa.int64())}), tmp_path / "in" / f"{files}.parquet")
        static = spark.createDataFrame(places, "id long, place string").selectExpr("timestamp_seconds(0) at", "*")
        calls = hr.files(spark, tmp_path / "in", time="ts", name="calls")
        joined = calls.join(hr.stream(static, time="at", name="places"), on="l.key = r.id", within="1 hour")
        caplog.clear()
        with joined.start(hr.sinks.memory(), checkpoint=tmp_path / "ck", epoch="0 seconds", show=False) as run:
            wait_until(run, lambda p: p.sources["calls"] >= files)
        return [r.getMessage() for r in caplog.records if r.name.startswith("headrace") and r.levelname == "WARNING"]

    assert start([(1, "a"), (2, "b")], 1) == []
    assert start([(2, "b"), (1, "a")], 2) == [], "the order of rows means nothing"
    changed = start([(1, "a"), (2, "c")], 3)
    assert len(changed) == 1
    assert (
        "the static source places has changed since this state began, and is not read again: it was 2 rows of (at"
        in changed[0]
    )
    again = start([(1, "a"), (2, "c"), (3, "d")], 4)
    assert "it was 2 rows" in again[0] and "it is 3 rows" in again[0], "still compared with what was read"
