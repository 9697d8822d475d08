"""`collect`: runs a query over bounded input on Spark to its end, in a temporary checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace import sinks
from headrace.columnar import scratch
from headrace.compile import CompiledQuery, check_strategy
from headrace.compile.subqueries import Plan
from headrace.control.splitter_count import Splitters
from headrace.driver import identity
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.errors import QueryError
from headrace.evolve import compare
from headrace.query import nodes
from headrace.run.arguments import (
    check_errors,
    check_late,
    check_sink,
    rejects_sinks,
    slot_count,
    spark_session_of,
)
from headrace.run.checkpoint_path import STATE_FOLDER
from headrace.run.chosen_plan import choose_plan
from headrace.run.first_times import first_times
from headrace.sinks import AnySink
from headrace.sources.protocol import Ledger, TakenInput, driven_sources
from headrace.spark import executors, session, shipping
from headrace.spark.cluster import SparkCluster
from headrace.state.manifest import Manifest
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.support.terminal_text import printable

_log = logging.getLogger(__name__)

REASONS = "late: below the watermark; rejected: a time that is null, more than 73,000 years from 1970, or more than `ahead` past the largest time"


def collect(
    query: Stream,
    *,
    slots: int | None = None,
    strategy: str = "subquery",
    plan: Plan | None = None,
    errors: str = "stop",
    late: AnySink | None = None,
) -> pa.Table:
    """Run a query over bounded input to its end and return the results. See `Stream.collect`."""
    root = node_of(query)
    keep_failed = check_errors(errors)
    check_strategy(strategy)
    sources = nodes.named_sources(root)
    _demand_bounded(sources)
    spark = spark_session_of(sources)
    count = slot_count(plan.slots if plan and slots is None else slots, spark)
    compiled = CompiledQuery([root])
    deployed = choose_plan(compiled, strategy, count, plan)
    if late is not None:
        check_sink(late, "late")
        check_late(deployed.physical, keep_failed)
    session.check_sockets(spark.sparkContext)
    shipping.check_code(spark.sparkContext, deployed.physical, identity.user_code_names(deployed.physical))
    settings = Settings(
        count, bounded=True, layouts=deployed.layouts, keep_late=late is not None, keep_failed=keep_failed
    )
    rejects = rejects_sinks(deployed.physical, late, None)
    result = sinks.memory()
    state: StateStore | None = None
    try:
        with (
            scratch.temporary_folder("collect") as folder,
            StateStore.open(folder / STATE_FOLDER, fsync=False) as state,
        ):
            driver = Driver(
                deployed.physical,
                compare.start_on_state(state, compiled, "transparent").query,
                state,
                {"result-0": result, **rejects},
                settings,
                driven_sources({name: source.origin for name, source in sources.items()}),
                tables=nodes.named_tables(root),
            ).open()
            if not spark.sparkContext.master.startswith("local["):
                executors.check_reach(spark.sparkContext, folder / STATE_FOLDER)
            cluster = SparkCluster(spark, driver.columns)
            static, taken = _bounded_input(sources, driver.ledgers)
            driver.layouts.first_times = first_times(deployed.physical, sources, static, taken)
            rows = _rows(cluster, static, taken, count)
            driver.run_epoch(Position("bounded"), lambda epoch: cluster.run_tasks(rows, epoch), final=True)
            _log_left_out(state.last)
            table = result.table()
    except BaseException:
        # the folder is deleted already, so a task that is still running discards its part (`write_part`)
        if state is not None:
            for name, sink in rejects.items():
                sinks.discard(sink, state.state_id, name)
        raise
    return query.schema.empty_table() if table is None else table


def _demand_bounded(sources: Mapping[str, nodes.Source]) -> None:
    for name, source in sources.items():
        if not source.origin.readable_whole:
            raise QueryError(f"collect needs bounded input; {name!r} is a streaming DataFrame; use start(...)")


def _bounded_input(
    sources: Mapping[str, nodes.Source], ledgers: Mapping[str, Ledger]
) -> tuple[dict[str, nodes.Source], list[TakenInput]]:
    """Return the sources whose DataFrames are read, and all current input of the others."""
    static = {name: source for name, source in sources.items() if name not in ledgers}
    for ledger in ledgers.values():
        ledger.keep_to_list()
    return static, [cut for name, ledger in ledgers.items() for cut in ledger.inputs(name, ledger.waiting())]


def _rows(cluster: SparkCluster, static: Mapping[str, nodes.Source], taken: list[TakenInput], slots: int) -> list[Any]:
    """Return input in the form that the cluster reads."""
    found = [cluster.static(static)] if static else []
    return [*found, *([cluster.piece_rows(taken, Splitters(slots))] if taken else [])]


def _log_left_out(last: Manifest | None) -> None:
    for name, source in (last.sources if last else {}).items():
        if source.late or source.rejected:
            counts = f"{source.late:,} late and {source.rejected:,} rejected of {source.delivered:,}"
            _log.warning("collect left out tuples of %s: %s (%s)", printable(name), counts, REASONS)
    for step, count in (last.totals.failed if last else {}).items():
        _log.warning("collect left out %s tuples that failed: %s", f"{count:,}", printable(step))
