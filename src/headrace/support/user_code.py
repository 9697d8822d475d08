"""Calls of user code: processors, functions that split a stream, sinks, query files.

Invariant: every exception that user code raises becomes an error that names the code. This includes SystemExit,
GeneratorExit and KeyboardInterrupt, which would otherwise end a task or the program without an explanation. Only an
exception that a signal caused, such as Ctrl-C, passes unchanged, because the user wants to end the program.

A task that could die in user code notes each call in advance (`note_calls`), so that the driver can name the code.
"""

from __future__ import annotations

import dis
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Note = Callable[[str], None]


def _ignore(_: str) -> None:
    pass


_note: Note = _ignore


@contextmanager
def note_calls(note: Note) -> Iterator[None]:
    """Pass the description of each call to `note` before the call, and empty text after it."""
    global _note
    _note = note
    try:
        yield
    finally:
        _note = _ignore


def call_user_code(
    words: str, function: Callable[..., Any], *given: Any, failed: Callable[[BaseException], Exception]
) -> Any:
    """Return the result of `function`. On an exception, raise the error that `failed` returns for it."""
    _note(words)
    try:
        return function(*given)
    except BaseException as error:
        if comes_from_signal(error):
            raise
        raise failed(error) from error
    finally:
        _note("")


def comes_from_signal(error: BaseException) -> bool:
    """Return whether a signal caused the exception, rather than a statement of the code.

    Python raises KeyboardInterrupt between two instructions. A signal handler written in Python appears as a separate
    call.
    """
    if isinstance(error, Exception | GeneratorExit):
        return False
    calls = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in SIGNALS]
    if any(frame.f_code in handlers for frame in calls):
        return True
    return isinstance(error, KeyboardInterrupt) and not _raised_by_statement(error)


def _raised_by_statement(error: BaseException) -> bool:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
