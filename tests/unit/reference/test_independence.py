"""The reference and the engine share what is listed here and nothing else: an oracle is blind where it shares code."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

ROOT = Path(headrace.__file__).parent

SHARED = {
    "headrace.reference": "itself",
    "headrace.reference.admission": "itself",
    "headrace.reference.evaluate": "itself",
    "headrace.reference.interpreter": "itself",
    "headrace.reference.local_days": "itself",
    "headrace.reference.nway": "itself",
    "headrace.reference.processors": "itself",
    "headrace.reference.sample": "itself",
    "headrace.reference.splits": "itself",
    "headrace.reference.state_tables": "itself",
    "headrace.reference.tuples": "itself",
    "headrace.reference.table_versions": "itself",
    "headrace.reference.windows": "itself",
    "headrace.columnar": "the package of the foundations below",
    "headrace.support": "the package of the foundations below",
    "headrace.columnar.arrow": "a limit of Arrow, for the hash",
    "headrace.columnar.numba_loops": "of arrow: rows by number",
    "headrace.columnar.numba_cache": "of loops",
    "headrace.support.local_days": "which time zones there are; their days are not looked at by the reference",
    "headrace.support.event_time": "the times that a stream can have",
    "headrace.support.limits": "numbers that users are told",
    "headrace.processor": "what the user wrote, checked: what a processor says of itself",
    "headrace.routing.hashing": "split(by=...) goes by the hash, and which substream it gives is no matter of meaning; nothing else is made with it",
    "headrace.columnar.scratch": "where DuckDB may spill",
    "headrace.columnar.duck": "scalar expressions and aggregate functions are evaluated by DuckDB; plain DuckDB is the oracle of what is made of aggregates (tests/oracle/test_outer_expressions.py)",
    "headrace.errors": "names of errors",
    "headrace.expressions": "what the user wrote, checked: its SQL and its type",
    "headrace.expressions.aggregates": "as above; partials are not looked at by the reference",
    "headrace.expressions.gates": "as above",
    "headrace.expressions.geography": "as above: the SQL of haversine_km, which tests compare with a formula of their own",
    "headrace.expressions.bound_expression": "of native",
    "headrace.expressions.casts": "of native",
    "headrace.expressions.number_functions": "of native",
    "headrace.expressions.loop_values": "of native",
    "headrace.expressions.orders": "as above",
    "headrace.expressions.pair_codegen": "as above; compiled predicates are not looked at by the reference",
    "headrace.expressions.nway_predicates": "as above: conjuncts; classes of equal columns are not looked at by the reference",
    "headrace.expressions.predicates": "as above; keys and bands are not looked at by the reference",
    "headrace.expressions.reserved_words": "of gates: which columns are quoted before an expression is read",
    "headrace.expressions.constant_folding": "of predicates: which of them cannot fail",
    "headrace.expressions.sql_habits": "of gates: hints in errors",
    "headrace.expressions.syntax_tree": "as above",
    "headrace.support.paths": "paths that users give",
    "headrace.query": "the query itself",
    "headrace.support.argument_errors": "words for errors",
    "headrace.support.habits": "words for errors",
    "headrace.support.durations": "lengths of windows, as the query has them",
    "headrace.query.nodes": "the query itself",
    "headrace.query.column_verbs": "the query itself: the maps that some verbs stand for",
    "headrace.query.using": "the query itself: the map behind a join with using",
    "headrace.reference.nested_values": "itself",
    "headrace.query.join_chains": "of stream: a hint in explain; not used by the reference",
    "headrace.query.labels": "names of results, for people",
    "headrace.query.named_columns": "which columns the user named; what a source may do without",
    "headrace.columnar.types": "which types a stream carries, and which of them hold doubles",
    "headrace.support.terminal_text": "how names are shown",
    "headrace.support.ownership": "used by compiled: whether a folder is safe from other users",
    "headrace.support.secrets": "settings of a processor that are read from the environment, and what errors hide",
    "headrace.support.user_code": "which error an exception of the user's code becomes",
    "headrace.columnar.table_view": "of stream: how its columns are shown; not used by the reference",
    "headrace.columnar.values": "order of values in plain Python, and rows as text; not used by the engine",
    "headrace.difference": "answers are compared with it, none is made with it; not used by the engine",
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


def test_one_function_of_the_reference_asks_for_the_hash() -> None:
    files = (ROOT / "reference").glob("*.py")
    assert [path.name for path in files if "hashing" in path.read_text()] == ["splits.py"]


def test_the_kernels_and_the_engine_know_nothing_of_the_reference() -> None:
    """Nor of how it orders values, nor of what compares answers."""
    engine = {
        "kernels",
        "operators",
        "task",
        "driver",
        "evolve",
        "spark",
        "run",
        "tools",
        "telemetry",
        "columnar",
        "expressions",
        "routing",
        "state",
        "sources",
        "compile",
        "control",
        "sinks",
    }
    seen = set()
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        if room in engine:
            seen.add(room)
            apart = ("headrace.reference", "headrace.columnar.values", "headrace.difference")
            assert not [name for name in imported(path) if name.startswith(apart)], path
    assert seen == engine


def imported(path: Path) -> set[str]:
    """Everything that a file imports, also in functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found
