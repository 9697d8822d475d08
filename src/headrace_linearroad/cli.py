"""`headrace linearroad`: the commands. Each says what it takes; the work is in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common import Slots, Traceback, a_path, reporting
from headrace.showing import streams
from headrace_linearroad.profiles import Profile

app = typer.Typer(
    help="Linear Road: tolls, accidents, balances, expenditures, travel times of expressways.", no_args_is_help=True
)


@app.callback()
def linearroad() -> None:
    """Commands come below, one by one."""


@app.command()
def generate(
    out: Annotated[
        Path, typer.Option(callback=a_path, metavar="DIR", help="Folder for the files: a new or an empty one.")
    ],
    expressways: Annotated[int, typer.Option(metavar="L", help="How many expressways.")] = 1,
    begin: Annotated[int, typer.Option(metavar="SECOND", help="Where in the three hours to begin.")] = 0,
    seconds: Annotated[int, typer.Option(metavar="N", help="How much of them.")] = 600,
    full_density: Annotated[bool, typer.Option("--full-density", metavar="")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed, other traffic.")] = 1,
    shuffle: Annotated[bool, typer.Option("--shuffle", metavar="")] = False,
    traceback: Traceback = False,
) -> None:
    """Make up the traffic of expressways."""
    with reporting(traceback):
        from headrace_linearroad.generating import Settings
        from headrace_linearroad.generating.writing import write

        settings = Settings(expressways, seed, 1700 if full_density else None, shuffle=shuffle)
        written = write(settings, out, begin, seconds)
        print(f"{written.tuples:,} tuples in {out}")


@app.command()
def run(
    path: Annotated[
        Path,
        typer.Option(
            "--input", callback=a_path, metavar="PATH", help="Text, plain or gzip, or a folder of files of one second."
        ),
    ],
    out: Annotated[
        Path, typer.Option(callback=a_path, metavar="DIR", help="Folder for five folders of answers, as Parquet.")
    ],
    history: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="CSV of 4 columns (tolls) or 8 (segments), plain or gzip, or a folder; as often as there are files.",
            show_default="history/ in the input",
        ),
    ] = None,
    profile: Annotated[Profile, typer.Option(help="Whose reading of the benchmark.")] = Profile.official,
    slots: Slots = None,
    epoch: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Seconds of input per epoch.", show_default="as many as fit"),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            callback=a_path,
            metavar="DIR",
            help="Folder that belongs to this run; start again with the same one to continue.",
            show_default="<out>.checkpoint",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", metavar="", help="Show the plan; run nothing.")] = False,
    json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Progress as one JSON object per epoch instead of the live table."),
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Answer the tuples of some expressways: tolls, accidents, balances, expenditures, travel times.

    Runs to the end of the input. Killed and started again it goes on, with any number of slots: nothing is lost, nothing is told twice. A second without tuples counts for nothing in --epoch.
    """
    from headrace_linearroad import showing_runs

    with reporting(traceback), streams.for_programs(json) as output:
        from headrace_linearroad.running import Given

        given = Given(
            path, tuple(history or ()), profile.value, out, checkpoint or out.with_name(f"{out.name}.checkpoint")
        )
        showing_runs.show(given, slots, epoch, explain, output if json else None)


@app.command()
def validate(
    path: Annotated[
        Path,
        typer.Option(
            "--input", callback=a_path, metavar="PATH", help="Text, plain or gzip, or a folder of files of one second."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", callback=a_path, metavar="DIR", help="What headrace linearroad run wrote.")
    ],
    history: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="CSV of 4 columns (tolls) or 8 (segments), plain or gzip, or a folder; as often as there are files.",
            show_default="history/ in the input",
        ),
    ] = None,
    profile: Annotated[Profile, typer.Option(help="Whose reading of the benchmark.")] = Profile.official,
    json: Annotated[bool, typer.Option("--json", metavar="", help="As JSON.")] = False,
    traceback: Traceback = False,
) -> None:
    """Judge every row of a run: computed anew from the input, in another way, and compared in both directions.

    Exits with 1 if a row is missing, extra, wrong or doubled.
    """
    import json as js

    from rich.console import Console

    from headrace_linearroad.validating import PROFILES, judge, showing

    with reporting(traceback), streams.for_programs(json) as output:
        waiting = streams.on_stderr().status("reading")
        with waiting:
            verdict = judge(path, out, history or [], PROFILES[profile], tell=waiting.update)
        if json:
            print(js.dumps(verdict.to_json(), indent=2), file=output)
        else:
            showing.show(verdict, Console(highlight=False))
        if not verdict.ok:
            raise typer.Exit(1)
