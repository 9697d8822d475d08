"""Standard output and standard error of the command line, which may be closed, full, or nobody's.

Invariant: what cannot be shown on standard error changes neither the work nor the exit code; what cannot be written to
standard output is an error that says so.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

from rich.console import Console
from rich.text import Text

from headrace.support.terminal_text import printable

STREAM_NAMES = ("stdin", "stdout", "stderr")


def make_ready() -> None:
    """Streams that were closed before we began lead nowhere; what a stream cannot encode is escaped."""
    for number, name in enumerate(STREAM_NAMES):
        if getattr(sys, name) is None:
            if not _is_open(number):  # or else Spark's JVM, or some file, would be given this number
                _lead_nowhere(number)
            setattr(sys, name, open(os.devnull, "r+" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(console: Console, text: str, style: str = "") -> None:
    """A message, whatever names and data are in it."""
    console.print(Text(printable(text, lines=True), style), soft_wrap=True)


def say_on_stderr(text: str, style: str = "") -> None:
    """A message on standard error, if somebody listens there."""
    try:
        say(on_stderr(), text, style)
    except (OSError, ValueError):
        give_up(sys.stderr)


def on_stderr() -> Console:
    """A console on standard error that leaves standard output alone."""
    return _SafeConsole(stderr=True, highlight=False)


class _SafeConsole(Console):
    """A console that raises `BrokenPipeError` when its stream is closed."""

    def on_broken_pipe(self) -> None:
        """Instead of an exit, and of a standard output that leads nowhere, whichever stream is broken."""
        raise BrokenPipeError


def give_up(stream: TextIO) -> None:
    """What is still to be written to a stream that failed goes nowhere, also when Python ends."""
    with suppress(OSError, ValueError):
        _lead_nowhere(stream.fileno())


@contextmanager
def for_programs(wanted: bool) -> Iterator[TextIO]:
    """Standard output; if a program is to read it, what anybody else prints goes to standard error meanwhile."""
    output = sys.stdout
    if not wanted:
        yield output
        return
    with redirect_stdout(sys.stderr):
        yield output


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
