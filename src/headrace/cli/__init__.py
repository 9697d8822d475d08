"""The command line: `headrace run`, `deploy`, `migrate`, `explain`, `calibrate`, `decisions`, `demo`, `generate`,
`split`, `bench`.
"""

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


split = typer.Typer(help="Measure the cost of splitting a stream.", no_args_is_help=True)
app.add_typer(split, name="split")
try:
    from headrace_linearroad.cli import app as linearroad

    app.add_typer(linearroad, name="linearroad")
except ModuleNotFoundError:  # an application that is not shipped to the machines of a cluster
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
        "nway",
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
        help="Number of tasks that read files and topics. headrace split profile recommends a number.",
        show_default="one per slot, then adapted to the load",
    ),
]
PhysicalWindow = Annotated[
    str | None,
    typer.Option(
        callback=parse_size,
        metavar="SIZE",
        help="Bytes that a splitter reads at once, such as 16MiB.",
        show_default="16MiB, then adapted to the load",
    ),
]
Out = Annotated[Path | None, path_option("DIR", "Folder for the results, as Parquet.", show_default="the terminal")]
Ordering = Annotated[
    Order,
    typer.Option(
        help="transparent: results equal those of a sequential run. best-effort: the run does not wait for slow inputs; joins may miss results and count windows may differ."
    ),
]
Late = Annotated[
    Path | None,
    path_option(
        "DIR",
        "Write late, rejected and failed tuples to this folder, as Parquet.",
        show_default="these tuples are only counted",
    ),
]
Failing = Annotated[
    Errors,
    typer.Option(
        help="stop: the run ends when an expression fails on a tuple. keep: a tuple that fails in map, filter or case is counted and written to --late."
    ),
]
Seconds = Annotated[
    float | None, typer.Option(min=0, metavar="N", help="Stop after N seconds.", show_default="no limit")
]
UntilIdle = Annotated[
    bool, flag("--until-idle", "Stop when all input is processed and none has arrived for 2 seconds.")
]
Once = Annotated[
    bool, flag("--once", "Process the input that exists now, close all windows and the checkpoint, and exit.")
]


ENDS_BY_ITSELF = "--once exits after the input that exists now, and --until-idle waits for more"


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
            "Folder for the state of this run. Start again with the same folder to continue.",
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
        path_option(
            "FILE",
            "Plan to follow: the output of headrace explain --format json, edited if you like.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        path_option("FILE", "TOML file with the limits within which the run adapts.", show_default="built-in limits"),
    ] = None,
    auto_slots: Annotated[
        bool, flag("--auto-slots", "Adapt the number of slots to the load, up to --slots (default: four per core).")
    ] = False,
    until_idle: UntilIdle = False,
    once: Once = False,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Run the query of a Python file continuously.

    The run continues until Ctrl-C, or until --seconds, --until-idle or --once ends it. Start it again with the same
    checkpoint to continue: no input is lost and none is counted twice.
    """
    from headrace.cli.query_file import load_query_file, read_plan

    with report_errors(traceback), terminal.for_programs(json) as output:
        refuse_together(context, "--once", "--until-idle", ENDS_BY_ITSELF)
        refuse_together(context, "--plan", "--auto-slots", "a plan fixes the number of slots")
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
            "until_idle": until_idle,
            **_treatment(order, late, errors),
        }
        with _spark(slots or usable_cores(), master, quiet=json) as spark:
            _go(module, file, spark, out, options, _limit(seconds), output if json else None)


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

    The descriptor names the cluster, the resources to use and the folder for the state. docs/DEPLOYING.md explains it,
    and examples/cluster.toml is an example. This process is the driver: it runs until Ctrl-C, or until --seconds,
    --until-idle or --once ends it. Start it again to continue, also on a larger or smaller cluster: no input is lost
    and none is counted twice.
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
            "until_idle": until_idle,
            **_treatment(order, late, errors),
        }
        config = {"spark.app.name": f"headrace {file.stem}", **place.settings()}
        patience = parse_duration(place.patience, "patience") / MICROSECONDS["second"]
        with _spark(slots, place.master, config, patience, quiet=json) as spark:
            come = executor_count(spark.sparkContext)
            if not place.is_local and come < place.executors:
                say(f"{come} of {place.executors} executors have registered; the others join later")
            for path in place.pack(Path(folder)):
                spark.sparkContext.addPyFile(str(path))
            _go(module, file, spark, out, options, _limit(seconds), output if json else None)


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
        Strategy,
        typer.Option(
            help="How to cut the query into stages. subquery: the cut that headrace runs. operator, query: the alternatives of the papers."
        ),
    ] = Strategy.subquery,
    figures: Annotated[
        Path | None,
        path_option("FILE", "Figures that headrace calibrate --out saved.", show_default="rates are assumed"),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Microseconds per tuple of a subquery, instead of the measured cost."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        path_option(
            "DIR", "Checkpoint of a run, active or ended. Shows its plan with measured figures.", show_default=False
        ),
    ] = None,
    format: Annotated[
        Format, typer.Option(help="text: to read. json: to save and run with --plan. svg: a picture.")
    ] = Format.text,
    traceback: Traceback = False,
) -> None:
    """Show how a query is cut into subqueries, how its tuples are routed to slots, and what the alternatives cost.

    Give the Python file of a query, which is not run, or --checkpoint to show a run.
    """
    from headrace.cli import explain_output

    with report_errors(traceback):
        if (file is None) == (checkpoint is None):
            raise QueryError("explain takes either a query file or --checkpoint DIR")
        for option in ("--slots", "--strategy", "--figures", "--cost"):
            refuse_together(context, "--checkpoint", option, "a run keeps the plan that it was started with")
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
    checkpoint: Annotated[Path, path_option("DIR", "Checkpoint of a run, active or ended.", show_default=False)],
    json: Annotated[bool, flag("--json", "Print JSON, one decision per line.")] = False,
    traceback: Traceback = False,
) -> None:
    """Show each change that a run made to its layouts, slots or splitters: epoch, change, reason, expected and measured
    effect."""
    from headrace.cli import decision_history

    with report_errors(traceback):
        decision_history.print_decisions(checkpoint, Console(highlight=False), json=json)


@app.command()
def migrate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            callback=mounted_path_option,
            help="Checkpoint of a stopped run. It is not changed.",
            metavar="CHECKPOINT",
        ),
    ],
    file: QueryFile,
    to: Annotated[Path, path_option("NEW", "Checkpoint folder to create. It must not exist.", show_default=False)],
    order: Ordering = Order.transparent,
    traceback: Traceback = False,
) -> None:
    """Carry the state of a run over to a changed query.

    The new checkpoint keeps the state of every operator whose meaning is unchanged. Changed and added operators start
    with empty state, and the report says from which time on their results are complete. Start the new query with
    --checkpoint NEW. If this command is killed, the old checkpoint is intact and there is no new one.
    """
    from headrace.evolve.migrate import migrate as carry_over

    with report_errors(traceback):
        with _query_of(file) as (roots, ordered, labels):
            done = carry_over(checkpoint, to, roots, ordered, order.value, labels)
        print(f"{to} continues after epoch {done.epoch} of {checkpoint}")
        for line in done.lines:
            print(f"  {printable(line)}")


@app.command()
def calibrate(
    file: QueryFile,
    out: Annotated[
        Path | None, path_option("FILE", "File to save the figures in, for explain --figures.", show_default=False)
    ] = None,
    tuples: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of tuples to sample from each source.")
    ] = 50_000,
    slots: Slots = None,
    strategy: Annotated[Strategy, typer.Option(help="Strategy of the plan to show.")] = Strategy.subquery,
    traceback: Traceback = False,
) -> None:
    """Measure a query on a sample of its real input: microseconds per tuple, and the share of tuples that each step
    passes on."""
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
            terminal.say_on_stderr(f"saved in {out}; use it with headrace explain {file} --figures {out}")


@split.command()
def profile(
    file: Annotated[
        Path,
        typer.Argument(
            callback=mounted_path_option,
            help="Python file that defines query(spark); the query must split a stream of headrace.files.",
            metavar="FILE",
        ),
    ],
    rate: Annotated[
        float,
        typer.Option(
            min=1, metavar="N", help="Tuples per second that the recommendation must sustain.", show_default=False
        ),
    ],
    tuples: Annotated[int, typer.Option(min=1, metavar="N", help="Number of tuples to sample.")] = 1_000_000,
    traceback: Traceback = False,
) -> None:
    """Measure what the split of a query costs on this machine, and recommend splitters and a physical window for a
    rate.

    The costs of reading, splitting, sending and merging are the terms of parasplit's cost model (docs/COST-MODEL.md).
    They are measured as CPU time on the first tuples of the query's own files. The last lines of the output are the
    options for headrace run and for start().
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
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="Number of seconds of calls.")] = 30,
    slots: SlotCount = 2,
    keep: Annotated[bool, flag("--keep", "Keep the folder with the calls, results and state.")] = False,
    verify: Annotated[
        bool, typer.Option(metavar="", help="Compare the results with the sequential reference; slow at high rates.")
    ] = True,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Seed of the random generator; another seed makes other calls.")
    ] = 7,
    kafka: Annotated[
        bool,
        flag("--kafka", "Read calls from a topic and write results to topics, on a Kafka broker that the demo starts."),
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Detect telephone fraud: generate calls, find the planted frauds live, compare with the sequential answer.

    Takes about a minute and needs only this machine.
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
            help="New or empty folder for the files. With --kafka, the name of a topic.",
            show_default=False,
        ),
    ],
    rate: Annotated[float, typer.Option(metavar="N", help="Tuples per second.")] = 1000,
    seconds: Annotated[int, typer.Option(metavar="N", help="Length of the stream.")] = 60,
    rates: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Rates that alternate, instead of --rate.", show_default=False),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long each of --rates lasts, such as '30 seconds'.", show_default=False),
    ] = None,
    arrivals: Annotated[
        ArrivalKind,
        typer.Option(
            help="Times between tuples. fixed: all equal. uniform: from 1/(2 rate) to 2/rate, which gives a mean rate of 0.8 of --rate. poisson: exponential."
        ),
    ] = ArrivalKind.poisson,
    keys: Annotated[
        KeyKind, typer.Option(help="Frequency of keys. bmodel: skewed at every scale. uniform: all equal.")
    ] = KeyKind.bmodel,
    bias: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="For bmodel: the share of tuples in the lower half of the keys; the same share applies within each half.",
            show_default="0.7",
        ),
    ] = None,
    domain: Annotated[int, typer.Option(metavar="N", help="Number of keys: 0 to N - 1.")] = 10_000_000,
    hot: Annotated[
        float | None,
        typer.Option(metavar="N", help="Share of the tuples with one hot key.", show_default="no hot key"),
    ] = None,
    hot_every: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often the hot key changes.", show_default="never")
    ] = None,
    files_per_second: Annotated[
        float,
        typer.Option(
            metavar="N", help="Files per second of the stream; may be below 1. The tuples do not depend on it."
        ),
    ] = 1,
    live: Annotated[bool, flag("--live", "Write each file at its time, in real time.")] = False,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="SERVERS",
            help="Write to a topic of these brokers, such as localhost:9092. 'here' starts a broker that runs until Ctrl-C.",
            show_default="write files",
        ),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(
            min=1, max=1000, metavar="N", help="With --kafka: partitions of the topic, if it must be created."
        ),
    ] = 4,
    format: Annotated[
        MessageFormat,
        typer.Option(help="With --kafka. json: one message per tuple, with its key. arrow: many tuples per message."),
    ] = MessageFormat.json,
    begin: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Event time at which the stream begins, in UTC.",
            show_default="2023-11-14 22:13:20, or now with --live",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the random generator; another seed makes another stream.")
    ] = 7,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the stream and its files. With the same seed, another name makes other tuples with the same frequent keys.",
        ),
    ] = "stream",
    traceback: Traceback = False,
) -> None:
    """Generate a stream like those of the papers: Parquet files with ts, key, value and payload, 64 bytes per tuple.

    Example: two streams whose rates are 1:8 and then 8:1, and half of whose tuples have one hot key, which changes:

    headrace generate left  --name left  --rates 1000,8000 --every "30 seconds" --hot 0.5 --hot-every "20 seconds"

    headrace generate right --name right --rates 8000,1000 --every "30 seconds" --hot 0.5 --hot-every "20 seconds"

    The same options give the same tuples, whatever --files-per-second is.

    Example: write to Kafka in real time:

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
    name: Annotated[Benchmark, typer.Argument(help="Benchmark to run.", show_default=False)],
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of rounds; the order of the systems alternates.")
    ] = 3,
    json: Annotated[Path | None, path_option("FILE", "File to save all figures in, as JSON.")] = None,
    charts: Annotated[Path | None, path_option("DIR", "Folder for charts (PNG) and tables (Markdown).")] = None,
    quick: Annotated[
        bool, flag("--quick", "Use small sizes, to check that the benchmark works; the figures are meaningless.")
    ] = False,
    full: Annotated[bool, flag("--full", "Include the largest windows; takes hours.")] = False,
    flink: Annotated[bool, typer.Option(metavar="", help="Include Flink, which is installed on first use.")] = True,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Run only the cases whose name contains TEXT.")] = "",
    size: Annotated[
        float,
        typer.Option(
            min=0.01, max=100, metavar="N", help="For split and state: multiply the number of tuples and keys by N."
        ),
    ] = 1,
    traceback: Traceback = False,
) -> None:
    """Compare headrace with Spark's own streaming and with Flink: same files, same two cores.

    Each system runs each round in a separate process. Answers are compared before systems are ranked.

    nway: joins of three streams, compared with chains of two joins of the same meaning.

    processors: user code with state, compared with Spark's transformWithState, without Flink. split: the division of a
    stream among processors, compared with Spark's repartitionById. state: the cost of processors with many keys.
    tables: points joined with a table of zones, outer joins and sessions, compared with Spark.

    connect: Kafka and PostgreSQL, compared with Spark's connectors: input and output rates, and the ages of results
    from two topics to a third.

    growth, strategies and adaptive measure headrace alone: how it scales, three ways to cut a query into stages, and
    the effect of adapting to rates, skew, load and hot keys.
    """
    with report_errors(traceback):
        refuse_together(context, "--quick", "--full", "--quick uses small windows and --full the largest")
        try:
            from headrace_bench.options import Options
            from headrace_bench.show import BENCHMARKS, show
        except ModuleNotFoundError as error:
            raise HeadraceError(
                f"benchmarks need the module {error.name}, which is not installed; run pip install 'headrace[bench]'"
            ) from None
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        options = Options(rounds, quick, full, flink, lambda text: _dim(console, text), only, size)
        names = list(BENCHMARKS) if name.value == "all" else [name.value]
        if not show(names, options, console, json, charts):
            raise typer.Exit(1)


def _dim(console: Console, text: str) -> None:
    terminal.say(console, f"  {text}", "dim")


@contextmanager
def _query_of(file: Path, slots: int = 1) -> Iterator[tuple[list[Node], list[bool], dict[str, str]]]:
    """Start Spark, load a query file and yield its query nodes, whether each result is ordered, and the labels of
    results."""
    from headrace import sinks
    from headrace.cli.query_file import load_query_file, query_results
    from headrace.query.labels import result_labels
    from headrace.stream import label_of, node_of

    module = load_query_file(file)
    with _spark(slots, None, quiet=True) as spark:
        found = query_results(module, file, spark, sinks.memory(), given=False)
        ordered = [sinks.wants_order(sink) for _, sink in found]
        yield [node_of(query) for query, _ in found], ordered, result_labels([label_of(query) for query, _ in found])


def _can_be_written(out: Path) -> None:
    """Raise if the file cannot be written. The commands check this before they start the work."""
    if out.is_dir() or not out.parent.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise QueryError(f"{str(out)!r} cannot be written; give a file in an existing, writable folder")


def _save(out: Path, text: str) -> None:
    try:
        out.write_text(text)
    except OSError as error:
        raise QueryError(f"{str(out)!r} cannot be written: {error.strerror}") from None


def _treatment(order: Order, late: Path | None, errors: Errors) -> dict[str, Any]:
    """Return the options of a run for tuples that are out of order, late or failing."""
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
    """Run a loaded query file on an existing session; `json` receives progress as JSON lines."""
    from headrace import sinks
    from headrace.cli.query_file import query_results

    default = sinks.parquet(out) if out else sinks.console()
    found = query_results(module, file, spark, default, given=out is not None)
    _follow(found, options, enough, title=file.name, json=json)


def _limit(seconds: float | None) -> Callable[[Run], bool]:
    """Return the predicate that ends a run."""
    from headrace.showing.live import StopAfter

    return StopAfter(seconds)
