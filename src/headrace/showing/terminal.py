"""Standard streams of the command line, which may be closed or full.

Invariant: a failed write to standard error changes neither the work nor the exit code. A failed write to standard
output is reported as an error.
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
    """Replace streams that were closed at the start with the null device. Escape characters that a stream cannot
    encode.
    """
    for number, name in enumerate(STREAM_NAMES):
        if getattr(sys, name) is None:
            if not _is_open(number):  # otherwise Spark's JVM or an opened file would get this descriptor
                _lead_nowhere(number)
            setattr(sys, name, open(os.devnull, "r+" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(console: Console, text: str, style: str = "") -> None:
    """Print a message. Control characters in names and data are made visible."""
    console.print(Text(printable(text, lines=True), style), soft_wrap=True)


def say_on_stderr(text: str, style: str = "") -> None:
    """Print a message on standard error. Ignore errors."""
    try:
        say(on_stderr(), text, style)
    except (OSError, ValueError):
        give_up(sys.stderr)


def on_stderr() -> Console:
    """Return a console on standard error that does not affect standard output."""
    return _SafeConsole(stderr=True, highlight=False)


class _SafeConsole(Console):
    """A console that raises `BrokenPipeError` when its stream is closed."""

    def on_broken_pipe(self) -> None:
        """Raise instead of exiting. rich would exit and also redirect standard output, whichever stream is broken."""
        raise BrokenPipeError


def give_up(stream: TextIO) -> None:
    """Redirect a failed stream to the null device, so that buffered output raises no error when Python exits."""
    with suppress(OSError, ValueError):
        _lead_nowhere(stream.fileno())


@contextmanager
def for_programs(wanted: bool) -> Iterator[TextIO]:
    """Yield standard output. If `wanted`, other output goes to standard error meanwhile, so that programs can read the
    stream.
    """
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
