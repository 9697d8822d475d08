"""Beginning to run a query: `collect` over bounded input, `start` as a continuous run with a checkpoint.

The checkpoint folder holds `state/` (blocks and manifests), `plan.json` (the plan that runs, for people) and, when a
source is a streaming DataFrame, `spark/` (the offsets and commits of Spark's own query). Everything that can be found
wrong is found before anything is written there.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import plan as p
from headrace import sinks
from headrace.columnar import scratch
from headrace.compile import Held, check_strategy, compile_query, plan_of
from headrace.compile.deploy import Layouts, deploy, with_routers
from headrace.compile.subqueries import Plan
from headrace.control.policy import Policy
from headrace.control.policy import parse_policy as as_policy
from headrace.control.splitter_count import FixedSplitters, Splitters
from headrace.driver import identity, stored_checks
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.errors import HeadraceError, QueryError, QueryTypeError
from headrace.evolve import compare
from headrace.plan.figures import Figures
from headrace.query import nodes
from headrace.routing import Router, router_from_json
from headrace.run.run import Run, is_stream
from headrace.sinks import AnySink, is_sink, notify, takes_parts, wants_order
from headrace.sources.protocol import Ledger, driven_sources
from headrace.spark import executors, session, shipping
from headrace.spark.cluster import SparkCluster
from headrace.state import caches
from headrace.state.checkpoint_folder import close_to_others
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.support import ownership
from headrace.support.argument_errors import argument_kind, describe_argument
from headrace.support.durations import Duration, parse_duration
from headrace.support.limits import MOST_SLOTS, check_physical_window, check_slots, check_splitters
from headrace.support.paths import given_path
from headrace.support.terminal_text import printable
from headrace.task import failure_points
from headrace.task.watermarks import check_best_effort
from headrace.tools import plan_file
from headrace.tools.calibrate import calibrate, sample_bounds

_log = logging.getLogger(__name__)

AUTO = "auto"
SPARK_FOLDER = "spark"  # the folder of Spark's own log
ORDERS = ("transparent", "best-effort")
ERRORS = ("stop", "keep")
SAMPLED_TUPLES = 5_000  # tuples of each source that tell where the values of a band join lie


def collect(
    query: Stream,
    *,
    slots: int | None = None,
    strategy: str = "subquery",
    plan: Plan | None = None,
    errors: str = "stop",
    late: AnySink | None = None,
) -> pa.Table:
    """The results of a query over bounded input; with a `plan`, as that says."""
    root = node_of(query)
    keep_failed = check_errors(errors)
    check_strategy(strategy)
    sources = nodes.named_sources(root)
    for name, source in sources.items():
        if not source.origin.bounded:
            raise QueryError(f"collect needs bounded input; {name!r} is a streaming DataFrame; use start(...)")
    spark = _spark(sources)
    count = _slots(plan.slots if plan and slots is None else slots, spark)
    physical, layouts, _ = compiled([root], [False], strategy, count, plan, None)
    if late is not None:
        _check_sink(late, "late")
        _check_late(physical, keep_failed)
    session.check_sockets(spark.sparkContext)
    shipping.check_code(spark.sparkContext, physical, identity.user_code_names(physical))
    aside = _aside(physical, late, None)
    state: StateStore | None = None
    try:
        with scratch.temporary_folder("collect") as folder, StateStore.open(folder / "state", fsync=False) as state:
            result = sinks.memory()
            driver = Driver(
                physical,
                compare.start_on_state(state, [root], [False], "transparent").query,
                state,
                {"result-0": result, **aside},
                Settings(count, bounded=True, layouts=layouts, keep_late=late is not None, keep_failed=keep_failed),
                driven_sources({name: source.origin for name, source in sources.items()}),
                tables=nodes.named_tables(root),
            )
            sc = spark.sparkContext
            if not sc.master.startswith("local["):
                executors.check_reach(sc, folder / "state")
            cluster = SparkCluster(spark, driver.columns)
            rows = _all_there(cluster, sources, driver.ledgers, count)
            driver.run(Position("bounded"), lambda epoch: cluster.execute(rows, epoch), final=True)
            _say_what_was_left_out(state.last)
            table = result.table()
    except BaseException:
        if (
            state is not None
        ):  # its folder is removed by now, so a task that still runs discards its part (`write_part`)
            for name, sink in aside.items():
                sinks.discard(sink, state.state_id, name)
        raise
    return query.schema.empty_table() if table is None else table


def _all_there(
    cluster: SparkCluster, sources: Mapping[str, nodes.Source], ledgers: Mapping[str, Ledger], slots: int
) -> list[Any]:
    """The rows of all that bounded sources hold now."""
    static = {name: source for name, source in sources.items() if name not in ledgers}
    for ledger in ledgers.values():
        ledger.keep_to_list()
    taken = [cut for name, ledger in ledgers.items() for cut in ledger.cuts(name, ledger.waiting())]
    return [*([cluster.static(static)] if static else []), *([cluster.taken(taken, Splitters(slots))] if taken else [])]


def _say_what_was_left_out(last: Manifest | None) -> None:
    for name, source in (last.sources if last else {}).items():
        if source.late or source.rejected:
            why = (
                "late: behind the watermark; rejected: no time, one beyond 73,000 years, or further ahead than `ahead`"
            )
            counts = f"{source.late:,} late and {source.rejected:,} rejected of {source.delivered:,}"
            _log.warning("collect left out tuples of %s: %s (%s)", printable(name), counts, why)
    for step, count in (last.totals.failed if last else {}).items():
        _log.warning("collect left out %s tuples that failed: %s", f"{count:,}", printable(step))


def start(
    results: Sequence[tuple[Stream, AnySink]],
    *,
    checkpoint: str | os.PathLike[str],
    epoch: Duration = "1 second",
    slots: int | str | None = None,
    order: str = "transparent",
    late: AnySink | None = None,
    errors: str = "stop",
    show: bool | None = None,
    strategy: str = "subquery",
    plan: Plan | None = None,
    policy: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    most_slots: int | None = None,
    once: bool = False,
    cache: int | str | None = None,
    splitters: int | None = None,
    physical_window: int | str | None = None,
) -> Run:
    """See `headrace.start`."""
    _check_results(results)
    if order not in ORDERS:
        raise QueryError(f"order must be one of {', '.join(ORDERS)}; found {order!r}")
    interval = parse_duration(epoch, "epoch", zero=True)
    if not isinstance(once, bool):
        raise QueryTypeError(f"once must be True or False; found {once!r}")
    given = FixedSplitters(
        None if splitters is None else check_splitters(splitters),
        None if physical_window is None else check_physical_window(physical_window),
    )
    if plan is not None:
        _check_planned(slots, policy)
    roots = [node_of(query) for query, _ in results]
    sources = nodes.named_sources(*roots)
    nodes.named_tables(*roots)
    spark = _spark(sources)
    ordered = [wants_order(sink) for _, sink in results]
    check_strategy(strategy)
    if order == "best-effort":
        check_best_effort(compile_query(roots, ordered, strategy))
    keep_failed = check_errors(errors)
    if late is not None:
        _check_sink(late, "late")
        _check_late(compile_query(roots, ordered, strategy), keep_failed)
    auto = slots == AUTO
    rules = as_policy(policy)
    count = 1 if auto else _slots(plan.slots if plan and slots is None else slots, spark)
    most = min(4 * spark.sparkContext.defaultParallelism, MOST_SLOTS)
    limit = check_slots(most_slots, "most_slots") if most_slots is not None else max(count, most)
    if limit < count:
        raise QueryError(f"most_slots ({limit}) is less than slots ({count})")
    in_place = caches.cache_limit(cache)
    folder = _checkpoint(checkpoint)
    store = StateStore.open(folder / "state")
    try:
        if store.last is not None:
            stored_checks.check_manifest(store.last)
        begun = compare.start_on_state(store, roots, ordered, order)
        roots, sources = begun.roots, nodes.named_sources(*begun.roots)
        physical, layouts, shown = compiled(roots, ordered, strategy, count, plan, store.last, begun.held)
        outlets: dict[str, AnySink] = {name: sink for name, (_, sink) in zip(physical.results, results, strict=True)}
        begun.check_sinks(outlets)
        outlets |= _aside(physical, late, store.last)
        settings = Settings(
            count,
            best_effort=order == "best-effort",
            keep_late=late is not None,
            keep_failed=keep_failed,
            static=tuple(name for name, source in sources.items() if not is_stream(source)),
            layouts=None if auto else layouts,
            policy=rules,
            limit=limit,
            auto=auto,
            cache=in_place,
            beside=session.runs_on_this_machine(spark.sparkContext),
            splitters=given,
        )
        session.check_sockets(spark.sparkContext)
        executors.check_reach(spark.sparkContext, folder / "state")
        shipping.check_code(spark.sparkContext, physical, identity.user_code_names(physical))
        for sink in filter(takes_parts, outlets.values()):
            executors.check_parts_reach(spark.sparkContext, sink)
        places = {name: place for name, s in sources.items() if (place := s.origin.place) is not None}
        driver = Driver(
            physical,
            begun.query,
            store,
            outlets,
            settings,
            driven_sources({name: source.origin for name, source in sources.items()}),
            places=places,
            tables=nodes.named_tables(*roots),
            waiting=begun.waiting,
        )
        run = Run(
            SparkCluster(spark, driver.columns),
            sources,
            driver,
            folder / SPARK_FOLDER,
            0 if once else interval,
            once=once,
        )
        plan_file.write_plan(folder, roots, shown)
        run._begin()
        begins = "begins" if store.last is None else f"continues after epoch {store.last.number}"
        _log.info("a run %s with %s slots; checkpoint %s", begins, count, printable(str(folder)))
    except BaseException:
        notify([sink for _, sink in results] + ([late] if late is not None else []), "close")
        store.close()
        raise
    if show or (show is None and sys.stderr is not None and sys.stderr.isatty()):  # None: it is closed
        from headrace.showing import live

        live.show_live_line(run)
    return run


# --- arguments -----------------------------------------------------------------------------------------------------


def _check_results(results: Sequence[tuple[Stream, AnySink]]) -> None:
    if not results:
        raise QueryError("start needs at least one (stream, sink)")
    for item in results:
        if not isinstance(item, tuple) or len(item) != 2:
            raise QueryTypeError(f"start takes pairs of a stream and a sink; found {describe_argument(item)}")
        node_of(item[0])
        _check_sink(item[1], "the sink")


def _check_sink(sink: Any, what: str) -> None:
    if not is_sink(sink):
        example = "foreach(function)" if argument_kind(sink) == "function" else "parquet('out/')"
        raise QueryTypeError(f"{what}: {describe_argument(sink)} is not a sink; such as headrace.sinks.{example}")
    if takes_parts(sink):
        if getattr(sink, "ordered", False):
            msg = f"{what}: {describe_argument(sink)} takes parts from tasks, none of which sees all results: it cannot be ordered"
            raise QueryError(msg)
        shipping.check_shipped(sink)


def _check_planned(slots: int | str | None, policy: object) -> None:
    """Refuse what a plan leaves no choice in."""
    if slots == AUTO:
        raise QueryError('a plan says how many slots there are; leave out slots="auto", or the plan')
    if policy is not None:
        raise QueryError(
            "a run that follows a plan does not adapt, so it takes no policy; leave out the policy, or the plan"
        )


def check_errors(errors: str) -> bool:
    """Whether tuples that fail are kept aside."""
    if errors not in ERRORS:
        raise QueryError(f"errors must be one of {', '.join(ERRORS)}; found {errors!r}")
    return errors == "keep"


def _aside(physical: p.PhysicalPlan, late: AnySink | None, last: Manifest | None) -> dict[str, AnySink]:
    """By their names in the outbox, all tuples that are put aside; those of the last epoch may have to come again."""
    if late is None:
        return {}
    found = [f"{failure_points.LATE}{source.name}" for source in physical.sources]
    found += [point.name for point in failure_points.failure_points(physical)]
    if last is not None:  # under another plan they had other names
        found += [output.result for output in last.outbox if output.result.startswith(failure_points.FAILED)]
    return dict.fromkeys(found, late)


def _check_late(physical: p.PhysicalPlan, keep_failed: bool) -> None:
    schemas = [(source.schema, f"source {source.name!r}") for source in physical.sources]
    if keep_failed:
        schemas += [
            (point.schema, f"what {point.summary!r} is given") for point in failure_points.failure_points(physical)
        ]
    for schema, what in schemas:
        if taken := {"_source", "_reason"} & set(schema.names):
            raise QueryError(f"late= adds {', '.join(sorted(taken))}, but {what} has such a column; rename it")


def _slots(slots: int | str | None, spark: Any) -> int:
    count = min(spark.sparkContext.defaultParallelism, MOST_SLOTS) if slots is None else slots
    return check_slots(count, besides=', or for start "auto"')


def _spark(sources: Mapping[str, nodes.Source]) -> Any:
    sessions = [s.origin.spark for s in sources.values() if hasattr(s.origin, "spark")]
    if len(sessions) != len(sources):
        raise QueryTypeError(
            "a source is not on Spark; make sources with headrace.stream(df, ...) or headrace.files(...)"
        )
    return sessions[0]


def compiled(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    strategy: str,
    slots: int,
    plan: Plan | None,
    last: Manifest | None,
    held: Held | None = None,
) -> tuple[p.PhysicalPlan, Layouts | None, Plan]:
    """What the engine runs, the layouts that a given plan wants, and the plan as a user sees it."""
    if plan is not None:
        if plan.slots > slots:
            raise QueryError(f"the plan is made for {plan.slots} slots, this run has {slots}; give the run as many")
        return *deploy(plan, roots, ordered, held), plan
    figures = _sampled(roots, ordered, strategy, slots)
    if last is not None and figures is not None:  # ranges were chosen once: blocks are grouped by them
        figures = replace(figures, bounds={})
    shown = plan_of(roots, ordered, strategy, slots, figures)
    if last is None:
        known = compile_query(roots, ordered, strategy).by_name  # of a subquery, who prepares input is routed otherwise
        wanted = [(name, s.router) for s in shown.subqueries if s.router.chosen for name in s.members]
        routers = {name: router for name, router in wanted if known[name].routed(router)}
    else:
        routers = _chosen(last, compile_query(roots, ordered, strategy))
    physical = compile_query(roots, ordered, strategy, routers, held)
    shown = with_routers(shown, routers)
    if strategy == "operator" and figures is not None:  # slots by share
        return *deploy(shown, roots, ordered, held), shown
    return physical, None, shown


def _chosen(last: Manifest, physical: p.PhysicalPlan) -> dict[str, Router]:
    """The routers that state is grouped by, where these operators can be routed so; else the query is another."""
    stored = {name: router_from_json(data, f"query.routers.{name}") for name, data in last.query["routers"].items()}
    known = physical.by_name
    return {name: router for name, router in stored.items() if name in known and known[name].routed(router)}


def _sampled(roots: Sequence[nodes.Node], ordered: Sequence[bool], strategy: str, slots: int) -> Figures | None:
    """Where the values of band joins lie, and what operators cost that get slots by cost; if a sample can be had."""
    try:
        if strategy == "operator" and slots >= len(compile_query(roots, ordered, strategy).operators):
            return calibrate(roots, ordered, slots=slots, tuples=SAMPLED_TUPLES)
        if any(o.band is not None for o in compile_query(roots, ordered).operators):
            return sample_bounds(roots, ordered, slots=slots, tuples=SAMPLED_TUPLES)
    except HeadraceError:  # no file yet, a stream that cannot be read twice, or data that the run itself will refuse
        pass
    return None


def _checkpoint(path: str | os.PathLike[str]) -> Path:
    given = given_path(path, "the checkpoint")
    try:
        _refuse_other_things(given)
        folder = given.resolve()
        ownership.make_private_folder(folder)
    except OSError as error:
        raise QueryError(f"the checkpoint {str(given)!r} cannot be made: {error.strerror}") from None
    close_to_others(folder)
    close_to_others(folder / SPARK_FOLDER)
    return folder


def _refuse_other_things(folder: Path) -> None:
    if folder.is_symlink():
        raise QueryError(f"the checkpoint {str(folder)!r} is a symbolic link; give the folder itself")
    if folder.exists() and not folder.is_dir():
        raise QueryError(f"the checkpoint {str(folder)!r} is a file; give a folder")
    if folder.is_dir() and (
        strange := {p.name for p in folder.iterdir()} - {SPARK_FOLDER, "state", *plan_file.PLAN_NAMES}
    ):
        raise QueryError(
            f"the checkpoint {str(folder)!r} holds other things: {', '.join(sorted(strange))}; give a folder of its own"
        )
