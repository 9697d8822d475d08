"""The output of `headrace decisions`."""

from __future__ import annotations

import json as js
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.control.control_state import ControlState
from headrace.driver import stored_checks
from headrace.state.store import StateStore
from headrace.support.terminal_text import printable

HEADS = ("epoch", "operator", "what", "expected", "found", "change")
NUMBERS = ("epoch", "expected", "found")


def decision_history(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the decisions of a run, oldest first. The run may be active."""
    with StateStore.open(checkpoint / "state", read_only=True) as store:
        last = store.last
    if last is not None:
        stored_checks.check_manifest(last)
    if last is None or not last.control:
        return []
    return [decision.to_json() for decision in ControlState.from_json(last.control).history]


def print_decisions(checkpoint: Path, console: Console, *, json: bool = False) -> None:
    found = decision_history(checkpoint)
    if json:
        for decision in found:
            print(js.dumps(decision))
        return
    if not found:
        console.print("no changes so far")
        return
    rows = [_cells(each) for each in found]
    widths = [max(len(row[place]) for row in (HEADS, *rows)) for place in range(len(HEADS))]
    console.print(_line(HEADS, widths, "bold"))
    for cells, each in zip(rows, found, strict=True):
        console.print(_line(cells, widths))
        reason = Text(printable(each["reason"]), "dim")  # may quote a key
        console.print(Padding(reason, (0, 0, 0, widths[0] + 2), expand=False))
    console.print(
        "expected, found: the load of the busiest slot after the change (splitters: their time; probes: a tuple's work),"
        " relative to before",
        style="dim",
    )


def _cells(decision: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a decision under `HEADS`. The reason is printed on a separate line."""
    came = "" if decision["measured"] is None else f"{decision['measured']:.2f} x"
    expected = f"{decision['predicted']:.2f} x"
    cells = (str(decision["epoch"]), decision["operator"], decision["kind"], expected, came, decision["change"])
    return tuple(printable(cell) for cell in cells)


def _line(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Table:
    """Return one line of the table. The last cell gets the rest of the terminal's width."""
    line = Table.grid(padding=(0, 2, 0, 0))
    for head, width in zip(HEADS[:-1], widths, strict=False):
        line.add_column(justify="right" if head in NUMBERS else "left", width=width)
    line.add_column(overflow="fold")
    line.add_row(*(Text(cell, style) for cell in cells))
    return line
