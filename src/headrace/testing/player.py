"""A scripted player of queries: it runs the steps of a play one by one, and each answers with what it emitted.

    play(query, [epoch(calls=[(1, "a")]), restart(slots=3), epoch(calls=[(12, "b")]), end()])

The player drives a `LocalRun`: real stages and real state in a temporary folder, without Spark.

Invariant: a play has no clock. Watermarks move only by tuples, by `idle` and by `end()`, so a play has the same entries
however often it runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import sinks
from headrace.columnar.types import TS, TS_TYPE, fold_name, plain_type
from headrace.errors import HeadraceError, QueryError, SourceError
from headrace.query import nodes
from headrace.query.labels import result_labels
from headrace.reference.tuples import in_sequence
from headrace.sources.tables import ArrowTable
from headrace.state.store import StateStore
from headrace.stream import Stream, Table, label_of, node_of
from headrace.support.durations import Duration
from headrace.support.limits import check_slots
from headrace.telemetry.progress import Watermark
from headrace.testing.arrow_sources import arrow_table, table_stream
from headrace.testing.local_run import LocalRun
from headrace.testing.play_results import PlayedStep, PlayedWatermark, Results
from headrace.testing.play_steps import OWN_ARGUMENTS, EndStep, EpochStep, PlayStep, Query, RestartStep, check_steps
from headrace.testing.typed_rows import Columns, Rows, column_types, typed_table

Tables = Mapping[str, nodes.TableDefinition]
SPLITTERS = 2  # of each epoch


def source(name: str, columns: Columns, lateness: Duration = "0 seconds", ahead: Duration | None = None) -> Stream:
    """Return a stream whose tuples come from the steps of a play.

    Args:
        name: the name of the source in `epoch`.
        columns: types by name, without the time, such as {"k": "string", "n": "int64"}; or a `pyarrow.Schema`.
        lateness: how far a tuple may lag behind the largest `ts` of the epochs before its own without being late.
        ahead: a tuple that is further than this past the largest `ts` committed is rejected. None: no limit.

    Returns:
        The stream, with `ts` as its first column.

    Raises:
        QueryError: the name or a column is invalid.
        QueryTypeError: a type is unknown.

    Examples:
        >>> hr.testing.source("calls", {"k": "string", "n": "int64"}, lateness="2 seconds").columns
        ['ts', 'k', 'n']
    """
    if not isinstance(name, str) or not name or name in OWN_ARGUMENTS:
        besides = " and ".join(map(repr, OWN_ARGUMENTS))
        raise QueryError(f"the name of a source must be text, other than {besides}; found {name!r:.80}")
    given = column_types(columns, f"source {name!r}")
    if any(fold_name(column) == TS for column in given.names):
        raise QueryError(f"every source has its time as the first column, 'ts'; leave 'ts' out of columns of {name!r}")
    schema = pa.schema([pa.field(TS, TS_TYPE), *given])
    return table_stream(schema.empty_table(), lateness=lateness, ahead=ahead, name=name)


def table(name: str, columns: Columns, rows: Rows = ()) -> Table:
    """Return a table for joins that begins with these rows; `epoch(tables={name: rows})` replaces them.

    Args:
        name: the name of the table in `epoch`.
        columns: types by name, or a `pyarrow.Schema`.
        rows: tuples in the order of the columns, dicts by column, or a `pyarrow.Table`.

    Returns:
        The table.

    Raises:
        QueryError: the name is invalid, or a row does not fit the columns.
        QueryTypeError: a type is unknown, or a value does not fit its column.

    Examples:
        >>> hr.testing.table("zones", {"k": "string", "zone": "int64"}, [("a", 1)]).columns
        ['k', 'zone']
    """
    if not isinstance(name, str) or not name:
        raise QueryError(f"the name of a table must be text; found {name!r:.80}")
    schema = column_types(columns, f"table {name!r}")
    return arrow_table(typed_table(rows, schema, f"the rows of table {name!r}"), name=name)


def play(query: Query, steps: Sequence[PlayStep], slots: int = 2) -> list[PlayedStep]:
    """Run a query through the steps of a play, without Spark, and return one entry for each step.

    Args:
        query: a stream, or a list of streams, whose results then go by name or position.
        steps: `epoch(...)`, `restart(...)` and, at the end, `end()`. Without `end()` the input stays open.
        slots: tasks per stage at the start. No answer depends on them.

    Returns:
        One `PlayedStep` for each step.

    Raises:
        QueryError: a step names an unknown source or table, or comes after the end.
        HeadraceError: the run failed; a note on the error names the step.

    Examples:
        >>> calls = hr.testing.source("calls", {"k": "string"}, lateness="2 seconds")
        >>> counts = calls.aggregate(by=["k"], window="10 seconds", n="count(*)")
        >>> first = hr.testing.epoch(calls=[(1, "a"), (9, "a")])
        >>> steps = hr.testing.play(counts, [first, hr.testing.epoch(calls=[(12, "b"), (5, "c")]), hr.testing.end()])
        >>> steps[1].expect([{"k": "a", "n": 2}])
    """
    checked = check_steps(steps)
    with tempfile.TemporaryDirectory(prefix="headrace-play-") as folder:
        player = _Player(query, Path(folder) / "state", check_slots(slots))
        try:
            for number, step in enumerate(checked):
                player.played.append(player.play(number, step))
            return player.played
        finally:
            player.close()


class _Player:
    """A run that steps open, feed, close and open again."""

    def __init__(self, query: Query, folder: Path, slots: int) -> None:
        self.folder, self.slots = folder, slots
        self.sink = sinks.memory()
        self.rows: dict[str, pa.Table] = {}  # of tables, as steps gave them
        self.played: list[PlayedStep] = []
        self.run: LocalRun | None = None
        self._take_query(query)

    def _take_query(self, query: Query) -> None:
        self.single = not isinstance(query, Sequence) or isinstance(query, str)
        self.streams: list[Any] = [query] if self.single else list(query)  # type: ignore[arg-type]
        roots = [node_of(stream) for stream in self.streams]
        if not roots:
            raise QueryError("play takes a query: a stream, or a list of streams; found an empty list")
        self.sources, self.tables = nodes.named_sources(*roots), nodes.named_tables(*roots)

    def play(self, number: int, step: PlayStep) -> PlayedStep:
        label = f"step {number}, {step.text}"
        before = self._totals()
        try:
            match step:
                case EpochStep():
                    self._epoch(step, number)
                case RestartStep():
                    self._restart(step)
                case EndStep():
                    self._opened().end()
        except HeadraceError as error:
            error.add_note(f"in {label} of the play")
            raise
        late, rejected = (now - then for now, then in zip(self._totals(), before, strict=True))
        emitted = isinstance(step, EpochStep | EndStep)
        return PlayedStep(label, self._results(emitted), late, rejected, self._watermarks(), self.played)

    def close(self) -> None:
        if self.run is not None:
            self.run.close()
            self.run = None

    # --- steps -------------------------------------------------------------------------------------------------------

    def _epoch(self, step: EpochStep, number: int) -> None:
        for name in (*step.sources, *step.idle):
            _check_known(name, self.sources, "source")
        for name, rows in step.tables.items():
            _check_known(name, self.tables, "table")
            self.rows[name] = typed_table(rows, self.tables[name].schema, f"table {name!r} in step {number}")
        given = {name: _tuples(self.sources[name], name, rows, number) for name, rows in step.sources.items()}
        if self.run is not None:
            for name in step.tables:
                self.run.refresh(name)
        self._opened().epoch(given, splitters=SPLITTERS, idle=step.idle)

    def _restart(self, step: RestartStep) -> None:
        self.close()
        self.slots = step.slots or self.slots
        if step.query is not None:
            self._take_query(step.query)
        self._opened()

    def _opened(self) -> LocalRun:
        if self.run is None:
            store = StateStore.open(self.folder, fsync=False)
            options: dict[str, Any] = {"slots": self.slots, "sink": self.sink, "store": store, "keep_late": False}
            self.run = LocalRun(self.streams, self.folder, tables=self._played, **options)
        return self.run

    def _played(self, tables: Tables) -> Tables:
        """Tables whose rows are those that steps gave."""
        return {name: replace(each, refresh=None, origin=self._origin(name, each)) for name, each in tables.items()}

    def _origin(self, name: str, definition: nodes.TableDefinition) -> ArrowTable:
        def rows() -> pa.Table:
            if name in self.rows:
                return self.rows[name]
            if not isinstance(definition.origin, ArrowTable):
                raise SourceError(
                    f"a play does not read tables itself; give the rows with epoch(tables={{{name!r}: ...}})"
                )
            ((_, found),) = definition.origin.parts()
            return found

        return ArrowTable(rows)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _totals(self) -> tuple[int, int]:
        last = self.run.store.last if self.run is not None else None
        return (last.totals.late, last.totals.rejected) if last is not None else (0, 0)

    def _watermarks(self) -> dict[str, PlayedWatermark]:
        known = self.run.driver.progress.watermark if self.run is not None else {}
        return {name: _seconds(known.get(name)) for name in self.sources}

    def _results(self, emitted: bool) -> Any:
        """What the newest epoch delivered; nothing after a restart, which has no epoch."""
        assert self.run is not None
        last = self.run.store.last.number if emitted and self.run.store.last is not None else None
        delivered = {name: rows for (_, epoch, name), rows in self.sink.epochs.items() if epoch == last}
        labels = result_labels([label_of(stream) for stream in self.streams])
        found = Results(
            {labels[n]: in_sequence(delivered.get(n, s.empty_table())) for n, s in self.run.schemas.items()}
        )
        return found[0] if self.single else found


def _check_known(name: str, known: Mapping[str, Any], what: str) -> None:
    if name not in known:
        raise QueryError(f"the query has no {what} {name!r}; it has {', '.join(map(repr, known)) or 'none'}")


def _tuples(source: nodes.Source, name: str, rows: Rows, number: int) -> pa.Table:
    """Rows of a step as the source would deliver them."""
    schema = source.schema
    by_time = pa.schema([schema.field(TS), *(field for field in schema if field.name != TS)])
    tuples = typed_table(rows, by_time, f"{name!r} in step {number}").select(schema.names)
    names = [source.time if name == TS else name for name in schema.names]
    raw = [pa.field(name, plain_type(source.raw_schema.field(name).type, name)) for name in names]
    return tuples.rename_columns(names).cast(pa.schema(raw))


def _seconds(watermark: Watermark) -> PlayedWatermark:
    if not isinstance(watermark, int):
        return watermark
    return watermark // 1_000_000 if watermark % 1_000_000 == 0 else watermark / 1_000_000
