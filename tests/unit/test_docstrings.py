"""Docstrings and comments of headrace: they name only what exists, and every class has a docstring.

A name in backticks is stale if no code of this repository has it: no definition, attribute, argument, module or text. A
table of modules in a docstring may only list modules that exist.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FOREIGN = {  # words in backticks that are no names of this code, and why
    "except": "a keyword of Python",
    "Catalog": "a class of PyIceberg",
    "vacuum": "a method of deltalake",
    "tests": "the folder of tests",
    "test_independence": "a test",
    "SPARK": "a variable of the Makefile",
    **dict.fromkeys(("ann", "shop"), "parts of example URLs"),
    **dict.fromkeys(
        ("apiKey", "Authorization", "Bearer", "token_limit", "token_url", "password_column"), "names of example secrets"
    ),
}
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_ROW = re.compile(r"(?: {4})?([a-z_]+) {2,}[\w`(]")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def docstrings(module: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(module):
        if isinstance(node, Documented) and ast.get_docstring(node) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            yield statement.value


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Every line of the docstrings and comments of a file, with its number."""
    for text in docstrings(tree(file)):
        yield from enumerate(str(text.value).splitlines(), text.lineno)
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names(module: ast.Module) -> Iterator[str]:
    """Every name that the code of a module has, and every word of its texts that are not docstrings."""
    documented = {id(text) for text in docstrings(module)}
    for node in ast.walk(module):
        for attribute in ("name", "id", "attr", "arg", "asname", "module"):
            if isinstance(name := getattr(node, attribute, None), str):
                yield from name.split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield from _WORD.findall(node.value)


@cache
def known() -> set[str]:
    found = set(FOREIGN)
    for file in FILES:
        found |= {*names(tree(file)), *file.relative_to(ROOT.parent).with_suffix("").parts}
    return found


def stale(line: str) -> list[str]:
    """The words in backticks of a line that are no names."""
    return [word for quoted in re.findall(r"`([^`]+)`", line) for word in _WORD.findall(quoted) if word not in known()]


def module_tables(file: Path) -> Iterator[list[str]]:
    """The first words of every table in the docstring of a module, if any of them is a module of its package."""
    rows: list[str] = []
    for line in [*(ast.get_docstring(tree(file)) or "").splitlines(), ""]:
        if match := _ROW.match(line):
            rows.append(match[1])
        elif not line.startswith("     "):  # a further line of a row is indented more
            if siblings(file) & set(rows):
                yield rows
            rows = []


def siblings(file: Path) -> set[str]:
    folder = file.parent
    return {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}


def test_the_sources_are_found() -> None:
    assert len(FILES) > 200 and len(known()) > 5_000


def test_names_in_backticks_exist() -> None:
    found = [f"{at(file, number)}: {word}" for file in FILES for number, line in prose(file) for word in stale(line)]
    assert not found, "these names are in no code; write the present ones, or add foreign words to FOREIGN"


def test_dotted_names_lead_to_modules() -> None:
    """`headrace.a.b.c` is a module, or a name in the module before it."""
    for file in FILES:
        for number, line in prose(file):
            for name in re.findall(r"`(headrace(?:\.\w+)+)`", line):
                assert leads_somewhere(name.split(".")[1:]), f"{at(file, number)}: {name}"


def at(file: Path, line: int) -> str:
    return f"{file.relative_to(ROOT)}:{line}"


def leads_somewhere(parts: list[str]) -> bool:
    for count in range(len(parts), -1, -1):
        path = ROOT.joinpath(*parts[:count])
        module = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if module.exists():
            return set(parts[count:]) <= set(names(tree(module)))
    return False


def test_tables_of_modules_list_modules() -> None:
    for file in FILES:
        for table in module_tables(file):
            assert set(table) <= siblings(file), f"the table of {file.relative_to(ROOT)} lists what is no module"


def test_there_are_tables_of_modules() -> None:
    assert sum(1 for file in FILES for _ in module_tables(file)) >= 5


def way_of_a_tuple() -> list[list[str]]:
    """The rows of the table in the docstring of `run.run`: process, place, form of the tuple, where it is durable."""
    text = ast.get_docstring(tree(ROOT / "run" / "run.py")) or ""
    return [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines() if line.count(" | ") == 3]


def is_defined(place: str) -> bool:
    """Whether there is such a file and such a function or method in it: `folder/file.py: Class.method`."""
    file, _, name = place.partition(": ")
    if not (ROOT / file).exists():
        return False
    body: list[ast.stmt] = tree(ROOT / file).body
    *classes, function = name.split(".")
    for each in classes:
        body = [inner for node in body if isinstance(node, ast.ClassDef) and node.name == each for inner in node.body]
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in body)


def test_the_way_of_a_tuple_names_functions() -> None:
    rows = way_of_a_tuple()
    assert 15 <= len(rows) <= 20
    assert [place for _, place, _, _ in rows if not is_defined(place)] == []
    assert {process for process, *_ in rows} == {"driver", "splitter", "slot"}


def named_places(text: str) -> list[tuple[str, str]]:
    """Every name of a page with the file that it gives for it: `name` (`file.py`), or `name` in `file.py`."""
    words = " ".join(text.split())
    return re.findall(r"`([A-Za-z_][\w.]*)` (?:\((?:in )?|in )`([\w/]+\.py)`", words)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "ADDING.md"])
def test_a_page_names_what_is_in_the_files(page: str) -> None:
    found = [(n, f) for n, f in named_places((ROOT.parents[1] / "docs" / page).read_text()) if (ROOT / f).exists()]
    assert len(found) > 10
    assert [(n, f) for n, f in found if not set(n.split(".")) <= set(names(tree(ROOT / f)))] == []


def test_a_place_that_does_not_exist_is_found() -> None:
    """The check of this page sees what it is there for."""
    assert is_defined("run/run.py: Run.stop") and is_defined("spark/job.py: run_spark_job")
    assert not is_defined("run/no_such_file.py: Run.stop")
    assert not is_defined("run/run.py: stop") and not is_defined("run/run.py: Run.no_such_method")
    assert named_places("`a.b` (`c/d.py`), `e` in\n`f.py`, `g` (`h`)") == [("a.b", "c/d.py"), ("e", "f.py")]


def test_a_stale_name_is_found() -> None:
    """The check of this page sees what it is there for."""
    assert stale("as `no_such_name(x)` says, and `STATE_FORMAT`") == ["no_such_name"]
    assert not leads_somewhere(["state", "no_such_module"])
    assert leads_somewhere(["sinks", "base"]) and leads_somewhere(["sinks", "base", "Delivery"])


def test_a_section_rule_has_a_name() -> None:
    """A rule is `# --- name ------` on one line. Wrapping it as prose leaves a name and an empty rule."""
    rules = [(at(file, n), line) for file in FILES for n, line in prose(file) if re.match(r"# ---", line)]
    assert len(rules) > 100
    assert [place for place, line in rules if not re.fullmatch(r"# --- \S.* -{3,}", line)] == []


def test_every_class_has_a_docstring() -> None:
    """The number of classes without one: it may not grow again."""
    without = [
        f"{at(file, node.lineno)}: {node.name}"
        for file in FILES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.ClassDef) and ast.get_docstring(node) is None
    ]
    assert not without
