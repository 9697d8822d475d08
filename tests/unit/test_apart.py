"""The reference and the engine share what is listed here and nothing else: an oracle is blind where it shares code."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

ROOT = Path(headrace.__file__).parent

SHARED = {
    "headrace.reference": "itself",
    "headrace.scratch": "where DuckDB may spill",
    "headrace.duck": "scalar expressions and aggregate functions are evaluated by DuckDB; plain DuckDB is the oracle of what is made of aggregates (tests/oracle/test_outer_expressions.py)",
    "headrace.errors": "names of errors",
    "headrace.expressions": "what the user wrote, checked: its SQL and its type",
    "headrace.expressions.aggregates": "as above; partials are not looked at by the reference",
    "headrace.expressions.gates": "as above",
    "headrace.expressions.native": "as above; compiled predicates are not looked at by the reference",
    "headrace.expressions.predicates": "as above; keys and bands are not looked at by the reference",
    "headrace.expressions.tree": "as above",
    "headrace.paths": "paths that users give",
    "headrace.query": "the query itself",
    "headrace.durations": "lengths of windows, as the query has them",
    "headrace.query.nodes": "the query itself",
    "headrace.types": "which types a stream carries, and which of them hold doubles",
    "headrace.screen": "how names are shown",
    "headrace.stream": "the handle of a query",
}


def imports(module: str) -> set[str]:
    """What a module imports of headrace as it is loaded."""
    path = ROOT / Path(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headrace"):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name for name in inner if exists(name)} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("headrace")}
    return found - {"headrace"}


def exists(module: str) -> bool:
    path = ROOT / Path(*module.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def reached(module: str) -> set[str]:
    found, open_ = set[str](), {module}
    while open_:
        name = open_.pop()
        found.add(name)
        open_ |= imports(name) - found
    return found


def test_the_reference_shares_what_is_listed() -> None:
    assert reached("headrace.reference") == set(SHARED)


def test_the_kernels_and_the_engine_know_nothing_of_the_reference() -> None:
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        if room in ("kernels", "engine", "routing", "state", "sources", "compile", "control", "sinks"):
            assert "headrace.reference" not in path.read_text(), path
