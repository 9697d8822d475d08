"""Commands of `headrace linearroad`. Each function declares its options; other modules do the work."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.common import Json, SlotCount, Slots, Traceback, flag, mounted_path_option, path_option, report_errors
from headrace.showing import terminal
from headrace.showing.signals import STOPPED
from headrace_linearroad.profiles import Profile

app = typer.Typer(
    help="Linear Road: tolls, accidents, balances, expenditures, travel times of expressways.", no_args_is_help=True
)

History = StrEnum("History", ["needed", "complete", "none"])
Style = StrEnum("Style", ["official", "walmart"])
System = StrEnum("System", ["headrace", "spark"])


def _paths(paths: list[Path] | None) -> list[Path]:
    return [path for path in map(mounted_path_option, paths or []) if path is not None]


Input = Annotated[
    Path, path_option("PATH", "A text file, plain or gzip, or a folder with one file per second.", "--input")
]
Histories = Annotated[
    list[Path] | None,
    typer.Option(
        callback=_paths,
        metavar="PATH",
        help="CSV with 4 columns (tolls) or 8 (segments), plain or gzip, or a folder; repeat for each file.",
        show_default="history/ in the input",
    ),
]
Reading = Annotated[Profile, typer.Option(help="Which interpretation of the benchmark's rules to use.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the random traffic.")]


@app.callback()
def linearroad() -> None:
    """Parent of the commands below."""


@app.command()
def generate(
    out: Annotated[Path, path_option("DIR", "Folder for the files; new or empty.", show_default=False)],
    expressways: Annotated[
        float,
        typer.Option(metavar="L", help="Number of expressways; with a half, the last one has only eastbound lanes."),
    ] = 1,
    begin: Annotated[int, typer.Option(metavar="SECOND", help="First second, of the three hours: 0 to 10799.")] = 0,
    seconds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of seconds of traffic.", show_default="to the end of the three hours"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Number of minutes of traffic, instead of --seconds.", show_default=False),
    ] = None,
    full_density: Annotated[
        bool,
        flag(
            "--full-density",
            "Generate 1,700 tuples per second and expressway from the start, as at the end of the three hours.",
        ),
    ] = False,
    density: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Constant number of tuples per second and expressway.",
            show_default="rising from 10 to 1700, as in official data",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random traffic.")] = 1,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write one text file with this name, 15 columns, compressed if it ends in .gz, and histories as CSV.",
            show_default="one Arrow file per second",
        ),
    ] = None,
    shuffle: Annotated[bool, flag("--shuffle", "Write the tuples of each second in random order.")] = False,
    history: Annotated[
        History,
        typer.Option(
            help="History of the ten weeks before. needed: only the rows that questions ask for. complete: all rows, at least 400 MB per expressway."
        ),
    ] = History.needed,
    trips: Annotated[
        int, typer.Option(metavar="N", help="Number of different trips in travel time questions, per expressway.")
    ] = 128,
    style: Annotated[
        Style,
        typer.Option(
            help="walmart: a car's first report from a segment may be on the exit lane; questions repeat the report."
        ),
    ] = Style.official,
    plain: Annotated[
        bool, flag("--plain", "Omit the rare cases that are otherwise planted on expressways 0 and 1.")
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Generate the traffic of expressways (cars, jams, accidents, questions) and the histories that answer the
    questions.

    For example, the first half hour on four expressways at full density:

    headrace linearroad generate --out road --expressways 4 --minutes 30 --full-density

    The same options produce the same tuples. The traffic of an expressway does not depend on the number of expressways,
    except for cars that arrive from other expressways. A part of the three hours equals the same part of the whole, so
    cars are already driving when it begins. truth.json lists the accidents and the planted rare cases; _complete.json
    is written last.
    """
    with report_errors(traceback):
        from headrace_linearroad.generating import command
        from headrace_linearroad.generating.settings import Settings
        from headrace_linearroad.generating.writing import Job

        job = Job(begin, command.length(begin, seconds, minutes), text, history.value)
        dense = command.density(full_density, density)
        command.generate(Settings(expressways, seed, dense, style.value, shuffle, plain, trips), out, job)


@app.command()
def run(
    path: Input,
    out: Annotated[Path, path_option("DIR", "Folder for the answers: five folders of Parquet files.")],
    history: Histories = None,
    profile: Reading = Profile.official,
    slots: Slots = None,
    epoch: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Seconds of input per epoch.", show_default="as many as fit"),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        path_option(
            "DIR",
            "Folder for the state of this run; use the same folder again to resume the run.",
            show_default="<out>.checkpoint",
        ),
    ] = None,
    explain: Annotated[bool, flag("--explain", "Show the plan without running it.")] = False,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Compute tolls, accidents, balances, expenditures and travel times for the tuples of some expressways.

    For example, with the output of headrace linearroad generate --out road:

    headrace linearroad run --input road --out answers

    The run ends at the end of the input. If it is stopped or killed, start it again to resume it, with any number of
    slots: no answer is lost or delivered twice. A folder beside the checkpoint, <checkpoint>.spool, has the converted
    text and histories, and the input that was set aside, with the reasons. Seconds without tuples do not count towards
    --epoch.
    """
    from headrace_linearroad import showing_runs

    with report_errors(traceback), terminal.for_programs(json) as output:
        from headrace_linearroad.places import beside
        from headrace_linearroad.running import Given

        given = Given(path, tuple(history or ()), profile.value, out, checkpoint or beside(out, ".checkpoint"))
        showing_runs.show(given, slots, epoch, explain, output if json else None)


@app.command()
def validate(
    path: Input,
    out: Annotated[Path, path_option("DIR", "The --out of headrace linearroad run.")],
    history: Histories = None,
    profile: Reading = Profile.official,
    json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False,
    traceback: Traceback = False,
) -> None:
    """Check every row of a run: recompute all answers from the input, with independent code, and compare in both
    directions.

    Give the input, histories and profile of the run. Exits with 0 if every row is right, with 1 if a row is missing,
    extra, wrong or duplicated, and with 130 if it was stopped before it had a result.
    """
    import json as js

    from rich.console import Console

    from headrace_linearroad.validating import PROFILES, judge, showing

    with report_errors(traceback), terminal.for_programs(json) as output:
        waiting = terminal.on_stderr().status("reading")
        try:
            with waiting:
                verdict = judge(path, out, history or [], PROFILES[profile], tell=waiting.update)
        except KeyboardInterrupt:  # the exit code must differ from that of a successful check
            terminal.say_on_stderr("stopped before the rows were checked")
            raise typer.Exit(STOPPED) from None
        if json:
            print(js.dumps({"profile": profile} | verdict.to_json(), indent=2), file=output)
        else:
            showing.show(verdict, Console(highlight=False), profile)
        if not verdict.ok:
            raise typer.Exit(1)


@app.command()
def rate(
    out: Annotated[Path, path_option("DIR", "Folder for result.json and published; new or empty.", show_default=False)],
    expressways: Annotated[
        float | None,
        typer.Option(
            metavar="L",
            help="Number of expressways to rate.",
            show_default="search for the largest number within the limits",
        ),
    ] = None,
    whole: Annotated[
        bool, flag("--whole", "Rate all three hours, from empty roads, instead of the end at full density.")
    ] = False,
    seconds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of rated seconds.", show_default="600; with --whole, all"),
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Seconds of traffic before the rated ones, processed at full speed.",
            show_default="1200; with --whole, none",
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.01, metavar="X", help="Seconds of traffic to offer per second of wall-clock time.")
    ] = 1,
    density: Annotated[
        float, typer.Option(metavar="N", help="Tuples per second and expressway; ignored with --whole.")
    ] = 1700,
    first: Annotated[
        int, typer.Option(min=1, metavar="L", help="First number of expressways that the search tries.")
    ] = 64,
    resolution: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Precision of the search, as a share of L.")
    ] = 0.1,
    epoch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Largest number of seconds of input per epoch.",
            show_default="as many as fit",
        ),
    ] = None,
    profile: Reading = Profile.official,
    slots: Slots = None,
    seed: Seed = 1,
    keep: Annotated[bool, flag("--keep", "Keep the answers in DIR/answers.")] = False,
    system: Annotated[
        System,
        typer.Option(
            help="System to rate: headrace, or Spark's transformWithStateInPandas for comparison (official profile; tolls, accidents and balances only)."
        ),
    ] = System.headrace,
    traceback: Traceback = False,
) -> None:
    """Measure how many expressways this machine can serve with every answer within its limit and every row right.

    A separate process offers second t of the traffic at time t. The limits, in seconds from a tuple to its answer, are
    5 for tolls, accidents and balances, 10 for expenditures and 30 for travel times. Exits with 1 if a limit is
    exceeded or a row is wrong.

    For example, one minute of two expressways at four times normal speed:

    headrace linearroad rate --out rated --expressways 2 --warm-up 60 --seconds 60 --speed 4
    """
    from rich.console import Console

    from headrace.deployment import usable_cores

    with report_errors(traceback):
        _bench_is_there()
        from headrace_linearroad.rating.show import Options, show
        from headrace_linearroad.rating.trial import Plan, Trial

        tries: Any = Trial
        if system is System.spark:
            from headrace_linearroad.beside.trial import SparkTrial as tries
        plan = Plan(
            first if expressways is None else expressways,
            whole,
            (10_799 if whole else 600) if seconds is None else seconds,
            (0 if whole else 1200) if warm_up is None else warm_up,
            speed,
            density,
            seed,
            slots or usable_cores(),
            profile.value,
            epoch,
        )
        if not show(Options(plan, out, expressways is None, resolution, keep, tries), Console(highlight=False)):
            raise typer.Exit(1)


@app.command()
def judge(
    out: Annotated[
        Path, typer.Argument(callback=mounted_path_option, metavar="DIR", help="The --out folder of the rating.")
    ],
    traceback: Traceback = False,
) -> None:
    """Resume judging the rows of an interrupted rating. Groups of expressways that were already judged are
    skipped.

    Exits with 1 if a limit was exceeded or a row is wrong.
    """
    from rich.console import Console

    with report_errors(traceback):
        _bench_is_there()
        from headrace_linearroad.rating.show import judge as go_on

        if not go_on(out, Console(highlight=False)):
            raise typer.Exit(1)


@app.command()
def report(
    results: Annotated[
        list[Path],
        typer.Argument(callback=_paths, metavar="RESULT...", help="Files result.json that rate wrote."),
    ],
    out: Annotated[Path, path_option("FILE", "HTML file to write.")] = Path("report.html"),
    traceback: Traceback = False,
) -> None:
    """Write ratings as one HTML page: response times by L, use of processor time and memory, and published figures."""
    with report_errors(traceback):
        _bench_is_there()
        from headrace_linearroad.rating.report import write

        trials = write(results, out)
        print(f"{trials} trial{'' if trials == 1 else 's'} in {out}")


def _bench_is_there() -> None:
    """Raise if psutil, which only ratings need, is not installed."""
    from headrace.errors import HeadraceError

    try:
        import psutil  # noqa: F401
    except ModuleNotFoundError:
        raise HeadraceError("ratings need psutil, which is not installed; run pip install 'headrace[bench]'") from None


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=1, metavar="N", help="How long to offer traffic, in seconds of wall-clock time.")
    ] = 90,
    speed: Annotated[
        float, typer.Option(min=0.1, metavar="N", help="Seconds of traffic to offer per second of wall-clock time.")
    ] = 10,
    density: Annotated[float, typer.Option(metavar="N", help="Tuples per expressway and second of traffic.")] = 800,
    seed: Seed = 3,
    slots: SlotCount = 2,
    keep: Annotated[
        Path | None,
        path_option("DIR", "Keep traffic, answers and state in this folder; new or empty.", show_default=False),
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Show two expressways live: an accident happens and is detected, tolls rise, and every row is judged at the end.

    The demo takes about two minutes and needs no other system.
    """
    from rich.console import Console

    from headrace.cli.follow import spark_session

    with report_errors(traceback):
        from headrace_linearroad.demo.show import Options, show

        options = Options(seconds, speed, density, seed, slots, keep)
        with spark_session(slots) as spark:
            good = show(spark, options, Console(highlight=False))
        if not good:
            raise typer.Exit(1)
