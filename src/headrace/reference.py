"""What a query means: a sequential interpreter, one operator after the other, written to be obviously right.

What arrived, windows, order, matching and time are plain Python and numpy, of this module and of `headrace.values`; the
engine and its kernels use neither. Shared with them are the query as it was checked when it was built (its records,
schemas, lengths of windows, and the SQL and types of its expressions) and DuckDB, which evaluates scalar expressions and
aggregate functions; those see no tuple and no pair outside the window that is asked about. `tests/unit/test_apart.py`
lists every module that is shared, and why.

With errors="keep" a tuple on which a `map`, `filter` or `case` fails, alone, is left out of what comes of that step.

Invariant: an answer holds every result of its operator with `ts` below the watermark that stands beside it.
So the operators above depend on the last watermarks alone, and not on how the epochs were cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import duck
from headrace.difference import difference as difference  # can be had from here too
from headrace.errors import DataError, QueryError, SourceError
from headrace.expressions import Expression, Predicate
from headrace.query import nodes
from headrace.stream import Stream, node_of
from headrace.types import TS, TS_TYPE
from headrace.values import Key, as_text, comparable, key_of

Epoch: TypeAlias = pa.Table | Mapping[str, pa.Table]
Numbers = npt.NDArray[np.int64]

CHUNK = 1_000_000  # pairs, or tuples of windows, that are looked at together
EARLIEST, LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Part:
    """Tuples of one source or window operator, and the stateless steps that they have gone through since."""

    producer: nodes.Node
    steps: tuple[str, ...]
    table: pa.Table


@dataclass(frozen=True)
class Answer:
    """What an operator emitted, and the time (microseconds, or an infinity) until which nothing follows."""

    parts: tuple[Part, ...]
    watermark: float

    @property
    def table(self) -> pa.Table:
        return _one([part.table for part in self.parts])


@dataclass(frozen=True)
class Failed:
    """Tuples that failed in one step, as they were before it; source: None where windows come before the step."""

    source: str | None
    words: str
    table: pa.Table


@dataclass(frozen=True)
class Admission:
    """The tuples of one source by their fate, and the source's watermark after the last epoch."""

    accepted: pa.Table
    late: pa.Table
    rejected: pa.Table
    watermark: float


def reference(query: Stream, epochs: Sequence[Epoch] | None = None, end: bool = True, errors: str = "stop") -> pa.Table:
    """The sequential answer: over bounded sources, or over `epochs`, the rows that arrived together.

    With `end=False` the input goes on after the last epoch, and only what is certain by then is emitted.
    With `errors="keep"` tuples that fail in a `map`, `filter` or `case` are left out there.
    """
    return references([query], epochs, end, errors)[0]


def references(
    queries: Sequence[Stream], epochs: Sequence[Epoch] | None = None, end: bool = True, errors: str = "stop"
) -> list[pa.Table]:
    """The sequential answers to queries over the same sources; what they share is computed once."""
    if errors not in ("stop", "keep"):
        raise QueryError(f"errors must be one of stop, keep; found {errors!r}")
    return _answers([node_of(query) for query in queries], epochs, end, {} if errors == "keep" else None)


def failed_tuples(query: Stream, epochs: Sequence[Epoch] | None = None, end: bool = True) -> list[Failed]:
    """The tuples that fail, once for every step that they fail in."""
    failed: Failures = {}
    _answers([node_of(query)], epochs, end, failed)
    return list(failed.values())


Failures = dict[tuple[int, tuple[str, ...]], Failed]  # by producer and steps; the branches of a case are one step


def _answers(
    roots: Sequence[nodes.Node], epochs: Sequence[Epoch] | None, end: bool, failed: Failures | None
) -> list[pa.Table]:
    """failed: where tuples that fail are put; None: one that fails is an error."""
    arrived = _arrived(roots, epochs)
    names = {id(source): name for name, source in nodes.named_sources(*roots).items()}
    answers: dict[int, Answer] = {}
    try:
        for node in nodes.walk(*roots):
            inputs = [answers[id(child)] for child in node.inputs]
            if isinstance(node, nodes.Source):
                admitted = _admit(node, arrived[id(node)])
                part = Part(node, (), admitted.accepted)
                answers[id(node)] = Answer((part,), math.inf if end else admitted.watermark)
            else:
                answers[id(node)] = Answer(_parts(node, inputs, names, failed), _watermark(node, inputs))
    except _Failure as failure:
        raise failure.told() from failure.error
    return [answers[id(root)].table for root in roots]


def late_tuples(query: Stream, epochs: Sequence[Epoch]) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Per source the tuples that came too late and those that were rejected."""
    root = node_of(query)
    arrived = _arrived([root], epochs)
    fates = {name: _admit(s, arrived[id(s)]) for name, s in nodes.named_sources(root).items()}
    return {name: (fate.late, fate.rejected) for name, fate in fates.items()}


# --- sources: what arrived, and what of it is accepted ------------------------------------------------------


def _arrived(roots: Sequence[nodes.Node], epochs: Sequence[Epoch] | None) -> dict[int, list[pa.Table]]:
    """Per source the tuples of every epoch. Bounded input is one epoch: in the first, nothing can be late."""
    named = nodes.named_sources(*roots)
    cut = [_bounded(named)] if epochs is None else [_by_name(epoch, named) for epoch in epochs]
    return {id(s): [_tuples(epoch[n], s, n) for epoch in cut if n in epoch] for n, s in named.items()}


def _tuples(delivered: pa.Table, source: nodes.Source, name: str) -> pa.Table:
    """Delivered rows as tuples: the time column is called `ts`, a time without a zone is UTC, types are the stream's."""
    names = [source.time if column == TS else column for column in source.schema.names]
    if sorted(names) != sorted(delivered.column_names):
        msg = f"the schema of {name} changed: it has {', '.join(delivered.column_names)}, the query was built for {', '.join(names)}"
        raise SourceError(msg)
    try:
        delivered.validate(full=True)
        return delivered.select(names).rename_columns(source.schema.names).cast(source.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(f"{name} delivers what its stream does not hold: {error}") from None


def _bounded(named: Mapping[str, nodes.Source]) -> dict[str, pa.Table]:
    for name, source in named.items():
        if not source.origin.bounded:
            msg = (
                f"source {name!r} has no end, so there is no complete answer; give reference its tuples as"
                " epochs=[...], or build the query on a bounded source"
            )
            raise QueryError(msg)
    return {name: source.origin.table() for name, source in named.items()}


def _by_name(epoch: Epoch, named: Mapping[str, nodes.Source]) -> Mapping[str, pa.Table]:
    known = ", ".join(named)
    if isinstance(epoch, pa.Table):
        if len(named) != 1:
            msg = f"the query has {len(named)} sources; give each epoch as a dict {{name: table}} of {known}"
            raise QueryError(msg)
        return {next(iter(named)): epoch}
    unknown = [name for name in epoch if name not in named]
    if unknown:
        raise QueryError(f"an epoch names an unknown source {unknown[0]!r}; the query has {known}")
    return epoch


def _admit(source: nodes.Source, epochs: Iterable[pa.Table]) -> Admission:
    accepted, late, rejected = ([source.schema.empty_table()] for _ in range(3))
    largest = -math.inf  # of the tuples accepted in earlier epochs
    for tuples in epochs:
        untimed = np.asarray(pc.is_null(tuples[TS]).combine_chunks())
        times = _times(tuples)
        is_late = ~untimed & (times < largest - source.lateness)
        is_rejected = untimed | (times > _limit(largest, source.ahead))
        kept = ~is_late & ~is_rejected
        accepted.append(tuples.filter(pa.array(kept)))
        late.append(tuples.filter(pa.array(is_late)))
        rejected.append(tuples.filter(pa.array(is_rejected)))
        largest = max([largest, *times[kept].tolist()])
    return Admission(_one(accepted), _one(late), _one(rejected), largest - source.lateness)


def _one(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def _limit(largest: float, ahead: int | None) -> float:
    """The largest time that is believed; before anything was accepted, every time is."""
    return math.inf if ahead is None or largest == -math.inf else largest + ahead


# --- operators ----------------------------------------------------------------------------------------------


def _watermark(node: nodes.Node, inputs: Sequence[Answer]) -> float:
    if isinstance(node, nodes.TimeJoin):
        left, right = inputs
        return min(left.watermark - node.w2, right.watermark - node.w1)
    smallest = min(answer.watermark for answer in inputs)
    return smallest - node.window if isinstance(node, nodes.TimeAggregate) else smallest


Step: TypeAlias = nodes.Map | nodes.Filter | nodes.Case


def _parts(
    node: nodes.Node, inputs: Sequence[Answer], names: Mapping[int, str], failed: Failures | None
) -> tuple[Part, ...]:
    """A step is done to every part alone, so that it is known whose tuples fail."""
    match node:
        case nodes.Union():
            return tuple(part for answer in inputs for part in answer.parts)
        case nodes.Map() | nodes.Filter() | nodes.Case():
            return tuple(_stepped(node, part, names, failed) for part in inputs[0].parts)
        case _:
            return (Part(node, (), _result(node, inputs).cast(node.schema)),)


def _stepped(node: Step, part: Part, names: Mapping[int, str], failed: Failures | None) -> Part:
    if failed is None:
        found = _step(node, part.table)
    else:
        found, failing = _surviving(node, part.table)
        words = f"case {', '.join(p.text for p in node.predicates)}" if isinstance(node, nodes.Case) else node.words
        place = (id(part.producer), (*part.steps, words))
        known = failed.get(place)
        if failing.num_rows > (known.table.num_rows if known else 0):  # a later branch asks more, of the same tuples
            failed[place] = Failed(names.get(id(part.producer)), words, failing)
    return Part(part.producer, (*part.steps, node.words), found.cast(node.schema))


def _surviving(node: Step, tuples: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What comes of the tuples on which a step does not fail, and the others; found by halving."""
    try:
        return _step(node, tuples), tuples.slice(0, 0)
    except _Failure as failure:
        if not duck.is_of_data(failure.error):
            raise
    if tuples.num_rows == 1:
        return node.schema.empty_table(), tuples
    half = tuples.num_rows // 2
    found, failing = zip(*(_surviving(node, t) for t in (tuples.slice(0, half), tuples.slice(half))), strict=True)
    return _one(found), _one(failing)


def _step(node: Step, tuples: pa.Table) -> pa.Table:
    if tuples.num_rows == 0:  # DuckDB computes some constants also where there is no row, and they may fail
        return node.schema.empty_table()
    match node:
        case nodes.Map():
            values = [_value(expression, tuples) for _, expression in node.columns]
            return pa.table([tuples[TS], *values], names=node.schema.names)
        case nodes.Filter():
            return tuples.filter(_is_true(node.predicate.sql, node.predicate.text, tuples))
        case nodes.Case():
            return _case(node, tuples)


def _result(node: nodes.Node, inputs: Sequence[Answer]) -> pa.Table:
    match node:
        case nodes.TimeJoin():
            return _time_join(node, inputs[0].table, inputs[1].table)
        case nodes.CountJoin():
            return _count_join(node, inputs[0], inputs[1])
        case nodes.TimeAggregate():
            return _time_aggregate(node, inputs[0])
        case nodes.CountAggregate():
            return _count_aggregate(node, inputs[0])
        case nodes.Distinct():
            return _distinct(node, inputs[0])
        case _:
            raise QueryError(f"reference has no meaning for {type(node).__name__}; write it there first")


def _case(node: nodes.Case, tuples: pa.Table) -> pa.Table:
    """A predicate is asked only about the tuples that no earlier one has taken, and as a condition of CASE: there, other
    than in a filter, DuckDB does not look at the second part of an AND where the first is false, so that it cannot fail."""
    rest = tuples
    for number, predicate in enumerate(node.predicates[: node.branch + 1]):
        taken = _is_true(f"CASE WHEN {predicate.sql} THEN true ELSE false END", predicate.text, rest)
        if number == node.branch:
            return rest.filter(taken)
        rest = rest.filter(pc.invert(taken))
    return rest


def _distinct(node: nodes.Distinct, given: Answer) -> pa.Table:
    """A tuple is kept unless one with the same key was kept at most so long before it."""
    tuples = _in_sequence(_before(given.watermark, given.table))
    kept_at: dict[Key, int] = {}
    rows = []
    for row, (key, ts) in enumerate(zip(_keys(tuples, node.by), _times(tuples).tolist(), strict=True)):
        if key not in kept_at or ts - kept_at[key] > node.within:
            kept_at[key] = ts
            rows.append(row)
    return tuples.take(_row_numbers(rows))


# --- joins --------------------------------------------------------------------------------------------------


def _time_join(node: nodes.TimeJoin, left: pa.Table, right: pa.Table) -> pa.Table:
    right = right.take(np.argsort(_times(right), kind="stable"))
    l_times, r_times = _times(left), _times(right)
    low = np.searchsorted(r_times, _plus(l_times, -node.w2), side="left")
    high = np.searchsorted(r_times, _plus(l_times, node.w1), side="right")
    l_rows, r_rows = _matches(node.on, left, right, _pairs(low, high))
    return _joined(node, np.minimum(l_times[l_rows], r_times[r_rows]), left.take(l_rows), right.take(r_rows))


def _count_join(node: nodes.CountJoin, given_left: Answer, given_right: Answer) -> pa.Table:
    """Rows in sequence, so that a tuple's row number is its rank."""
    until = min(given_left.watermark, given_right.watermark)
    left, right = (_in_sequence(_before(until, given.table)) for given in (given_left, given_right))
    l_times, r_times = _times(left), _times(right)
    r_before, l_before = _walk_together(l_times.tolist(), r_times.tolist())
    complete_l = _pairs(np.maximum(r_before - node.n2, 0), r_before)
    complete_r = ((l_row, r_row) for r_row, l_row in _pairs(np.maximum(l_before - node.n1, 0), l_before))
    found = [_matches(node.on, left, right, pairs) for pairs in (complete_l, complete_r)]
    l_rows, r_rows = (np.concatenate(rows) for rows in zip(*found, strict=True))
    return _joined(node, np.maximum(l_times[l_rows], r_times[r_rows]), left.take(l_rows), right.take(r_rows))


def _walk_together(l_times: list[int], r_times: list[int]) -> tuple[Numbers, Numbers]:
    """For every l how many r came before it, for every r how many l; at equal times each l before any r."""
    r_before: list[int] = []
    l_before: list[int] = []
    for _, side in sorted([(ts, "l") for ts in l_times] + [(ts, "r") for ts in r_times]):
        if side == "l":
            r_before.append(len(l_before))
        else:
            l_before.append(len(r_before))
    return np.array(r_before, np.int64), np.array(l_before, np.int64)


def _pairs(low: Numbers, high: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Every (i, j) with low[i] <= j < high[i], some at a time."""
    ends = np.cumsum(high - low)
    starts = ends - (high - low)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, CHUNK):
        numbers = np.arange(begin, min(begin + CHUNK, total))
        owner = np.searchsorted(ends, numbers, side="right")
        yield owner, low[owner] + (numbers - starts[owner])


def _matches(
    on: Predicate, left: pa.Table, right: pa.Table, pairs: Iterable[tuple[Numbers, Numbers]]
) -> tuple[Numbers, Numbers]:
    """Of these pairs of row numbers, those for which the predicate is true."""
    left, right = _used(left, "l", on), _used(right, "r", on)
    found: list[tuple[Numbers, Numbers]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for l_rows, r_rows in pairs:
        tables = {"l": left.take(l_rows), "r": right.take(r_rows)}
        true = np.asarray(_truth(_ask(on.sql, on.text, "l POSITIONAL JOIN r", tables)))
        found.append((l_rows[true], r_rows[true]))
    l_found, r_found = (np.concatenate(rows) for rows in zip(*found, strict=True))
    return l_found, r_found


def _used(table: pa.Table, side: str, on: Predicate) -> pa.Table:
    """The columns that the predicate reads, and one more so that there always is one."""
    used = {path[1].lower() for path in on.columns if path[0].lower() == side}
    numbered = table.append_column("__row", pa.array(np.arange(table.num_rows)))
    return numbered.select([name for name in table.column_names if name.lower() in used] + ["__row"])


def _joined(node: nodes.Join, times: Numbers, left: pa.Table, right: pa.Table) -> pa.Table:
    sides = {"l": left, "r": right}
    columns = [sides[side][name] for _, side, name in node.columns]
    return pa.table([_timestamps(times), *columns], names=node.schema.names)


# --- aggregates ---------------------------------------------------------------------------------------------


def _time_aggregate(node: nodes.TimeAggregate, given: Answer) -> pa.Table:
    tuples = _in_sequence(given.table)
    windows: dict[tuple[int, int], list[int]] = {}  # (group, start) -> its tuples in sequence
    for row, (group, ts) in enumerate(zip(_groups(tuples, node.by), _times(tuples).tolist(), strict=True)):
        for start in _window_starts(ts, node.window, node.every):
            if start + node.window <= given.watermark:
                windows.setdefault((group, start), []).append(row)
    members = list(windows.values())
    first = tuples.take(_row_numbers(rows[0] for rows in members))
    starts = _row_numbers(start for _, start in windows)
    bounds = [_timestamps(starts), _timestamps(starts + node.window)]
    keys = [first[name] for name in node.by]
    return pa.table([first[TS], *keys, *bounds, *_functions(node, tuples, members)], names=node.schema.names)


def _window_starts(ts: int, window: int, every: int) -> list[int]:
    """The multiples of `every` in (ts - window, ts]; // rounds down, also below zero."""
    return [k * every for k in range((ts - window) // every + 1, ts // every + 1)]


def _count_aggregate(node: nodes.CountAggregate, given: Answer) -> pa.Table:
    tuples = _in_sequence(_before(given.watermark, given.table))
    seen: dict[int, list[int]] = {}  # group -> its tuples in sequence
    members: list[list[int]] = []
    for row, group in enumerate(_groups(tuples, node.by)):
        rows = seen.setdefault(group, [])
        rows.append(row)
        if len(rows) >= node.last and (len(rows) - node.last) % node.every == 0:
            members.append(rows[-node.last :])
    first = tuples.take(_row_numbers(rows[0] for rows in members))
    completing = tuples.take(_row_numbers(rows[-1] for rows in members))
    keys = [first[name] for name in node.by]
    return pa.table([completing[TS], *keys, *_functions(node, tuples, members)], names=node.schema.names)


def _groups(tuples: pa.Table, by: Sequence[str]) -> list[int]:
    """The number of every tuple's group; null is a group, NaN is one, and -0.0 is 0.0."""
    numbers: dict[Key, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in _keys(tuples, by)]


def _functions(node: nodes.Aggregation, tuples: pa.Table, members: Sequence[Sequence[int]]) -> list[Any]:
    """One column per function: its value for every list of rows of `tuples`, which are in sequence."""
    kinds = pa.schema([(name, function.type) for name, function in node.functions])
    parts = [_evaluated(node, tuples, batch).cast(kinds) for batch in _batches(members)]
    return list(_one([kinds.empty_table(), *parts]).columns)


def _batches(members: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    size = 0
    for rows in members:
        batch.append(rows)
        size += len(rows)
        if size >= CHUNK:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _evaluated(node: nodes.Aggregation, tuples: pa.Table, members: Sequence[Sequence[int]]) -> pa.Table:
    rows = np.concatenate([np.array(rows, np.int64) for rows in members])
    window = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
    expanded = tuples.take(rows).append_column("__seq", pa.array(rows))
    expanded = expanded.append_column("__window", pa.array(window))
    chosen = ", ".join(f"{function.sql} AS __f{i}" for i, (_, function) in enumerate(node.functions))
    grouped = ", ".join(["__window", *(duck.quote(name) for name in node.by)])
    sql = f"SELECT {chosen} FROM __tuples GROUP BY {grouped} ORDER BY __window"
    found = _run(sql, {"__tuples": expanded}, ", ".join(function.text for _, function in node.functions))
    if found.num_rows != len(members):
        raise DataError(f"DuckDB cuts the groups of {', '.join(node.by)} otherwise than reference does")
    return found.rename_columns([name for name, _ in node.functions])


# --- time and sequence --------------------------------------------------------------------------------------


def _times(tuples: pa.Table) -> Numbers:
    """Event times as microseconds; a missing one reads as zero."""
    column = tuples[TS].combine_chunks().cast(pa.int64())
    return np.asarray(pc.fill_null(column, 0), np.int64)


def _timestamps(times: Numbers) -> Any:
    return pa.array(times, pa.int64()).cast(TS_TYPE)


def _row_numbers(rows: Iterable[int]) -> Numbers:
    return np.array(list(rows), np.int64)


def _plus(times: Numbers, length: int) -> Numbers:
    """Times moved by a length; beyond the last time there is, the last."""
    if length >= 0:
        return np.where(times > LATEST - length, LATEST, np.minimum(times, LATEST - length) + length)
    return np.where(times < EARLIEST - length, EARLIEST, np.maximum(times, EARLIEST - length) + length)


def _before(watermark: float, tuples: pa.Table) -> pa.Table:
    return tuples.filter(pa.array(_times(tuples) < watermark))


def _in_sequence(tuples: pa.Table) -> pa.Table:
    """The tuples by time, ties by their columns in the order of the schema."""
    keys = _keys(tuples, [TS, *(name for name in tuples.column_names if name != TS)])
    return tuples.take(_row_numbers(sorted(range(len(keys)), key=keys.__getitem__))).combine_chunks()


def _keys(tuples: pa.Table, names: Sequence[str]) -> list[Key]:
    """Per tuple the keys of these columns."""
    if not names:
        return [()] * tuples.num_rows
    columns = [[key_of(value) for value in comparable(tuples[name])] for name in names]
    return list(zip(*columns, strict=True))


# --- DuckDB -------------------------------------------------------------------------------------------------


def _value(expression: Expression, tuples: pa.Table) -> Any:
    return _ask(expression.sql, expression.text, "__tuples", {"__tuples": tuples}).cast(expression.type)


def _is_true(sql: str, text: str, tuples: pa.Table) -> Any:
    return _truth(_ask(sql, text, "__tuples", {"__tuples": tuples}))


def _truth(column: Any) -> Any:
    """Null is not true."""
    return pc.fill_null(column, False)


def _ask(sql: str, text: str, origin: str, tables: Mapping[str, pa.Table]) -> Any:
    """The value of an expression for every row of the tables side by side, in their order."""
    found = _run(f"SELECT {sql} AS c FROM {origin}", tables, text, by_row=True)
    return found["c"].combine_chunks()


@dataclass
class _Failure(Exception):
    """An expression failed; by_row: on one row of the tables."""

    error: duckdb.Error
    sql: str
    tables: Mapping[str, pa.Table]
    text: str
    by_row: bool

    def told(self) -> DataError:
        reason = str(self.error).splitlines()[0]
        where = f" on {_culprit(self.sql, self.tables)}" if self.by_row else ""
        return DataError(
            f"{self.text!r} failed{where}: {reason}; correct the data or use a safe form, such as TRY_CAST"
        )


def _run(sql: str, tables: Mapping[str, pa.Table], text: str, *, by_row: bool = False) -> pa.Table:
    try:
        return duck.run(sql, tables)
    except duckdb.Error as error:
        raise _Failure(error, sql, tables, text, by_row) from error


def _culprit(sql: str, tables: Mapping[str, pa.Table]) -> str:
    """The first row of the tables on which the query fails, found by halving."""
    low, high = 0, max(table.num_rows for table in tables.values())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fails(sql, tables, low, middle) else (middle, high)
    own = {side: [n for n in table.column_names if n != "__row"] for side, table in tables.items()}
    return " and ".join(
        "".join(as_text(table.select(own[side]).slice(low, 1))) for side, table in tables.items() if own[side]
    )


def _fails(sql: str, tables: Mapping[str, pa.Table], low: int, high: int) -> bool:
    try:
        duck.run(sql, {name: table.slice(low, high - low) for name, table in tables.items()})
    except duckdb.Error:
        return True
    return False
