"""A picture of the expressways: two lines per direction, and one character per segment, or per two segments on a narrow
screen.

Characters repeat what colours show, so the picture is readable without colours. Colours have medium brightness, for
dark and light screens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from headrace_linearroad.demo.seen import AMBER, BLUE, GREEN, GREY, ORANGE, RED, Event, Floats, Longs, Place, Seen
from headrace_linearroad.demo.traffic import ROADS
from headrace_linearroad.generating.world import SEGMENTS

SPEEDS = ((40.0, "░", GREEN), (25.0, "▒", AMBER), (15.0, "▓", ORANGE), (0.0, "█", RED))  # minimum miles per hour
NOBODY = (" ", GREY)
BARS = "▁▂▃▄▅▆▇█"
ACCIDENT, UNKNOWN, ALERT = "X", "x", "!"
MARK = "bold white on #c03030"
LABEL = 13
EVENTS, REST = 6, 20  # maximum lines of events, and lines of everything else
ARROWS = ("east →", "west ←")


class Picture:
    """A renderable of all expressways, as wide as the screen allows."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield roads(self.seen, 1 if options.max_width >= LABEL + SEGMENTS else 2)


def roads(seen: Seen, step: int) -> Text:
    """Return the picture with `step` segments per character."""
    speed, alerted, standing = seen.speed, seen.alerted(), seen.standing()
    lines = list[Text]()
    for xway in range(ROADS):
        lines.append(Text.assemble((f"expressway {xway}".ljust(LABEL), "bold"), (_ruler(step), GREY)))
        for direction, arrow in enumerate(ARROWS):
            marks = _marks(seen, standing, xway, direction, step)
            lines.append(Text(f"  {arrow}".ljust(LABEL)) + _speeds(speed[xway, direction], marks, step))
            tolls = _tolls(seen.toll[xway, direction], alerted[xway, direction], seen.highest, step)
            lines.append(Text("    toll".ljust(LABEL), GREY) + tolls)
    return Text("\n", no_wrap=True).join(lines)


def _ruler(step: int) -> str:
    return "".join(str(seg).ljust(10 // step) for seg in range(0, SEGMENTS, 10))


def _marks(seen: Seen, standing: Sequence[Place], xway: int, direction: int, step: int) -> dict[int, str]:
    """Return the characters of accidents by cell: those that cars are alerted of, and those not yet detected."""
    unknown = dict.fromkeys(standing, UNKNOWN)
    known = dict.fromkeys(seen.alerts, ACCIDENT)
    return {seg // step: mark for (x, d, seg), mark in (unknown | known).items() if (x, d) == (xway, direction)}


def _speeds(speed: Floats, marks: dict[int, str], step: int) -> Text:
    text = Text()
    for cell, mph in enumerate(_slowest(speed, step)):
        glyph, colour = NOBODY
        if not np.isnan(mph):
            glyph, colour = next((glyph, colour) for least, glyph, colour in SPEEDS if mph >= least)
        text.append(marks.get(cell, glyph), MARK if cell in marks else colour)
    return text


def _slowest(speed: Floats, step: int) -> Floats:
    found: Floats = np.fmin.reduce(speed.reshape(-1, step), axis=1)
    return found


def _tolls(toll: Longs, alerted: npt.NDArray[np.bool_], highest: int, step: int) -> Text:
    text = Text()
    cells = zip(toll.reshape(-1, step).max(1).tolist(), alerted.reshape(-1, step).max(1).tolist(), strict=True)
    for most, warned in cells:
        if warned:
            text.append(ALERT, RED)
        else:
            text.append(bar(most, highest), BLUE)
    return text


def bar(toll: int, highest: int) -> str:
    """Return the bar of a toll. Its height is the root of the toll, because a toll is a square of a number of cars.

    >>> "".join(bar(toll, 800) for toll in (0, 2, 200, 800))
    ' ▁▄█'
    """
    return BARS[max(round(len(BARS) * (toll / highest) ** 0.5), 1) - 1] if toll > 0 else " "


def legend(highest: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for (_, glyph, colour), words in zip(SPEEDS, ("40 mph", "25", "15", "slower"), strict=True):
        text.append(glyph, colour).append(f" {words}  ", GREY)
    text.append(ACCIDENT, MARK).append(" accident  ", GREY)
    text.append(ALERT, RED).append(" alert, no toll  ", GREY)
    return text.append("█", BLUE).append(f" toll {highest:,}" if highest else " toll", GREY)


class Told:
    """A renderable of the newest events, oldest first, with a fixed height that fits the screen."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        many = min(max(console.height - REST - 1, 1), EVENTS)
        shown = list(self.events)[-many:]
        lines = [Text(str(event), event.style) for event in shown] + [Text("")] * (many - len(shown))
        yield Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def figures(rows: Sequence[Sequence[tuple[str, str]]]) -> Table:
    """Return a table of names and figures, in columns."""
    table = Table.grid(padding=(0, 1))
    for _ in rows[0]:
        table.add_column(style=GREY, no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*(Text(cell) for pair in row for cell in pair))
    return table


def screen(head: Text, seen: Seen, rows: Sequence[Sequence[tuple[str, str]]]) -> Group:
    return Group(head, "", Picture(seen), "", legend(seen.highest), "", figures(rows), "", Told(seen.events))
