"""`headrace linearroad`: the commands. Each says what it takes; the work is in a module of its own."""

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


Input = Annotated[Path, path_option("PATH", "Text, plain or gzip, or a folder of files of one second.", "--input")]
Histories = Annotated[
    list[Path] | None,
    typer.Option(
        callback=_paths,
        metavar="PATH",
        help="CSV of 4 columns (tolls) or 8 (segments), plain or gzip, or a folder; as often as there are files.",
        show_default="history/ in the input",
    ),
]
Reading = Annotated[Profile, typer.Option(help="Whose reading of the benchmark.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Another seed, other traffic.")]


@app.callback()
def linearroad() -> None:
    """Commands come below, one by one."""


@app.command()
def generate(
    out: Annotated[Path, path_option("DIR", "Folder for the files: a new or an empty one.", show_default=False)],
    expressways: Annotated[
        float, typer.Option(metavar="L", help="How many; with a half, the last one has eastbound lanes only.")
    ] = 1,
    begin: Annotated[int, typer.Option(metavar="SECOND", help="Where in the three hours to begin, 0 to 10799.")] = 0,
    seconds: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many of their seconds.", show_default="to the end of the three hours"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="How many of their minutes, instead of --seconds.", show_default=False),
    ] = None,
    full_density: Annotated[
        bool,
        flag(
            "--full-density",
            "1,700 tuples per second and expressway from the beginning on, as at the end of the three hours.",
        ),
    ] = False,
    density: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Tuples per second and expressway, all the time.",
            show_default="rising from 10 to 1700, as in official data",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed, other traffic.")] = 1,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="One text of 15 columns of this name, compressed if it ends in .gz; histories as CSV.",
            show_default="a file of columns for every second",
        ),
    ] = None,
    shuffle: Annotated[bool, flag("--shuffle", "The tuples of a second in random order.")] = False,
    history: Annotated[
        History,
        typer.Option(
            help="Of the ten weeks before. needed: what the questions ask for. complete: all of it, 400 MB and more per expressway."
        ),
    ] = History.needed,
    trips: Annotated[
        int, typer.Option(metavar="N", help="Different trips that are asked about, per expressway.")
    ] = 128,
    style: Annotated[
        Style,
        typer.Option(help="walmart: an exit may be a car's first report from a segment; questions repeat its report."),
    ] = Style.official,
    plain: Annotated[bool, flag("--plain", "Without the rare cases that are planted on expressways 0 and 1.")] = False,
    traceback: Traceback = False,
) -> None:
    """Make up the traffic of expressways: cars, jams, accidents, questions, and the histories that answer them.

    The first half hour at full density on four expressways:

    headrace linearroad generate --out road --expressways 4 --minutes 30 --full-density

    The same options give the same tuples. An expressway has the same traffic whatever the others are (but for cars that come
    from them), and a part of the three hours is what it is in the whole: cars are under way when it begins. truth.json says
    which accidents are in it and which rare cases were planted where; _complete.json is written last.
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
    out: Annotated[Path, path_option("DIR", "Folder for five folders of answers, as Parquet.")],
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
            "Folder that belongs to this run; start again with the same one to continue.",
            show_default="<out>.checkpoint",
        ),
    ] = None,
    explain: Annotated[bool, flag("--explain", "Show the plan; run nothing.")] = False,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Answer the tuples of some expressways: tolls, accidents, balances, expenditures, travel times.

    What headrace linearroad generate --out road wrote:

    headrace linearroad run --input road --out answers

    Runs to the end of the input. Stopped or killed, it goes on when started again, with any number of slots: nothing is lost, nothing is told twice. Beside the checkpoint is a folder of the same name and .spool: text and histories as they are read, and whatever of the input is kept apart, with the reasons. A second without tuples counts for nothing in --epoch.
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
    out: Annotated[Path, path_option("DIR", "What headrace linearroad run wrote.")],
    history: Histories = None,
    profile: Reading = Profile.official,
    json: Annotated[bool, flag("--json", "As JSON.")] = False,
    traceback: Traceback = False,
) -> None:
    """Judge every row of a run: computed anew from the input, in another way, and compared in both directions.

    Give the input, histories and profile of the run. Exits with 0 if every row is right, with 1 if one is missing, extra, wrong or doubled, and with 130 if it was stopped before that was known.
    """
    import json as js

    from rich.console import Console

    from headrace_linearroad.validating import PROFILES, judge, showing

    with report_errors(traceback), terminal.for_programs(json) as output:
        waiting = terminal.on_stderr().status("reading")
        try:
            with waiting:
                verdict = judge(path, out, history or [], PROFILES[profile], tell=waiting.update)
        except KeyboardInterrupt:  # whoever goes on if all is right must not
            terminal.say_on_stderr("stopped; nothing is known of the rows")
            raise typer.Exit(STOPPED) from None
        if json:
            print(js.dumps({"profile": profile} | verdict.to_json(), indent=2), file=output)
        else:
            showing.show(verdict, Console(highlight=False), profile)
        if not verdict.ok:
            raise typer.Exit(1)


@app.command()
def rate(
    out: Annotated[
        Path, path_option("DIR", "Folder for result.json and published: a new or an empty one.", show_default=False)
    ],
    expressways: Annotated[
        float | None,
        typer.Option(metavar="L", help="How many are tried.", show_default="the largest number that holds is searched"),
    ] = None,
    whole: Annotated[
        bool, flag("--whole", "The three hours from empty roads on, instead of their end at full density.")
    ] = False,
    seconds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many are rated.", show_default="600; with --whole, all")
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Seconds before them that are answered as fast as it goes.",
            show_default="1200; with --whole, none",
        ),
    ] = None,
    speed: Annotated[float, typer.Option(min=0.01, metavar="X", help="Seconds of traffic per second.")] = 1,
    density: Annotated[
        float, typer.Option(metavar="N", help="Tuples per second and expressway; not with --whole.")
    ] = 1700,
    first: Annotated[int, typer.Option(min=1, metavar="L", help="Where the search begins.")] = 64,
    resolution: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="How exact the search is, as a share of L.")
    ] = 0.1,
    epoch: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="SECONDS", help="Seconds of input per epoch, at most.", show_default="as many as fit"
        ),
    ] = None,
    profile: Reading = Profile.official,
    slots: Slots = None,
    seed: Seed = 1,
    keep: Annotated[bool, flag("--keep", "Keep the answers in DIR/answers.")] = False,
    system: Annotated[
        System,
        typer.Option(
            help="What answers: headrace, or a competitor, Spark's transformWithStateInPandas (official profile; three outputs: tolls, accidents, balances)."
        ),
    ] = System.headrace,
    traceback: Traceback = False,
) -> None:
    """How many expressways this machine bears: every answer within its limit, every row right.

    Second t of the traffic is offered at time t by a process of its own. Limits, in seconds from a tuple to its answer: tolls, accidents
    and balances 5, expenditures 10, travel times 30. Exits with 1 if they are not kept, or a row is not right.

    A minute of two expressways, at four times their speed:

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
    out: Annotated[Path, typer.Argument(callback=mounted_path_option, metavar="DIR", help="The --out of the rating.")],
    traceback: Traceback = False,
) -> None:
    """Go on with a rating that was interrupted while its rows were judged: groups of expressways that were, are not again.

    Exits with 1 if limits were not kept, or a row is not right.
    """
    from rich.console import Console

    with report_errors(traceback):
        _bench_is_there()
        from headrace_linearroad.rating.show import judge as go_on

        if not go_on(out, Console(highlight=False)):
            raise typer.Exit(1)


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(callback=_paths, metavar="RESULT...", help="What rate wrote.")],
    out: Annotated[Path, path_option("FILE", "The page.")] = Path("report.html"),
    traceback: Traceback = False,
) -> None:
    """Ratings as one page: response times against L, where processor and memory go, published figures beside them."""
    with report_errors(traceback):
        _bench_is_there()
        from headrace_linearroad.rating.report import write

        trials = write(results, out)
        print(f"{trials} trial{'' if trials == 1 else 's'} in {out}")


def _bench_is_there() -> None:
    """What ratings need beside what every run does."""
    from headrace.errors import HeadraceError

    try:
        import psutil  # noqa: F401
    except ModuleNotFoundError:
        raise HeadraceError("ratings need psutil, which is not there; pip install 'headrace[bench]'") from None


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="How long traffic is offered.")] = 90,
    speed: Annotated[float, typer.Option(min=0.1, metavar="N", help="Seconds of traffic per second.")] = 10,
    density: Annotated[float, typer.Option(metavar="N", help="Tuples per second of traffic and expressway.")] = 800,
    seed: Seed = 3,
    slots: SlotCount = 2,
    keep: Annotated[
        Path | None,
        path_option(
            "DIR", "Keep traffic, answers and state in this folder: a new or an empty one.", show_default=False
        ),
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Two expressways, live: an accident happens, is seen, and tolls rise; every row is judged at the end.

    Takes about two minutes, and needs nothing but this machine.
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
