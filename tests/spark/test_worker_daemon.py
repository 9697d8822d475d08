"""Workers are forked by a daemon that has loaded what tasks need: they import nothing, and the daemon has no threads."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.spark import session, worker_daemon


class Stopped(Exception):
    """The daemon would run from here on."""


def stop(*given: Any) -> None:
    raise Stopped(*given)


@pytest.mark.spark
def test_a_worker_shares_what_its_daemon_loaded(spark: Any) -> None:
    def look(_: int) -> str:
        daemon = Path("/proc") / str(os.getppid())
        loaded = [name for name in ("numba", "duckdb", "headrace.task.stages") if name in sys.modules]
        return json.dumps(
            [(daemon / "cmdline").read_text().split("\0"), len(list((daemon / "task").iterdir())), loaded]
        )

    command, threads, loaded = json.loads(spark.sparkContext.parallelize([0], 1).map(look).collect()[0])
    assert "headrace.spark.worker_daemon" in command
    assert threads == 1
    assert loaded == ["numba", "duckdb", "headrace.task.stages"]


def test_sessions_on_a_cluster_keep_sparks_daemon() -> None:
    assert "spark.python.daemon.module" not in session._settings(2, "spark://somewhere:7077", {})
    assert session._settings(2, None, {})["spark.python.daemon.module"] == worker_daemon.__name__
    asked = {"spark.python.daemon.module": "pyspark.daemon"}
    assert session._settings(2, None, asked)["spark.python.daemon.module"] == "pyspark.daemon"


def test_a_daemon_that_has_threads_gives_way_to_sparks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in ("1", "2"):
        (tmp_path / thread).mkdir()
    monkeypatch.setattr(worker_daemon, "THREADS", tmp_path)
    monkeypatch.setattr(os, "execv", stop)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "argv", ["worker_daemon", "pyspark.worker"])
    with pytest.raises(Stopped) as told:
        worker_daemon.main()
    assert told.value.args == (sys.executable, [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"])


def test_where_threads_cannot_be_counted_nothing_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_daemon, "THREADS", tmp_path / "absent")
    monkeypatch.setattr(worker_daemon, "LOADED", ("a_module_that_does_not_exist",))
    monkeypatch.setattr(worker_daemon.daemon, "manager", stop)
    monkeypatch.setattr(worker_daemon.daemon, "worker", worker_daemon.daemon.worker)
    with pytest.raises(Stopped):
        worker_daemon.main()
