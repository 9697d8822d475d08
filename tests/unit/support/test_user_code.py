"""Calls of user code: whatever it raises is its own error, except what a signal raises; a task notes what it calls."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli import query_file
from headrace.reference import reference
from headrace.showing.signals import end_by_interrupt, stop_on_first_signal
from headrace.spark import shipping
from headrace.support.user_code import call_user_code, note_calls
from headrace.task import user_code_notes
from headrace.testing import run_locally, table_stream

TS = pa.timestamp("us", "UTC")
ROWS = pa.table({"ts": pa.array([1, 2, 3]).cast(TS), "n": [1, 2, 3]})
ENDINGS = [SystemExit, SystemExit("bye"), GeneratorExit, KeyboardInterrupt, KeyboardInterrupt("no"), MemoryError]


class Failed(Exception):
    pass


def called(function: Callable[[], Any]) -> Any:
    return call_user_code("some code", function, failed=lambda error: Failed(repr(error)))


def raises(error: Any) -> Callable[..., Any]:
    def code(*_: Any) -> Any:
        raise error

    return code


@pytest.mark.parametrize("error", ENDINGS, ids=repr)
def test_all_that_code_raises_is_its_own_error(error: Any) -> None:
    with pytest.raises(Failed), end_by_interrupt():
        called(raises(error))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1_000_000):  # Python runs a handler between two instructions
        pass


def test_ctrl_c_ends_the_program_and_not_the_code() -> None:
    with pytest.raises(KeyboardInterrupt):
        called(interrupt)


def test_a_signal_that_the_command_line_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_first_signal() as stop:
        stop.asked = True
        called(interrupt)


def test_a_handler_of_the_program_itself() -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(3)

    before = signal.signal(signal.SIGINT, leave)
    try:
        with pytest.raises(SystemExit):
            called(interrupt)
    finally:
        signal.signal(signal.SIGINT, before)


# --- who calls it ----------------------------------------------------------------------------------------------------


class Ends(hr.Processor):
    schema = ROWS.schema

    def __init__(self, method: str) -> None:
        self.method = method

    def open(self, substream: int, substreams: int) -> None:
        if self.method == "open":
            raise_it()

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        if self.method == "process":
            raise_it()
        return tuples


raise_it: Callable[[], Any] = raises(SystemExit)


@pytest.mark.parametrize("run", [reference, run_locally])
@pytest.mark.parametrize("error", ENDINGS[:-1], ids=repr)
@pytest.mark.parametrize("where", ["open", "process", "route", "broadcast"])
def test_processors_and_functions(
    run: Any, error: Any, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.raise_it", raises(error))
    code = raises(error)
    rule = (
        {"by": ["n"], "broadcast": code}
        if where == "broadcast"
        else {"route": code}
        if where == "route"
        else {"by": []}
    )
    query = table_stream(ROWS).split(2, **rule).apply(Ends(where))
    kind = type(error).__name__ if isinstance(error, BaseException) else error.__name__
    folder = () if run is reference else (tmp_path / "state",)
    with pytest.raises(hr.DataError, match=kind) as caught:
        run(query, *folder)
    assert ("Ends" if where in ("open", "process") else where) in str(caught.value)


@pytest.mark.parametrize("error", ENDINGS[:-1], ids=repr)
def test_sinks(error: Any, tmp_path: Path) -> None:
    with pytest.raises(hr.SinkError, match=r"the sink of result-0 failed in epoch 0: .*the state is committed"):
        run_locally(table_stream(ROWS), tmp_path / "state", sink=hr.sinks.foreach(raises(error)))


@pytest.mark.parametrize("text", ["raise GeneratorExit", "raise KeyboardInterrupt", "import sys; sys.exit(1)"])
def test_query_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"x = 1\n{text}\n")
    with pytest.raises(hr.HeadraceError, match=r"mine\.py, line 2: "):
        query_file.load_query_file(path)


# --- notes -----------------------------------------------------------------------------------------------------------


def test_each_call_is_noted_before_it_is_made() -> None:
    notes: list[str] = []
    with note_calls(notes.append):
        called(lambda: notes.append("in it"))
    called(lambda: None)
    assert notes == ["some code", "in it", ""]


def test_the_note_of_a_process_that_dies_stays(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    child = os.fork()
    if not child:
        with user_code_notes.note_user_code(str(tmp_path), "run", 7):
            called(lambda: None)
            called(lambda: os._exit(0))
    os.waitpid(child, 0)
    assert user_code_notes.last_user_call(str(tmp_path), "run", 7) == "some code"
    assert user_code_notes.last_user_call(str(tmp_path), "run", 8) == ""
    with pytest.raises(Failed), user_code_notes.note_user_code(str(tmp_path), "run", 9):
        called(raises(ValueError))
    with user_code_notes.note_user_code(str(tmp_path), "run", 10):
        pass
    assert [path.name for path in (tmp_path / "blocks").iterdir()] == ["_call-run-7"]


def test_a_note_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    with user_code_notes.note_user_code(str(tmp_path / "absent"), "run", 1):
        assert called(lambda: 5) == 5


# --- code that a task cannot load --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shadow", "words"),
    [
        (
            {"mine/calls.parquet": ""},
            "their Python finds a folder 'mine' instead of the module 'mine'; rename the folder, or move",
        ),
        (
            {"mine.py": "x = 1"},
            r"their Python has another module 'mine' \(from '.*mine\.py'\), without 'Mine'; move the code into the main file",
        ),
        ({}, "their Python has no module 'mine'; move the code into the main file"),
    ],
)
def test_another_thing_with_the_name_of_the_module(shadow: dict[str, str], words: str, tmp_path: Path) -> None:
    """The text is what Python itself reports."""
    for name, text in shadow.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = "import pickle; pickle.loads(b'cmine\\nMine\\n.')"
    failed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    told = shipping._not_loaded("mine.Mine version 1", failed.stderr)
    assert told.startswith("tasks cannot load mine.Mine version 1: ") and "Loader" not in told
    assert re.search(words, told) and "addPyFile('mine.py')" in told
