"""What an editor knows of the public names: options, types, defaults, choices and descriptions; asked of a language server."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import jedi
import pytest

import headrace as hr
from headrace import testing
from headrace.run import start as starting
from headrace.run.run import Run
from headrace.stream import Stream, Substreams, Table

BEGIN = """\
import headrace as hr
import pyarrow as pa
from headrace.testing import table_stream

s: hr.Stream = table_stream(pa.table({}), name="a")
q: hr.Stream = s
"""
SOURCES = str(Path(hr.__file__).parents[1])
PROJECT = jedi.Project(SOURCES, added_sys_path=[SOURCES])


def asked(text: str) -> jedi.Script:
    return jedi.Script(BEGIN + text, project=PROJECT)


def end_of(script: jedi.Script) -> tuple[int, int]:
    lines = script._code.splitlines()
    return len(lines), len(lines[-1])


def completed(text: str) -> set[str]:
    """Return what the server offers at the end of the text."""
    script = asked(text)
    return {found.name_with_symbols for found in script.complete(*end_of(script))}


def hovered(text: str) -> str:
    """Return what the server shows for the call at the end of the text: its signature and its description."""
    script = asked(text)
    (found,) = script.get_signatures(*end_of(script))
    return f"{found.to_string()}\n{found.docstring(raw=True)}"


OPTIONS = {  # of a call, beside what is positional
    "q.start(": [
        "checkpoint",
        "epoch",
        "slots",
        "order",
        "late",
        "errors",
        "show",
        "strategy",
        "plan",
        "policy",
        "once",
    ],
    "q.collect(": ["slots", "strategy", "plan", "errors", "late"],
    "s.join(": ["on", "within", "last", "how"],
    "s.aggregate(": ["by", "window", "every", "last", "session"],
    "s.asof(s, ": ["by", "within", "how"],
    "s.peek(": ["n", "timeout"],
    "hr.start([(q, hr.sinks.memory())], ": ["checkpoint", "epoch", "slots", "order", "late", "once", "physical_window"],
    "hr.files(None, 'in/', ": ["time", "lateness", "order"],
    "hr.testing.run_locally(q, ": ["slots", "errors", "strategy"],
}


@pytest.mark.parametrize("call", OPTIONS)
def test_an_editor_completes_the_options_of_a_call(call: str) -> None:
    assert {f"{name}=" for name in OPTIONS[call]} <= completed(call)


CHOICES = {
    "q.start(": [
        'order: Literal["transparent", "best-effort"]="transparent"',
        'slots: int | Literal["auto"] | None=None',
        'errors: Literal["stop", "keep"]="stop"',
        'strategy: Literal["subquery", "operator", "query"]="subquery"',
        'epoch: Duration="1 second"',
        "-> Run",
        'run = q.start(hr.sinks.parquet("out/"), checkpoint="ckpt/")',
    ],
    "s.join(": [
        'how: Literal["inner", "left", "right", "full"]="inner"',
        "-> Stream",
        'calls.join(answers, on="l.caller = r.number", within="60 seconds")',
    ],
    "s.aggregate(": [
        "window: Duration | None=None",
        "**functions: str",
        "-> Stream",
        'calls.aggregate(by=["district"], window="60 seconds", every="10 seconds", n="count(*)")',
    ],
}


@pytest.mark.parametrize("call", CHOICES)
def test_an_editor_shows_types_defaults_choices_and_an_example(call: str) -> None:
    shown = hovered(call)
    assert [text for text in CHOICES[call] if text not in shown] == [], shown


RESULTS = {
    "q.plan()": {"Plan"},
    "q.plan().picture()": {"Picture"},
    "q.start(hr.sinks.memory(), checkpoint='c')": {"Run"},
    "q.start(hr.sinks.memory(), checkpoint='c').progress": {"Progress"},
    "hr.start([(q, hr.sinks.memory())], checkpoint='c')": {"Run"},
    "q.limit(3)": {"Stream"},
    "q.split(3, by=['k'])": {"Substreams"},
    "q.split(3, by=['k']).each(lambda t: t)": {"Stream"},
    "hr.testing.table_stream(None)": {"Stream"},
    "hr.testing.arrow_table(None)": {"Table"},
    "hr.sinks.memory()": {"MemorySink"},
}


@pytest.mark.parametrize("text", RESULTS)
def test_an_editor_knows_what_a_call_returns(text: str) -> None:
    script = asked(f"found = {text}\nfound")
    assert {name.name for name in script.infer(*end_of(script))} == RESULTS[text]


# --- one meaning, several places --------------------------------------------------------------------------------------


def parameters(function: Any) -> dict[str, tuple[Any, str]]:
    """Return default and type of each option, by name."""
    found = inspect.signature(function).parameters.values()
    return {p.name: (p.default, str(p.annotation).replace("sinks.AnySink", "AnySink")) for p in found}


def described(function: Any) -> dict[str, str]:
    """Return what a docstring says about each argument."""
    arguments = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found = [part.partition(": ") for part in re.split(r"(?:^|\n) {4}(?=\w+: )", arguments)[1:]]
    return {name: " ".join(text.split()) for name, _, text in found}


def test_both_starts_have_the_same_options() -> None:
    one, several = parameters(Stream.start), parameters(hr.start)
    assert {name: one[name] for name in one.keys() - {"self", "sink"}} == {
        name: several[name] for name in several.keys() - {"results"}
    }
    defaults = {name: default for name, (default, _) in several.items()}
    assert {name: default for name, (default, _) in parameters(starting.start).items()} == defaults
    texts = described(Stream.start)
    others = described(hr.start)
    assert {name: texts[name] for name in texts.keys() - {"sink"}} == {
        name: others[name] for name in others.keys() - {"results"}
    }
    assert others.keys() == several.keys()


# --- all public names ---------------------------------------------------------------------------------------------------

KINDS = (Stream, Table, Substreams, Run, hr.Policy, testing.LocalRun)


def public() -> dict[str, Any]:
    """Return every function that a user may call, by its name."""
    modules = {"hr": hr, "hr.sinks": hr.sinks, "hr.testing": testing}
    found = {f"{m}.{n}": getattr(module, n) for m, module in modules.items() for n in module.__all__}
    functions = {name: value for name, value in found.items() if inspect.isfunction(value)}
    for kind in KINDS:
        members = {n: v for n, v in vars(kind).items() if not n.startswith("_") and inspect.isfunction(v)}
        functions |= {f"{kind.__name__}.{name}": member for name, member in members.items()}
    return functions


@pytest.mark.parametrize("name", public())
def test_a_public_function_is_described_and_typed(name: str) -> None:
    function = public()[name]
    assert inspect.getdoc(function), "no description"
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for p in signature.parameters.values():
        if p.name != "self":
            assert p.annotation is not inspect.Parameter.empty, p.name
            assert p.annotation != "Any", f"{p.name} may be anything"
