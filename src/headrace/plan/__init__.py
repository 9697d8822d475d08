"""The physical plan that the engine executes: frozen records that are shipped to tasks.

    this module   sources, operators, the edges between them, and the stateless steps of each edge
    columns_read  the columns that SQL texts and steps read
    figures       rates and costs, measured or assumed, and the load that follows from them

The behaviour of operators is in `headrace.operators`.

A plan is a chain of stages. Stage 0 holds the sources (splitters). Stage k holds the operators whose inputs all come
from earlier stages, or from operators of stage k whose slots they share. An edge carries the tuples of one producer
through stateless steps to one input of an operator or to a result. Each boundary between stages is one Spark exchange,
however many operators a stage has.

Invariant: if an edge connects two operators within one stage, both have the same leader and therefore the same layout.
`PhysicalPlan` raises otherwise, because such an edge would hand tuples to a slot that does not have their group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.columnar.types import SUBSTREAM, TS, JoinColumn, unnested_schema
from headrace.errors import EngineError
from headrace.expressions import Expression, JoinPredicate
from headrace.processor import Function

if TYPE_CHECKING:
    from headrace.operators.base import Operator

Named = tuple[tuple[str, str], ...]  # (column, SQL)


@dataclass(frozen=True)
class MapStep:
    """A `map`: compute these columns and keep `ts`."""

    columns: Named
    schema: pa.Schema
    text: str  # as the user wrote it, for `explain` and error messages

    @property
    def sql(self) -> str:
        return str(self.columns)


@dataclass(frozen=True)
class FilterStep:
    """A `filter`: keep the tuples for which the predicate is true."""

    sql: str
    text: str
    pushed: bool = False  # added by the compiler (predicate pushdown), not written by the user


@dataclass(frozen=True)
class SampleStep:
    """A `sample`: keep the tuples whose hash of the columns `hashed` falls below `fraction` of all hashes."""

    fraction: float
    hashed: tuple[str, ...]  # in order of their names
    text: str


@dataclass(frozen=True)
class SplitStep:
    """A `split`: add the column `__substream`, and drop tuples that belong to no substream.

    A tuple for which `broadcast` is true belongs to all substreams, and its route is ignored. Such a tuple is marked
    with EVERYWHERE or, with `replicate`, copied once per substream. Any other tuple belongs to the substream that
    `route` gives, or without a route to the substream that the hash of `by` gives.
    """

    name: str  # key of the split's counters; two splits in a query never have the same name
    substreams: int
    by: tuple[str, ...] | None
    route: Expression | Function | None
    broadcast: Expression | Function | None
    replicate: bool
    columns: tuple[str, ...]  # of the tuples that are split; user functions receive all of them
    text: str

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(rule for rule in (self.route, self.broadcast) if isinstance(rule, Function))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(rule for rule in (self.route, self.broadcast) if isinstance(rule, Expression))


@dataclass(frozen=True)
class TableStep:
    """A join with a table: each tuple with all rows of the epoch's table version for which `on` is true.

    The output has `ts` and `columns`. keep: tuples without a match are emitted too, once, with nulls.
    """

    table: str  # name of the table
    on: JoinPredicate
    keep: bool
    columns: tuple[JoinColumn, ...]
    schema: pa.Schema
    text: str
    rows: pa.Schema  # of the table


@dataclass(frozen=True)
class UnnestStep:
    """An `unnest`: a tuple for each element of `column`, with `elements` in its place and the position as `index`,
    last.

    outer: tuples without elements are emitted too, once, with nulls.
    """

    column: str
    outer: bool
    index: str | None
    elements: pa.Schema
    text: str

    @property
    def made(self) -> frozenset[str]:
        """Return the columns that the step makes."""
        return frozenset([*self.elements.names, *([] if self.index is None else [self.index])])


ExpandingStep = TableStep | UnnestStep  # makes any number of tuples of one, and never fails on a tuple alone
Step = MapStep | FilterStep | SampleStep | SplitStep | ExpandingStep


def schema_after(steps: Iterable[Step], schema: pa.Schema) -> pa.Schema:
    """Return the schema of the tuples that the steps make from tuples with the given schema."""
    for step in steps:
        if isinstance(step, MapStep | TableStep):
            schema = step.schema
        elif isinstance(step, SplitStep):
            schema = schema.append(pa.field(SUBSTREAM, pa.int32()))
        elif isinstance(step, UnnestStep):
            schema = unnested_schema(schema, step.column, step.elements, step.index)
    return schema


def is_pushed(step: Step) -> bool:
    """Return whether the compiler added the step (predicate pushdown)."""
    return isinstance(step, FilterStep) and step.pushed


def may_fail(step: Step) -> bool:
    """Return whether `errors="keep"` applies to the step.

    A tuple that fails is then counted, and sent to the `late` sink if one is given.

    A failure in the predicate of a join stops the run, because the predicate is about pairs and not about one tuple. A
    sample evaluates no expression, so it cannot fail.
    """
    return not is_pushed(step) and not isinstance(step, SampleStep | ExpandingStep)


def step_text(step: Step) -> str:
    """Return a description of the step on one line."""
    pushed = " (part of the join downstream)" if is_pushed(step) else ""
    if isinstance(step, ExpandingStep):
        return step.text
    verb = {MapStep: "map", FilterStep: "filter", SampleStep: "sample", SplitStep: "split"}[type(step)]
    return f"{verb} {' '.join(step.text.split())}{pushed}"


@dataclass(frozen=True)
class SourceInput:
    """A source of the plan, as splitters read it. `lateness`, `idle` and `ahead` are in microseconds."""

    name: str
    schema: pa.Schema
    raw_schema: pa.Schema
    time: str
    lateness: int
    idle: int | None
    ahead: int | None
    read: pa.Schema  # the columns that the plan reads
    needed: frozenset[str] | None = (
        None  # in lower case, the columns of `read` without which the answer would differ; None: all
    )
    unread_schema: pa.Schema | None = None  # columns that show a message that cannot be decoded; None: no messages

    def needs(self, name: str) -> bool:
        """Return whether a column must exist in the input with its declared type.

        Any other column may be missing or have another type: values that fit are used, and the rest are null.
        """
        return self.needed is None or name == TS or name.lower() in self.needed

    def reads(self, *, whole: bool) -> pa.Schema:
        """Return the columns to read: all of them with `whole`, as late and rejected tuples are kept with all
        columns."""
        return self.schema if whole else self.read


@dataclass(frozen=True)
class Edge:
    """The path of tuples from a producer, through stateless steps, to an input of an operator or to a result."""

    producer: str  # name of a source or an operator
    output: int  # number of the producer's output: the side for a ranker, else 0 unless a processor has several
    steps: tuple[Step, ...]
    schema: pa.Schema  # of the tuples after the steps; columns that are not in this schema are dropped
    target: str
    input: int
    name: str = ""  # key of the edge's counters


@dataclass(frozen=True)
class PhysicalPlan:
    """The plan that the tasks execute: sources, operators with their stages, and the edges between them.

    An edge leads from a producer (a source or an operator) through stateless steps to a target (an operator or a
    result). Sources are in stage 0, and an operator is in a later stage than its producers unless it follows one of
    them: then both run in the same slots, and tuples pass between them without an exchange.
    """

    sources: tuple[SourceInput, ...]
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]
    results: tuple[str, ...]

    def __post_init__(self) -> None:
        for edge in self.edges:
            producer, target = self.by_name.get(edge.producer), self.by_name.get(edge.target)
            if producer and target and producer.stage == target.stage and not self.share_slots(edge):
                msg = (
                    f"{target.name} receives tuples from {producer.name} within stage {target.stage},"
                    " but the two have different layouts"
                )
                raise EngineError(msg)

    def source(self, name: str) -> SourceInput:
        return next(source for source in self.sources if source.name == name)

    @cached_property
    def leaders(self) -> dict[str, str]:
        """Return for each operator the operator whose layout it uses: itself, or the end of the chain of `follows`."""
        leaders: dict[str, str] = {}
        for operator in self.operators:  # an operator is listed after the operator that it follows
            leaders[operator.name] = leaders[operator.follows] if operator.follows else operator.name
        return leaders

    def share_slots(self, edge: Edge) -> bool:
        """Return whether the two operators of an edge use the same layout."""
        return self.leaders[edge.producer] == self.leaders[edge.target]

    @property
    def last_stage(self) -> int:
        """Return the number of the last stage. Stage 0 reads the sources, so there are as many exchanges."""
        return max((o.stage for o in self.operators), default=0)

    @cached_property
    def by_name(self) -> dict[str, Operator]:
        return {o.name: o for o in self.operators}

    def at(self, stage: int) -> list[Operator]:
        return [o for o in self.operators if o.stage == stage]

    def leaving(self, producer: str, output: int = 0) -> list[Edge]:
        return [e for e in self.edges if e.producer == producer and e.output == output]

    def stage_of(self, producer: str) -> int:
        operator = self.by_name.get(producer)
        return operator.stage if operator else 0

    def handed_over(self, operator: Operator) -> bool:
        """Return whether the operator receives tuples from an operator of its own stage, without an exchange."""
        return any(e.target == operator.name and self.stage_of(e.producer) == operator.stage for e in self.edges)

    def entering(self, target: str, input: int) -> list[Edge]:
        return [e for e in self.edges if e.target == target and e.input == input]
