"""The house: which room may know which. Imports go downwards only, and no other file asks what kind an operator is."""

from __future__ import annotations

import ast
import doctest
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

import headrace
from headrace import operators
from headrace.operators.base import Appended, Operator

ROOT = Path(headrace.__file__).parent
ADDING = Path(__file__).parents[2] / "docs" / "ADDING.md"

FLOORS: tuple[tuple[str, ...], ...] = (  # from the ground up; rooms of one floor do not know each other
    ("ownership", "screen", "user_code"),
    ("compiled",),
    ("loops",),
    ("errors", "version", "moments", "arrow", "areas", "given"),
    ("durations", "extras", "form", "limits", "paths", "reading", "secrets", "sorting", "types"),
    ("scratch",),
    ("duck",),
    ("expressions", "values", "processor"),
    ("difference",),
    ("query", "plan", "state"),
    ("routing",),
    ("stream", "kernels", "sources", "sinks", "workloads"),
    ("operators", "reference"),
    ("compile", "control"),
    ("engine",),
    ("showing", "testing"),
    ("deployment", "demo"),
    ("cli",),
    ("__main__", "headrace"),
)
PACKAGES = ("headrace", "headrace_bench", "headrace_linearroad")  # the house, and what stands beside it
LAZY = {  # what is loaded only when it is asked for
    ("stream", "compile"): "verbs that plan a query",
    ("stream", "engine"): "verbs that run a query need Spark",
    ("stream", "showing"): "verbs that show a query",
    ("engine", "showing"): "a run on a terminal shows itself",
    ("cli", "demo"): "a command of its own",
    ("headrace", "engine"): "importing headrace does not load Spark",
    ("headrace", "sources"): "as above",
}


@dataclass(frozen=True)
class Import:
    module: str
    target: str
    lazy: bool

    @property
    def rooms(self) -> tuple[str, str]:
        return room(self.module), room(self.target)


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "headrace" else parts[0]


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(("headrace", *parts)).removesuffix(".__init__")] = path
    return found


def imports() -> Iterator[Import]:
    known = modules()
    for module, path in known.items():
        for node, lazy in statements(ast.parse(path.read_text()).body):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield Import(module, inner if inner in known else str(node.module), lazy)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "headrace":
                        yield Import(module, alias.name, lazy)


def statements(body: list[ast.stmt], lazy: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement, and whether it stands in a function; what only a type checker sees is left out."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node, lazy
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ("body", "orelse", "finalbody"):
            yield from statements([s for s in getattr(node, part, []) if isinstance(s, ast.stmt)], inside)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, inside)


def test_every_room_is_on_a_floor() -> None:
    assert {room(module) for module in modules()} == {name for floor in FLOORS for name in floor}


def test_imports_go_down() -> None:
    floor = {name: level for level, names in enumerate(FLOORS) for name in names}
    wrong = [
        f"{found.module} imports {found.target}"
        for found in imports()
        if found.rooms[0] != found.rooms[1] not in PACKAGES[1:]
        and floor[found.rooms[0]] <= floor[found.rooms[1]]
        and not (found.lazy and found.rooms in LAZY)
        and found.target != "headrace"  # the demo uses it as users do
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_allowed_to_be_lazy_is() -> None:
    assert {found.rooms for found in imports() if found.lazy} >= set(LAZY)


def test_benchmarks_are_a_package_of_their_own() -> None:
    """They are not shipped to executors, and what they need is no dependency of everybody."""
    assert not [found for found in imports() if room(found.target) == "headrace_bench" and not found.lazy]
    declared = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    assert not [name for name in declared["dependencies"] if name.startswith(("psutil", "matplotlib"))]


def test_applications_are_packages_of_their_own() -> None:
    """Only the command line knows that they are there."""
    assert {found.module for found in imports() if room(found.target) == "headrace_linearroad"} == {"headrace.cli"}


def test_every_example_in_a_docstring_is_true() -> None:
    tried = 0
    for module, path in modules().items():
        if ">>>" in path.read_text():
            found = doctest.testmod(import_module(module))
            assert not found.failed, module
            tried += found.attempted
    assert tried >= 10


def test_only_the_engine_knows_spark() -> None:
    for path in ROOT.rglob("*.py"):
        top = path.relative_to(ROOT).parts[0]
        if top not in ("engine", "cli"):
            names = [
                n for n, _ in statements(ast.parse(path.read_text()).body) if isinstance(n, ast.Import | ast.ImportFrom)
            ]
            assert not any("pyspark" in ast.unparse(name) for name in names), path


# --- operators -------------------------------------------------------------------------------------------------------


def kinds(base: type[Operator] = Operator) -> set[type[Operator]]:
    return {base}.union(*(kinds(kind) for kind in base.__subclasses__()))


def test_nobody_else_asks_what_kind_an_operator_is() -> None:
    """`Appended` and `Replaced` are no kinds of operators: they say how state is kept."""
    names = {kind.__name__ for kind in kinds()} - {"Operator", "Appended", "Replaced"}
    assert len(names) > 10
    found = []
    for module, path in modules().items():
        if room(module) == "operators":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
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
    (line,) = re.findall(r"no default: (.*?);\s+of `Appended` also (.*?);", ADDING.read_text(), re.DOTALL)
    listed, of_appended = (set(re.findall(r"`(\w+)`", names)) for names in line)
    assert listed == Operator.__abstractmethods__
    assert of_appended == {name for name in Appended.__abstractmethods__ if not hasattr(Operator, name)}


def test_every_operator_answers_everything() -> None:
    made = [
        kind for kind in kinds() if kind.__module__.startswith("headrace.operators") and not kind.__abstractmethods__
    ]
    assert {"TimeJoinOperator", "DistinctOperator", "StatelessOperator"} <= {kind.__name__ for kind in made}


PRINTERS = {"cli", "demo", "showing", "sinks", "__main__"}  # sinks: `console` is asked for


def test_the_library_prints_nothing():
    """It logs; the command line, the demo and what shows a run print."""
    found = []
    for module, path in modules().items():
        if room(module) in PRINTERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Console"):
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Attribute) and node.attr == "write" and "std" in ast.unparse(node.value):
                found.append(f"{path.name}:{node.lineno}")
    assert found == []
