"""Calls of the user's own code: processors, functions that split a stream, sinks, query files.

Invariant: whatever such code raises becomes an error that names it. This includes SystemExit, GeneratorExit and
KeyboardInterrupt, which would otherwise end a task or the program without an explanation. Only an exception that comes from a
signal, such as Ctrl-C, passes through unchanged: the user wants to end the program.

A task that could die in such code notes each call before it is made (`note_calls`), so that the driver can name the code.
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
    """Give `note` the words of each call before it is made, and empty text after it."""
    global _note
    _note = note
    try:
        yield
    finally:
        _note = _ignore


def call_user_code(
    words: str, function: Callable[..., Any], *given: Any, failed: Callable[[BaseException], Exception]
) -> Any:
    """Return what `function` returns; raise what `failed` makes of its exception."""
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
    """Return whether a signal interrupted the code that raised this, rather than a statement of that code.

    Python raises KeyboardInterrupt between two instructions; a handler written in Python is a call of its own.
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
