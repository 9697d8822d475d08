"""The examples in docstrings: which names they may use without defining them, and how they are run.

Every example has `hr` (headrace) and `pa` (pyarrow), and `seen`, a state table with the columns user and n. An example that
uses `spark`, a session, or `run`, a run in progress, without defining it needs Spark. `calls/` and `zones/` are
folders of Parquet files.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.run.run import Run

SOURCES = Path(hr.__file__).parents[1]
SPARK = {"spark", "run"}
OPTIONS = doctest.ELLIPSIS
PATIENCE = 60.0  # seconds until the first epoch
ROWS = {
    "ts": pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us", "UTC")),
    "caller": ["ann", "bob", "ann"],
    "seconds": [90, 5, 30],
}


def modules() -> Iterator[Any]:
    """Import every module of the packages of headrace that has an example."""
    for file in sorted(SOURCES.glob("headrace*/**/*.py")):
        if ">>>" in file.read_text():
            parts = file.relative_to(SOURCES).with_suffix("").parts
            yield import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def examples(module: Any) -> list[doctest.DocTest]:
    """Return the docstrings of a module that have examples."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module, globs={})
    return [each for each in found if each.examples]


def needs_spark(example: doctest.DocTest) -> bool:
    """Return whether an example makes a session, or uses a session or a run that it does not define."""
    code = "".join(each.source for each in example.examples)
    return bool(_free_names(code) & SPARK) or "hr.session(" in code


def _free_names(code: str) -> set[str]:
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    stored = {node.id for node in found if isinstance(node.ctx, ast.Store)}
    return {node.id for node in found} - stored


def prepare(folder: Path) -> None:
    """Write the files that examples read."""
    (folder / "calls").mkdir()
    pq.write_table(pa.table(ROWS), folder / "calls" / "1.parquet")
    (folder / "zones").mkdir()
    pq.write_table(pa.table({"number": ["ann", "bob"], "zone": [1, 2]}), folder / "zones" / "1.parquet")


def seen() -> KeyedTable:
    """Return the state table that examples of its methods use."""
    columns = pa.schema([("user", pa.string()), ("n", pa.int64()), ("until", pa.timestamp("us", "UTC"))])
    rows = pa.table({"user": ["ann", "bob"], "n": [3, 1], "until": [10_000_000, 20_000_000]}).cast(columns)
    return KeyedTable(hr.StateTable(key=["user"], columns=columns, due="until"), "seen", rows)


@contextmanager
def run_in_progress(spark: Any, folder: Path) -> Iterator[Run]:
    """Start the run that examples of its members use, and wait for its first epoch."""
    calls = hr.files(spark, folder / "calls", time="ts", name="calls")
    zones = hr.table(folder / "zones", name="zones")
    counts = calls.join(zones, on="l.caller = r.number").aggregate(by=["zone"], window="1 second", n="count(*)")
    with counts.start(hr.sinks.memory(), checkpoint=folder / "run") as started:
        deadline = time.monotonic() + PATIENCE
        while started.progress.epoch < 0 and started.active and time.monotonic() < deadline:
            time.sleep(0.05)
        yield started


def run(example: doctest.DocTest, names: Mapping[str, Any] | None = None) -> str:
    """Run an example and return what was wrong, an empty text if nothing was."""
    module = import_module(_module_of(example))
    example.globs = {**vars(module), "hr": hr, "pa": pa, "seen": seen(), **(names or {})}
    report: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=OPTIONS).run(example, out=report.append, clear_globs=False)
    return "".join(report)


def _module_of(example: doctest.DocTest) -> str:
    """Return the module of an example, whose name begins with it."""
    path = Path(example.filename or "").relative_to(SOURCES).with_suffix("")
    return ".".join(path.parts[:-1] if path.name == "__init__" else path.parts)


# --- public names -----------------------------------------------------------------------------------------------------


def members(kind: type) -> dict[str, Any]:
    """Return the methods and properties that a class defines, without its private ones."""
    found = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if _is_member(value)}


def _is_member(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def attributes(kind: type) -> list[str]:
    """Return the names of the fields that a class declares and does not implement."""
    declared = inspect.get_annotations(kind)
    return [name for name in declared if not name.startswith("_") and name not in members(kind)]
