"""The layers of the code: imports go down only, one package knows Spark, and names are unique."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import headrace
from headrace import operators
from headrace.operators.base import AppendingOperator, Operator

ROOT = Path(headrace.__file__).parent
SOURCES = ROOT.parent
ADDING = Path(__file__).parents[2] / "docs" / "ADDING.md"

LAYERS: tuple[tuple[str, ...], ...] = (  # from the bottom up; packages of one layer do not import each other
    ("errors", "support"),
    ("columnar",),
    ("expressions", "processor"),
    ("difference",),
    ("query", "plan", "state"),
    ("routing",),
    ("stream", "kernels", "sources", "sinks"),
    ("operators", "reference"),
    ("compile", "control"),
    ("task",),
    ("telemetry",),
    ("driver",),
    ("evolve",),
    ("spark",),
    ("tools",),
    ("run",),
    ("showing", "testing"),
    ("deployment",),
    ("cli",),
    ("__main__", "headrace"),
)
UPWARD = {  # every other upward import, and its reason
    ("errors", "support"): "messages of errors are printable",
    ("support", "errors"): "argument checks raise errors",
    ("plan", "operators"): "types only: a plan holds operators, and operators describe their load in terms of a plan",
    ("compile", "showing"): "a plan draws itself",
    ("stream", "compile"): "verbs that plan a query",
    ("stream", "run"): "verbs that run a query load Spark when they are called",
    ("stream", "showing"): "verbs that show a query",
    ("run", "showing"): "a run on a terminal shows itself",
}
HANDLES = ("headrace", "headrace.stream")  # may import any type for the signatures of their verbs
BESIDE = {  # packages of the same wheel, and the only package of headrace that may import each
    "headrace_bench": "cli",
    "headrace_demo": "cli",
    "headrace_linearroad": "cli",
    "headrace_command": "cli",
}


@dataclass(frozen=True)
class Import:
    module: str
    target: str
    kind: str  # top, lazy or types

    @property
    def packages(self) -> tuple[str, str]:
        return package(self.module), package(self.target)


def package(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "headrace" else parts[0]


def modules(root: Path = ROOT) -> dict[str, Path]:
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports() -> Iterator[Import]:
    known = modules()
    for module, path in known.items():
        for node, kind in statements(ast.parse(path.read_text()).body):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0].startswith("headrace"):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield Import(module, inner if inner in known else str(node.module), kind)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0].startswith("headrace"):
                        yield Import(module, alias.name, kind)


def statements(body: list[ast.stmt], kind: str = "top") -> Iterator[tuple[ast.stmt, str]]:
    """Every statement, and whether it runs at import (top), in a function (lazy) or only for type checkers (types)."""
    for node in body:
        inside = kind
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside = "types"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "top":
            inside = "lazy"
        yield node, kind
        for part in ("body", "orelse", "finalbody"):
            yield from statements([s for s in getattr(node, part, []) if isinstance(s, ast.stmt)], inside)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, inside)


# --- layers ------------------------------------------------------------------------------------------------------------


def test_every_package_is_in_a_layer() -> None:
    assert {package(module) for module in modules()} == {name for layer in LAYERS for name in layer}


def upward() -> dict[tuple[str, str], list[Import]]:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    found: dict[tuple[str, str], list[Import]] = {}
    for each in imports():
        source, target = each.packages
        if source == target or target in BESIDE or target == "headrace":
            continue
        if each.kind == "types" and each.module in HANDLES:
            continue
        if level[source] <= level[target]:
            found.setdefault(each.packages, []).append(each)
    return found


def test_imports_go_down() -> None:
    assert {packages: found for packages, found in upward().items() if packages not in UPWARD} == {}


def test_every_upward_import_in_the_list_exists() -> None:
    assert set(upward()) == set(UPWARD)


def test_upward_imports_wait_until_they_are_needed() -> None:
    at_load = [each for found in upward().values() for each in found if each.kind == "top"]
    assert {each.packages for each in at_load} == {("errors", "support"), ("support", "errors")}


def test_only_spark_imports_pyspark() -> None:
    found = set()
    for module, path in modules().items():
        for node, kind in statements(ast.parse(path.read_text()).body):
            if isinstance(node, ast.Import | ast.ImportFrom) and "pyspark" in ast.unparse(node) and kind != "types":
                found.add(package(module))
    assert found == {"spark"}


@pytest.mark.parametrize("beside", BESIDE)
def test_applications_are_packages_of_their_own(beside: str) -> None:
    """They are not shipped to executors, and what they need is no dependency of everyone."""
    users = {package(found.module) for found in imports() if package(found.target) == beside}
    assert users <= {BESIDE[beside], "__main__"}


def test_what_only_benchmarks_need_is_no_dependency() -> None:
    declared = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]
    assert not [name for name in declared["dependencies"] if name.startswith(("psutil", "matplotlib"))]


# --- names and sizes ---------------------------------------------------------------------------------------------------


def trees() -> Iterator[tuple[str, ast.Module]]:
    for module, path in modules().items():
        yield module, ast.parse(path.read_text())


def test_no_class_name_is_defined_twice() -> None:
    found = Counter(node.name for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in found.items() if count > 1] == []


SAME_CONCEPT = {  # module names that repeat: an operator and its kernel, or the engine's and the reference's
    "__main__", "aggregates", "asof", "base", "distinct", "evaluate", "limit", "local_days", "order", "sample",
    "state_tables", "table_versions", "top",
}  # fmt: skip


def test_module_names_repeat_only_for_one_concept() -> None:
    found = Counter(path.stem for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {name for name, count in found.items() if count > 1} == SAME_CONCEPT


def test_functions_are_short() -> None:
    """A docstring does not count, nor does a command's list of options."""
    found = []
    for module, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
                if (node.end_lineno or 0) - first.lineno + 1 > 50:
                    found.append(f"{module}.{node.name}")
    assert found == []


# --- operators ---------------------------------------------------------------------------------------------------------


def kinds(base: type[Operator] = Operator) -> set[type[Operator]]:
    return {base}.union(*(kinds(kind) for kind in base.__subclasses__()))


def test_no_other_package_asks_what_kind_an_operator_is() -> None:
    """`AppendingOperator` and `ReplacingOperator` are no kinds of operators: they say how state is kept."""
    names = {kind.__name__ for kind in kinds()} - {"Operator", "AppendingOperator", "ReplacingOperator"}
    assert len(names) > 10
    found = []
    for module, tree in trees():
        if package(module) == "operators":
            continue
        for node in ast.walk(tree):
            asked = ""
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "isinstance",
                "issubclass",
                "getattr",
                "hasattr",
            ):
                asked = ast.unparse(node.args[1])
            elif isinstance(node, ast.MatchClass):
                asked = ast.unparse(node.cls)
            found += [f"{module}:{node.lineno} {asked}" for name in names if name in asked]
    assert not found, "\n".join(found)


def test_an_operator_that_lacks_an_answer_cannot_be_made() -> None:
    class Lazy(operators.OrderOperator):
        run = Operator.run  # not said

    with pytest.raises(TypeError, match="abstract method"):
        Lazy("x", 1, (), None, ())  # type: ignore[abstract]


def test_adding_names_the_questions_without_a_default() -> None:
    (line,) = re.findall(r"no default: (.*?)\.\s+`AppendingOperator` adds (.*?)\.", ADDING.read_text(), re.DOTALL)
    listed, of_appended = (set(re.findall(r"`(\w+)`", names)) for names in line)
    assert listed == Operator.__abstractmethods__
    assert of_appended == {name for name in AppendingOperator.__abstractmethods__ if not hasattr(Operator, name)}


def test_every_operator_answers_everything() -> None:
    made = [
        kind for kind in kinds() if kind.__module__.startswith("headrace.operators") and not kind.__abstractmethods__
    ]
    assert {"TimeJoinOperator", "DistinctOperator", "StatelessOperator"} <= {kind.__name__ for kind in made}


PRINTERS = {"cli", "showing", "sinks", "__main__"}  # sinks: `console` is asked for


def test_the_library_prints_nothing() -> None:
    """It logs; the command line and what shows a run print."""
    found = []
    for module, tree in trees():
        if package(module) in PRINTERS:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Console"):
                found.append(f"{module}:{node.lineno}")
            if isinstance(node, ast.Attribute) and node.attr == "write" and "std" in ast.unparse(node.value):
                found.append(f"{module}:{node.lineno}")
    assert found == []
