"""Errors of tasks: how a task sends an error to the driver, and how the driver restores it from Spark's text."""

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
    """Return the error that a task raised, in its original class; any other failure becomes an `EngineError`."""
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
    """Return the error for a task whose process died in user code, as its note records, or None."""
    attempts = dict.fromkeys(int(found) for found in _LOST.findall(text))
    calls = dict.fromkeys(
        filter(None, (user_code_notes.last_user_call(epoch.folder, epoch.run_id, each) for each in attempts))
    )
    if not calls:
        return None
    return EngineError(
        f"the Python process of a task died in epoch {epoch.number}, in {', '.join(calls)}; nothing of the epoch was"
        " committed. Such code may have called os._exit, may have crashed in a native library, or may have been killed"
        " because the machine ran out of memory (see the kernel's log); correct the code or give it more memory, and start again"
    )


def raised_text(text: str) -> str:
    """Return the last line of a Python traceback in Spark's text, which is the error that the task raised."""
    _, found, trace = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in trace.splitlines() if line.strip() and not line.startswith(" ")]
    return f"{lines[0].strip()}; in full: " if found and lines else ""


def send_errors(messages: Iterator[Message]) -> Iterator[Message]:
    """Send the errors of headrace to the driver so that it can restore their class."""
    try:
        yield from messages
    except HeadraceError as error:
        raise RuntimeError(_FAILED + json.dumps([type(error).__name__, str(error)])) from None


def other_python_error(sc: SparkContext, text: str) -> str | None:
    """Return an error text if tasks failed because Spark starts another Python than this process on this machine."""
    if not runs_on_this_machine(sc):
        return None
    used = str(Path(shutil.which(sc.pythonExec) or sc.pythonExec).absolute())
    if used == str(Path(sys.executable).absolute()):
        return None
    if missing := MISSING_MODULE.search(text):
        what = f"the former has no module {missing[1]!r}"
    elif "PYTHON_VERSION_MISMATCH" in text:
        what = "their versions differ"
    elif "Cannot run program" in text:
        what = "the former cannot be started"
    else:
        return None
    return (
        f"this session starts its Python workers with {used!r}, but this program runs with {sys.executable!r}, and {what};"
        ' before you create the session, set os.environ["PYSPARK_PYTHON"] = sys.executable, or create the'
        " session with headrace.session()"
    )
