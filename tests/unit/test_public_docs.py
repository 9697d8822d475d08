"""Every public name has a docstring with an example, and every example in a docstring that needs no Spark is run.

`tests/docs/test_docstring_examples.py` runs the examples that need Spark.
"""

from __future__ import annotations

import doctest
import inspect
import re
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import difference, testing
from headrace.compile.subqueries import Plan, PlannedSource, Subquery
from headrace.plan.figures import Figures
from headrace.processor import ProcessorTable
from headrace.run.run import Run
from headrace.stream import Substreams
from headrace.telemetry.progress import EpochSummary, Progress, SplitFigures, VersionFigures
from tests import docstring_examples

NAMESPACES: dict[str, tuple[Any, list[str]]] = {
    "hr": (hr, [name for name in hr.__all__ if name != "__version__"]),  # a text has no docstring
    "hr.sinks": (hr.sinks, hr.sinks.__all__),
    "hr.testing": (testing, testing.__all__),
    "headrace.difference": (difference, ["difference"]),
}
HANDED_OUT = (Run, Substreams, Plan, Subquery, PlannedSource, Progress, EpochSummary, SplitFigures, VersionFigures)
HANDED_OUT += (Figures, ProcessorTable)  # classes whose objects users get and do not make
LEFT_OUT = {
    "hr.sinks.AnySink": "a union of types, which has no docstring",
    **dict.fromkeys(
        ("Progress.begin", "Progress.restore", "Progress.update"), "the driver calls it, with its own records"
    ),
    "EpochSummary.of": "the driver calls it, with its own records",
}
ARGUMENT = re.compile(r"^    \*{0,2}(\w+): ", re.MULTILINE)


def public() -> dict[str, Any]:
    """Return every public name with its value: functions, classes, modules, methods and properties."""
    found = {
        f"{where}.{name}": getattr(module, name) for where, (module, names) in NAMESPACES.items() for name in names
    }
    found |= {kind.__name__: kind for kind in HANDED_OUT}
    found |= {"hr.testing": testing, "headrace.difference": difference}
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found |= {f"{name}.{member}": each for member, each in docstring_examples.members(value).items()}
    return {name: value for name, value in found.items() if name not in LEFT_OUT}


PUBLIC = public()
FIELDS = {name: kind for name, kind in PUBLIC.items() if inspect.isclass(kind) and docstring_examples.attributes(kind)}


def documented(value: Any) -> str:
    return inspect.getdoc(getattr(value, "__func__", value)) or ""


def section(text: str, name: str) -> str:
    """Return a section of a docstring, such as Args, without its heading."""
    match = re.search(rf"^{name}:\n((?:    .*\n|\n)*)", f"{text}\n", re.MULTILINE)
    return match[1] if match else ""


def described(text: str, name: str) -> set[str]:
    """Return the names that a section of a docstring describes."""
    return set(ARGUMENT.findall(section(text, name)))


@cache
def collected() -> list[doctest.DocTest]:
    return [each for module in docstring_examples.modules() for each in docstring_examples.examples(module)]


@cache
def run_examples() -> set[str]:
    """Return the docstrings with examples that one of the tests runs."""
    return {inspect.cleandoc(each.docstring or "") for each in collected()}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_that_is_run(name: str) -> None:
    text = documented(PUBLIC[name])
    assert text, "no docstring"
    assert doctest.DocTestParser().get_examples(text), "no example"
    assert text in run_examples(), "no test runs the example"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_describes_every_argument(name: str) -> None:
    value = PUBLIC[name]
    function = getattr(value, "__func__", value)
    if not inspect.isfunction(function):
        return
    given = {each for each in inspect.signature(function).parameters if each not in ("self", "cls")}
    assert described(documented(value), "Args") == given


@pytest.mark.parametrize("name", FIELDS)
def test_a_docstring_describes_every_field(name: str) -> None:
    expected = set(docstring_examples.attributes(FIELDS[name]))
    assert described(documented(FIELDS[name]), "Attributes") == expected


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_is_in_its_section(name: str) -> None:
    """Outside of a section, Markdown takes `>>>` for quotations; a section begins after an empty line."""
    text = documented(PUBLIC[name])
    assert re.findall(r"\S\n(?:Args|Attributes|Returns|Raises|Examples):\n", text) == []
    assert section(text, "Examples").count(">>> ") == text.count(">>> ")


def test_every_example_without_spark_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [each for each in collected() if not docstring_examples.needs_spark(each)]
    assert len(chosen) > 150
    failed = ""
    for number, example in enumerate(chosen):
        folder = tmp_path / str(number)
        folder.mkdir()
        docstring_examples.prepare(folder)
        monkeypatch.chdir(folder)
        failed += docstring_examples.run(example)
    assert not failed, failed


def test_all_public_names_are_counted() -> None:
    """The numbers of names, of their arguments and of their fields that this file checks."""
    kinds = Counter("example" if ">>> " in documented(value) else "without" for value in PUBLIC.values())
    fields = sum(len(docstring_examples.attributes(kind)) for kind in FIELDS.values())
    assert kinds["without"] == 0
    assert len(PUBLIC) >= 171 and fields >= 118


def test_a_name_without_an_example_is_found() -> None:
    """The checks of this file see what they are there for."""
    text = textwrap.dedent("""\
        Return one.

        Args:
            x: a number.
            **more: others.
    """)
    assert described(text, "Args") == {"x", "more"} and not described(text, "Attributes")
    assert text not in run_examples() and not section(text, "Examples")
