"""What differs from Spark to Spark stands in `spark/compat.py`, and what else is used all of them have.

A test cannot know what another Spark lacks. It can list what is used: whoever adds to a list has run
`make test SPARK=4.0`, which installs that Spark and sees.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.spark import compat

ROOT = Path(hr.__file__).parent
PROJECT = Path(__file__).parents[3]
ONE = ROOT / "spark" / "compat.py"

IMPORTED = {
    "pyspark.RDD", "pyspark.SparkConf", "pyspark.SparkContext", "pyspark.TaskContext", "pyspark.cloudpickle",
    "pyspark.cloudpickle.register_pickle_by_value", "pyspark.errors.PySparkException",
    "pyspark.java_gateway", "pyspark.sql.DataFrame", "pyspark.sql.SparkSession",
    "pyspark.sql.streaming.StreamingQuery", "pyspark.sql.types.StructType",
}  # fmt: skip
INNER = {
    "_active_spark_context",
    "_ensure_initialized",
    "_gateway",
    "_jdf",
    "_jsc",
    "_jsparkSession",
    "_jsq",
    "_jvm",
}  # what pyspark keeps to itself
SETTINGS = {
    "spark.app.name", "spark.authenticate", "spark.cleaner.periodicGC.interval", "spark.cores.max",
    "spark.driver.bindAddress", "spark.driver.host", "spark.driver.memory", "spark.executor.cores",
    "spark.executor.instances", "spark.executor.memory", "spark.executorEnv.PYTHONPATH", "spark.local.dir",
    "spark.log.level", "spark.master", "spark.pyspark.python", "spark.redaction.regex",
    "spark.sql.adaptive.enabled", "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.session.timeZone",
    "spark.sql.streaming.metricsEnabled", "spark.sql.ui.retainedExecutions", "spark.submit.pyFiles",
    "spark.ui.enabled", "spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.ui.retainedTasks",
    "spark.ui.showConsoleProgress",
}  # fmt: skip
SEE = "every Spark from 4.0 on must have it: run make test SPARK=4.0, then list it here; else it belongs in spark/compat.py"


@functools.cache
def syntax() -> list[ast.AST]:
    """Of all modules but the one."""
    return [node for path in ROOT.rglob("*.py") if path != ONE for node in ast.walk(ast.parse(path.read_text()))]


def used(found: Callable[[ast.AST], Iterator[str]]) -> set[str]:
    return {name for node in syntax() for name in found(node)}


def imported(node: ast.AST) -> Iterator[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    yield from (prefix + name for name in names if (prefix + name).split(".")[0] in ("pyspark", "py4j"))


def inner(node: ast.AST) -> Iterator[str]:
    """What begins like a handle on the JVM, and whatever is taken from the inside of a context or a session."""
    if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        owner = ast.unparse(node.value)
        if owner in ("SparkContext", "sc", "spark") or (node.attr.startswith("_j") and owner != "self"):
            yield node.attr


def settings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"spark(\.\w+)+", node.value):
        yield node.value


@pytest.mark.parametrize(
    ("found", "common"),
    [(imported, IMPORTED), (inner, INNER), (settings, SETTINGS)],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_is_used_of_spark_all_of_them_have(found: Callable[[ast.AST], Iterator[str]], common: set[str]) -> None:
    now = used(found)
    assert now - common == set(), SEE
    assert common - now == set(), "no longer used: take it off the list"


def test_nobody_else_asks_which_spark_it_is() -> None:
    asking = re.compile(
        r"pyspark\.__version__|compat\.(VERSION|OLDEST|WITH_SOCKETS|ZONES)|(spark|sc|sparkContext)\.version\b"
    )
    found = [str(path) for path in ROOT.rglob("*.py") if path != ONE and asking.search(path.read_text())]
    assert found == []


def test_sockets_are_asked_of_a_spark_that_has_them() -> None:
    assert [compat.has_sockets(version) for version in ((4, 0), (4, 1), (4, 3))] == [False, True, True]


def test_a_spark_that_is_too_old_is_refused_by_name() -> None:
    with pytest.raises(hr.EngineError, match=r"runs on Spark 4.0 to 4.3; found pyspark 3.5.9; install a newer one"):
        compat.supported_version("3.5.9")
    with pytest.raises(hr.EngineError, match="calls its version 'main'"):
        compat.supported_version("main")
    assert compat.supported_version("4.0.0.dev1") == (4, 0)


# --- versions are said in few places, and those agree ----------------------------------------------------------------


def locked() -> compat.Version:
    found = re.search(r"^pyspark==(.+)$", (PROJECT / "requirements.lock").read_text(), re.MULTILINE)
    assert found is not None
    return compat.version_of(found[1])


def test_what_is_declared_is_what_is_tried() -> None:
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    newest = locked()
    assert f"pyspark>={compat.OLDEST[0]}.{compat.OLDEST[1]},<{newest[0]}.{newest[1] + 1}" in declared
    assert {compat.version_of(version) for version in others()} == {
        (newest[0], minor) for minor in range(compat.OLDEST[1], newest[1])
    }


def others() -> list[str]:
    """The versions that `make test SPARK=...` knows beside the locked one."""
    return re.findall(r"^SPARK_[\d.]+ := ([\d.]+)$", (PROJECT / "Makefile").read_text(), re.MULTILINE)


def test_make_refuses_a_spark_that_it_does_not_know() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "--dry-run", "test", "SPARK=3.4"]
    done = subprocess.run(make, cwd=PROJECT, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "SPARK=3.4 is none that headrace is tried on: give one of 4.0 4.1 4.2, or nothing for 4.3" in done.stderr
