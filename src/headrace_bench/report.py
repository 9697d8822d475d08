"""Reports of benchmarks: tables in the terminal and in Markdown, JSON, and charts."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from headrace.errors import HeadraceError
from headrace_bench import running

OURS, OTHERS = "#1f6fb2", "#9aa5b1"
SHADES = ("#d98032", "#7fb0d6", "#c9d3dc")
MORE = ("#1f6fb2", "#5b9a68", "#d63b3b", "#8a6fb0", "#b8860b", "#4fb3bf", "#8c8c8c", "#e3a6c1")


@dataclass(frozen=True)
class Grid:
    """A table. A heading that begins with > is above numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    """One line of a chart, or one group of bars. `low` and `high` are the spread."""

    label: str
    xs: Sequence[Any]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    """One chart. It has bars if xs are names, otherwise lines over logarithmic axes, or over linear axes if `plain`."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    ours: str = "headrace"  # name of the highlighted bar
    stacked: bool = False  # bars of one name are stacked
    plain: bool = False  # lines over linear axes from zero, without markers
    steps: Series | None = None  # integers, drawn as steps on a second axis
    limits: Sequence[float] = ()  # horizontal lines across the chart


@dataclass(frozen=True)
class Report:
    """The result of a benchmark."""

    name: str
    title: str
    notes: Sequence[str]
    grids: Sequence[Grid]
    data: dict[str, Any]
    panels: Sequence[Panel] = field(default_factory=tuple)


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores_used": running.cores(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "load_before": os.getloadavg(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


# --- terminal ------------------------------------------------------------------------------------------------------


def show(console: Console, report: Report) -> None:
    console.print(f"\n[bold]{report.title}[/]", soft_wrap=True)
    for grid in report.grids:
        console.print()
        console.print(table(grid))
    console.print()
    for note in report.notes:
        console.print(f"  {note}", style="dim", markup=False, soft_wrap=True)


def table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for heading in grid.headings:
        numbers = heading.startswith(">")
        table.add_column(
            heading.lstrip(">"),
            justify="right" if numbers else "left",
            no_wrap=numbers,
            min_width=None if numbers else 16,
        )
    for row in grid.rows:
        table.add_row(*row)
    return table


def number(value: float) -> str:
    """Return a number with three significant digits and a unit of thousands.

    >>> number(1234567), number(0.01234), number(56.78)
    ('1.23 M', '0.0123', '56.8')
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{value / scale:.3g} {unit}" if value / scale < 1000 else f"{value / scale:.0f} {unit}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def size(count: float) -> str:
    """Return a number of bytes with a unit of thousands.

    >>> size(1234567), size(1234), size(0)
    ('1.23 MB', '1234 B', '0 B')
    """
    text = number(count)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


# --- JSON ----------------------------------------------------------------------------------------------------------


def save(path: Path, reports: Sequence[Report], before: dict[str, Any]) -> None:
    found = {
        "machine": before,
        "benchmarks": {report.name: {"title": report.title, **report.data} for report in reports},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2, default=str) + "\n")


# --- Markdown ------------------------------------------------------------------------------------------------------


def write(folder: Path, report: Report, before: dict[str, Any], chart: Path | None) -> Path:
    """Write the tables and the chart to folder/<name>.md."""
    cores = f"{before['processor']}, {len(before['cores_used'])} cores, {before['memory_gb']} GB, {before['at']}"
    parts = [f"# {report.title}", f"Written by `headrace bench {report.name}`: {cores}."]
    parts += [f"![{report.title}]({chart.name})"] if chart else []
    parts += [f"**{grid.title}**\n\n{_markdown(grid)}" for grid in report.grids]
    parts.append("\n".join(f"- {note}" for note in report.notes))
    path = folder / f"{report.name}.md"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(parts) + "\n")
    return path


def _markdown(grid: Grid) -> str:
    headings = [heading.lstrip(">") for heading in grid.headings]
    rules = ["---:" if heading.startswith(">") else "---" for heading in grid.headings]
    rows = [headings, rules, *([cell.replace("|", "\\|") for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# --- charts --------------------------------------------------------------------------------------------------------


def demand_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise HeadraceError(
            "charts need matplotlib, which is not installed; run pip install 'headrace[bench]'"
        ) from None


def draw(folder: Path, report: Report, before: dict[str, Any]) -> Path | None:
    """Draw the charts to folder/<name>.png."""
    if not report.panels:
        return None
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(report.panels), 3)
    rows = -(-len(report.panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 3.8 * rows), squeeze=False)
    for axis in axes.flat[len(report.panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, report.panels, strict=False):
        _draw_panel(axis, panel)
    figure.suptitle(report.title, size=10, wrap=True)
    figure.text(0.01, 0.005, f"{before['processor']}, {len(before['cores_used'])} cores, {before['at']}", size=7)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name}.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def svg(panel: Panel, width: float = 4.6) -> str:
    """Return one chart as SVG for a page that has its title. `width` is in inches; the chart is legible on small
    screens.
    """
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    height = 1.6 + 0.4 * len(panel.series[0].xs) if panel.stacked else 3.2
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": panel.title, "font.family": "sans-serif"}):
        figure, axis = pyplot.subplots(figsize=(width, height))
        _draw_panel(axis, replace(panel, title=""))
        if panel.series and not panel.plain and not isinstance(panel.series[0].xs[0], str):
            for side in (axis.xaxis, axis.yaxis):
                side.set_major_formatter(lambda value, _: number(value))
                side.set_minor_formatter("")
        if len(panel.series) > 1:
            below = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.75 / height), "ncol": 3, "frameon": False}
            axis.legend(fontsize=7, columnspacing=1.2, handlelength=1.2, **below)
        elif axis.get_legend() is not None:
            axis.get_legend().remove()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True, bbox_inches="tight")
        pyplot.close(figure)
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def _draw_panel(axis: Any, panel: Panel) -> None:
    axis.set_title(panel.title, size=9)
    if panel.series and all(isinstance(x, str) for series in panel.series for x in series.xs):
        _draw_stacked(axis, panel) if panel.stacked else _draw_bars(axis, panel)
    else:
        _draw_lines(axis, panel)
    for limit in panel.limits:
        axis.set_ylim(top=max(axis.get_ylim()[1], 1.15 * limit))
        axis.axhline(limit, color="#8c8c8c", lw=1, ls="--")
        axis.annotate(
            f"limit {limit:g} ", (1, limit), xycoords=("axes fraction", "data"), ha="right", va="bottom", size=7
        )
    axis.tick_params(labelsize=7)


def _draw_bars(axis: Any, panel: Panel) -> None:
    """Draw horizontal bars, one group per name."""
    names = list(dict.fromkeys(x for series in panel.series for x in series.xs))
    height = 0.8 / len(panel.series)
    for index, series in enumerate(panel.series):
        places = [names.index(x) + index * height for x in series.xs]
        colours = [OURS if x == panel.ours else OTHERS for x in series.xs] if len(panel.series) == 1 else None
        axis.barh(places, series.ys, height, xerr=_errors(series), capsize=2, label=series.label, color=colours)
        for place, value, end in zip(places, series.ys, series.high or series.ys, strict=True):
            axis.annotate(f"  {number(value)}", (end, place), va="center", size=7)
    _name_bars(axis, panel, names, [i + 0.4 - height / 2 for i in range(len(names))])


def _draw_stacked(axis: Any, panel: Panel) -> None:
    """Draw horizontal stacked bars, one per name, with their sum at the end."""
    names = list(panel.series[0].xs)
    ends = [0.0] * len(names)
    for series, colour in zip(panel.series, cycle((*SHADES, *MORE)), strict=False):
        axis.barh(range(len(names)), series.ys, 0.8, left=ends, label=series.label, color=colour)
        ends = [end + value for end, value in zip(ends, series.ys, strict=True)]
    for place, end in enumerate(ends):
        axis.annotate(f"  {number(end)}", (end, place), va="center", size=7)
    _name_bars(axis, panel, names, range(len(names)))


def _name_bars(axis: Any, panel: Panel, names: Sequence[str], places: Sequence[float]) -> None:
    axis.set_yticks(places, names, size=7)
    axis.invert_yaxis()
    axis.set_xlabel(panel.y, size=8)
    axis.xaxis.set_major_formatter(lambda value, _: number(value))
    axis.margins(x=0.18)
    if len(panel.series) > 1:
        axis.legend(fontsize=6)


def _draw_lines(axis: Any, panel: Panel) -> None:
    if panel.plain:
        _draw_plain(axis, panel)
    else:
        for series in panel.series:
            axis.errorbar(series.xs, series.ys, yerr=_errors(series), marker="o", ms=3, capsize=2, label=series.label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
    axis.set_xlabel(panel.x, size=8)
    axis.set_ylabel(panel.y, size=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=6)


def _draw_plain(axis: Any, panel: Panel) -> None:
    """Draw lines that may overlap: later lines are thinner, so that earlier ones remain visible."""
    for index, series in enumerate(panel.series):
        axis.plot(series.xs, series.ys, lw=max(1.2, 2.8 - 0.5 * index), label=series.label)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: number(value))
    if panel.steps is None:
        return
    other = axis.twinx()
    axis.plot([], [], color=SHADES[0], label=panel.steps.label)  # adds an entry to the legend
    other.step(panel.steps.xs, panel.steps.ys, where="post", color=SHADES[0])
    other.set_ylim(0, max(panel.steps.ys) + 1)
    other.set_yticks(range(int(max(panel.steps.ys)) + 2))
    other.set_ylabel(panel.steps.label, size=8)
    other.tick_params(labelsize=7)


def _errors(series: Series) -> Any:
    if not series.low:
        return None
    below = [y - low for y, low in zip(series.ys, series.low, strict=True)]
    return [below, [high - y for y, high in zip(series.ys, series.high, strict=True)]]
