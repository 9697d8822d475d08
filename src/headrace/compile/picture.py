"""A plan as a picture: sources at the left, subqueries in boxes, results at the right. Plain SVG, no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from headrace.compile.subqueries import Plan, Subquery

WIDTH, LINE, GAP, BETWEEN, MARGIN, LETTERS = 290, 18, 26, 90, 24, 42
STYLE = (
    "text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1c2733 } .name { font-weight: 600 }"
    " .router { fill: #1f6fb2 } .box { fill: #f4f7fa; stroke: #8fa1b3 } .source { fill: #e6f1e8; stroke: #7fa487 }"
    " .way { fill: none; stroke: #8fa1b3; stroke-width: 2 }"
)


@dataclass(frozen=True)
class Box:
    name: str
    kind: str  # box, source
    lines: tuple[tuple[str, str], ...]  # (class, text)
    depth: int

    @property
    def height(self) -> int:
        return LINE * len(self.lines) + 16


def svg(plan: Plan) -> str:
    """The picture as text."""
    boxes = _boxes(plan)
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
    parts = [_way(by_name[a], by_name[s.name], places) for s in plan.subqueries for a in s.inputs]
    parts += [_drawn(box, *places[box.name]) for box in boxes]
    caption = f"{plan.strategy} strategy, {plan.slots} slots, {plan.shuffles} shuffles"
    parts.append(f'<text x="{MARGIN}" y="{height - 10}">{escape(caption)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", background, *parts, "</svg>"])


def _tall(column: Sequence[Box]) -> int:
    return sum(box.height for box in column) + GAP * max(len(column) - 1, 0)


def _boxes(plan: Plan) -> list[Box]:
    named = {subquery.name for subquery in plan.subqueries}
    sources = dict.fromkeys(name for s in plan.subqueries for name in s.inputs if name not in named)
    found = [Box(name, "source", (("name", name),), 0) for name in sources]
    depths = dict.fromkeys(sources, 0)
    for subquery in plan.subqueries:  # in the order of their stages: inputs come first
        depths[subquery.name] = 1 + max(depths[name] for name in subquery.inputs)
        found.append(Box(subquery.name, "box", _lines(subquery), depths[subquery.name]))
    return found


def _lines(subquery: Subquery) -> tuple[tuple[str, str], ...]:
    slots = f"{subquery.slots} slot{'s' if subquery.slots != 1 else ''}"
    head = (("name", f"{subquery.name}, {slots}"), ("router", str(subquery.router)))
    return (*head, *(("step", text) for text in subquery.operators))


def _drawn(box: Box, x: int, y: int) -> str:
    rows = [f'<rect class="{box.kind}" x="{x}" y="{y}" width="{WIDTH}" height="{box.height}" rx="6"/>']
    for number, (kind, text) in enumerate(box.lines):
        short = text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
        place = f'x="{x + 10}" y="{y + 20 + number * LINE}"'
        rows.append(f'<text class="{kind}" {place}><title>{escape(text)}</title>{escape(short)}</text>')
    return "\n".join(rows)


def _way(before: Box, after: Box, places: dict[str, tuple[int, int]]) -> str:
    (x0, y0), (x1, y1) = places[before.name], places[after.name]
    x0, y0, y1 = x0 + WIDTH, y0 + before.height // 2, y1 + after.height // 2
    bend = (x1 - x0) // 2
    return f'<path class="way" d="M {x0} {y0} C {x0 + bend} {y0}, {x1 - bend} {y1}, {x1} {y1}"/>'
