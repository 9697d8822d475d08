"""The command `headrace linearroad report`: results of ratings as one self-contained HTML page.

The figures of other systems are those they published. None of them was measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headrace.errors import WorkloadError
from headrace.support.terminal_text import printable
from headrace_bench.report import Grid, Panel, Series, demand_matplotlib, number, size, svg
from headrace_linearroad.forms import OUTPUTS
from headrace_linearroad.generating.demand import FULL
from headrace_linearroad.rating.model import fitted
from headrace_linearroad.rating.parts import PARTS
from headrace_linearroad.rating.responses import LIMITS
from headrace_linearroad.rating.show import load, of_processor, of_responses, of_trials, silent

Trial = Mapping[str, Any]

OURS = "headrace"
MB = 1e6


@dataclass(frozen=True)
class Known:
    """A published result of another system."""

    name: str
    year: int | None
    expressways: float
    cores: int
    remark: str
    source: str


PARASPLIT = "Zeitler and Risch, PVLDB 4(11), 2011, Table 1"
PUBLISHED = (
    Known("scsq-plr with parasplit", 2011, 512, 560, "without expenditures and travel times", PARASPLIT),
    Known("scsq-plr", 2010, 64, 48, "without travel times", PARASPLIT),
    Known("SQLstream", None, 60, 4, "the vendor's own figure", "doc.sqlstream.com, Linear Road benchmark"),
    Known("stream schema", 2010, 5, 4, "", PARASPLIT),
    Known("Aurora", 2004, 2.5, 1, "", PARASPLIT),
    Known("SPC", 2006, 2.5, 170, "", PARASPLIT),
    Known("XQuery", 2007, 1.5, 1, "", PARASPLIT),
    Known("scsq-lr", 2007, 1.5, 1, "on a laptop", PARASPLIT),
    Known("DataCell", 2009, 1, 4, "", PARASPLIT),
    Known("CaaaS", 2011, 1, 2, "streaming MapReduce", PARASPLIT),
)
"""Published results, all without travel times, as the paper of that table says of every earlier implementation."""

STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: #1c2733; background: #fff }
h1 { font-size: 1.6rem; margin: .5rem 0 } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem } p { margin: .4rem 0; max-width: 46rem }
.answer { font-size: 1.25rem; font-weight: 600; max-width: none } .small { color: #5b6b7a; font-size: .9rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem }
figure { margin: 0 } figcaption { font-size: .95rem; font-weight: 600 } svg { width: 100%; height: auto; display: block }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; border-bottom: 1px solid #e3e8ed; white-space: nowrap; vertical-align: top }
td.n, th.n { text-align: right } td.w { white-space: normal; min-width: 9rem } tr.ours td { font-weight: 600 }
"""


def write(paths: Sequence[Path], out: Path) -> int:
    """Write the page. Return the number of its trials."""
    demand_matplotlib()
    found = [load(path) for path in paths]
    trials = [trial for result in found for trial in result["trials"]]
    ours = [trial for trial in trials if trial.get("system", OURS) == OURS]
    if not ours:
        raise WorkloadError("the given results have no trial of headrace; give the result.json of a finished rating")
    page = _page(ours, [trial for trial in trials if trial not in ours], found[0]["machine"])
    out.parent.mkdir(parents=True, exist_ok=True)
    hidden = out.with_name(f"_{out.name}")
    hidden.write_text(page, encoding="utf-8")
    hidden.rename(out)
    return len(trials)


def _page(trials: Sequence[Trial], beside: Sequence[Trial], machine: Mapping[str, Any]) -> str:
    """Return the page. beside: trials of other systems, with the same clock and judge."""
    shown = _shown(trials)
    cores = len(machine["cores_used"])
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Linear Road: the rating</title><style>{STYLE}</style>",
        "<h1>Linear Road: how many expressways</h1>",
        *(f'<p class="answer">{_text(line)}</p>' for line in _answers(trials, cores)),
        f'<p class="small">{_text(_machine(machine))}</p>',
        *_section("Response times", [_against_L(trials), _over_time(shown)], _said_of_responses(shown)),
        _table(of_trials(trials)),
        _table(of_responses(shown)),
        *_section(
            "Processor", [_cpu(trials), _phases(trials)], [*_bound(shown, cores), *_said_by_model(trials, cores)]
        ),
        _table(of_processor(shown)),
        *_section("Memory and state", [_memory(shown), _state(shown), _per_car(trials)], _said_of_state(shown)),
        *_section("Epochs", [_epochs(shown), _rows(shown)], []),
        *(_section("Another system with the same feeder, clock and judge", [], _said_beside(beside)) if beside else ()),
        *([_table(of_trials(beside))] if beside else ()),
        *_section("Comparison with published figures", [], _said_of_others()),
        _table(_others(trials, cores), ours=OURS),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _shown(trials: Sequence[Trial]) -> Trial:
    """Return the trial to show in detail: the largest that held, otherwise the smallest."""
    held = [trial for trial in trials if trial["held"]]
    return max(held, key=lambda t: t["expressways"]) if held else min(trials, key=lambda t: t["expressways"])


def _answers(trials: Sequence[Trial], cores: int) -> list[str]:
    found = []
    for kind, words in (("peak", "Peak-rate"), ("whole", "Whole-run")):
        own = [trial for trial in trials if trial["rating"] == kind]
        held = [trial for trial in own if trial["held"]]
        if held:
            best = max(held, key=lambda trial: trial["expressways"])
            rate = f"{number(best['tuples_per_second'])} tuples/s"
            how = f"{best['seconds']:,} s at speed {best['speed']:g}, warm-up {best['warm_up']:,} s"
            rows = sum(best["judged"]["rows"].values())
            found.append(
                f"{words} L = {best['expressways']:g} on {cores} cores: {rate}, {_answered(best)} of {len(OUTPUTS)} outputs,"
                f" all {rows:,} rows right, every limit kept ({how}{silent(best)})"
            )
        elif own:
            least = min(trial["expressways"] for trial in own)
            found.append(f"{words}: no trial holds; the smallest was L = {least:g}")
    return found


def _answered(trial: Trial) -> int:
    """Return the number of outputs with rows in the rated time."""
    return sum(1 for output in trial["outputs"].values() if output["rows"])


def _machine(machine: Mapping[str, Any]) -> str:
    cores = len(machine["cores_used"])
    return f"{machine['processor']}, {cores} cores, {machine['memory_gb']} GB; {machine['system']}; {machine['at']}"


# --- charts -----------------------------------------------------------------------------------------------------------


def _name(output: str) -> str:
    return output.replace("_", " ")


def _of(trial: Trial) -> str:
    return f"L = {trial['expressways']:g}"


def _peak(trials: Sequence[Trial]) -> list[Trial]:
    """Return the newest trial of each L, in order of L."""
    return [*{t["expressways"]: t for t in sorted(trials, key=lambda t: t["expressways"])}.values()]


def _against_L(trials: Sequence[Trial]) -> Panel:
    ordered = _peak(trials)
    xs = [trial["expressways"] for trial in ordered]
    series = [
        Series(
            f"{_name(output)}, worst",
            xs,
            [max(trial["outputs"][output]["worst"], 0.01) for trial in ordered],
        )
        for output in OUTPUTS
        if any(trial["outputs"][output]["rows"] for trial in ordered)
    ]
    limits = sorted(set(LIMITS.values()))
    return Panel("Worst response against L", "expressways", "seconds", series, limits=limits)


def _over_time(trial: Trial) -> Panel:
    series = []
    for output, course in trial["worst_by_second"].items():
        points = [(second, worst) for second, worst in enumerate(course) if worst]
        if points:
            series.append(Series(_name(output), *zip(*points, strict=True)))
    title = f"Worst response of every second, {_of(trial)}"
    return Panel(title, "second", "seconds", series, plain=True, limits=(min(LIMITS.values()),))


def _cpu(trials: Sequence[Trial]) -> Panel:
    ordered = _peak(trials)
    names = [_of(trial) for trial in ordered]
    stages = list(ordered[-1]["cpu"])
    series = [
        Series(stage, names, [trial["cpu"][stage] / max(trial["wall"], 0.001) for trial in ordered]) for stage in stages
    ]
    return Panel("Cores taken, by stage", "", "cores", series, stacked=True)


def _phases(trials: Sequence[Trial]) -> Panel:
    ordered = _peak(trials)
    names = [_of(trial) for trial in ordered]
    series = [
        Series(phase, names, [trial["phases"][phase] / max(trial["wall"], 0.001) for trial in ordered])
        for phase in ordered[-1]["phases"]
    ]
    return Panel("Share of the time that epochs spend in each phase", "", "share of the clock", series, stacked=True)


def _memory(trial: Trial) -> Panel:
    xs = [sample["at"] for sample in trial["samples"]]
    series = [Series(part, xs, [sample["memory"][part] / MB for sample in trial["samples"]]) for part in PARTS]
    return Panel(f"Memory over the run, {_of(trial)}", "seconds", "MB (PSS)", series, plain=True)


def _rated(trial: Trial) -> list[Mapping[str, Any]]:
    return [epoch for epoch in trial["epochs"] if epoch["at"] > 0]


def _state(trial: Trial) -> Panel:
    epochs = _rated(trial)
    xs = [epoch["at"] for epoch in epochs]
    series = [Series("all blocks", xs, [epoch["state_bytes"] / MB for epoch in epochs])]
    for operator, words in (("apply-1", "roads"), ("apply-2", "accounts")):
        series.append(Series(words, xs, [epoch["tables"].get(operator, 0) / MB for epoch in epochs]))
    return Panel(f"State over the run, {_of(trial)}", "seconds", "MB", series, plain=True)


def _per_car(trials: Sequence[Trial]) -> Panel:
    ordered = [trial for trial in _peak(trials) if trial["state"]]
    names = [_of(trial) for trial in ordered]
    series = [
        Series(words, names, [trial["state"]["tables_per_car"][words] for trial in ordered])
        for words in ("roads", "accounts")
    ]
    return Panel("State per car on the road", "", "bytes", series, stacked=True)


def _epochs(trial: Trial) -> Panel:
    epochs = _rated(trial)
    xs = [epoch["at"] for epoch in epochs]
    series = [Series("epoch", xs, [epoch["seconds"] for epoch in epochs])]
    return Panel(f"Seconds that epochs take, {_of(trial)}", "seconds", "seconds", series, plain=True)


def _rows(trial: Trial) -> Panel:
    epochs = _rated(trial)
    xs = [epoch["at"] for epoch in epochs]
    series = [
        Series("tuples in", xs, [epoch["tuples"] for epoch in epochs]),
        Series("answers out", xs, [sum(epoch["rows"].values()) for epoch in epochs]),
    ]
    return Panel(f"Tuples of epochs, {_of(trial)}", "seconds", "tuples", series, plain=True)


# --- words ------------------------------------------------------------------------------------------------------------


def _said_of_responses(trial: Trial) -> list[str]:
    words = [
        "A response time is the time from when a tuple's second was due, by the clock of the benchmark, until its epoch was"
        " committed and delivered. The answers of a second are emitted when the next one begins, so a response takes at"
        " least one second of traffic."
    ]
    if trial["speed"] != 1:
        words.append(
            f"The clock ran {trial['speed']:g} times as fast as the benchmark's;"
            " response times and limits are wall-clock seconds."
        )
    if len(trial["pieces"]) > 1:
        words.append(
            f"The input did not fit on the disk. It was generated in {len(trial['pieces'])} pieces;"
            " the clock stood still between them."
        )
    return words


def _bound(trial: Trial, cores: int) -> list[str]:
    """Return sentences about the bottleneck of a trial."""
    wall, cpu = max(trial["wall"], 0.001), trial["cpu"]
    total = sum(cpu.values())
    most = sorted(cpu, key=lambda name: -cpu[name])[:3]
    named = ", ".join(f"{name} {cpu[name] / total:.0%}" for name in most) if total else ""
    taken = total / wall
    feeder = cpu["feeder"] / wall
    phases = {name: seconds / wall for name, seconds in trial["phases"].items()}
    slowest = max(phases, key=lambda name: phases[name])
    busy = sum(phases.values())
    if taken > 0.85 * cores:
        bound = "the processors are the bottleneck"
    elif busy > 0.9:
        bound = (
            f"epochs run without a pause although cores are idle: the bottleneck is {slowest}, which is mostly waiting"
        )
    else:
        bound = "there is no bottleneck yet"
    return [
        f"At {_of(trial)} the rating takes {taken:.2f} of {cores} cores, most of it {named};"
        f" epochs run {min(busy, 1):.0%} of the time, longest in {slowest} ({phases[slowest]:.0%}). So {bound}.",
        f"The feeder takes {feeder:.4f} cores, {feeder / cores:.2%} of the machine"
        + (f", and was at most {trial['feeder']['latest'] * 1000:.0f} ms late." if trial["feeder"] else "."),
    ]


def _said_by_model(trials: Sequence[Trial], cores: int) -> list[str]:
    model = fitted(trials, cores)
    if model is None:
        return []
    would = ", ".join(f"{many} cores serve {model.bears(many):,.0f}" for many in (cores, cores + 2, 2 * cores + 4))
    return [
        f"By the epochs of all trials, an epoch takes {model.fixed:.2f} s, and for a million tuples"
        f" {model.shared * 1e6:.2f} s that the cores divide and {model.alone * 1e6:.2f} s that they do not."
        f" The slowest hundredth of epochs takes {model.unsteady:.2f} times that."
        f" By this model, if there is no other bottleneck, {would} expressways."
    ]


def _said_of_state(trial: Trial) -> list[str]:
    state = trial["state"]
    if not state:
        return []
    memory = sum(trial["memory"].values())
    return [
        f"At the end {state['cars']:,} cars were on the road, with {size(state['bytes'])} of state, {state['bytes_per_car']:.0f} bytes"
        f" for each; all processes together took at most {size(memory)}."
    ]


def _said_beside(beside: Sequence[Trial]) -> list[str]:
    found = []
    for system in dict.fromkeys(trial["system"] for trial in beside):
        own = [trial for trial in beside if trial["system"] == system]
        best = max((trial["expressways"] for trial in own if trial["held"]), default=None)
        answered = ", ".join(_name(output) for output in own[0]["outputs"])
        reached = "no trial holds" if best is None else f"L = {best:g} holds"
        found.append(f"{system}, which computes only {answered}: {reached}.")
    return found


def _said_of_others() -> list[str]:
    return [
        "Expressways per core, as published; cores of twenty years are not comparable. No implementation in the paper's table"
        " computes travel times, and the largest does not compute expenditures either."
    ]


def _others(trials: Sequence[Trial], cores: int) -> Grid:
    held = [trial for trial in trials if trial["held"]]
    rows = []
    best = max(held, key=lambda trial: trial["expressways"]) if held else None
    if best is not None:
        cpu = sum(best["cpu"].values()) / max(best["wall"], 0.001)
        remark = f"{_answered(best)} of five outputs, every row judged; {cpu:.2f} cores taken, {FULL * best['expressways']:,.0f} tuples/s at L"
        rows.append(
            [
                "headrace",
                "",
                f"{best['expressways']:g}",
                f"{cores}",
                _per_core(best["expressways"], cores),
                remark,
                "this page",
            ]
        )
    rows += [
        [
            k.name,
            f"{k.year or ''}",
            f"{k.expressways:g}",
            f"{k.cores}",
            _per_core(k.expressways, k.cores),
            k.remark,
            k.source,
        ]
        for k in PUBLISHED
    ]
    return Grid("", ["system", ">year", ">L", ">cores", ">L per core", "remark", "source"], rows)


def _per_core(expressways: float, cores: int) -> str:
    return f"{expressways / cores:.3g}"


# --- HTML -------------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return escape(printable(text))


def _section(title: str, panels: Iterable[Panel], words: Iterable[str]) -> list[str]:
    drawn = [
        f"<figure><figcaption>{_text(panel.title)}</figcaption>{svg(panel)}</figure>"
        for panel in panels
        if any(len(series.xs) for series in panel.series)
    ]
    said = [f"<p>{_text(line)}</p>" for line in words]
    return [f"<h2>{_text(title)}</h2>", *said, *(['<div class="charts">', *drawn, "</div>"] if drawn else [])]


def _table(grid: Grid, ours: str | None = None) -> str:
    """Return a table. ours: the first cell of the row to highlight."""
    kinds = [
        "n" if heading.startswith(">") else "w" if heading in ("remark", "source", "held", "") else ""
        for heading in grid.headings
    ]
    head = "".join(
        f'<th class="{kind}">{_text(heading.lstrip(">"))}</th>'
        for heading, kind in zip(grid.headings, kinds, strict=True)
    )
    rows = "".join(
        f"<tr{' class=ours' if row[0] == ours else ''}>"
        + "".join(f'<td class="{kind}">{_text(cell)}</td>' for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in grid.rows
    )
    caption = f"<h2>{_text(grid.title[:1].upper() + grid.title[1:])}</h2>" if grid.title else ""
    return f'{caption}<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
