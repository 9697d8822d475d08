"""The walk through a query: the input of its sources, and one operator after the other.

With errors="keep", a tuple on which a `map`, `filter`, `case` or the SQL of a split fails is left out of the output of
that step.

Invariant: an answer has every result of its operator with `ts` below the watermark of the answer. The operators
downstream therefore depend only on the last watermarks, and not on how the input was cut into epochs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS
from headrace.errors import QueryError, SourceError
from headrace.query import nodes
from headrace.query.named_columns import columns_needed
from headrace.reference.admission import Admission, admitted
from headrace.reference.evaluate import ExpressionFailed, is_true, passing_tuples, value_of
from headrace.reference.nested_values import unnest
from headrace.reference.nway import nway_join
from headrace.reference.processors import Rows, run_processor
from headrace.reference.sample import sample_tuples
from headrace.reference.splits import ALL_SUBSTREAMS, split_tuples
from headrace.reference.table_versions import ReferenceVersions, Version, versions_of
from headrace.reference.tuples import in_sequence, same_kind, single_value, times_of, tuples_before
from headrace.reference.windows import (
    as_of,
    count_aggregate,
    count_join,
    distinct,
    limit,
    session_aggregate,
    session_top,
    time_aggregate,
    time_join,
    time_top,
    windows_of,
)
from headrace.stream import Stream, node_of
from headrace.support.limits import MOST_TICKS
from headrace.support.terminal_text import printable

Epoch: TypeAlias = pa.Table | Mapping[str, pa.Table]
Idle: TypeAlias = Sequence[Collection[str]]  # names of sources, for each epoch

OMITTED = -2  # no tuple has this substream: the body of `each` runs on it once, on no tuples, for schema and watermark


@dataclass(frozen=True)
class TracedTuples:
    """Tuples of one source or window operator, and the stateless steps that they have passed since."""

    producer: nodes.Node
    steps: tuple[str, ...]
    table: pa.Table


@dataclass(frozen=True)
class NodeAnswer:
    """The output of an operator, and the time (microseconds, or an infinity) until which nothing follows.

    A processor emits several tables: one part for each of its outputs, in their order.
    """

    parts: tuple[TracedTuples, ...]
    watermark: float

    @property
    def table(self) -> pa.Table:
        return single_value([part.table for part in self.parts])


@dataclass(frozen=True)
class FailedByStep:
    """Tuples that failed in one step, as they were before it. source: None if windows come before the step."""

    source: str | None
    summary: str
    table: pa.Table


def reference(
    query: Stream,
    epochs: Sequence[Epoch] | None = None,
    end: bool = True,
    errors: Literal["stop", "keep"] = "stop",
    versions: Sequence[Version] | None = None,
    idle: Idle | None = None,
) -> pa.Table:
    """Return the sequential answer to a query: over its bounded sources, or over `epochs`. It needs no Spark.

    Args:
        query: a stream.
        epochs: the rows that arrived together, epoch by epoch: a `pyarrow.Table` if the query has one source, or tables
            by the name of their source. None: the query's own sources, which must be bounded.
        end: True: the input ends after the last epoch. False: it continues, and only results that are certain by then
            are emitted.
        errors: "stop": a tuple on which an expression fails raises an error. "keep": tuples that fail in a `map`,
            `filter`, `case` or the SQL of a split are left out there.
        versions: what tables held in each epoch, a table or a dict {name: table}; one more may follow, for the end,
            which otherwise is like the last epoch. None: what the tables hold now.
        idle: for each epoch the names of the sources that had been silent for longer than their `idle`. None: no source
            was.

    Returns:
        The results in sequence, a `pyarrow.Table`.

    Raises:
        DataError: an expression failed on a tuple, with errors="stop".
        SourceError: a source is not bounded, or delivers other columns.

    Examples:
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 20]})
        >>> hr.reference(hr.testing.table_stream(table).filter("x > 10"))["x"].to_pylist()
        [20]
    """
    return references([query], epochs, end, errors, versions, idle)[0]


def references(
    queries: Sequence[Stream],
    epochs: Sequence[Epoch] | None = None,
    end: bool = True,
    errors: str = "stop",
    versions: Sequence[Version] | None = None,
    idle: Idle | None = None,
) -> list[pa.Table]:
    """Return the sequential answers to queries over the same sources. Shared parts are computed once."""
    if errors not in ("stop", "keep"):
        raise QueryError(f"errors must be one of stop, keep; found {errors!r}")
    failed: Failures | None = {} if errors == "keep" else None
    return _answers([node_of(query) for query in queries], epochs, end, failed, versions, idle)


def failed_tuples(
    query: Stream,
    epochs: Sequence[Epoch] | None = None,
    end: bool = True,
    versions: Sequence[Version] | None = None,
) -> list[FailedByStep]:
    """Return the tuples that fail, once for every step in which they fail."""
    failed: Failures = {}
    _answers([node_of(query)], epochs, end, failed, versions)
    return list(failed.values())


Place = tuple[int, tuple[str, ...]]  # the id of a producer, and its steps; the branches of a case are one step
Failures = dict[Place, FailedByStep]


@dataclass(frozen=True)
class Interpretation:
    """The settings that apply to a whole query.

    names      names of the sources, by id
    failed     collects failing tuples; None: a failing tuple is an error
    ticks      the largest number of ticks of a substream
    reached    the watermark of every node before the input ends, by id
    versions   versions of tables
    substream  the present substream, in the body of a split
    """

    names: Mapping[int, str]
    failed: Failures | None
    ticks: int
    reached: Mapping[int, float]
    versions: ReferenceVersions
    substream: int | None = None


def _answers(
    roots: Sequence[nodes.Node],
    epochs: Sequence[Epoch] | None,
    end: bool,
    failed: Failures | None,
    given: Sequence[Version] | None = None,
    idle: Idle | None = None,
) -> list[pa.Table]:
    arrived, silent = _arrived(roots, epochs), _silent(roots, epochs, idle)
    versions = versions_of(roots, given, None if epochs is None else len(epochs))
    ticks = MOST_TICKS * (1 if epochs is None else len(epochs) + 1)  # one more epoch for the end
    if versions.epochs > 1:
        for versions.epoch in range(len(arrived)):
            so_far = slice(0, versions.epoch + 1)
            _answers_of(roots, admitted(roots, arrived[so_far], silent[so_far]), False, failed, versions, ticks)
        versions.epoch = len(arrived)
    return _answers_of(roots, admitted(roots, arrived, silent), end, failed, versions, ticks)


def _answers_of(
    roots: Sequence[nodes.Node],
    admissions: Mapping[int, Admission],
    end: bool,
    failed: Failures | None,
    versions: ReferenceVersions,
    ticks: int,
) -> list[pa.Table]:
    named = nodes.named_sources(*roots)
    names = {id(source): name for name, source in named.items()}
    whole = Interpretation(names, failed, ticks, _before_the_end(roots, admissions), versions)
    read = {source: _read(admission, end) for source, admission in admissions.items()}
    try:
        answers = _interpreted(roots, read, whole)
    except ExpressionFailed as failure:
        raise failure.told() from failure.error
    return [answers[id(root)].table for root in roots]


def _before_the_end(roots: Sequence[nodes.Node], admissions: Mapping[int, Admission]) -> dict[int, float]:
    """Return the watermark of every node before the input ends. It follows from all tuples, whatever the epochs."""
    found = {source: admission.watermark for source, admission in admissions.items()}
    for node in nodes.walk_nodes(*roots):
        if id(node) not in found:
            found[id(node)] = _reached(node, [found[id(child)] for child in node.inputs])
    return found


def _read(found: Admission, end: bool) -> NodeAnswer:
    return NodeAnswer((TracedTuples(found.source, (), found.accepted),), math.inf if end else found.watermark)


def _interpreted(
    roots: Sequence[nodes.Node], leaves: Mapping[int, NodeAnswer], whole: Interpretation
) -> dict[int, NodeAnswer]:
    """Return the answers of all nodes, by id, from those of the leaves."""
    answers = dict(leaves)
    for node in nodes.walk_nodes(*roots):
        if id(node) not in answers:
            answers[id(node)] = _answer(node, [answers[id(child)] for child in node.inputs], whole)
    return answers


def late_tuples(
    query: Stream, epochs: Sequence[Epoch], idle: Idle | None = None
) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Return for each source the late tuples and the rejected ones."""
    roots = [node_of(query)]
    fates = admitted(roots, _arrived(roots, epochs), _silent(roots, epochs, idle))
    found = {name: fates[id(source)] for name, source in nodes.named_sources(*roots).items()}
    return {name: (fate.late, fate.rejected) for name, fate in found.items()}


# --- sources: arrival and admission -----------------------------------------------------------------------------------


def _arrived(roots: Sequence[nodes.Node], epochs: Sequence[Epoch] | None) -> list[dict[int, pa.Table]]:
    """Return for each epoch the tuples of every source. Bounded input is one epoch, because nothing is late in the
    first."""
    named, read = nodes.named_sources(*roots), columns_needed(roots)
    if epochs is None:
        return [{id(s): _all_of(s, name, read) for name, s in named.items()}]
    cut = [_by_name(epoch, named) for epoch in epochs]
    return [{id(named[n]): _tuples(table, named[n], n, read) for n, table in epoch.items()} for epoch in cut]


def _silent(roots: Sequence[nodes.Node], epochs: Sequence[Epoch] | None, idle: Idle | None) -> list[set[int]]:
    """Return for each epoch the sources that are idle."""
    count, named = 1 if epochs is None else len(epochs), nodes.named_sources(*roots)
    if idle is None:
        return [set() for _ in range(count)]
    if epochs is None or len(idle) != count:
        raise QueryError(
            f"idle is a list of names for each of the epochs; found {len(idle)}, with {len(epochs or ())} epochs"
        )
    if unknown := [name for names in idle for name in names if name not in named]:
        raise QueryError(f"idle names an unknown source {unknown[0]!r}; the query has {', '.join(named)}")
    return [{id(named[name]) for name in names} for names in idle]


def _tuples(delivered: pa.Table, source: nodes.Source, name: str, read: Collection[str]) -> pa.Table:
    """Return delivered rows as tuples: the time column is named `ts`, a time without a zone is UTC, types are the
    stream's.

    A column that the query does not read may be missing or have another type; its values are then null.
    """
    columns = []
    for field in source.schema:
        try:
            columns.append(_column(delivered, field, source, name))
        except SourceError:
            if field.name == TS or field.name.lower() in read:
                raise
            columns.append(pa.nulls(delivered.num_rows, field.type))
    return pa.table(columns, schema=source.schema)


def _column(delivered: pa.Table, field: pa.Field, source: nodes.Source, name: str) -> pa.ChunkedArray:
    """Return a delivered column if it exists once, is valid and has the declared kind. No value is converted."""
    declared = source.raw_schema.field(source.time if field.name == TS else field.name)
    if delivered.column_names.count(declared.name) != 1:
        there, expected = ", ".join(delivered.column_names), ", ".join(source.schema.names)
        raise SourceError(
            f"the schema of {printable(name)} changed: it has {there}, the query was built for {expected}"
        )
    found = delivered.column(declared.name)
    if not same_kind(found.type, declared.type):
        raise SourceError(
            f"column {declared.name!r} of {printable(name)} changed its type from {declared.type} to {found.type}"
        )
    try:
        found.validate(full=True)
        return found.cast(field.type)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{printable(name)} delivers what its stream does not hold: {error}") from None


def _all_of(source: nodes.Source, name: str, read: Collection[str]) -> pa.Table:
    origin = source.origin
    if not origin.readable_whole:
        msg = (
            f"source {name!r} has no end, so there is no complete answer; give reference its tuples as"
            " epochs=[...], or build the query on a bounded source"
        )
        raise QueryError(msg)
    tables = origin.tables() if hasattr(origin, "tables") else [origin.table()]
    return pa.concat_tables([source.schema.empty_table(), *(_tuples(table, source, name, read) for table in tables)])


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


# --- operators ----------------------------------------------------------------------------------------------


def _answer(node: nodes.Node, inputs: Sequence[NodeAnswer], whole: Interpretation) -> NodeAnswer:
    match node:
        case nodes.Each():
            return _each(node, inputs[0], whole)
        case nodes.Apply():
            return _apply(node, inputs[0], whole)
        case nodes.ProcessorOutput():
            return NodeAnswer((TracedTuples(node, (), inputs[0].parts[node.number].table),), inputs[0].watermark)
        case _:
            return NodeAnswer(_parts(node, inputs, whole), _watermark(node, inputs))


def _watermark(node: nodes.Node, inputs: Sequence[NodeAnswer]) -> float:
    return _reached(node, [answer.watermark for answer in inputs])


def _reached(node: nodes.Node, inputs: Sequence[float]) -> float:
    """Return the watermark of a node from those of its inputs."""
    match node:
        case nodes.TimeJoin():
            left, right = inputs
            return min(left - node.w2, right - node.w1)
        case nodes.NWayJoin():
            others = [[w for at, w in enumerate(node.windows) if at != place] for place in range(len(node.windows))]
            return min(watermark - max(windows) for watermark, windows in zip(inputs, others, strict=True))
        case nodes.TimeAggregate() | nodes.TimeTop():
            if node.over.zone is None or math.isinf(inputs[0]):
                return inputs[0] - node.over.window
            return windows_of(node.over, int(inputs[0]))[0][0]
        case nodes.SessionAggregate() | nodes.SessionTop():
            return inputs[0] - node.gap
        case nodes.Each():
            reached = {id(node.body.leaf): inputs[0]}
            for inner in nodes.walk_nodes(node.body.root):
                if inner is not node.body.leaf:
                    reached[id(inner)] = _reached(inner, [reached[id(child)] for child in inner.inputs])
            return reached[id(node.body.root)]
    return min(inputs)


Step: TypeAlias = nodes.Map | nodes.Filter | nodes.Case


def _parts(node: nodes.Node, inputs: Sequence[NodeAnswer], whole: Interpretation) -> tuple[TracedTuples, ...]:
    """Return the output of a node. A step runs on every part separately, so that the producer of failing tuples is
    known."""
    match node:
        case nodes.Union():
            return tuple(part for answer in inputs for part in answer.parts)
        case nodes.Map() | nodes.Filter() | nodes.Case():
            return tuple(_stepped(node, part, whole) for part in inputs[0].parts)
        case nodes.Sample():
            return tuple(_sampled(node, part) for part in inputs[0].parts)
        case nodes.Unnest():
            found = (replace(part, table=unnest(node, part.table).cast(node.schema)) for part in inputs[0].parts)
            return tuple(replace(part, steps=(*part.steps, node.summary)) for part in found)
        case nodes.TableJoin():
            return tuple(_beside_table(node, number, part, whole) for number, part in enumerate(inputs[0].parts))
        case _:
            return (TracedTuples(node, (), _result(node, inputs).cast(node.schema)),)


def _stepped(node: Step, part: TracedTuples, whole: Interpretation) -> TracedTuples:
    if whole.failed is None:
        found = _step(node, part.table)
    else:
        found, failing = passing_tuples(lambda tuples: _step(node, tuples), node.schema.empty_table(), part.table)
        words = f"case {', '.join(p.text for p in node.predicates)}" if isinstance(node, nodes.Case) else node.summary
        _put_aside(part, words, failing, whole.names, whole.failed)
    return TracedTuples(part.producer, (*part.steps, node.summary), found.cast(node.schema))


def _sampled(node: nodes.Sample, part: TracedTuples) -> TracedTuples:
    return TracedTuples(part.producer, (*part.steps, node.summary), sample_tuples(node, part.table))


def _beside_table(node: nodes.TableJoin, number: int, part: TracedTuples, whole: Interpretation) -> TracedTuples:
    """Join a part with a table. Its tuples keep their producer."""
    found = whole.versions.joined(node, (id(node), number, whole.substream), part.table)
    return TracedTuples(part.producer, (*part.steps, node.summary), found.cast(node.schema))


def _put_aside(part: TracedTuples, words: str, failing: pa.Table, names: Mapping[int, str], failed: Failures) -> None:
    place = (id(part.producer), (*part.steps, words))
    _keep_larger(failed, place, FailedByStep(names.get(id(part.producer)), words, failing))


def _keep_larger(failed: Failures, place: Place, found: FailedByStep) -> None:
    """Keep the larger set of failures of a step, because a later branch of a case evaluates more predicates on the same
    tuples."""
    known = failed.get(place)
    if found.table.num_rows > (known.table.num_rows if known else 0):
        failed[place] = found


def _step(node: Step, tuples: pa.Table) -> pa.Table:
    if tuples.num_rows == 0:  # DuckDB computes some constants even without rows, and they may fail
        return node.schema.empty_table()
    match node:
        case nodes.Map():
            values = [value_of(expression, tuples) for _, expression in node.columns]
            return pa.table([tuples[TS], *values], names=node.schema.names)
        case nodes.Filter():
            return tuples.filter(is_true(node.predicate.sql, node.predicate.text, tuples))
        case nodes.Case():
            return _case(node, tuples)


def _result(node: nodes.Node, inputs: Sequence[NodeAnswer]) -> pa.Table:
    match node:
        case nodes.TimeJoin():
            return time_join(node, inputs[0], inputs[1])
        case nodes.CountJoin():
            return count_join(node, inputs[0], inputs[1])
        case nodes.NWayJoin():
            return nway_join(node, inputs)
        case nodes.TimeAggregate():
            return time_aggregate(node, inputs[0])
        case nodes.SessionAggregate():
            return session_aggregate(node, inputs[0])
        case nodes.CountAggregate():
            return count_aggregate(node, inputs[0])
        case nodes.TimeTop():
            return time_top(node, inputs[0])
        case nodes.SessionTop():
            return session_top(node, inputs[0])
        case nodes.Distinct():
            return distinct(node, inputs[0])
        case nodes.Limit():
            return limit(node, inputs[0])
        case nodes.AsOf():
            return as_of(node, inputs[0], inputs[1])
        case _:
            raise QueryError(f"the reference does not define {type(node).__name__}; add it there first")


def _case(node: nodes.Case, tuples: pa.Table) -> pa.Table:
    """Return the tuples of one branch of a `case`.

    A predicate is evaluated only on the tuples that no earlier predicate took, and as a condition of CASE. Unlike in a
    filter, DuckDB does not evaluate the second part of an AND there if the first is false, so it cannot fail.
    """
    rest = tuples
    for number, predicate in enumerate(node.predicates[: node.branch + 1]):
        taken = is_true(f"CASE WHEN {predicate.sql} THEN true ELSE false END", predicate.text, rest)
        if number == node.branch:
            return rest.filter(taken)
        rest = rest.filter(pc.invert(taken))
    return rest


# --- splits -------------------------------------------------------------------------------------------------


def _each(node: nodes.Each, given: NodeAnswer, whole: Interpretation) -> NodeAnswer:
    """Run the body on every substream separately, and on an empty one, which gives the schema and watermark of the
    answer."""
    shares = _shares(node, given, whole)
    numbers = _numbers(node.rule, {number for share in shares for number in share.tables})
    inputs = {number: [share.of(number, ALL_SUBSTREAMS) for share in shares] for number in numbers}
    answers = _on_bodies(node.body, {OMITTED: [share.of() for share in shares], **inputs}, given.watermark, whole)
    found = [_numbered(answer.parts, number) for number, answer in answers.items()]
    together = (
        replace(same[0], table=single_value([part.table for part in same])) for same in zip(*found, strict=True)
    )
    return NodeAnswer(tuple(together), answers[OMITTED].watermark)


def _numbered(parts: Sequence[TracedTuples], number: int) -> list[TracedTuples]:
    columns = [pa.array([number] * part.table.num_rows, pa.int64()) for part in parts]
    named = zip(parts, columns, strict=True)
    return [replace(part, table=part.table.append_column("substream", column)) for part, column in named]


def _apply(node: nodes.Apply, given: NodeAnswer, whole: Interpretation) -> NodeAnswer:
    """Run the body once per tuple, broadcast tuples included; then run the processor on every substream."""
    shares = _shares(node, given, whole)
    inputs = {number: [share.of(number) for share in shares] for share in shares for number in share.tables}
    answers = _on_bodies(node.body, inputs, given.watermark, whole)
    passed = {number: answer.table for number, answer in answers.items() if answer.table.num_rows}
    nothing = node.body.root.schema.empty_table()
    last = max(times_of(given.table).tolist(), default=0)
    reached = whole.reached[id(node.input)]
    put: list[Rows] = []
    for number in _numbers(node.rule, passed):
        tuples = single_value([passed.get(number, nothing), passed.get(ALL_SUBSTREAMS, nothing)])
        handed = in_sequence(tuples_before(given.watermark, tuples))
        put += run_processor(node, number, handed, given.watermark, last, whole.ticks, reached)
    outputs = node.declared.outputs
    tables = [single_value([schema.empty_table(), *(rows[name] for rows in put)]) for name, schema in outputs]
    return NodeAnswer(tuple(TracedTuples(node, (), table) for table in tables), given.watermark)


@dataclass(frozen=True)
class SplitPart:
    """A part of the stream that was split, by the target of its tuples."""

    part: TracedTuples  # with the steps up to and including the split
    tables: Mapping[int, pa.Table]

    def of(self, *numbers: int) -> TracedTuples:
        tables = [self.tables[number] for number in numbers if number in self.tables]
        return replace(self.part, table=single_value([self.part.table.slice(0, 0), *tables]))


def _shares(node: nodes.Splitting, given: NodeAnswer, whole: Interpretation) -> list[SplitPart]:
    words = f"split {node.rule.summary}"
    shares = []
    for part in given.parts:
        tables, failing = split_tuples(node.rule, part.table, keep=whole.failed is not None)
        if whole.failed is not None:
            _put_aside(part, words, failing, whole.names, whole.failed)
        shares.append(SplitPart(replace(part, steps=(*part.steps, words)), tables))
    return shares


def _numbers(rule: nodes.Rule, found: Collection[int]) -> Sequence[int]:
    """Return the substreams that have a tuple. found: the targets of tuples."""
    return range(rule.substreams) if ALL_SUBSTREAMS in found else sorted(found)


def _on_bodies(
    body: nodes.Body, inputs: Mapping[int, Sequence[TracedTuples]], watermark: float, whole: Interpretation
) -> dict[int, NodeAnswer]:
    """Return the answers of a body to each of these inputs separately. Failures in one step are combined."""
    answers = {}
    failed: Failures = {}
    for number, parts in inputs.items():
        alone = replace(whole, failed=None if whole.failed is None else {}, substream=number)
        leaf = {id(body.leaf): NodeAnswer(tuple(parts), watermark)}
        answers[number] = _interpreted([body.root], leaf, alone)[id(body.root)]
        for place, found in (alone.failed or {}).items():
            tables = [failed[place].table, found.table] if place in failed else [found.table]
            failed[place] = replace(found, table=single_value(tables))
    if whole.failed is not None:
        for place, found in failed.items():
            _keep_larger(whole.failed, place, found)
    return answers
