"""What the commands have in common: options, and how they end. Of this program and of applications beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exc
from typing import Annotated

import typer

from headrace.errors import HeadraceError, QueryError
from headrace.limits import MOST_SLOTS
from headrace.paths import mounted
from headrace.showing import streams


def a_path(path: Path | None) -> Path | None:
    """A path of a file system that is mounted here; anything else is no path for any command."""
    try:
        return None if path is None else mounted(path, "this")
    except QueryError as error:
        raise typer.BadParameter(str(error)) from None


Traceback = Annotated[
    bool, typer.Option("--traceback", metavar="", help="Show where in the program an error came from.")
]
Slots = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_SLOTS, metavar="N", help="Tasks that work side by side.", show_default="one per core"),
]


@contextmanager
def reporting(traceback: bool) -> Iterator[None]:
    """Errors as one message, and exit code 1; who was interrupted says so, by an exit code too."""
    from headrace.showing.stopping import STOPPED, terminable

    with terminable() as stop:
        try:
            yield
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BaseException as error:
            if stop.insisted or isinstance(error, KeyboardInterrupt):
                streams.note("stopped")
                raise typer.Exit(STOPPED) from None
            if not isinstance(error, (HeadraceError, OSError)):
                raise
            _tell(error, traceback)
            raise typer.Exit(1) from None


def _tell(error: Exception, traceback: bool) -> None:
    if not isinstance(error, HeadraceError):  # such as a full disk behind standard output
        streams.give_up(sys.stdout)
    if isinstance(error, BrokenPipeError):  # whoever reads our output has seen enough
        return
    shown = f"error: {error}" if isinstance(error, HeadraceError) else f"error: {error}; --traceback shows where"
    streams.note(format_exc() if traceback else shown, "bold red")
