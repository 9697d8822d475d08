"""The walk through a query: what arrived of its sources, and one operator after the other.

With errors="keep" a tuple on which a `map`, `filter`, `case` or the SQL of a split fails, alone, is left out of what comes
of that step.

Invariant: an answer holds every result of its operator with `ts` below the watermark that stands beside it.
So the operators above depend on the last watermarks alone, and not on how the epochs were cut.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError, SourceError
from headrace.limits import MOST_TICKS
from headrace.query import nodes
from headrace.query.naming import read_by
from headrace.reference.asking import Failure, is_true, surviving, value_of
from headrace.reference.processors import Rows, run_processor
from headrace.reference.splitting import EVERYWHERE, split
from headrace.reference.tuples import before, in_sequence, one, times_of
from headrace.reference.versions import Version, Versions, versions_of
from headrace.reference.windows import (
    as_of,
    count_aggregate,
    count_join,
    distinct,
    session_aggregate,
    time_aggregate,
    time_join,
)
from headrace.screen import printable
from headrace.stream import Stream, node_of
from headrace.types import TS

Epoch: TypeAlias = pa.Table | Mapping[str, pa.Table]

NOWHERE = -2  # the number of a substream that there is not


@dataclass(frozen=True)
class Part:
    """Tuples of one source or window operator, and the stateless steps that they have gone through since."""

    producer: nodes.Node
    steps: tuple[str, ...]
    table: pa.Table


@dataclass(frozen=True)
class Answer:
    """What an operator emitted, and the time (microseconds, or an infinity) until which nothing follows.

    A processor emits several tables: one part for each of its outputs, in their order.
    """

    parts: tuple[Part, ...]
    watermark: float

    @property
    def table(self) -> pa.Table:
        return one([part.table for part in self.parts])


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


def reference(
    query: Stream,
    epochs: Sequence[Epoch] | None = None,
    end: bool = True,
    errors: str = "stop",
    versions: Sequence[Version] | None = None,
) -> pa.Table:
    """The sequential answer: over bounded sources, or over `epochs`, the rows that arrived together.

    With `end=False` the input goes on after the last epoch, and only what is certain by then is emitted.
    With `errors="keep"` tuples that fail in a `map`, `filter`, `case` or the SQL of a split are left out there.
    `versions`: what tables held in each epoch, a table or a dict {name: table}; one more may follow, for the end, else that is as
    the last epoch was. Without it a table is what it holds now.
    """
    return references([query], epochs, end, errors, versions)[0]


def references(
    queries: Sequence[Stream],
    epochs: Sequence[Epoch] | None = None,
    end: bool = True,
    errors: str = "stop",
    versions: Sequence[Version] | None = None,
) -> list[pa.Table]:
    """The sequential answers to queries over the same sources; what they share is computed once."""
    if errors not in ("stop", "keep"):
        raise QueryError(f"errors must be one of stop, keep; found {errors!r}")
    return _answers([node_of(query) for query in queries], epochs, end, {} if errors == "keep" else None, versions)


def failed_tuples(
    query: Stream,
    epochs: Sequence[Epoch] | None = None,
    end: bool = True,
    versions: Sequence[Version] | None = None,
) -> list[Failed]:
    """The tuples that fail, once for every step that they fail in."""
    failed: Failures = {}
    _answers([node_of(query)], epochs, end, failed, versions)
    return list(failed.values())


Place = tuple[int, tuple[str, ...]]  # the id of a producer, and steps; the branches of a case are one step
Failures = dict[Place, Failed]


@dataclass(frozen=True)
class Interpretation:
    """What holds for a whole query.

    names   of its sources, by their ids
    failed  where tuples that fail are put; None: one that fails is an error
    ticks   more than a substream may have: no run gets so far
    furthest  how far the time of every node comes before the end of the input, by their ids
    versions  of tables
    substream   that this is about, in the body of a split
    """

    names: Mapping[int, str]
    failed: Failures | None
    ticks: int
    furthest: Mapping[int, float]
    versions: Versions
    substream: int | None = None


def _answers(
    roots: Sequence[nodes.Node],
    epochs: Sequence[Epoch] | None,
    end: bool,
    failed: Failures | None,
    given: Sequence[Version] | None = None,
) -> list[pa.Table]:
    versions = versions_of(roots, given, None if epochs is None else len(epochs))
    if versions.epochs > 1:
        assert epochs is not None
        for versions.epoch in range(len(epochs)):
            _answers_of(roots, epochs[: versions.epoch + 1], False, failed, versions)
        versions.epoch = len(epochs)
    return _answers_of(roots, epochs, end, failed, versions)


def _answers_of(
    roots: Sequence[nodes.Node],
    epochs: Sequence[Epoch] | None,
    end: bool,
    failed: Failures | None,
    versions: Versions,
) -> list[pa.Table]:
    arrived = _arrived(roots, epochs)
    named = nodes.named_sources(*roots)
    times = 1 if epochs is None else len(epochs) + 1  # one more to end in
    admitted = {id(source): _admit(source, arrived[id(source)]) for source in named.values()}
    names = {id(source): name for name, source in named.items()}
    furthest = _furthest(roots, {source: fate.watermark for source, fate in admitted.items()})
    whole = Interpretation(names, failed, MOST_TICKS * times, furthest, versions)
    read = {id(source): _read(source, admitted[id(source)], end) for source in named.values()}
    try:
        answers = _interpreted(roots, read, whole)
    except Failure as failure:
        raise failure.told() from failure.error
    return [answers[id(root)].table for root in roots]


def _furthest(roots: Sequence[nodes.Node], sources: Mapping[int, float]) -> dict[int, float]:
    """How far the time of every node comes before the end, whichever source ends last: no cut can bring it further."""
    found: dict[int, float] = {}
    for going, watermark in sources.items():
        reached = {source: watermark if source == going else math.inf for source in sources}
        for node in nodes.walk(*roots):
            if id(node) not in reached:
                reached[id(node)] = _reached(node, [reached[id(child)] for child in node.inputs])
            if reached[id(node)] < math.inf:
                found[id(node)] = max(found.get(id(node), -math.inf), reached[id(node)])
    return found


def _read(source: nodes.Source, admitted: Admission, end: bool) -> Answer:
    return Answer((Part(source, (), admitted.accepted),), math.inf if end else admitted.watermark)


def _interpreted(roots: Sequence[nodes.Node], leaves: Mapping[int, Answer], whole: Interpretation) -> dict[int, Answer]:
    """The answers of all nodes, by their ids, from those of the leaves."""
    answers = dict(leaves)
    for node in nodes.walk(*roots):
        if id(node) not in answers:
            answers[id(node)] = _answer(node, [answers[id(child)] for child in node.inputs], whole)
    return answers


def late_tuples(query: Stream, epochs: Sequence[Epoch]) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Per source the tuples that came too late and those that were rejected."""
    root = node_of(query)
    arrived = _arrived([root], epochs)
    fates = {name: _admit(s, arrived[id(s)]) for name, s in nodes.named_sources(root).items()}
    return {name: (fate.late, fate.rejected) for name, fate in fates.items()}


# --- sources: what arrived, and what of it is accepted ------------------------------------------------------


def _arrived(roots: Sequence[nodes.Node], epochs: Sequence[Epoch] | None) -> dict[int, list[pa.Table]]:
    """Per source the tuples of every epoch. Bounded input is one epoch: in the first, nothing can be late."""
    named, read = nodes.named_sources(*roots), read_by(roots)
    if epochs is None:
        return {id(s): [_all_of(s, name, read)] for name, s in named.items()}
    cut = [_by_name(epoch, named) for epoch in epochs]
    return {id(s): [_tuples(epoch[n], s, n, read) for epoch in cut if n in epoch] for n, s in named.items()}


def _tuples(delivered: pa.Table, source: nodes.Source, name: str, read: Collection[str]) -> pa.Table:
    """Delivered rows as tuples: the time column is called `ts`, a time without a zone is UTC, types are the stream's.

    A column that the query does not read may be missing, or be of another type: there is nothing in it then.
    """
    columns = []
    for field in source.schema:
        raw = source.time if field.name == TS else field.name
        if delivered.column_names.count(raw) == 1:
            there = delivered.column(raw)
            try:
                there.validate(full=True)
                columns.append(there.cast(field.type))
                continue
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                problem = f"{printable(name)} delivers what its stream does not hold: {error}"
        else:
            there = ", ".join(delivered.column_names)
            problem = f"the schema of {printable(name)} changed: it has {there}, the query was built for {', '.join(source.schema.names)}"
        if field.name == TS or field.name.lower() in read:
            raise SourceError(problem)
        columns.append(pa.nulls(delivered.num_rows, field.type))
    return pa.table(columns, schema=source.schema)


def _all_of(source: nodes.Source, name: str, read: Collection[str]) -> pa.Table:
    origin = source.origin
    if not origin.bounded:
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


def _admit(source: nodes.Source, epochs: Iterable[pa.Table]) -> Admission:
    accepted, late, rejected = ([source.schema.empty_table()] for _ in range(3))
    largest = -math.inf  # of the tuples accepted in earlier epochs
    for tuples in epochs:
        untimed = np.asarray(pc.is_null(tuples[TS]).combine_chunks())
        times = times_of(tuples)
        is_late = ~untimed & (times < largest - source.lateness)
        is_rejected = untimed | (times > _limit(largest, source.ahead))
        kept = ~is_late & ~is_rejected
        accepted.append(tuples.filter(pa.array(kept)))
        late.append(tuples.filter(pa.array(is_late)))
        rejected.append(tuples.filter(pa.array(is_rejected)))
        largest = max([largest, *times[kept].tolist()])
    return Admission(one(accepted), one(late), one(rejected), largest - source.lateness)


def _limit(largest: float, ahead: int | None) -> float:
    """The largest time that is believed; before anything was accepted, every time is."""
    return math.inf if ahead is None or largest == -math.inf else largest + ahead


# --- operators ----------------------------------------------------------------------------------------------


def _answer(node: nodes.Node, inputs: Sequence[Answer], whole: Interpretation) -> Answer:
    match node:
        case nodes.Each():
            return _each(node, inputs[0], whole)
        case nodes.Apply():
            return _apply(node, inputs[0], whole)
        case nodes.Output():
            return Answer((Part(node, (), inputs[0].parts[node.number].table),), inputs[0].watermark)
        case _:
            return Answer(_parts(node, inputs, whole), _watermark(node, inputs))


def _watermark(node: nodes.Node, inputs: Sequence[Answer]) -> float:
    return _reached(node, [answer.watermark for answer in inputs])


def _reached(node: nodes.Node, inputs: Sequence[float]) -> float:
    """The watermark of a node by those of its inputs."""
    match node:
        case nodes.TimeJoin():
            left, right = inputs
            return min(left - node.w2, right - node.w1)
        case nodes.TimeAggregate():
            return inputs[0] - node.window
        case nodes.SessionAggregate():
            return inputs[0] - node.gap
        case nodes.Each():
            reached = {id(node.body.leaf): inputs[0]}
            for inner in nodes.walk(node.body.root):
                if inner is not node.body.leaf:
                    reached[id(inner)] = _reached(inner, [reached[id(child)] for child in inner.inputs])
            return reached[id(node.body.root)]
    return min(inputs)


Step: TypeAlias = nodes.Map | nodes.Filter | nodes.Case


def _parts(node: nodes.Node, inputs: Sequence[Answer], whole: Interpretation) -> tuple[Part, ...]:
    """A step is done to every part alone, so that it is known whose tuples fail."""
    match node:
        case nodes.Union():
            return tuple(part for answer in inputs for part in answer.parts)
        case nodes.Map() | nodes.Filter() | nodes.Case():
            return tuple(_stepped(node, part, whole) for part in inputs[0].parts)
        case nodes.TableJoin():
            return tuple(_beside_table(node, number, part, whole) for number, part in enumerate(inputs[0].parts))
        case _:
            return (Part(node, (), _result(node, inputs).cast(node.schema)),)


def _stepped(node: Step, part: Part, whole: Interpretation) -> Part:
    if whole.failed is None:
        found = _step(node, part.table)
    else:
        found, failing = surviving(lambda tuples: _step(node, tuples), node.schema.empty_table(), part.table)
        words = f"case {', '.join(p.text for p in node.predicates)}" if isinstance(node, nodes.Case) else node.words
        _put_aside(part, words, failing, whole.names, whole.failed)
    return Part(part.producer, (*part.steps, node.words), found.cast(node.schema))


def _beside_table(node: nodes.TableJoin, number: int, part: Part, whole: Interpretation) -> Part:
    """Tuples are still whose they were."""
    found = whole.versions.joined(node, (id(node), number, whole.substream), part.table)
    return Part(part.producer, (*part.steps, node.words), found.cast(node.schema))


def _put_aside(part: Part, words: str, failing: pa.Table, names: Mapping[int, str], failed: Failures) -> None:
    place = (id(part.producer), (*part.steps, words))
    _keep_larger(failed, place, Failed(names.get(id(part.producer)), words, failing))


def _keep_larger(failed: Failures, place: Place, found: Failed) -> None:
    """Who comes to a step by another way, such as a later branch of a case, may ask more of the same tuples."""
    known = failed.get(place)
    if found.table.num_rows > (known.table.num_rows if known else 0):
        failed[place] = found


def _step(node: Step, tuples: pa.Table) -> pa.Table:
    if tuples.num_rows == 0:  # DuckDB computes some constants also where there is no row, and they may fail
        return node.schema.empty_table()
    match node:
        case nodes.Map():
            values = [value_of(expression, tuples) for _, expression in node.columns]
            return pa.table([tuples[TS], *values], names=node.schema.names)
        case nodes.Filter():
            return tuples.filter(is_true(node.predicate.sql, node.predicate.text, tuples))
        case nodes.Case():
            return _case(node, tuples)


def _result(node: nodes.Node, inputs: Sequence[Answer]) -> pa.Table:
    match node:
        case nodes.TimeJoin():
            return time_join(node, inputs[0], inputs[1])
        case nodes.CountJoin():
            return count_join(node, inputs[0], inputs[1])
        case nodes.TimeAggregate():
            return time_aggregate(node, inputs[0])
        case nodes.SessionAggregate():
            return session_aggregate(node, inputs[0])
        case nodes.CountAggregate():
            return count_aggregate(node, inputs[0])
        case nodes.Distinct():
            return distinct(node, inputs[0])
        case nodes.AsOf():
            return as_of(node, inputs[0], inputs[1])
        case _:
            raise QueryError(f"reference has no meaning for {type(node).__name__}; write it there first")


def _case(node: nodes.Case, tuples: pa.Table) -> pa.Table:
    """A predicate is asked only about the tuples that no earlier one has taken, and as a condition of CASE: there, other
    than in a filter, DuckDB does not look at the second part of an AND where the first is false, so that it cannot fail."""
    rest = tuples
    for number, predicate in enumerate(node.predicates[: node.branch + 1]):
        taken = is_true(f"CASE WHEN {predicate.sql} THEN true ELSE false END", predicate.text, rest)
        if number == node.branch:
            return rest.filter(taken)
        rest = rest.filter(pc.invert(taken))
    return rest


# --- splits -------------------------------------------------------------------------------------------------


def _each(node: nodes.Each, given: Answer, whole: Interpretation) -> Answer:
    """The body on every substream alone; on one without tuples, too, which says what its answer looks like."""
    shares = _shares(node, given, whole)
    numbers = _numbers(node.rule, {number for share in shares for number in share.tables})
    inputs = {number: [share.of(number, EVERYWHERE) for share in shares] for number in numbers}
    answers = _on_bodies(node.body, {NOWHERE: [share.of() for share in shares], **inputs}, given.watermark, whole)
    found = [_numbered(answer.parts, number) for number, answer in answers.items()]
    together = (replace(same[0], table=one([part.table for part in same])) for same in zip(*found, strict=True))
    return Answer(tuple(together), answers[NOWHERE].watermark)


def _numbered(parts: Sequence[Part], number: int) -> list[Part]:
    columns = [pa.array([number] * part.table.num_rows, pa.int64()) for part in parts]
    named = zip(parts, columns, strict=True)
    return [replace(part, table=part.table.append_column("substream", column)) for part, column in named]


def _apply(node: nodes.Apply, given: Answer, whole: Interpretation) -> Answer:
    """The body is done once to a tuple, also to one that goes everywhere; then the processor runs on every substream."""
    shares = _shares(node, given, whole)
    inputs = {number: [share.of(number) for share in shares] for share in shares for number in share.tables}
    answers = _on_bodies(node.body, inputs, given.watermark, whole)
    passed = {number: answer.table for number, answer in answers.items() if answer.table.num_rows}
    nothing = node.body.root.schema.empty_table()
    last = max(times_of(given.table).tolist(), default=0)
    furthest = whole.furthest.get(id(node.input), -math.inf)
    put: list[Rows] = []
    for number in _numbers(node.rule, passed):
        tuples = one([passed.get(number, nothing), passed.get(EVERYWHERE, nothing)])
        handed = in_sequence(before(given.watermark, tuples))
        put += run_processor(node, number, handed, given.watermark, last, whole.ticks, furthest)
    outputs = node.declared.outputs
    tables = [one([schema.empty_table(), *(rows[name] for rows in put)]) for name, schema in outputs]
    return Answer(tuple(Part(node, (), table) for table in tables), given.watermark)


@dataclass(frozen=True)
class Share:
    """A part of the stream that was split, by where its tuples go."""

    part: Part  # steps: as behind the split
    tables: Mapping[int, pa.Table]

    def of(self, *numbers: int) -> Part:
        tables = [self.tables[number] for number in numbers if number in self.tables]
        return replace(self.part, table=one([self.part.table.slice(0, 0), *tables]))


def _shares(node: nodes.Splitting, given: Answer, whole: Interpretation) -> list[Share]:
    words = f"split {node.rule.words}"
    shares = []
    for part in given.parts:
        tables, failing = split(node.rule, part.table, keep=whole.failed is not None)
        if whole.failed is not None:
            _put_aside(part, words, failing, whole.names, whole.failed)
        shares.append(Share(replace(part, steps=(*part.steps, words)), tables))
    return shares


def _numbers(rule: nodes.Rule, found: Collection[int]) -> Sequence[int]:
    """The substreams that have a tuple, of where tuples go."""
    return range(rule.substreams) if EVERYWHERE in found else sorted(found)


def _on_bodies(
    body: nodes.Body, inputs: Mapping[int, Sequence[Part]], watermark: float, whole: Interpretation
) -> dict[int, Answer]:
    """The answers of a body to each of these inputs alone; what fails in one step of it is put together."""
    answers = {}
    failed: Failures = {}
    for number, parts in inputs.items():
        alone = replace(whole, failed=None if whole.failed is None else {}, substream=number)
        leaf = {id(body.leaf): Answer(tuple(parts), watermark)}
        answers[number] = _interpreted([body.root], leaf, alone)[id(body.root)]
        for place, found in (alone.failed or {}).items():
            tables = [failed[place].table, found.table] if place in failed else [found.table]
            failed[place] = replace(found, table=one(tables))
    if whole.failed is not None:
        for place, found in failed.items():
            _keep_larger(whole.failed, place, found)
    return answers
