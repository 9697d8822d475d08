"""What differs from Spark to Spark stands in `spark/compat.py`, and what else is used the Spark that is installed has."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.spark import compat

ROOT = Path(hr.__file__).parent
PROJECT = Path(__file__).parents[3]
ONE = ROOT / "spark" / "compat.py"


def imported() -> Iterator[str]:
    """What is imported of Spark, also within functions, by all modules but the one."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path != ONE else ():
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            yield from (name for name in names if name.startswith(("pyspark", "py4j")))


@pytest.mark.smoke
def test_what_is_imported_of_spark_is_there() -> None:
    """In whichever Spark these tests run with: `make test SPARK=4.0` and its like try the others."""
    names = set(imported())
    assert "pyspark.SparkContext" in names
    for name in names:
        pkgutil.resolve_name(name)


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
    with pytest.raises(hr.EngineError, match=r"pyspark has the version 'main'.*install pyspark 4.0 to 4.3"):
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
