"""The command line: `headrace run`, `deploy`, `migrate`, `explain`, `calibrate`, `decisions`, `demo`, `generate`, `split`, `bench`."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from headrace.cli.common import (
    Json,
    SlotCount,
    Slots,
    Traceback,
    flag,
    mounted_path_option,
    parse_size,
    path_option,
    refuse_together,
    refuse_without,
    report_errors,
)
from headrace.cli.follow import follow_run as _follow
from headrace.cli.follow import spark_session as _spark
from headrace.deployment import usable_cores
from headrace.errors import HeadraceError, QueryError
from headrace.showing import terminal
from headrace.support.limits import MOST_SPLITTERS
from headrace.support.terminal_text import printable
from headrace.support.version import __version__

if TYPE_CHECKING:
    from headrace.deployment import DeploymentDescriptor
    from headrace.query.nodes import Node
    from headrace.run.run import Run

app = typer.Typer(
    name="headrace",
    help="Continuous queries over data streams, in parallel on Apache Spark, with exactly the sequential answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


split = typer.Typer(help="How a stream is split, and what that costs.", no_args_is_help=True)
app.add_typer(split, name="split")
try:
    from headrace_linearroad.cli import app as linearroad

    app.add_typer(linearroad, name="linearroad")
except ModuleNotFoundError:  # an application beside headrace, which is not shipped to machines of a cluster
    pass


class Order(StrEnum):
    """How a run treats tuples that arrive out of order."""

    transparent = "transparent"
    best_effort = "best-effort"


Errors = StrEnum("Errors", ["stop", "keep"])
Strategy = StrEnum("Strategy", ["subquery", "operator", "query"])
Format = StrEnum("Format", ["text", "json", "svg"])
KeyKind = StrEnum("KeyKind", ["bmodel", "uniform"])
ArrivalKind = StrEnum("ArrivalKind", ["poisson", "uniform", "fixed"])
MessageFormat = StrEnum("MessageFormat", ["json", "arrow"])
Benchmark = StrEnum(
    "Benchmark",
    [
        "join",
        "theta",
        "aggregate",
        "latency",
        "growth",
        "strategies",
        "tables",
        "processors",
        "split",
        "state",
        "adaptive",
        "connect",
        "all",
    ],
)


QueryFile = Annotated[
    Path,
    typer.Argument(
        callback=mounted_path_option,
        help="Python file that defines query(spark), which returns a Stream or a list of (Stream, sink).",
        metavar="FILE",
    ),
]
Splitters = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_SPLITTERS,
        metavar="N",
        help="Tasks that read files and topics; headrace split profile recommends a number.",
        show_default="one per slot, then as the load needs",
    ),
]
PhysicalWindow = Annotated[
    str | None,
    typer.Option(
        callback=parse_size,
        metavar="SIZE",
        help="Bytes that such a task reads at once, such as 16MiB.",
        show_default="16MiB, then as the load needs",
    ),
]
Out = Annotated[Path | None, path_option("DIR", "Folder for the results, as Parquet.", show_default="the terminal")]
Ordering = Annotated[
    Order,
    typer.Option(
        help="transparent: exactly the sequential answer. best-effort: does not wait; joins may miss results, count windows give others."
    ),
]
Late = Annotated[
    Path | None,
    path_option(
        "DIR", "Folder for late, rejected and failed tuples, as Parquet.", show_default="they are only counted"
    ),
]
Failing = Annotated[
    Errors,
    typer.Option(
        help="stop: a tuple on which an expression fails ends the run. keep: in map, filter and case it is counted, and goes to --late."
    ),
]
Seconds = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Stop after so many seconds.", show_default="go on")
]
UntilIdle = Annotated[bool, flag("--until-idle", "Stop when nothing waits and nothing has come for 2 seconds.")]
Once = Annotated[bool, flag("--once", "Take what is there now, close all windows and the checkpoint, and end.")]


ENDS_BY_ITSELF = "--once ends when everything that is there now is processed, and --until-idle waits for more"


def _version(asked: bool) -> None:
    if asked:
        with report_errors(False):
            print(f"headrace {__version__}", flush=True)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    terminal.make_ready()


@app.command()
def run(
    context: typer.Context,
    file: QueryFile,
    checkpoint: Annotated[
        Path | None,
        path_option(
            "DIR",
            "Folder that belongs to this run; start again with the same one to continue.",
            show_default="<FILE without .py>.checkpoint",
        ),
    ] = None,
    slots: Slots = None,
    splitters: Splitters = None,
    physical_window: PhysicalWindow = None,
    epoch: Annotated[str, typer.Option(metavar="TIME", help="Shortest time between two epochs.")] = "1 second",
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master.", show_default="this machine")
    ] = None,
    out: Out = None,
    order: Ordering = Order.transparent,
    late: Late = None,
    errors: Failing = Errors.stop,
    seconds: Seconds = None,
    plan: Annotated[
        Path | None,
        path_option("FILE", "A plan, as headrace explain --format json prints it, perhaps edited.", show_default=False),
    ] = None,
    policy: Annotated[
        Path | None, path_option("FILE", "How the run adapts, as TOML.", show_default="as it sees fit")
    ] = None,
    auto_slots: Annotated[
        bool, flag("--auto-slots", "As many slots as the load needs, at most --slots; without it four per core.")
    ] = False,
    until_idle: UntilIdle = False,
    once: Once = False,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Run the query of a Python file continuously.

    It goes on until Ctrl-C (or --seconds, --until-idle, --once). Started again with the same checkpoint, it continues: nothing is lost, nothing is counted twice.
    """
    from headrace.cli.query_file import load_query_file, read_plan

    with report_errors(traceback), terminal.for_programs(json) as output:
        refuse_together(context, "--once", "--until-idle", ENDS_BY_ITSELF)
        refuse_together(context, "--plan", "--auto-slots", "a plan says how many slots there are")
        refuse_together(context, "--plan", "--policy", "a run that follows a plan does not adapt")
        module = load_query_file(file)
        chosen = read_plan(plan) if plan else None
        slots = slots or (chosen.slots if chosen else None)
        options = {
            "checkpoint": checkpoint or file.parent / f"{file.stem}.checkpoint",
            "epoch": epoch,
            "slots": "auto" if auto_slots else slots if slots or master else usable_cores(),
            "most_slots": slots if auto_slots else None,
            "splitters": splitters,
            "physical_window": physical_window,
            "policy": policy,
            "plan": chosen,
            "once": once,
            **_treatment(order, late, errors),
        }
        with _spark(slots or usable_cores(), master, quiet=json) as spark:
            _go(module, file, spark, out, options, _limits(seconds, until_idle), output if json else None)


@app.command()
def deploy(
    context: typer.Context,
    file: QueryFile,
    to: Annotated[Path, path_option("FILE", "Deployment descriptor, such as cluster.toml.", show_default=False)],
    out: Out = None,
    order: Ordering = Order.transparent,
    late: Late = None,
    errors: Failing = Errors.stop,
    seconds: Seconds = None,
    until_idle: UntilIdle = False,
    once: Once = False,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Run the query of a Python file continuously on a cluster.

    The descriptor says which cluster, how much of it, and where the state lies; docs/DEPLOYING.md explains it and examples/cluster.toml is one. The driver is this process: it goes on until Ctrl-C (or --seconds, --until-idle, --once). Started again, also with a larger or smaller cluster, it continues: nothing is lost, nothing is counted twice.
    """
    from headrace import deployment
    from headrace.cli.query_file import load_query_file, read_plan
    from headrace.spark.executors import executor_count
    from headrace.support.durations import MICROSECONDS, parse_duration

    with (
        report_errors(traceback),
        terminal.for_programs(json) as output,
        tempfile.TemporaryDirectory(prefix="headrace-ship-") as folder,
    ):
        refuse_together(context, "--once", "--until-idle", ENDS_BY_ITSELF)
        place = deployment.read_descriptor(to)
        chosen = read_plan(place.plan) if place.plan else None
        slots = place.slots or (chosen.slots if chosen else place.executors * place.cores)
        sys.path[:0] = [str(package if package.suffix == ".zip" else package.parent) for package in place.packages]
        module = load_query_file(file)
        say = terminal.say_on_stderr if json else partial(terminal.say, Console(highlight=False))
        say(_summary(file, place, slots))
        options = {
            "checkpoint": place.state,
            "epoch": place.epoch,
            "slots": slots,
            "splitters": place.splitters,
            "physical_window": place.physical_window,
            "plan": chosen,
            "once": once,
            **_treatment(order, late, errors),
        }
        config = {"spark.app.name": f"headrace {file.stem}", **place.settings()}
        patience = parse_duration(place.patience, "patience") / MICROSECONDS["second"]
        with _spark(slots, place.master, config, patience, quiet=json) as spark:
            come = executor_count(spark.sparkContext)
            if not place.is_local and come < place.executors:
                say(f"{come} of {place.executors} executors have come; the others join when they can")
            for path in place.pack(Path(folder)):
                spark.sparkContext.addPyFile(str(path))
            _go(module, file, spark, out, options, _limits(seconds, until_idle), output if json else None)


def _summary(file: Path, place: DeploymentDescriptor, slots: int) -> str:
    plan = f", plan {place.plan.name}" if place.plan else ""
    lines = [
        f"deploying {file.name} to {place.master}: {place.size}",
        f"  {slots} slot{'' if slots == 1 else 's'}{plan}, epochs of {place.epoch} or more",
        f"  state in {place.state}",
        f"  shipped: {', '.join(place.shipped()) or 'nothing'}",
    ]
    return "\n".join(lines)


@app.command()
def explain(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            callback=mounted_path_option,
            help="Python file that defines query(spark).",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    slots: Slots = None,
    strategy: Annotated[
        Strategy, typer.Option(help="subquery: what headrace runs. operator, query: the papers' alternatives.")
    ] = Strategy.subquery,
    figures: Annotated[
        Path | None, path_option("FILE", "What headrace calibrate measured.", show_default="rates are assumed")
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Microseconds per tuple of a subquery, instead of the measured cost."),
    ] = None,
    checkpoint: Annotated[
        Path | None, path_option("DIR", "A run, live or ended: its plan, with measured figures.", show_default=False)
    ] = None,
    format: Annotated[Format, typer.Option(help="To read, to save and run (--plan), or to look at.")] = Format.text,
    traceback: Traceback = False,
) -> None:
    """Show how a query is cut into subqueries, how tuples find their slots, and what the alternatives would have cost.

    Of the query of a Python file, of which nothing is run; or, with --checkpoint, of a run.
    """
    from headrace.cli import explain_output

    with report_errors(traceback):
        if (file is None) == (checkpoint is None):
            raise QueryError("explain takes a query file or --checkpoint DIR, one of them")
        for option in ("--slots", "--strategy", "--figures", "--cost"):
            refuse_together(context, "--checkpoint", option, "a run has the plan that it was started with")
        if checkpoint is not None:
            print(explain_output.explain_run(checkpoint, format.value))
            return
        assert file is not None
        known = explain_output.read_figures(figures) if figures else None
        costs = explain_output.read_costs(cost or [])
        with terminal.for_programs(format is not Format.text), _query_of(file) as (roots, ordered, _):
            pass
        print(
            explain_output.explain_query(
                roots, ordered, strategy.value, slots or usable_cores(), known, costs, format.value
            )
        )


@app.command()
def decisions(
    checkpoint: Annotated[Path, path_option("DIR", "A run, live or ended.", show_default=False)],
    json: Annotated[bool, flag("--json", "As JSON, one decision a line.")] = False,
    traceback: Traceback = False,
) -> None:
    """Show what a run changed while it ran: when, what, why, what was expected of it, and what came of it."""
    from headrace.cli import decision_history

    with report_errors(traceback):
        decision_history.print_decisions(checkpoint, Console(highlight=False), json=json)


@app.command()
def migrate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            callback=mounted_path_option,
            help="Checkpoint of a run that was stopped; it is left as it is.",
            metavar="CHECKPOINT",
        ),
    ],
    file: QueryFile,
    to: Annotated[Path, path_option("NEW", "Checkpoint folder to make; not there yet.", show_default=False)],
    order: Ordering = Order.transparent,
    traceback: Traceback = False,
) -> None:
    """Carry the state of a run over to a changed query.

    Every operator whose meaning did not change goes on with its state in the new checkpoint; what was changed or added begins empty, and the report says from when on its results are complete. Start the new query with --checkpoint NEW. Killed at any time, this leaves the old checkpoint whole and no new one.
    """
    from headrace.evolve.migrate import migrate as carry_over

    with report_errors(traceback):
        with _query_of(file) as (roots, ordered, _):
            done = carry_over(checkpoint, to, roots, ordered, order.value)
        print(f"{to} goes on after epoch {done.epoch} of {checkpoint}")
        for line in done.lines:
            print(f"  {printable(line)}")


@app.command()
def calibrate(
    file: QueryFile,
    out: Annotated[
        Path | None, path_option("FILE", "Save the figures, for explain --figures.", show_default=False)
    ] = None,
    tuples: Annotated[int, typer.Option(min=1, metavar="N", help="Size of the sample, from each source.")] = 50_000,
    slots: Slots = None,
    strategy: Annotated[Strategy, typer.Option(help="Whose plan to show.")] = Strategy.subquery,
    traceback: Traceback = False,
) -> None:
    """Measure what a query costs on a sample of its real input: microseconds per tuple, and what it lets pass."""
    import json

    from headrace.cli import explain_output
    from headrace.tools.calibrate import calibrate as measure

    with report_errors(traceback):
        if out:
            _can_be_written(out)
        with _query_of(file) as (roots, ordered, _):
            figures = measure(
                roots,
                ordered,
                slots=slots or usable_cores(),
                tuples=tuples,
                tell=lambda text: terminal.say_on_stderr(f"  {text}", "dim"),
            )
        print(
            explain_output.explain_query(roots, ordered, strategy.value, slots or usable_cores(), figures, {}, "text")
        )
        if out:
            _save(out, json.dumps(figures.to_json(), indent=2) + "\n")
            terminal.say_on_stderr(f"saved in {out}; for headrace explain {file} --figures {out}")


@split.command()
def profile(
    file: Annotated[
        Path,
        typer.Argument(
            callback=mounted_path_option,
            help="Python file that defines query(spark), with a split of headrace.files in it.",
            metavar="FILE",
        ),
    ],
    rate: Annotated[
        float, typer.Option(min=1, metavar="N", help="Tuples per second to recommend for.", show_default=False)
    ],
    tuples: Annotated[int, typer.Option(min=1, metavar="N", help="Size of the sample.")] = 1_000_000,
    traceback: Traceback = False,
) -> None:
    """Measure what the split of a query costs on this machine, and recommend splitters and physical windows for a rate.

    The costs of reading, splitting, sending and merging are those of the cost model of parasplit (docs/COST-MODEL.md), measured in processor time on the first tuples of the query's own files. The last lines are the options for headrace run and start.
    """
    from headrace.cli import profile_output
    from headrace.tools.split_profile import profile_split as measure

    with report_errors(traceback):
        if not math.isfinite(rate):
            raise QueryError(f"--rate must be a number of tuples per second; found {rate}")
        with _query_of(file) as (roots, _, _):
            found = measure(
                roots, rate, tuples=tuples, tell=lambda text: terminal.say_on_stderr(f"  {printable(text)}", "dim")
            )
        profile_output.print_profile(found, str(file), Console(highlight=False))


@app.command()
def demo(
    rate: Annotated[int, typer.Option(min=1, metavar="N", help="Calls per second.")] = 300,
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="How long calls are made.")] = 30,
    slots: SlotCount = 2,
    keep: Annotated[bool, flag("--keep", "Keep the folder with calls, results and state.")] = False,
    verify: Annotated[
        bool, typer.Option(metavar="", help="Compare with the sequential reference, which takes a while at high rates.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Another seed, other calls.")] = 7,
    kafka: Annotated[
        bool, flag("--kafka", "Calls from a topic, results into topics, of a broker that it starts.")
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Telephone fraud: make up calls, find the planted frauds live, compare with the sequential answer.

    Takes about a minute, and needs nothing but this machine.
    """
    from headrace_demo import broker
    from headrace_demo.fraud.places import WHO
    from headrace_demo.fraud.show import Options, show

    with report_errors(traceback):
        if kafka:
            broker.needed(WHO)  # before Spark is started
        if not math.isfinite(seconds):
            raise QueryError(f"--seconds must be a number of seconds; found {seconds}")
        options = Options(rate, seconds, slots, keep, verify, seed, kafka)
        with _spark(slots, None) as spark:
            good = show(spark, options, Console(highlight=False))
        if not good:
            raise typer.Exit(1)


@app.command()
def generate(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(
            callback=mounted_path_option,
            metavar="DIR",
            help="Folder for the files: a new or an empty one. With --kafka, a topic.",
            show_default=False,
        ),
    ],
    rate: Annotated[float, typer.Option(metavar="N", help="Tuples per second.")] = 1000,
    seconds: Annotated[int, typer.Option(metavar="N", help="Length of the stream.")] = 60,
    rates: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Rates in turn, over and over, instead of --rate.", show_default=False),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long each of --rates lasts, such as '30 seconds'.", show_default=False),
    ] = None,
    arrivals: Annotated[
        ArrivalKind,
        typer.Option(
            help="fixed: evenly. uniform: gaps from 1/(2 rate) to 2/rate, which makes 0.8 of the rate in the mean."
        ),
    ] = ArrivalKind.poisson,
    keys: Annotated[
        KeyKind, typer.Option(help="bmodel: skewed at every scale. uniform: all equally frequent.")
    ] = KeyKind.bmodel,
    bias: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Of bmodel: share of tuples in the lower half of the keys, and so on in each half.",
            show_default="0.7",
        ),
    ] = None,
    domain: Annotated[int, typer.Option(metavar="N", help="Number of keys: 0 to N - 1.")] = 10_000_000,
    hot: Annotated[
        float | None,
        typer.Option(metavar="N", help="Share of the tuples that are on one hot key.", show_default="no hot key"),
    ] = None,
    hot_every: Annotated[
        str | None, typer.Option(metavar="TIME", help="When the hot key moves to another key.", show_default="it stays")
    ] = None,
    files_per_second: Annotated[
        float, typer.Option(metavar="N", help="How the stream is cut into files; the tuples are the same. May be 0.1.")
    ] = 1,
    live: Annotated[bool, flag("--live", "Write each file when its time has come, in real time.")] = False,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="SERVERS",
            help="Into a topic of these brokers, such as localhost:9092; here: of one that is started, until Ctrl-C.",
            show_default="into files",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="With --kafka: of the topic, if it is not there yet.")
    ] = 4,
    format: Annotated[
        MessageFormat,
        typer.Option(help="With --kafka. json: a message for each tuple, with its key. arrow: many tuples in one."),
    ] = MessageFormat.json,
    begin: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time of the first moment, UTC.", show_default="2023-11-14 22:13:20; with --live now"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed, another stream.")] = 7,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Of the stream and its files. Same seed, other name: other tuples, the same frequent keys.",
        ),
    ] = "stream",
    traceback: Traceback = False,
) -> None:
    """Make up a stream like those of the papers: Parquet files with ts, key, value and payload, 64 bytes a tuple.

    Two streams whose rates are 1:8 and then 8:1, with half of all tuples on a key that moves:

    headrace generate left  --name left  --rates 1000,8000 --every "30 seconds" --hot 0.5 --hot-every "20 seconds"

    headrace generate right --name right --rates 8000,1000 --every "30 seconds" --hot 0.5 --hot-every "20 seconds"

    The same options give the same stream, in however many files.

    Into Kafka, as it would come in life:

    headrace generate calls --kafka localhost:9092 --live
    """
    from headrace_demo import generate

    with report_errors(traceback):
        refuse_together(context, "--rate", "--rates", "a stream has one rate, or several in turn")
        for option in ("--partitions", "--format"):
            refuse_without(context, option, "--kafka", "files have neither partitions nor messages")
        options = generate.Options(
            rate=rate,
            rates=rates,
            every=every,
            keys=keys.value,
            bias=bias,
            count=domain,
            arrivals=arrivals.value,
            hot=hot,
            hot_every=hot_every,
            begin=begin,
            live=live,
            seed=seed,
            name=name,
        )
        if kafka is None:
            generate.generate(options.workload(), folder, seconds, files_per_second, live)
        else:
            topic = generate.Topic(kafka, str(folder), partitions, format.value)
            topic.send(options.workload(), seconds, files_per_second, live)


@app.command()
def bench(
    context: typer.Context,
    name: Annotated[Benchmark, typer.Argument(help="What to measure.", show_default=False)],
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds, in alternating order.")] = 3,
    json: Annotated[Path | None, path_option("FILE", "Save all figures as JSON.")] = None,
    charts: Annotated[Path | None, path_option("DIR", "Draw charts, as PNG, with the tables as Markdown.")] = None,
    quick: Annotated[bool, flag("--quick", "Small sizes: shows that it works, the figures mean nothing.")] = False,
    full: Annotated[bool, flag("--full", "The largest windows too, which takes hours.")] = False,
    flink: Annotated[bool, typer.Option(metavar="", help="With Flink, installed on first use.")] = True,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only the cases with this in their name.")] = "",
    size: Annotated[
        float, typer.Option(min=0.01, max=100, metavar="N", help="Of split and state: times as many tuples and keys.")
    ] = 1,
    traceback: Traceback = False,
) -> None:
    """Measure headrace beside Spark's own streaming and beside Flink: same files, same two cores.

    Every system and round runs in a process of its own; answers are compared before anything is ranked.

    processors is a user's own code with state, beside Spark's transformWithState, and without Flink. split is how fast
    a stream is divided among such code, beside Spark's repartitionById, and state what many keys cost it. tables is
    points beside a table of zones, outer joins and sessions, beside Spark's own.

    connect is about Kafka and PostgreSQL, beside Spark's own connectors: rates in and out, and the ages of results between
    two topics and a third.

    growth, strategies and adaptive are about headrace alone: how it grows, three ways to cut a query into stages, and
    what comes of adapting to rates, skew, load and hot keys.
    """
    with report_errors(traceback):
        refuse_together(context, "--quick", "--full", "the one asks for small windows, the other for the largest")
        try:
            from headrace_bench.options import Options
            from headrace_bench.show import BENCHMARKS, show
        except ModuleNotFoundError as error:
            raise HeadraceError(
                f"benchmarks need {error.name}, which is not there; pip install 'headrace[bench]'"
            ) from None
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        options = Options(rounds, quick, full, flink, lambda text: _dim(console, text), only, size)
        names = list(BENCHMARKS) if name.value == "all" else [name.value]
        if not show(names, options, console, json, charts):
            raise typer.Exit(1)


def _dim(console: Console, text: str) -> None:
    terminal.say(console, f"  {text}", "dim")


@contextmanager
def _query_of(file: Path, slots: int = 1) -> Iterator[tuple[list[Node], list[bool], Any]]:
    """What a query file defines, as long as the block lasts on Spark, and its session."""
    from headrace import sinks
    from headrace.cli.query_file import load_query_file, query_results
    from headrace.stream import node_of

    module = load_query_file(file)
    with _spark(slots, None, quiet=True) as spark:
        found = query_results(module, file, spark, sinks.memory(), given=False)
        yield [node_of(query) for query, _ in found], [sinks.wants_order(sink) for _, sink in found], spark


def _can_be_written(out: Path) -> None:
    """Before the work is done, not after it."""
    if out.is_dir() or not out.parent.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise QueryError(f"{str(out)!r} cannot be written; give a file in a folder that is there")


def _save(out: Path, text: str) -> None:
    try:
        out.write_text(text)
    except OSError as error:
        raise QueryError(f"{str(out)!r} cannot be written: {error.strerror}") from None


def _treatment(order: Order, late: Path | None, errors: Errors) -> dict[str, Any]:
    """What becomes of tuples that are out of order, late, or fail."""
    from headrace import sinks

    return {"order": order.value, "late": sinks.parquet(late) if late else None, "errors": errors.value}


def _go(
    module: ModuleType,
    file: Path,
    spark: Any,
    out: Path | None,
    options: dict[str, Any],
    enough: Callable[[Run], bool],
    json: TextIO | None,
) -> None:
    """A loaded query file on a session that is there; json: where its progress goes for a program to read."""
    from headrace import sinks
    from headrace.cli.query_file import query_results

    default = sinks.parquet(out) if out else sinks.console()
    found = query_results(module, file, spark, default, given=out is not None)
    _follow(found, options, enough, title=file.name, json=json)


def _limits(seconds: float | None, until_idle: bool) -> Callable[[Run], bool]:
    """When a run has done what was asked."""
    from headrace.showing.live import StopAfter, StopWhenIdle

    idle, ends = StopWhenIdle(), StopAfter(seconds)
    return lambda run: ends(run) or (until_idle and idle(run))
