"""`start`: starts a continuous run with a checkpoint.

The checkpoint folder contains `state/` (blocks and manifests), `plan.json` (the running plan, for users) and, if a
source is a streaming DataFrame, `spark/` (offsets and commits of Spark's own query). Errors that can be detected at the
start are raised before anything is written there.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.compile import CompiledQuery, check_strategy
from headrace.compile.subqueries import Plan
from headrace.control.policy import Policy, parse_policy
from headrace.control.splitter_count import FixedSplitters
from headrace.driver import identity, stored_checks
from headrace.driver.driver import Driver, Settings
from headrace.evolve import compare
from headrace.query import nodes
from headrace.query.labels import result_labels
from headrace.run.arguments import (
    AUTO,
    check_ends,
    check_errors,
    check_late,
    check_limits,
    check_order,
    check_planned,
    check_results,
    check_sink,
    rejects_sinks,
    slot_count,
    slot_limit,
    spark_session_of,
)
from headrace.run.checkpoint_path import SPARK_FOLDER, STATE_FOLDER, make_checkpoint
from headrace.run.chosen_plan import ChosenPlan, choose_plan
from headrace.run.run import Run, begin_run, is_stream
from headrace.run.until_idle import stop_when_idle
from headrace.sinks import AnySink, notify, takes_parts, wants_order
from headrace.sources.protocol import driven_sources
from headrace.spark import executors, session, shipping
from headrace.spark.cluster import SparkCluster
from headrace.state import caches
from headrace.state.store import StateStore
from headrace.stream import Stream, label_of, node_of
from headrace.support.durations import Duration, parse_duration
from headrace.support.limits import check_physical_window, check_splitters
from headrace.support.terminal_text import printable
from headrace.task.watermarks import check_best_effort
from headrace.tools import plan_file

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartOptions:
    """The validated options of a start, without the query and the checkpoint."""

    spark: Any
    slots: int  # initial number
    most_slots: int
    auto: bool  # the controller adapts the number of slots
    interval: int  # microseconds between the starts of two epochs
    order: str
    late: AnySink | None
    keep_failed: bool
    strategy: str
    plan: Plan | None
    policy: Policy
    once: bool
    cache: int
    splitters: FixedSplitters
    labels: Mapping[str, str]  # result -> label

    def settings(self, sources: Mapping[str, nodes.Source], deployed: ChosenPlan) -> Settings:
        return Settings(
            self.slots,
            best_effort=self.order == "best-effort",
            keep_late=self.late is not None,
            warn_late=self.late is None,
            keep_failed=self.keep_failed,
            static=tuple(name for name, source in sources.items() if not is_stream(source)),
            layouts=None if self.auto else deployed.layouts,
            policy=self.policy,
            limit=self.most_slots,
            auto=self.auto,
            cache=self.cache,
            beside=session.runs_on_this_machine(self.spark.sparkContext),
            splitters=self.splitters,
        )


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
    until_idle: bool = False,
    cache: int | str | None = None,
    splitters: int | None = None,
    physical_window: int | str | None = None,
) -> Run:
    """Start a continuous run. See `headrace.start`."""
    check_results(results)
    labels = result_labels([label_of(stream) for stream, _ in results])
    check_order(order)
    interval = parse_duration(epoch, "epoch", zero=True)
    check_ends(once, until_idle)
    given = FixedSplitters(
        None if splitters is None else check_splitters(splitters),
        None if physical_window is None else check_physical_window(physical_window),
    )
    if plan is not None:
        check_planned(slots, policy)
    query = CompiledQuery([node_of(stream) for stream, _ in results], [wants_order(sink) for _, sink in results])
    sources = nodes.named_sources(*query.roots)
    nodes.named_tables(*query.roots)
    check_limits(query.roots, ends=once or not any(map(is_stream, sources.values())))
    spark = spark_session_of(sources)
    check_strategy(strategy)
    if order == "best-effort":
        check_best_effort(query.physical(strategy))
    keep_failed = check_errors(errors)
    if late is not None:
        check_sink(late, "late")
        check_late(query.physical(strategy), keep_failed)
    auto = slots == AUTO
    rules = parse_policy(policy)
    count = 1 if auto else slot_count(plan.slots if plan and slots is None else slots, spark)
    options = StartOptions(
        spark=spark,
        slots=count,
        most_slots=slot_limit(most_slots, count, spark),
        auto=auto,
        interval=0 if once else interval,
        order=order,
        late=late,
        keep_failed=keep_failed,
        strategy=strategy,
        plan=plan,
        policy=rules,
        once=once,
        cache=caches.cache_limit(cache),
        splitters=given,
        labels=labels,
    )
    run = _start_on_checkpoint(query, [sink for _, sink in results], checkpoint, options)
    if until_idle:
        stop_when_idle(run)
    _show(run, show)
    return run


def _show(run: Run, show: bool | None) -> None:
    """Show a live line if asked to, or if standard error is a terminal."""
    if show or (show is None and sys.stderr is not None and sys.stderr.isatty()):  # stderr is None if it is closed
        from headrace.showing import live

        live.show_live_line(run)


def _start_on_checkpoint(
    query: CompiledQuery, result_sinks: Sequence[AnySink], checkpoint: str | os.PathLike[str], options: StartOptions
) -> Run:
    """Open the checkpoint and start the run. Close the state and the sinks if that fails."""
    folder = make_checkpoint(checkpoint)
    store = StateStore.open(folder / STATE_FOLDER)
    try:
        if store.last is not None:
            stored_checks.check_manifest(store.last)
        started = compare.start_on_state(store, query, options.order, options.labels)
        roots = started.compiled.roots
        sources = nodes.named_sources(*roots)
        grouped = store.last.query["grouped"] if store.last is not None else None
        deployed = choose_plan(started.compiled, options.strategy, options.slots, options.plan, started.held, grouped)
        sinks_by_result: dict[str, AnySink] = dict(zip(deployed.physical.results, result_sinks, strict=True))
        started.check_sinks(sinks_by_result)
        sinks_by_result |= rejects_sinks(deployed.physical, options.late, store.last)
        settings = options.settings(sources, deployed)
        context = options.spark.sparkContext
        session.check_sockets(context)
        executors.check_reach(context, folder / STATE_FOLDER)
        shipping.check_code(context, deployed.physical, identity.user_code_names(deployed.physical))
        for sink in filter(takes_parts, sinks_by_result.values()):
            executors.check_parts_reach(context, sink)
        driver = Driver(
            deployed.physical,
            started.query,
            store,
            sinks_by_result,
            settings,
            driven_sources({name: source.origin for name, source in sources.items()}),
            places={name: place for name, s in sources.items() if (place := s.origin.place) is not None},
            tables=nodes.named_tables(*roots),
            outbox_names=started.waiting,
            labels=options.labels,
        ).open()
        cluster = SparkCluster(options.spark, driver.columns)
        queries = [line.partition("\n")[0] for line in nodes.outline(*roots)]
        run = Run(cluster, sources, driver, folder / SPARK_FOLDER, options.interval, once=options.once, queries=queries)
        plan_file.write_plan(folder, roots, deployed.shown, options.labels)
        begin_run(run)
    except BaseException:
        notify([*result_sinks, *([options.late] if options.late is not None else [])], "close")
        store.close()
        raise
    begins = "begins" if store.last is None else f"continues after epoch {store.last.number}"
    _log.info("a run %s with %s slots; checkpoint %s", begins, options.slots, printable(str(folder)))
    return run
