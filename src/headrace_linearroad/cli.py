"""`headrace linearroad`: the commands. Each says what it takes; the work is in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common import Traceback, a_path, reporting

app = typer.Typer(
    help="Linear Road: tolls, accidents, balances, expenditures, travel times of expressways.", no_args_is_help=True
)


@app.callback()
def linearroad() -> None:
    """Commands come below, one by one."""


@app.command()
def generate(
    out: Annotated[
        Path, typer.Option(callback=a_path, metavar="DIR", help="Folder for the files: a new or an empty one.")
    ],
    expressways: Annotated[int, typer.Option(metavar="L", help="How many expressways.")] = 1,
    begin: Annotated[int, typer.Option(metavar="SECOND", help="Where in the three hours to begin.")] = 0,
    seconds: Annotated[int, typer.Option(metavar="N", help="How much of them.")] = 600,
    full_density: Annotated[bool, typer.Option("--full-density", metavar="")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed, other traffic.")] = 1,
    shuffle: Annotated[bool, typer.Option("--shuffle", metavar="")] = False,
    traceback: Traceback = False,
) -> None:
    """Make up the traffic of expressways."""
    with reporting(traceback):
        from headrace_linearroad.generating import Settings
        from headrace_linearroad.generating.writing import write

        settings = Settings(expressways, seed, 1700 if full_density else None, shuffle=shuffle)
        written = write(settings, out, begin, seconds)
        print(f"{written.tuples:,} tuples in {out}")
