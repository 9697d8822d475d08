"""The output of `headrace split profile`: the cost terms, and the options that they recommend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.control import parasplit_model
from headrace.control.splitter_count import EACH
from headrace.support.terminal_text import printable
from headrace.tools.split_profile import SIZE_TOLERANCE, SplitProfile, cheapest_size

TERMS = {
    "cr_W": "a splitter reads: the tuple's share of a physical window",
    "cs": "a splitter applies map, filter, broadcast and route",
    "ce": "a splitter accepts the tuple, puts it into its group and writes it",
    "cr": "a slot reads the tuple, sorts it and hands it over",
    "cm": "a slot opens and merges, for each splitter",
}


def print_profile(found: SplitProfile, file: str, console: Console) -> None:
    """Print a profile of the query in a file."""
    split = found.split
    console.print(Text(printable(f"{found.source}: {found.summary}")), soft_wrap=True)
    shares = f"{split.r:.2%} to one substream, {split.b:.2%} to all of {split.q}, {split.o:.2%} to none"
    sample = f"{found.tuples:,} tuples of {found.row_bytes:,.0f} bytes in files; {shares}"
    console.print(sample, style="dim", soft_wrap=True)
    costs = [(name, f"{getattr(found.costs, name) * 1e9:,.1f}", words) for name, words in TERMS.items()]
    _print(console, ("cost", "ns/tuple", "work"), costs)
    smallest = f"the smallest within {SIZE_TOLERANCE:.0%} of the cheapest"
    sizes = [
        (f"{W >> 20} MiB", f"{cost * 1e9:,.1f}", smallest * (cheapest_size(found.sizes) == W))
        for W, cost in found.sizes.items()
    ]
    _print(console, ("W", "ns/tuple", "of all work of a splitter"), sizes)
    console.print()
    console.print(Text("\n".join([_reached(found), _windows(found), *_options(found, file)])), soft_wrap=True)


def _reached(found: SplitProfile) -> str:
    p, rate = found.p, found.rate(found.p)
    shown = "any rate" if rate == float("inf") else f"{rate:,.0f} tuples/s"
    model = f"p = {p} reaches {shown} by the model, with as many slots on as many cores"
    efficiency = f"efficiency {parasplit_model.efficiency(found.costs, found.split, p):.0%}"
    none = "" if rate >= found.wanted else "; no p reaches more"
    return f"for {found.wanted:,.0f} tuples/s: {model}, {efficiency}{none}"


def _windows(found: SplitProfile) -> str:
    fewer = f", so that a splitter gets {EACH} windows of an epoch of one second" * (
        cheapest_size(found.sizes) != found.W
    )
    return f"W = {found.W >> 20} MiB{fewer}"


def _options(found: SplitProfile, file: str) -> list[str]:
    """Return the recommended options, for the command line and for Python."""
    p, W = found.p, found.W >> 20
    command = f"headrace run {printable(file)} --splitters {p} --physical-window {W}MiB"
    return [f"  {command}", f'  start(..., splitters={p}, physical_window="{W} MiB")']


def _print(console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head, justify in zip(heads, ("left", "right", "left"), strict=True):
        table.add_column(head, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)
