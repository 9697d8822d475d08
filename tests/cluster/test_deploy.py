"""`headrace deploy` on a standalone master with two workers, as real processes.

The executors' Python is one without headrace, so what they import was shipped. The cluster is started once; the last
test takes one of its machines away.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.difference import difference
from headrace.reference import reference
from headrace.stream import Stream
from headrace.support.version import __version__
from headrace.testing import table_stream
from tests.cluster.standalone import Cluster, alive_workers, cluster, environment
from tests.helpers import write_whole
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

FILES, ROWS = 12, 40
SECOND = 1_000_000

RULES = """
def pairs(events):
    joined = events.join(events, on="l.k = r.k and l.v < r.v", within="2 seconds").map("l_v", "r_v", k="l_k")
    return joined.aggregate(by=["k"], window="3 seconds", every="1 second", n="count(*)", t="sum(l_v * 1000 + r_v)")

def origins(_):
    import headrace
    import headrace.kernels.joins.pair_loop
    import os
    kernel = headrace.kernels.joins.pair_loop._compiled("def kernel(a): return a + 1")
    return [os.getcwd(), *map(os.path.abspath, (headrace.__file__, __file__)), kernel(41)]
"""

QUERY = """
import json, os
import headrace as hr
from rules import origins, pairs

def query(spark):
    if "ORIGINS" in os.environ:
        with open(os.environ["ORIGINS"], "w") as file:
            json.dump(spark.sparkContext.parallelize(range(8), 8).map(origins).collect(), file)
    events = hr.files(spark, "events", time="ts", lateness="1 second", files_per_epoch=1, name="events")
    return pairs(events)
"""


# --- the cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, bare(environment(folder))) as found:
        yield found


def bare(env: Mapping[str, str]) -> dict[str, str]:
    """Nothing in it says where headrace is."""
    return {name: value for name, value in env.items() if not name.startswith(("PYTHON", "PYSPARK"))}


def isolated_python(folder: Path) -> Path:
    """A Python with all that headrace depends on and without headrace: no site, so no editable installs either."""
    packages = ":".join(path for path in sys.path if path.endswith("site-packages"))
    path = folder / "isolated-python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


# --- events, and what comes of them --------------------------------------------------------------------------------


def events() -> pa.Table:
    """In order of arrival; no row is a second behind the largest time before it."""
    rng = random.Random(11)
    times = [1_772_366_400 * SECOND + i * 100_000 + rng.randrange(SECOND) for i in range(FILES * ROWS)]
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "k": pa.array([rng.randrange(5) for _ in times], pa.int64()),
            "v": pa.array(range(len(times)), pa.int64()),
        }
    )


def write(folder: Path, number: int) -> None:
    write_whole(folder / "events" / f"{number:03}.parquet", events().slice(number * ROWS, ROWS))


def query() -> Stream:
    names: dict[str, Any] = {}
    exec(RULES, names)
    found: Stream = names["pairs"](table_stream(events(), lateness="1 second", name="events"))
    return found


def check_results(folder: Path) -> None:
    wanted = query()
    expected = reference(wanted, epochs=[events()], end=False)
    parts = [pq.read_table(path).cast(wanted.schema) for path in sorted((folder / "out").glob("*.parquet"))]
    assert expected.num_rows > 100
    assert difference(expected, pa.concat_tables([wanted.schema.empty_table(), *parts])) is None


# --- a deployment --------------------------------------------------------------------------------------------------


def prepare(folder: Path, master: str, more: str = "") -> list[str]:
    """The command that deploys the query to a cluster; more: lines of the descriptor."""
    (folder / "events").mkdir()
    (folder / "rules.py").write_text(RULES)
    (folder / "query.py").write_text(QUERY)
    text = f"""
master = "{master}"
executors = 2
memory = "600m"
state = "state"
epoch = "0 seconds"
packages = ["rules.py"]
python = "{isolated_python(folder)}"
{more}
"""
    (folder / "cluster.toml").write_text(text)
    options = ["--to", "cluster.toml", "--out", "out", "--until-idle", "--json"]
    return [sys.executable, "-m", "headrace.cli", "deploy", "query.py", *options]


def check_origins(folder: Path) -> None:
    """Executors, both of them, had headrace and the package from what was shipped, and compile what they must."""
    python = isolated_python(folder)
    alone = subprocess.run([str(python), "-c", "import duckdb, headrace"], env=bare(os.environ), capture_output=True)
    assert b"No module named 'headrace'" in alone.stderr
    found = json.loads((folder / "origins.json").read_text())
    assert len({executor for executor, *_ in found}) == 2
    for executor, own, rules, answer in found:
        assert own == f"{executor}/headrace-{__version__}.zip/headrace/__init__.py"
        assert (rules, answer) == (f"{executor}/rules.py", 42)


def test_a_deployed_query_gives_the_sequential_answer(place: Cluster, tmp_path: Path) -> None:
    command = prepare(tmp_path, place.master, 'plan = "plan.json"')
    (tmp_path / "plan.json").write_text(json.dumps(query().plan(slots=3).to_json()))
    for number in range(FILES):
        write(tmp_path, number)
    env = {**environment(tmp_path), "ORIGINS": "origins.json"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert (
        f"deploying query.py to {place.master}: 2 executors with 1 core and 600m each\n  3 slots, plan plan.json"
        in done.stderr
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["tuples_in"] == FILES * ROWS and lines[-1]["epoch"] == FILES - 1
    check_results(tmp_path)
    check_origins(tmp_path)


def test_a_cluster_that_is_too_small_says_so(place: Cluster, tmp_path: Path) -> None:
    command = prepare(tmp_path, place.master, 'patience = "2 seconds"')
    write(tmp_path, 0)
    descriptor = tmp_path / "cluster.toml"
    descriptor.write_text(descriptor.read_text().replace("600m", "64g"))
    env = environment(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    said = f"error: {place.master} provided no executor within 2 seconds; requested: instances 2, cores 1, memory 64g."
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "state").exists()


# --- a machine dies ------------------------------------------------------------------------------------------------


class Deployed:
    """A deployment in progress, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._coming: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._coming.put(line)
        self._coming.put("")

    def until(self, enough: Callable[[], bool], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not enough():
            line = self._coming.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line, "the deployment ended too early"
            self.lines.append(json.loads(line))


@contextlib.contextmanager
def deployed(command: list[str], folder: Path) -> Iterator[Deployed]:
    with open(folder / "stderr.txt", "w") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield Deployed(process)
    finally:
        process.kill()
        process.wait(PATIENCE)


def fed(folder: Path, numbers: range) -> threading.Thread:
    def feed() -> None:
        for number in numbers:
            write(folder, number)
            time.sleep(0.4)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    return thread


def kill_machine(worker: subprocess.Popen[bytes]) -> list[str]:
    """All that runs on it, at once and without a word: the worker, its executor, and that one's Python processes."""
    tree = [psutil.Process(worker.pid)]
    tree += tree[0].children(recursive=True)
    commands = []
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # a Python worker may end, or be a zombie, just then
            commands.append(" ".join(process.cmdline()))
            process.send_signal(signal.SIGKILL)
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    assert psutil.wait_procs(tree, 20)[1] == []
    return commands


@pytest.mark.long
def test_a_machine_that_dies_in_mid_run_changes_nothing(place: Cluster, tmp_path: Path) -> None:
    command = prepare(tmp_path, place.master)
    write(tmp_path, 0)
    with deployed(command, tmp_path) as run:
        run.until(lambda: len(run.lines) >= 1)
        first = fed(tmp_path, range(1, FILES // 2))
        run.until(lambda: len(run.lines) >= 4)
        killed = kill_machine(place.workers[0])
        before = run.lines[-1]
        first.join(PATIENCE)
        second = fed(tmp_path, range(FILES // 2, FILES))
        run.until(lambda: run.lines[-1]["tuples_in"] == FILES * ROWS)
        second.join(PATIENCE)
        assert run.process.wait(PATIENCE) == 0, (tmp_path / "stderr.txt").read_text()
    assert sum("CoarseGrainedExecutorBackend" in text for text in killed) == 1
    assert any("pyspark.daemon" in text for text in killed), "the executor that was killed had not worked yet"
    assert alive_workers(place.web) == 1
    assert before["epoch"] >= 3 and run.lines[-1]["epoch"] - before["epoch"] >= 3
    assert [line["epoch"] for line in run.lines] == list(range(len(run.lines)))
    check_results(tmp_path)
