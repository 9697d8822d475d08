"""The text form of a verdict: one line for each output, then examples of faults."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace_linearroad.validating.comparing import KINDS, Compared, Example, Row, Verdict


def show(verdict: Verdict, console: Console, profile: str = "official") -> None:
    console.print(Text(f"{profile} profile, {_input(verdict)}", "dim"), soft_wrap=True)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for name, output in verdict.outputs.items():
        sign = Text("✓", "green") if output.ok else Text("✗", "bold red")
        table.add_row(
            sign,
            name,
            f"{output.found:,} rows",
            _said(output, verdict.answer.unanswered[name], name in verdict.answer.without),
        )
    console.print(table)
    for name, output in verdict.outputs.items():
        if not output.ok:
            console.print()
            for line in _lines(name, output):
                console.print(line, soft_wrap=True)


def _input(verdict: Verdict) -> str:
    text, left = f"{verdict.answer.tuples:,} tuples", verdict.answer.left
    if left.total():
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in left.items() if n)
        text += f", {left.total():,} left out: {reasons}"
    return text


def _said(output: Compared, unanswered: int, without: bool) -> Text:
    if not output.ok:
        faults = ", ".join(f"{output.faults[kind]:,} {kind}" for kind in KINDS if output.faults[kind])
        return Text(f"{faults} ({output.expected:,} expected)", "red")
    words = ["no history"] if without else []
    return Text(", ".join([*words, f"{unanswered:,} unanswered"]) if unanswered else "", "dim")


def _lines(name: str, output: Compared) -> Iterator[Text]:
    for kind in KINDS:
        shown = [example for example in output.examples if example.kind == kind]
        if not shown:
            continue
        rest = output.faults[kind] - len(shown)
        yield Text(f"{name}, {kind}", "bold") + Text(f" and {rest:,} more" if rest else "", "dim")
        for example in shown:
            yield Text(f"  {_of(example)}")


def _of(example: Example) -> str:
    if example.found is None:
        return ", or ".join(_values(row) for row in example.expected)
    if example.kind != "wrong":
        return _values(example.found)
    found, right = example.found, example.expected
    if "ts" in found:  # `ts` is only present if it differs from `time`
        right = [row | {"ts": row["time"] * 1_000_000} for row in right]
    differ = {column for row in right for column in row if row[column] != found[column]}
    wanted = [_values({column: row[column] for column in row if column in differ}) for row in right]
    return f"{_values(found)}; expected {', or '.join(wanted)}"


def _values(row: Row) -> str:
    return " ".join(f"{column} {value}" for column, value in row.items())
