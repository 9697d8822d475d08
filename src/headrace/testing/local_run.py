"""`LocalRun`: a run without Spark that a test drives by hand, one epoch at a time.

The test decides how a stream is cut, when the number of slots changes, and when the process "crashes". Everything else
(driver, stages, kernels, state on disk) is the real thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

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
from headrace.query.labels import result_labels
from headrace.sources.protocol import PhysicalWindow
from headrace.state.store import StateStore
from headrace.stream import Stream, label_of, node_of
from headrace.task.failure_points import rejected_results
from headrace.task.in_process import execute_locally

CACHE = 64 << 20  # bytes that tables may take in place


class LocalRun:
    """A run on a state folder, driven by hand, in this process and without Spark.

    query: one query, or several. folder: where the state is kept; a second run on it resumes where the first ended.
    slots: tasks per stage, which may differ from one run to the next. ordered: results in sequence.
    errors: "keep" counts tuples on which an expression fails, and keeps them apart. The other options are those of a run:
    `sink` and `late` take results and late tuples, and by default keep them in memory. `tables` replaces the definitions of the
    tables that are read, by name.

    run = LocalRun(query, tmp_path / "state")
    run.epoch(table)
    run.end()
    assert run.results().num_rows == 3
    run.close()
    """

    def __init__(
        self,
        query: Stream | Sequence[Stream],
        folder: Path,
        *,
        slots: int = 1,
        ordered: bool = False,
        best_effort: bool = False,
        bounded: bool = False,
        errors: Literal["stop", "keep"] = "stop",
        layouts: Callable[..., Any] | None = None,
        groups: int | None = None,
        strategy: Literal["subquery", "operator", "query"] = "subquery",
        plan: Plan | None = None,
        policy: Policy | None = None,
        limit: int | None = None,
        auto: bool = False,
        sink: sinks.AnySink | None = None,
        late: sinks.AnySink | None = None,
        keep_late: bool = True,
        store: StateStore | None = None,
        cache: int = CACHE,
        tables: Callable[[Mapping[str, nodes.TableDefinition]], Mapping[str, nodes.TableDefinition]] = dict,
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
            self.driver = Driver(
                self.plan,
                started.query,
                self.store,
                outlets,
                settings,
                tables=tables(nodes.named_tables(*roots)),
                outbox_names=started.waiting,
                labels=result_labels([label_of(each) for each in queries]),
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
        """End the input: every window closes."""
        self.epoch(final=True)

    def results(self, result: str = "result-0") -> pa.Table:
        """Return all results so far; result: "result-0", "result-1", ... in the order of the queries."""
        found = self.sinks[result].table()
        return self.schemas[result].empty_table() if found is None else found

    def close(self) -> None:
        """Let go of the folder, as a run does that stops or is killed."""
        self.driver._deliverer.close()
        self.driver.cache_index.remove()
        self.store.close()


def run_locally(
    query: Stream,
    folder: Path,
    *,
    slots: int = 1,
    ordered: bool = False,
    best_effort: bool = False,
    errors: Literal["stop", "keep"] = "stop",
    strategy: Literal["subquery", "operator", "query"] = "subquery",
    plan: Plan | None = None,
    policy: Policy | None = None,
    sink: sinks.AnySink | None = None,
    keep_late: bool = True,
) -> pa.Table:
    """Run the whole of a bounded query in one epoch and return its results. The options are those of `LocalRun`.

    found = run_locally(table_stream(table).aggregate(window="1 minute", n="count(*)"), tmp_path / "state")
    """
    run = LocalRun(
        query,
        folder,
        bounded=True,
        slots=slots,
        ordered=ordered,
        best_effort=best_effort,
        errors=errors,
        strategy=strategy,
        plan=plan,
        policy=policy,
        sink=sink,
        keep_late=keep_late,
    )
    tables = {name: s.origin.table() for name, s in nodes.named_sources(node_of(query)).items()}
    try:
        run.epoch(tables, final=True, splitters=2)
        return run.results()
    finally:
        run.close()
