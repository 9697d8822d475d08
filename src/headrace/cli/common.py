"""Options and error handling that all commands share, including commands of applications such as Linear Road."""

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
    """Return the path; raise if it is a URL or another path outside the mounted file systems."""
    try:
        return None if path is None else mounted_path(path, "this")
    except QueryError as error:
        raise typer.BadParameter(str(error)) from None


def parse_size(text: str | None) -> str | None:
    """Return the size of a physical window unchanged; raise if it is invalid."""
    try:
        if text is not None:
            check_physical_window(text)
    except QueryError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def path_option(metavar: str, help: str, *names: str, **more: Any) -> OptionInfo:
    """Return an option for a path in a mounted file system."""
    option: OptionInfo = typer.Option(*names, callback=mounted_path_option, metavar=metavar, help=help, **more)
    return option


def flag(name: str, help: str) -> OptionInfo:
    """Return a boolean option that takes no value."""
    option: OptionInfo = typer.Option(name, metavar="", help=help)
    return option


Json = Annotated[
    bool,
    flag(
        "--json",
        "Print progress as one JSON object per epoch, and after 30 seconds without one, instead of the live table.",
    ),
]
SlotCount = Annotated[
    int, typer.Option(min=1, max=MOST_SLOTS, metavar="N", help="Number of slots: tasks that run in parallel.")
]
Traceback = Annotated[bool, flag("--traceback", "Show the Python traceback of an error.")]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_SLOTS,
        metavar="N",
        help="Number of slots: tasks that run in parallel.",
        show_default="one per core",
    ),
]


def refuse_together(context: typer.Context, first: str, second: str, because: str) -> None:
    """Raise if the command line contains both options."""
    if _is_given(context, first) and _is_given(context, second):
        raise typer.BadParameter(f"{first} and {second} contradict each other: {because}; leave out one of them")


def refuse_without(context: typer.Context, option: str, needed: str, because: str) -> None:
    """Raise if the command line contains `option` without `needed`."""
    if _is_given(context, option) and not _is_given(context, needed):
        raise typer.BadParameter(f"{option} needs {needed}: {because}; give {needed}, or leave out {option}")


def _is_given(context: typer.Context, option: str) -> bool:
    """Return whether the command line contains this option. A default does not count."""
    source = context.get_parameter_source(option.removeprefix("--").replace("-", "_"))
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def report_errors(traceback: bool) -> Iterator[None]:
    """Print an error as one message and exit with code 1. An interrupted command exits with `STOPPED`."""
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
    if not isinstance(error, HeadraceError):  # such as a full disk, which also breaks standard output
        terminal.give_up(sys.stdout)
    if isinstance(error, BrokenPipeError):  # the reader of standard output, such as `head`, has closed the pipe
        return
    shown = f"error: {error}" if isinstance(error, HeadraceError) else f"error: {error}; --traceback shows where"
    terminal.say_on_stderr(format_exc() if traceback else shown, "bold red")
