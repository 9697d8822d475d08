"""What `headrace split profile` prints and draws."""

from __future__ import annotations

import json as js
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.control import parasplit
from headrace.engine.profiling import Profile, doubling
from headrace.errors import HeadraceError
from headrace.screen import printable

UNITS = ("B", "KiB", "MiB", "GiB")


def show(found: Profile, console: Console) -> None:
    """For people; the width of a terminal is enough."""
    split, costs = found.split, found.costs
    console.print(Text(printable(f"{found.source}: {found.words}")), soft_wrap=True)
    shares = f"{split.r:.2%} to one substream, {split.b:.2%} to all of {split.q}, {split.o:.2%} to none"
    console.print(f"{found.tuples:,} tuples of {found.row_bytes} bytes; {shares}", style="dim", soft_wrap=True)
    if found.steps:
        _print(console, ("W", "tuples/s", "gain", "noise", ""), _windows(found))
    _print(console, ("cost", "ns/tuple", "of what"), _costs(costs), left=(0, 2))
    _print(console, ("p", "by", ""), _choices(found), left=(1, 2))
    if found.ran:
        _print(console, ("p", "splitters/s", "noise", "model", "off", "efficiency", "model", "off"), _ran(found))
    rows = [
        (f"{p}", _number(rates.PS), _number(rates.PQ), _number(found.rate(p)), f"{found.efficiency(p):.1%}")
        for p, rates in ((p, found.in_turn(p)) for p in doubling())
    ]
    _print(console, ("p", "splitters/s", "slots/s", "in turn/s", "efficiency"), rows)
    last = "tuples per second; the last table is the model's: p splitters, then p slots, on p processors of one kind"
    console.print(last, style="dim", soft_wrap=True)


def as_json(found: Profile) -> str:
    return js.dumps(found.to_json(), indent=2)


def _print(
    console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] | None = None
) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        words = place in left if left is not None else place == len(heads) - 1 and not head
        table.add_column(head, justify="left" if words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)


def _windows(found: Profile) -> Iterable[Sequence[str]]:
    for step in found.steps:
        gain, noise = ("" if share is None else f"{share:+.2%}" for share in (step.gain, step.noise))
        yield size(step.W), _number(step.rate), gain, noise.lstrip("+"), "chosen" if found.W == step.W else ""


def _costs(costs: parasplit.Costs) -> Iterable[Sequence[str]]:
    for name, words in (
        ("cr_W", "read: a splitter, its share of a window"),
        ("cs", "split: map and filter before it, broadcast and route"),
        ("ce", "emit: accept, put into groups, write"),
        ("cr", "read: a slot, put in sequence and hand over"),
        ("cp", "poll: a slot, for each splitter"),
        ("cm", "merge: a slot, for each splitter"),
    ):
        yield name, f"{getattr(costs, name) * 1e9:,.1f}", words


def _choices(found: Profile) -> Iterable[Sequence[str]]:
    one = f"one splitter takes {_number(found.phi_PS_1)} tuples/s, {found.noise:.1%} noise"
    yield f"{found.p_paper}", "equation 6 as printed", f"for {_number(found.wanted)} tuples/s; {one}"
    if found.p_hat != found.p_paper:
        yield f"{found.p_hat}", "equation 6, b as measured", "a tuple for all is sent once, not q times"
    model = f"{_number(found.rate(found.p_model))} tuples/s"
    reached = "" if found.rate(found.p_model) >= found.wanted else ", the most there is"
    yield f"{found.p_model}", "the model", f"as many slots, in turn with the splitters: {model}{reached}"


def _ran(found: Profile) -> Iterable[Sequence[str]]:
    for each in found.ran:
        rate, eta = each.rate_model / each.rate - 1, each.eta_model / each.eta - 1
        rates = (_number(each.rate), f"{each.noise:.1%}", _number(each.rate_model), f"{rate:+.1%}")
        yield f"{each.p}", *rates, f"{each.eta:.1%}", f"{each.eta_model:.1%}", f"{eta:+.1%}"


def _number(value: float) -> str:
    return "any" if value == float("inf") else f"{value:,.0f}"


def size(count: int) -> str:
    """Bytes, in the largest unit that leaves a whole number.

    >>> size(65536), size(3 << 20), size(1000)
    ('64 KiB', '3 MiB', '1000 B')
    """
    power = 0
    while power < len(UNITS) - 1 and count and count % 1024 == 0:
        count, power = count // 1024, power + 1
    return f"{count} {UNITS[power]}"


# --- a picture ---------------------------------------------------------------------------------------------------------


def demand_charts() -> None:
    """Before the work is done, not after it."""
    try:
        from headrace_bench.report import demand_matplotlib
    except ModuleNotFoundError as error:
        raise HeadraceError(f"charts need {error.name}, which is not there; pip install 'headrace[bench]'") from None
    demand_matplotlib()


def draw(found: Profile, path: Path) -> Path:
    """Rates over W, rates over p, and efficiency over p; returns what was written."""
    from headrace_bench import report

    ps = doubling()
    rates = [found.in_turn(p) for p in ps]
    lines = [
        report.Series("splitters", ps, [each.PS for each in rates]),
        report.Series("slots", ps, [each.PQ for each in rates]),
        report.Series("in turn", ps, [each.in_turn for each in rates]),
    ]
    shares = [report.Series("model", ps, [found.efficiency(p) for p in ps])]
    if found.ran:
        beside = [each.p for each in found.ran]
        lines.append(report.Series("splitters, measured", beside, [each.rate for each in found.ran]))
        shares.append(report.Series("measured", beside, [each.eta for each in found.ran]))
    panels = [report.Panel("rate", "p", "tuples/s", lines), report.Panel("efficiency", "p", "eta", shares)]
    if found.steps:
        windows = report.Series("one splitter", [s.W for s in found.steps], [s.rate for s in found.steps])
        panels.insert(0, report.Panel("physical windows", "W, bytes", "tuples/s", [windows]))
    title = printable(f"{found.source}: {found.words}").replace("$", r"\$")  # which begins a formula
    picture = report.Report(path.stem, title, (), (), {}, panels)
    written = report.draw(path.parent, picture, report.machine())
    assert written is not None
    return written
