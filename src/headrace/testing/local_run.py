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
    """A run in this process and without Spark, driven by hand, one epoch at a time. Its state is kept in a folder.

    A second run on the folder resumes where the first ended. For most tests `play` is simpler.

    Args:
        query: one query, or several.
        folder: where the state is kept.
        slots: tasks per stage, which may differ from one run to the next.
        ordered: True: results come in sequence.
        best_effort: True: as order="best-effort" of `start`.
        bounded: True: the sources end after one epoch.
        errors: "stop" or "keep", as in `start`.
        layouts: replaces the part that decides how operators are spread over slots. None: as in a run.
        groups: the number of groups of each operator. None: as in a run.
        strategy: "subquery", "operator" or "query".
        plan: a plan that `q.plan` made. None: a new plan.
        policy: how the run adapts. None: the defaults of `headrace.Policy`.
        limit: the largest number of slots. None: no limit.
        auto: True: as slots="auto" of `start`.
        sink: a sink for all results. None: they are kept in memory, for `results`.
        late: a sink for late, rejected and failed tuples. None: they are kept in memory, in `late`.
        keep_late: whether late and rejected tuples are kept.
        store: an open state store. None: the one in the folder.
        cache: bytes that state tables may take between epochs.
        tables: replaces the definitions of the tables that are read, by name.

    Raises:
        StateError: the folder is in use, belongs to another query, or is damaged.

    Examples:
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 20]})
        >>> run = hr.testing.LocalRun(hr.testing.table_stream(table).filter("x > 10"), Path("state"), slots=2)
        >>> run.epoch(table)
        >>> run.end()
        >>> run.results().num_rows
        1
        >>> run.close()
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
            labels = result_labels([label_of(each) for each in queries])
            started = compare.start_on_state(self.store, compiled, str(best_effort), labels)
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
            sinks_by_result = {**self.sinks, **self.late}
            self.driver = Driver(
                self.plan,
                started.query,
                self.store,
                sinks_by_result,
                settings,
                tables=tables(nodes.named_tables(*roots)),
                outbox_names=started.waiting,
                labels=labels,
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
        """Run one epoch.

        Args:
            tables: the tuples by the name of their source; a table alone belongs to the first source. None: no tuples.
            final: True: the input ends with this epoch.
            splitters: how many tasks the tuples are divided among.
            idle: names of sources that have been silent for too long.

        Raises:
            HeadraceError: the epoch failed.

        Examples:
            >>> from pathlib import Path
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 20]})
            >>> run = hr.testing.LocalRun(hr.testing.table_stream(table, name="xs"), Path("state"))
            >>> run.epoch({"xs": table.slice(0, 1)})
            >>> run.epoch({"xs": table.slice(1)}, final=True)
            >>> run.results()["x"].to_pylist()
            [1, 20]
            >>> run.close()
        """
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
        """Read a table again, for the next epochs.

        Args:
            table: the name of the table.

        Returns:
            The number of its version.

        Raises:
            QueryError: there is no such table.

        Examples:
            >>> from pathlib import Path
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> zones = hr.testing.arrow_table(lambda: pa.table({"number": ["ann"]}), name="zones")
            >>> run = hr.testing.LocalRun(calls.join(zones, on="l.caller = r.number"), Path("state"))
            >>> run.refresh("zones")
            1
            >>> run.close()
        """
        return self.driver.table_versions.renew(table)

    def end(self) -> None:
        """End the input: every window closes.

        Raises:
            HeadraceError: the epoch failed.

        Examples:
            >>> from pathlib import Path
            >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC"))})
            >>> counts = hr.testing.table_stream(table).aggregate(window="1 minute", n="count(*)")
            >>> run = hr.testing.LocalRun(counts, Path("state"))
            >>> run.epoch(table)
            >>> run.end()
            >>> run.results()["n"].to_pylist()
            [2]
            >>> run.close()
        """
        self.epoch(final=True)

    def results(self, result: str = "result-0") -> pa.Table:
        """Return all results so far.

        Args:
            result: "result-0", "result-1", ... in the order of the queries.

        Returns:
            The results, a `pyarrow.Table`; empty if there are none.

        Examples:
            >>> from pathlib import Path
            >>> run = hr.testing.LocalRun(hr.testing.source("calls", {"caller": "string"}), Path("state"))
            >>> run.results("result-0").num_rows
            0
            >>> run.close()
        """
        found = self.sinks[result].table()
        return self.schemas[result].empty_table() if found is None else found

    def close(self) -> None:
        """Release the folder, as a run does that stops or is killed.

        Examples:
            >>> from pathlib import Path
            >>> calls = hr.testing.source("calls", {"caller": "string"})
            >>> hr.testing.LocalRun(calls, Path("state")).close()
            >>> hr.testing.LocalRun(calls, Path("state"), slots=3).close()
        """
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
    """Run the whole of a bounded query in one epoch, without Spark, and return its results.

    Args:
        query: a stream over tables, such as from `table_stream`.
        folder: where the state is kept; a new folder.
        slots: tasks per stage.
        ordered: True: results come in sequence.
        best_effort: True: as order="best-effort" of `start`.
        errors: "stop" or "keep", as in `start`.
        strategy: "subquery", "operator" or "query".
        plan: a plan that `q.plan` made. None: a new plan.
        policy: how the run adapts. None: the defaults of `headrace.Policy`.
        sink: a sink for the results, which has a method `table`. None: they are kept in memory.
        keep_late: whether late and rejected tuples are kept.

    Returns:
        The results, a `pyarrow.Table`.

    Raises:
        HeadraceError: the run failed.

    Examples:
        >>> from pathlib import Path
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC"))})
        >>> counts = hr.testing.table_stream(table).aggregate(window="1 minute", n="count(*)")
        >>> hr.testing.run_locally(counts, Path("state"))["n"].to_pylist()
        [2]
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
