"""A small terminal: replays what a program wrote, and draws the screen as SVG text.

It knows what Rich writes: printable characters, carriage return, new line, movements of the cursor, erasing, and colours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[=>()][A-Z0-9]?")
COLOURS = ["#1d2733", "#e06c75", "#8cc265", "#d9a843", "#61a0ef", "#c678dd", "#4fb6c2", "#c8cfda"]
PLAIN = "#d7dde6"
DIM = "#8390a2"
CELL = (8.4, 18.0)  # width and height of a character


@dataclass(frozen=True)
class Style:
    colour: str = PLAIN
    bold: bool = False


@dataclass
class Screen:
    """The visible lines of a terminal and its cursor."""

    columns: int = 100
    rows: int = 36
    style: Style = Style()
    x: int = 0
    y: int = 0
    cells: list[list[tuple[str, Style]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = [[] for _ in range(self.rows)]

    def write(self, text: str) -> None:
        """Replay output of a program."""
        at = 0
        for match in SEQUENCE.finditer(text):
            self._plain(text[at : match.start()])
            if match[2]:
                self._control(match[1], match[2])
            at = match.end()
        self._plain(text[at:])

    def _plain(self, text: str) -> None:
        for character in text:
            if character == "\r":
                self.x = 0
            elif character == "\n":
                self._down()
            elif character >= " ":
                self._put(character)

    def _down(self) -> None:
        self.y += 1
        if self.y == self.rows:
            self.cells = [*self.cells[1:], []]
            self.y -= 1

    def _put(self, character: str) -> None:
        if self.x >= self.columns:
            self.x = 0
            self._down()
        line = self.cells[self.y]
        line.extend([(" ", self.style)] * (self.x + 1 - len(line)))
        line[self.x] = (character, self.style)
        self.x += 1

    def _control(self, given: str, letter: str) -> None:
        numbers = [int(number) for number in given.split(";") if number.isdigit()]
        count = numbers[0] if numbers else 1
        if letter == "A":
            self.y = max(0, self.y - count)
        elif letter == "B":
            self.y = min(self.rows - 1, self.y + count)
        elif letter == "K":
            self.cells[self.y] = [] if numbers == [2] else self.cells[self.y][: self.x]
        elif letter == "J":
            self.cells[self.y :] = [self.cells[self.y][: self.x], *([] for _ in range(self.rows - self.y - 1))]
        elif letter == "m":
            self._styled(numbers or [0])

    def _styled(self, numbers: list[int]) -> None:
        for number in numbers:
            if number == 0:
                self.style = Style()
            elif number == 1:
                self.style = Style(self.style.colour, bold=True)
            elif number == 2:
                self.style = Style(DIM, self.style.bold)
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self.style = Style(COLOURS[number % 10], self.style.bold)

    def svg_lines(self) -> list[str]:
        """Return one SVG text element for each line that is not empty."""
        lines = []
        for number, line in enumerate(self.cells):
            if spans := _spans(line):
                y = 30 + number * CELL[1]
                lines.append(f'<text x="16" y="{y:g}" xml:space="preserve">{spans}</text>')
        return lines


def _spans(line: list[tuple[str, Style]]) -> str:
    """Return the characters of a line, those of one style together."""
    text = "".join(character for character, _ in line).rstrip()
    found, at = "", 0
    while at < len(text):
        style, end = line[at][1], at
        while end < len(text) and line[end][1] == style:
            end += 1
        bold = ' font-weight="bold"' if style.bold else ""
        found += f'<tspan x="{16 + at * CELL[0]:g}" fill="{style.colour}"{bold}>{escape(text[at:end])}</tspan>'
        at = end
    return found


def animation(frames: list[tuple[float, list[str]]], seconds: float, columns: int, rows: int) -> str:
    """Return an SVG that shows the frames one after the other, for ever. frames: when each begins, and its lines."""
    width, height = 32 + columns * CELL[0], 28 + rows * CELL[1]
    body = []
    for number, (begin, lines) in enumerate(frames):
        end = frames[number + 1][0] if number + 1 < len(frames) else seconds
        first, last = begin / seconds, end / seconds
        times = f"0;{first:.4f};{last:.4f}" if number else f"0;{last:.4f}"
        values = "none;inline;none" if number else "inline;none"
        if number + 1 == len(frames):
            times, values = f"0;{first:.4f}", "none;inline"
        animate = (
            f'<animate attributeName="display" calcMode="discrete" dur="{seconds:g}s" repeatCount="indefinite"'
            f' keyTimes="{times}" values="{values}"/>'
        )
        shown = "inline" if number + 1 == len(frames) else "none"  # without animation the end is shown
        body.append(f'<g display="{shown}">{animate}{"".join(lines)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="ui-monospace,'
        'SFMono-Regular,Menlo,Consolas,monospace" font-size="14">'
        f'<rect width="100%" height="100%" rx="10" fill="#141b24"/>{"".join(body)}</svg>\n'
    )
