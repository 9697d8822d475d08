"""A plan as a picture in plain SVG: sources on the left, subqueries in boxes, results on the right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from headrace.compile.subqueries import MeasuredRates, Plan, Subquery
from headrace.showing.explain import amount_text
from headrace.support.terminal_text import printable

WIDTH, LINE, GAP, BETWEEN, MARGIN, LETTERS = 300, 18, 26, 90, 24, 42
THINNEST, WIDEST = 1.5, 16.0  # stroke widths of the arrows between boxes
RULES = {
    "text": "font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1c2733",
    ".name": "font-weight: 600",
    ".router": "fill: #1f6fb2",
    ".box": "fill: #f4f7fa; stroke: #8fa1b3",
    ".source": "fill: #e6f1e8; stroke: #7fa487",
    ".way": "fill: none; stroke: #b7c4d1",
    ".figure": "fill: #5b6b7a",
}
PAGE = "headrace-plan"  # CSS class of the picture, so that its rules apply to nothing else on a page
STYLE = " ".join(f".{PAGE} {what} {{ {rule} }}" for what, rule in RULES.items())


@dataclass(frozen=True)
class SubqueryBox:
    """A box of the picture of a plan: a subquery or a source."""

    name: str
    kind: str  # box, source
    lines: tuple[tuple[str, str], ...]  # (class, text)
    depth: int

    @property
    def height(self) -> int:
        return LINE * len(self.lines) + 16


def svg(plan: Plan, measured: Mapping[str, MeasuredRates] | None = None) -> str:
    """Return the picture as SVG text. The width of an arrow grows with its rate of tuples."""
    boxes = _boxes(plan, measured or {})
    deepest = max((box.depth for box in boxes), default=0)
    columns = [[box for box in boxes if box.depth == depth] for depth in range(deepest + 1)]
    tallest = max(map(_tall, columns))
    places: dict[str, tuple[int, int]] = {}
    for depth, column in enumerate(columns):
        y = MARGIN + (tallest - _tall(column)) // 2
        for box in column:
            places[box.name] = (MARGIN + depth * (WIDTH + BETWEEN), y)
            y += box.height + GAP
    width, height = 2 * MARGIN + len(columns) * (WIDTH + BETWEEN) - BETWEEN, 2 * MARGIN + tallest + LINE
    by_name = {box.name: box for box in boxes}
    rates = {source.name: source.rate for source in plan.sources} | {s.name: s.numbers.results for s in plan.subqueries}
    most = max(rates.values(), default=0.0)
    parts = [
        _way(by_name[a], by_name[s.name], places, rates.get(a, 0.0), most) for s in plan.subqueries for a in s.inputs
    ]
    parts += [_drawn(box, *places[box.name]) for box in boxes]
    caption = plan.headline
    parts.append(f'<text x="{MARGIN}" y="{height - 10}">{_text(caption)}</text>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="{PAGE}" {size}>'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", background, *parts, "</svg>"])


def _tall(column: Sequence[SubqueryBox]) -> int:
    return sum(box.height for box in column) + GAP * max(len(column) - 1, 0)


def _boxes(plan: Plan, measured: Mapping[str, MeasuredRates]) -> list[SubqueryBox]:
    named = {subquery.name for subquery in plan.subqueries}
    sources = dict.fromkeys(name for s in plan.subqueries for name in s.inputs if name not in named)
    rates = {source.name: f"{amount_text(source.rate)} tuples/s" for source in plan.sources}
    depths = dict.fromkeys(sources, 0)
    found = []
    for subquery in sorted(plan.subqueries, key=lambda s: s.stage):  # sorted by stage, so that inputs come first
        depths[subquery.name] = 1 + max((depths.get(name, 0) for name in subquery.inputs), default=0)
        lines = _lines(subquery, measured.get(subquery.name))
        found.append(SubqueryBox(subquery.name, "box", lines, depths[subquery.name]))
    needed: dict[str, int] = {}
    for subquery in plan.subqueries:
        for name in subquery.inputs:
            needed[name] = min(depths[subquery.name], needed.get(name, depths[subquery.name]))
    for name in sources:  # in the column just before the first subquery that reads the source
        depth = needed[name] - 1
        found.append(SubqueryBox(name, "source", (("name", name), ("figure", rates.get(name, ""))), depth))
    return found


def _lines(subquery: Subquery, measured: MeasuredRates | None) -> tuple[tuple[str, str], ...]:
    slots = f"{subquery.slots} slot{'s' if subquery.slots != 1 else ''}"
    head = (("name", f"{subquery.name}, {slots}"), ("router", str(subquery.router)))
    numbers = subquery.numbers
    figures = [("figure", f"{amount_text(numbers.sent)} tuples/s sent, {amount_text(numbers.state)} held")]
    if measured:
        figures.append(("figure", f"measured: {amount_text(measured.sent)}/s sent, {amount_text(measured.state)} held"))
    return (*head, *(("step", text) for text in subquery.operators), *figures)


def _drawn(box: SubqueryBox, x: int, y: int) -> str:
    rows = [f'<rect class="{box.kind}" x="{x}" y="{y}" width="{WIDTH}" height="{box.height}" rx="6"/>']
    for number, (kind, text) in enumerate(box.lines):
        short = text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
        place = f'x="{x + 10}" y="{y + 20 + number * LINE}"'
        rows.append(f'<text class="{kind}" {place}><title>{_text(text)}</title>{_text(short)}</text>')
    return "\n".join(rows)


def _text(text: str) -> str:
    """Escape markup, and characters that XML cannot represent."""
    return escape(printable(text))


def _way(before: SubqueryBox, after: SubqueryBox, places: dict[str, tuple[int, int]], rate: float, most: float) -> str:
    (x0, y0), (x1, y1) = places[before.name], places[after.name]
    x0, y0, y1 = x0 + WIDTH, y0 + before.height // 2, y1 + after.height // 2
    bend = (x1 - x0) // 2
    width = THINNEST + (WIDEST - THINNEST) * (math.sqrt(rate / most) if most else 0.0)
    path = f"M {x0} {y0} C {x0 + bend} {y0}, {x1 - bend} {y1}, {x1} {y1}"
    title = f"<title>{amount_text(rate)} tuples/s</title>"
    return f'<path class="way" style="stroke-width: {width:.1f}" d="{path}">{title}</path>'
