"""What the commands have in common: options, and how they end. Of this program and of applications beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exc
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from headrace.errors import HeadraceError, QueryError
from headrace.showing import terminal
from headrace.support.limits import MOST_SLOTS, check_physical_window
from headrace.support.paths import mounted_path


def mounted_path_option(path: Path | None) -> Path | None:
    """A path of a file system that is mounted here; anything else is no path for any command."""
    try:
        return None if path is None else mounted_path(path, "this")
    except QueryError as error:
        raise typer.BadParameter(str(error)) from None


def parse_size(text: str | None) -> str | None:
    """Return the size of a physical window as it was given; raise if it is none."""
    try:
        if text is not None:
            check_physical_window(text)
    except QueryError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def path_option(metavar: str, help: str, *names: str, **more: Any) -> OptionInfo:
    """Return an option that takes a path of a file system that is mounted here."""
    option: OptionInfo = typer.Option(*names, callback=mounted_path_option, metavar=metavar, help=help, **more)
    return option


def flag(name: str, help: str) -> OptionInfo:
    """Return an option without a value."""
    option: OptionInfo = typer.Option(name, metavar="", help=help)
    return option


Json = Annotated[bool, flag("--json", "Progress as one JSON object per epoch instead of the live table.")]
SlotCount = Annotated[int, typer.Option(min=1, max=MOST_SLOTS, metavar="N", help="Tasks that work side by side.")]
Traceback = Annotated[bool, flag("--traceback", "Show where in the program an error came from.")]
Slots = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_SLOTS, metavar="N", help="Tasks that work side by side.", show_default="one per core"),
]


def refuse_together(context: typer.Context, first: str, second: str, because: str) -> None:
    """Raise if the command line has both options."""
    if _is_given(context, first) and _is_given(context, second):
        raise typer.BadParameter(f"{first} and {second} contradict each other: {because}; leave out one of them")


def refuse_without(context: typer.Context, option: str, needed: str, because: str) -> None:
    """Raise if the command line has an option, but not the one that the option needs."""
    if _is_given(context, option) and not _is_given(context, needed):
        raise typer.BadParameter(f"{option} needs {needed}: {because}; give {needed}, or leave out {option}")


def _is_given(context: typer.Context, option: str) -> bool:
    """Return whether the command line has this option; its default does not count."""
    source = context.get_parameter_source(option.removeprefix("--").replace("-", "_"))
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def report_errors(traceback: bool) -> Iterator[None]:
    """An error is shown as one message, with exit code 1; an interrupted command has an exit code of its own."""
    from headrace.showing.signals import STOPPED, end_by_interrupt

    with end_by_interrupt() as stop:
        try:
            yield
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BaseException as error:
            if stop.insisted or isinstance(error, KeyboardInterrupt):
                terminal.say_on_stderr("stopped")
                raise typer.Exit(STOPPED) from None
            if not isinstance(error, (HeadraceError, OSError)):
                raise
            _tell(error, traceback)
            raise typer.Exit(1) from None


def _tell(error: Exception, traceback: bool) -> None:
    if not isinstance(error, HeadraceError):  # such as a full disk behind standard output
        terminal.give_up(sys.stdout)
    if isinstance(error, BrokenPipeError):  # the reader of our output has seen enough
        return
    shown = f"error: {error}" if isinstance(error, HeadraceError) else f"error: {error}; --traceback shows where"
    terminal.say_on_stderr(format_exc() if traceback else shown, "bold red")
