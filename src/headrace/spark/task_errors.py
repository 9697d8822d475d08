"""Errors of tasks: how a task sends an error to the driver, and what the driver makes of the text that Spark reports."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark import SparkContext

from headrace import errors
from headrace.errors import EngineError, HeadraceError
from headrace.spark.session import runs_on_this_machine
from headrace.task import user_code_notes
from headrace.task.epoch import Epoch
from headrace.task.messages import Message

MISSING_MODULE = re.compile(r"No module named '([^']+)'")
_FAILED = "headrace-error:"


def error_of_job(error: Exception, sc: SparkContext | None = None) -> Exception:
    """The error that a task raised on purpose, as it was raised; anything else as it is."""
    text = str(error)
    start = text.find(_FAILED)
    if start < 0 and sc is not None and (words := other_python_error(sc, text)):
        return EngineError(words)
    if start < 0:
        return EngineError(f"the Spark job of this epoch failed: {raised_text(text)}{text.strip()[:2000]}")
    kind, message = json.JSONDecoder().raw_decode(text[start + len(_FAILED) :])[0]
    found: Exception = getattr(errors, kind)(message)
    return found


_LOST = re.compile(r"Lost task \S+ in stage \S+ \(TID (\d+)\)")


def error_of_death(epoch: Epoch, text: str) -> EngineError | None:
    """The error of a task whose process died in user code, as the task's note has it; None: there is no such task."""
    attempts = dict.fromkeys(int(found) for found in _LOST.findall(text))
    calls = dict.fromkeys(
        filter(None, (user_code_notes.last_user_call(epoch.folder, epoch.run_id, each) for each in attempts))
    )
    if not calls:
        return None
    return EngineError(
        f"the Python process of a task died in epoch {epoch.number}, in {', '.join(calls)}; nothing of the epoch was"
        " committed. Such code may have called os._exit, may have crashed in a native library, or may have been killed"
        " because the machine had no memory left (the kernel's log shows it): put it right, or give it more memory, and start again"
    )


def raised_text(text: str) -> str:
    """What a Python task raised, which stands at the end of a long list of where."""
    _, found, trace = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in trace.splitlines() if line.strip() and not line.startswith(" ")]
    return f"{lines[0].strip()}; in full: " if found and lines else ""


def send_errors(messages: Iterator[Message]) -> Iterator[Message]:
    """Errors that say what to do travel to the driver as themselves."""
    try:
        yield from messages
    except HeadraceError as error:
        raise RuntimeError(_FAILED + json.dumps([type(error).__name__, str(error)])) from None


def other_python_error(sc: SparkContext, text: str) -> str | None:
    """Whether tasks failed because Spark, here on this machine, starts another Python than the one that we are."""
    if not runs_on_this_machine(sc):
        return None
    used = str(Path(shutil.which(sc.pythonExec) or sc.pythonExec).absolute())
    if used == str(Path(sys.executable).absolute()):
        return None
    if missing := MISSING_MODULE.search(text):
        what = f"that one has no module {missing[1]!r}"
    elif "PYTHON_VERSION_MISMATCH" in text:
        what = "their versions differ"
    elif "Cannot run program" in text:
        what = "that one cannot be started"
    else:
        return None
    return (
        f"this session starts its Python workers with {used!r}, but this program is run by {sys.executable!r}, and {what};"
        ' before the session is made, set PYSPARK_PYTHON: os.environ["PYSPARK_PYTHON"] = sys.executable; or make the'
        " session with headrace.session()"
    )
