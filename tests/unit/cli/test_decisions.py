"""What `headrace decisions` prints, at the width of a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli import decision_history

SHAPE = {
    "epoch": 12,
    "operator": "join-1",
    "kind": "shape",
    "change": "2 rows of 2 cells to 1 row of 4 cells",
    "reason": "120,000 and 4,000 tuples an epoch, 640,000 and 21,000 held, of which the busiest slot reads half",
    "before": 64_000.0,
    "predicted": 0.53,
    "measured": 0.551,
}
SPLIT = {**SHAPE, "epoch": 1024, "operator": "aggregate-1", "kind": "splitters", "change": "4 to 6", "measured": None}


def printed(monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setattr(decision_history, "decision_history", lambda _: [SHAPE, SPLIT])
    file = io.StringIO()
    decision_history.print_decisions(Path("anywhere"), Console(file=file, width=width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_decisions_are_readable_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, 80) == [
        "epoch  operator     what       expected   found  change",
        "   12  join-1       shape        0.53 x  0.55 x  2 rows of 2 cells to 1 row of 4",
        "                                                 cells",
        "       120,000 and 4,000 tuples an epoch, 640,000 and 21,000 held, of which the",
        "       busiest slot reads half",
        " 1024  aggregate-1  splitters    0.53 x          4 to 6",
        "       120,000 and 4,000 tuples an epoch, 640,000 and 21,000 held, of which the",
        "       busiest slot reads half",
        "expected, found: the load of the busiest slot after the change (splitters: their",
        "time; probes: a tuple's work), relative to before",
    ]


def test_a_wide_terminal_has_two_lines_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(printed(monkeypatch, 140)) == 1 + 2 * 2 + 1
