"""A test kit: sources made of Arrow tables, an engine that runs the same stages in this process, without Spark, and a
check of processors.

`LocalRun` is driven by hand, one epoch at a time, so that a test decides how a stream is cut, when the number of slots
changes, and when the process "crashes". Everything else (driver, stages, kernels, state on disk) is the real thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import sinks
from headrace.compile import CompiledQuery
from headrace.compile.bind import bind_plan
from headrace.compile.subqueries import Plan
from headrace.control.policy import Policy
from headrace.driver import stored_checks
from headrace.driver.driver import Driver, Settings
from headrace.driver.position import Position
from headrace.evolve import compare
from headrace.query import nodes
from headrace.sources.protocol import PhysicalWindow
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.task.failure_points import rejected_results
from headrace.task.in_process import execute_locally
from headrace.testing.arrow_sources import arrow_table, table_stream
from headrace.testing.processor_check import check_processor

CACHE = 64 << 20  # bytes that tables may take in place

__all__ = ["LocalRun", "arrow_table", "check_processor", "run_locally", "table_stream"]


class LocalRun:
    """A run on a state folder, driven by hand."""

    def __init__(
        self,
        query: Stream | Sequence[Stream],
        folder: Path,
        *,
        slots: int = 1,
        ordered: bool = False,
        best_effort: bool = False,
        bounded: bool = False,
        errors: str = "stop",
        layouts: Callable[..., Any] | None = None,
        groups: int | None = None,
        strategy: str = "subquery",
        plan: Plan | None = None,
        policy: Policy | None = None,
        limit: int | None = None,
        auto: bool = False,
        sink: sinks.AnySink | None = None,
        late: sinks.AnySink | None = None,
        keep_late: bool = True,
        store: StateStore | None = None,
        cache: int = CACHE,
    ) -> None:
        queries = [query] if isinstance(query, Stream) else list(query)
        compiled = CompiledQuery([node_of(each) for each in queries], [ordered] * len(queries))
        self.store = store or StateStore.open(folder)
        try:
            if self.store.last is not None:
                stored_checks.check_manifest(self.store.last)
            started = compare.start_on_state(self.store, compiled, str(best_effort))
            if plan is None:
                self.plan = started.compiled.physical(strategy, held=started.held)
            else:
                self.plan, layouts = bind_plan(plan, started.compiled, started.held)
            self.sinks: dict[str, Any] = {name: sink or sinks.memory() for name in self.plan.results}
            self.late: dict[str, Any] = {
                name: late or sinks.memory() for name in rejected_results(self.plan, failed=True)
            }
            roots = started.compiled.roots
            self.schemas = dict(zip(self.plan.results, [root.schema for root in roots], strict=True))
            settings = Settings(
                slots,
                best_effort,
                bounded,
                keep_late=keep_late,
                keep_failed=errors == "keep",
                layouts=layouts,
                groups=groups,
                policy=policy or Policy(),
                limit=limit,
                auto=auto,
                cache=cache,
                beside=True,
            )
            outlets = {**self.sinks, **self.late}
            tables = nodes.named_tables(*roots)
            self.driver = Driver(
                self.plan, started.query, self.store, outlets, settings, tables=tables, outbox_names=started.waiting
            ).open()
            self.driver.deliver_again()
        except BaseException:
            self.store.close()
            raise

    def epoch(
        self,
        tables: pa.Table | Mapping[str, pa.Table] | None = None,
        *,
        final: bool = False,
        splitters: int = 1,
        idle: Sequence[str] = (),
    ) -> None:
        """One epoch with these rows, given to so many splitters; the sources in `idle` have been silent for too long."""
        if isinstance(tables, pa.Table):
            tables = {self.plan.sources[0].name: tables}
        windows: list[list[PhysicalWindow]] = [[] for _ in range(splitters)]
        for source, table in (tables or {}).items():
            for index in range(splitters):
                start, stop = (table.num_rows * i // splitters for i in (index, index + 1))
                windows[index].append(PhysicalWindow(source, table.slice(start, stop - start)))
        execute = partial(execute_locally, windows=windows, storage=self.store.storage)
        self.driver.run_epoch(Position("local"), execute, final=final, idle_sources=idle)

    def refresh(self, table: str) -> int:
        """Read a table again, for the epochs to come; the number of its version."""
        return self.driver.versions.renew(table)

    def end(self) -> None:
        self.epoch(final=True)

    def results(self, result: str = "result-0") -> pa.Table:
        found = self.sinks[result].table()
        return self.schemas[result].empty_table() if found is None else found

    def close(self) -> None:
        self.driver._deliverer.close()
        self.driver.cache_index.remove()
        self.store.close()


def run_locally(query: Stream, folder: Path, **options: Any) -> pa.Table:
    """The whole of a bounded query in one epoch."""
    run = LocalRun(query, folder, bounded=True, **options)
    tables = {name: s.origin.table() for name, s in nodes.named_sources(node_of(query)).items()}
    try:
        run.epoch(tables, final=True, splitters=2)
        return run.results()
    finally:
        run.close()
