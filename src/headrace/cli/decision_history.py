"""What `headrace decisions` prints."""

from __future__ import annotations

import json as js
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.control.control_state import ControlState
from headrace.driver import stored_checks
from headrace.state.store import StateStore
from headrace.support.terminal_text import printable


def decision_history(checkpoint: Path) -> list[dict[str, Any]]:
    """Decisions of a run, oldest first; the run may go on meanwhile."""
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
        console.print("nothing was changed so far")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("epoch", "operator", "what", "change", "expected", "found", "why"):
        table.add_column(head, justify="right" if head in ("epoch", "expected", "found") else "left", overflow="fold")
    for each in found:
        came = "" if each["measured"] is None else f"{each['measured']:.2f} x"
        row = (str(each["epoch"]), each["operator"], each["kind"], each["change"], f"{each['predicted']:.2f} x", came)
        table.add_row(*(Text(printable(text)) for text in (*row, each["reason"])))  # the reason may quote a key
    console.print(table)
    console.print(
        "expected, found: what the busiest slot has afterwards (of splitters: how long they take), as a share of before",
        style="dim",
    )
