"""`headrace linearroad`: the commands. Each says what it takes; the work is in a module of its own."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Linear Road: tolls, accidents, balances, expenditures, travel times of expressways.", no_args_is_help=True
)


@app.callback()
def linearroad() -> None:
    """Commands come below, one by one."""
