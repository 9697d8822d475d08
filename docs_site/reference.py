"""Generate the reference pages from the code: public names, command-line options, fields of progress and records."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import typer

import headrace as hr
from docs_site import staging
from headrace import sinks, testing
from headrace.cli import app
from headrace.compile.subqueries import Plan
from headrace.plan.figures import Figures
from headrace.processor import ProcessorTable
from headrace.run.run import Run
from headrace.stream import Substreams
from headrace.task import reports
from headrace.telemetry import epoch_record, progress

GROUPS: dict[str, tuple[str, list[str]]] = {
    "sources": ("Sources and sessions", ["session", "files", "kafka", "stream", "table", "secret", "Secret"]),
    "streams": ("Streams and tables", ["join", "Stream", "Substreams", "Table"]),
    "runs": ("Runs", ["start", "Run", "Plan", "Policy", "reference", "calibrate", "Figures", "read_state"]),
    "processors": ("Processors", ["Processor", "StateTable", "ProcessorTable"]),
}
HANDED_OUT: dict[str, Any] = {  # classes whose objects users get and do not make
    each.__name__: each for each in (Substreams, Run, Plan, Figures, ProcessorTable)
}
INTRODUCTIONS = {  # the first sentence of each page with directives, also in llms.txt
    "sources": "`session`, `files`, `kafka`, `stream` and `table` open a Spark session and the inputs of a query.",
    "streams": "`join`, and every verb of a stream, of its substreams and of a table, with arguments, errors and an example.",
    "runs": "`start` and the run that it returns, plans, policies, `reference`, `calibrate` and `read_state`.",
    "processors": "`Processor` and `StateTable`, the base of your own operators, and the methods of their tables.",
    "more": "Further public names of `headrace`.",
    "errors": "Every error class of headrace and what it means.",
    "sinks": "Every sink of `headrace.sinks` with its options: files, databases, Kafka, lakehouse tables and functions.",
    "testing": "`headrace.testing` tests queries and processors without Spark: `play`, `check_processor` and their helpers.",
}
NAMES = (
    "In the examples, `hr` is headrace, `pa` is pyarrow, `spark` is a session, `run` is a run in progress, and `calls/` is"
    " a folder of Parquet files.\n\n"
)
RECORDS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (progress, ("Progress", "EpochSummary", "SplitFigures", "VersionFigures")),
    (epoch_record, ("EpochRecord", "Phases", "DriverFigures", "SourceFigures", "OperatorFigures", "SlotFigures")),
    (epoch_record, ("ResultFigures",)),
    (reports, ("TableUse",)),
)


def write(folder: Path) -> None:
    """Write all generated pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, text) in pages().items():
        (folder / f"{name}.md").write_text(f"# {title}\n\n{text}\n")


def pages() -> dict[str, tuple[str, str]]:
    """Return title and text of every generated page, by name."""
    made = {name: (title, _introduction(name) + _directives(names)) for name, (title, names) in _groups().items()}
    made["sinks"] = ("Sinks", _introduction("sinks") + _module(sinks))
    made["testing"] = ("Testing", _introduction("testing") + _module(testing))
    made["commands"] = ("Commands", "\n".join(_commands()))
    made["records"] = ("Progress and records", "\n".join(_records()))
    return made


def _introduction(page: str) -> str:
    return f"{INTRODUCTIONS[page]}\n\n{NAMES}"


def expanded(text: str) -> str:
    """Return a page with the directives of mkdocstrings replaced by signatures and docstrings, as plain Markdown."""
    return re.sub(r"^::: (\S+)(\n    .*)*$", lambda match: _documented(match[1]), text, flags=re.MULTILINE)


def _groups() -> dict[str, tuple[str, list[str]]]:
    """Return the groups of public names; errors, and names that no group has, come last."""
    known = {name for _, names in GROUPS.values() for name in names} | {"sinks", "__version__"}
    errors = [name for name in hr.__all__ if _is_error(getattr(hr, name))]
    rest = [name for name in hr.__all__ if name not in known and name not in errors]
    more = {"more": ("More", rest)} if rest else {}
    return {**GROUPS, **more, "errors": ("Errors", errors)}


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _directives(names: list[str]) -> str:
    values = {name: HANDED_OUT.get(name) or getattr(hr, name) for name in names}
    return "\n\n".join(f"::: {_path(value, name)}" for name, value in values.items())


def _path(value: Any, name: str) -> str:
    """Return where a public name is defined."""
    return f"{getattr(value, '__module__', 'headrace')}.{getattr(value, '__qualname__', name)}"


def _module(module: Any) -> str:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    values = {name: getattr(module, name) for name in names}
    own = {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}
    return "\n\n".join(f"::: {_path(value, name)}" for name, value in own.items())


def _documented(path: str) -> str:
    """Return a public name and its public members as Markdown."""
    module, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    lines = [_entry(f"## {name}", name, value)]
    if inspect.isclass(value) and not _is_error(value):
        members = {key: member for key, member in vars(value).items() if not key.startswith("_")}
        shown = {key: member for key, member in members.items() if callable(member) or isinstance(member, property)}
        lines += [_entry(f"### {name}.{key}", key, member) for key, member in shown.items()]
    return "\n\n".join(lines)


def _entry(heading: str, name: str, value: Any) -> str:
    try:
        shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))  # annotations are text
        signature = f"```text\n{name}{shown}\n```\n\n"
    except (ValueError, TypeError):
        signature = ""
    return f"{heading}\n\n{signature}{markdown(inspect.getdoc(value) or '')}".rstrip()


# --- docstrings -------------------------------------------------------------------------------------------------------

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Examples):\n((?:(?: {4}.*)?(?:\n|$))+)", re.MULTILINE)
ITEM = re.compile(r"^(\*{0,2}\w+): ((?:.*\n?)(?: +.*\n?)*)", re.MULTILINE)


def markdown(docstring: str) -> str:
    """Return a docstring with its sections as lists and code blocks."""
    return SECTION.sub(lambda match: f"{_section(match[1], inspect.cleandoc(match[2]))}\n\n", docstring).rstrip()


def _section(title: str, text: str) -> str:
    if title == "Examples":
        parts = [f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in text.split("\n\n")]
        return "\n\n".join(["**Examples**", *parts])
    if title == "Returns":
        return f"**Returns**: {text}"
    return f"**{title}**\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, meaning in _items(text).items())


def _items(text: str) -> dict[str, str]:
    """Return the meanings that a section gives, by name."""
    return {name: " ".join(meaning.split()) for name, meaning in ITEM.findall(text)}


def _attributes(docstring: str) -> dict[str, str]:
    """Return what the section of attributes says, by name."""
    return next(
        (_items(inspect.cleandoc(text)) for title, text in SECTION.findall(docstring) if title == "Attributes"), {}
    )


def _without_attributes(docstring: str) -> str:
    return SECTION.sub(lambda match: "" if match[1] == "Attributes" else match[0], docstring)


# --- commands ---------------------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "Every command of `headrace` with its arguments and options, as `headrace COMMAND --help` shows them.\n"
    yield from _command("headrace", typer.main.get_command(app))


def _command(name: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", {})
    yield f"## {name}\n\n{_prose(command.help or '')}\n"
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    if shown:
        yield "| option | meaning | default |\n|---|---|---|"
        yield from (_option(each) for each in shown)
        yield ""
    for child in sorted(children):
        yield from _command(f"{name} {child}", children[child])


def _prose(text: str) -> str:
    return inspect.cleandoc(text).replace("\b\n", "").replace("\f", "")


def _option(option: click.Parameter) -> str:
    names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
    if isinstance(option, click.Argument) or not option.opts[0].startswith("-"):
        names = f"`{(option.metavar or option.name or '').upper()}`"
    meaning = " ".join((getattr(option, "help", None) or "").split())
    default = "" if option.default in (None, False, ()) or callable(option.default) else f"`{_plain(option.default)}`"
    return f"| {names} | {_cell(meaning)} | {'required' if option.required else default} |"


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# --- records ----------------------------------------------------------------------------------------------------------


def _records() -> Iterator[str]:
    yield "The fields of `run.progress`, of its `last` epoch and of the records that listeners receive, from the code.\n"
    for module, chosen in RECORDS:
        classes = {name: value for name, value in vars(module).items() if _is_record(value, module)}
        for name in chosen:
            yield from _record(classes[name], Path(inspect.getfile(module)))


def _is_record(value: Any, module: Any) -> bool:
    return inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "__dataclass_fields__")


def _record(kind: Any, file: Path) -> Iterator[str]:
    text = inspect.getdoc(kind) or ""
    comments = _comments(file, kind.__name__)
    meanings = _manual({each.name for each in fields(kind)}) | _attributes(text)
    made = text.startswith(f"{kind.__name__}(")  # dataclasses without a docstring get a signature
    written = "" if made else markdown(_without_attributes(text))
    yield f"## {kind.__name__}\n\n{written}\n\n| field | type | meaning |\n|---|---|---|"
    for each in fields(kind):
        if not each.name.startswith("_"):
            type_text = str(each.type).replace(" | ", " or ")
            meaning = meanings.get(each.name) or _cell(comments.get(each.name, ""))
            yield f"| `{each.name}` | `{type_text}` | {meaning} |"
    yield ""


@functools.cache
def _manual_tables() -> list[dict[str, str]]:
    """Return the tables of two columns in the manual's section about runs: meanings without links, by name."""
    text = (staging.DOCS / "USING.md").read_text().partition("\n## Running\n")[2].partition("\n## ")[0]
    tables = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        found: dict[str, str] = {}
        for names, meaning in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|$", table, re.MULTILINE):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning)
            found |= dict.fromkeys(re.findall(r"`(\w+)`", names), plain)
        tables.append(found)
    return tables


def _manual(names: set[str]) -> dict[str, str]:
    """Return the table of the manual that has most of the names."""
    return max(_manual_tables(), key=lambda table: len(names & set(table)))


def _comments(file: Path, kind: str) -> dict[str, str]:
    """Return the comment at the end of each field's definition."""
    text = file.read_text()
    lines = text.splitlines()
    body = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == kind).body
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            after = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset :]
            found[node.target.id] = after.partition("#")[2].strip()
    return found
