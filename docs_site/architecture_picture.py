"""Draw how an epoch works: `python -m docs_site.architecture_picture` writes docs/explanation/epoch.svg."""

from __future__ import annotations

from html import escape

from docs_site import staging

WIDTH, HEIGHT = 900, 520
INK, PAPER, LINE, BLUE, GREEN, SAND = "#1d2733", "#ffffff", "#5a6b7f", "#dbe9f8", "#dff2e1", "#f8ecd4"
BOXES = [  # x, y, width, height, colour, title, lines
    (20, 90, 190, 350, BLUE, "driver", []),
    (290, 90, 170, 150, GREEN, "splitters", ["read physical windows", "map, filter, route", "one task each"]),
    (290, 290, 170, 150, GREEN, "slots", ["joins, windows,", "processors, on", "their groups of tuples"]),
    (560, 90, 320, 350, SAND, "checkpoint: a shared folder", []),
]
NOTES = [  # x, y, text
    (36, 140, "1  choose input, write"),
    (36, 158, "    the record of epoch n"),
    (36, 300, "4  compare reports of"),
    (36, 318, "    all attempts"),
    (36, 352, "5  commit: manifest n"),
    (36, 400, "6  deliver results to"),
    (36, 418, "    the sinks"),
    (580, 140, "blocks/: Arrow files, sorted by group,"),
    (580, 158, "with new tuples, state and results"),
    (580, 176, "a block never changes"),
    (580, 330, "manifests/: one per committed epoch"),
    (580, 348, "names blocks, positions of sources,"),
    (580, 366, "watermarks and decisions"),
    (580, 390, "what no manifest names is not state"),
]
ARROWS = [  # x1, y1, x2, y2, label, label x, label y
    (210, 150, 290, 150, "pieces", 226, 142),
    (460, 140, 560, 140, "2 blocks", 476, 132),
    (375, 240, 375, 290, "descriptors of blocks", 384, 270),
    (560, 340, 460, 340, "read", 492, 332),
    (460, 400, 560, 400, "3 blocks", 476, 392),
    (290, 320, 210, 320, "reports", 224, 312),
    (80, 440, 80, 490, "results", 88, 500),
    (115, 40, 115, 90, "files, offsets", 124, 62),
]
COMMIT = "M 170 440 C 200 500, 560 500, 640 442"


def picture() -> str:
    """Return the picture as SVG."""
    body = [_box(*box) for box in BOXES]
    body += [f'<text x="{x}" y="{y}" xml:space="preserve">{escape(text)}</text>' for x, y, text in NOTES]
    body += [_arrow(*arrow) for arrow in ARROWS]
    body.append(f'<path d="{COMMIT}" fill="none" stroke="{LINE}" stroke-width="2" marker-end="url(#head)"/>')
    body.append('<text x="330" y="506" fill="#3d4c5e">an atomic link makes the epoch count</text>')
    body.append('<text x="20" y="28" font-size="17" font-weight="bold">One epoch: one Spark job and one commit</text>')
    marker = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M 0 0 L 10 5 L 0 10 z" fill="{LINE}"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif"'
        f' font-size="13" fill="{INK}">{marker}<rect width="100%" height="100%" rx="10" fill="{PAPER}"/>'
        + "\n".join(body)
        + "</svg>\n"
    )


def _box(x: int, y: int, width: int, height: int, colour: str, title: str, lines: list[str]) -> str:
    shown = "".join(
        f'<text x="{x + 16}" y="{y + 54 + 20 * number}">{escape(line)}</text>' for number, line in enumerate(lines)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{colour}" stroke="{LINE}"/>'
        f'<text x="{x + 16}" y="{y + 26}" font-weight="bold" font-size="15">{escape(title)}</text>{shown}'
    )


def _arrow(x1: int, y1: int, x2: int, y2: int, label: str, label_x: int, label_y: int) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{LINE}" stroke-width="2" marker-end="url(#head)"/>'
        f'<text x="{label_x}" y="{label_y}" fill="#3d4c5e" font-size="12">{escape(label)}</text>'
    )


def main() -> None:
    """Write the picture."""
    out = staging.DOCS / "explanation" / "epoch.svg"
    out.write_text(picture())
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
