"""What a run makes on the disk, and who can reach it; also under the most careless umask, and after `kill -9`."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

RUN = """
import os, time
os.umask(0)
import headrace as hr
spark = hr.session(slots=1, spark__python__unix__domain__socket__enabled="false")  # their paths would be too long
sc = spark.sparkContext
a = hr.files(spark, "a", time="ts", name="a")
b = hr.stream(spark.readStream.schema("ts timestamp, key bigint").parquet("b"), time="ts", name="b")
joined = a.join(b, on="l.key + r.key = 2", within="10 seconds").filter("length(l_key::varchar) > 0")
joined.start(hr.sinks.parquet("out"), checkpoint="ckpt", epoch="0 seconds", slots=1, late=hr.sinks.parquet("late"))
assert hr.files(spark, "a", time="ts").filter("key > 0").collect().num_rows == 1
def spill(_):
    from headrace.columnar import duck
    duck.connection().execute("CREATE TABLE t AS SELECT range i, repeat('x', 60) || range s FROM range(400_000)")
    return 1
assert sc.parallelize([1], 1).map(spill).sum() == 1  # in a worker, as an expression might
while not os.path.exists("out"):
    time.sleep(0.05)
print("ready", flush=True)
input()
"""
NEXT = "from headrace.columnar import duck; duck.connection()"
SPARKS = re.compile(r"spark-.*|blockmgr-.*|hsperfdata_.*|liblz4-java.*|artifacts-.*|snappy-.*|libzstd.*")


def put(folder: Path) -> None:
    folder.mkdir()
    table = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "key": pa.array([1], pa.int64())})
    pq.write_table(table, folder / "0.parquet")


def reachable(folder: Path) -> list[Path]:
    """What others can list, enter or read, from this folder down."""
    mode = folder.lstat().st_mode
    inside = folder.is_dir() and mode & stat.S_IXOTH
    found = [folder] if mode & (stat.S_IRWXG | stat.S_IRWXO) else []
    return found + [path for child in folder.iterdir() for path in reachable(child)] if inside else found


def strange(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not SPARKS.fullmatch(path.name)}


def test_nobody_else_reaches_what_a_run_makes_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / name)
    (tmp_path / "tmp").mkdir()
    tmp_path.chmod(0o755)
    java = f"-Djava.io.tmpdir={tmp_path / 'tmp'}"
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "JAVA_TOOL_OPTIONS": java, "HEADRACE_TASK_MEMORY": "16MB"}
    env.pop("HEADRACE_SCRATCH", None)
    log = (tmp_path / "tmp" / "spark-test.log").open("w")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=tmp_path, env=env, text=True, start_new_session=True, **pipes
    )
    try:
        assert process.stdout and process.stdout.readline() == "ready\n", Path(log.name).read_text()
        assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "tmp", "ckpt", "out"}
        made = strange(tmp_path / "tmp")
        assert len(made) >= 2 and all(name.startswith("headrace-scratch-") for name in made)
        mine = [tmp_path / "ckpt", *(tmp_path / "tmp" / name for name in made)]
        assert [path for folder in mine for path in reachable(folder)] == []
        assert sum(path.stat().st_size for f in mine[1:] for path in f.rglob("duckdb_temp*")) > 1_000_000
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ckpt" / "state").rglob("*")}
        assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
        closed = [tmp_path / "ckpt" / name for name in ("", "state", "spark", "state/blocks", "state/manifests")]
        assert [stat.S_IMODE(path.stat().st_mode) for path in closed] == [0o700] * 5
        assert stat.S_IMODE((tmp_path / "ckpt" / "plan.json").stat().st_mode) == 0o600
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        log.close()
    deadline = time.monotonic() + 60
    while strange(tmp_path / "tmp"):  # Spark's workers end a moment after the rest
        assert time.monotonic() < deadline, strange(tmp_path / "tmp")
        subprocess.run([sys.executable, "-c", NEXT], env=env, check=True)
