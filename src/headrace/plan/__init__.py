"""The physical plan: what the engine runs, as frozen records that can be shipped to tasks. Its operators know
themselves what they do (`headrace.operators`).

A plan is a chain of stages. Stage 0 holds the sources (splitters); stage k holds the stateful operators whose inputs
all come from earlier stages, or from operators of this stage whose slots they share.

Invariant: two operators that an edge connects within one stage have the same leader, and so one layout. A plan that breaks
it cannot be made: such an edge would hand tuples to a slot that does not have their group. An edge carries the tuples of one
producer through stateless steps to one input of an operator, or to a result. What crosses a stage is one Spark
exchange, whatever the number of operators in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.columnar.types import SUBSTREAM, TS
from headrace.errors import EngineError
from headrace.expressions import Expression, JoinPredicate
from headrace.processor import Function

if TYPE_CHECKING:
    from headrace.operators.base import Operator

Named = tuple[tuple[str, str], ...]  # (column, SQL)


@dataclass(frozen=True)
class MapStep:
    """`ts` and these columns; each comes with the text to show when it fails."""

    columns: Named
    schema: pa.Schema
    text: str

    @property
    def sql(self) -> str:
        return str(self.columns)


@dataclass(frozen=True)
class FilterStep:
    """Only the tuples for which this is true."""

    sql: str
    text: str
    pushed: bool = False  # put here by the compiler


@dataclass(frozen=True)
class SplitStep:
    """With the substream of each tuple beside it; those that go nowhere are dropped.

    Where `broadcast` is true a tuple goes to all, and its route is not looked at: it is marked so (EVERYWHERE), or with
    `replicate` made one tuple for each. Any other goes where `route` says, or else where the hash of `by` does.
    """

    name: str  # of the split, to count by: two that a user wrote never have one name
    substreams: int
    by: tuple[str, ...] | None
    route: Expression | Function | None
    broadcast: Expression | Function | None
    replicate: bool
    columns: tuple[str, ...]  # of the tuples that are split: what functions are given
    text: str

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(rule for rule in (self.route, self.broadcast) if isinstance(rule, Function))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(rule for rule in (self.route, self.broadcast) if isinstance(rule, Expression))


@dataclass(frozen=True)
class TableStep:
    """Each tuple with all rows of a table, in the version of the epoch, for which `on` is true; `ts` and these columns.

    keep: tuples without such a row come too, once, with nulls.
    """

    table: str  # its name
    on: JoinPredicate
    keep: bool
    columns: tuple[tuple[str, str, str], ...]  # (name in the result, side, name on that side)
    schema: pa.Schema
    text: str
    rows: pa.Schema  # of the table


Step = MapStep | FilterStep | SplitStep | TableStep


def schema_after(steps: Iterable[Step], schema: pa.Schema) -> pa.Schema:
    """The schema of what comes out of steps."""
    for step in steps:
        if isinstance(step, MapStep | TableStep):
            schema = step.schema
        elif isinstance(step, SplitStep):
            schema = schema.append(pa.field(SUBSTREAM, pa.int32()))
    return schema


def is_pushed(step: Step) -> bool:
    """Whether the compiler put it there."""
    return isinstance(step, FilterStep) and step.pushed


def may_fail(step: Step) -> bool:
    """Whether tuples that fail in it can be put aside: not in the predicate of a join, which is about pairs."""
    return not is_pushed(step) and not isinstance(step, TableStep)


def step_text(step: Step) -> str:
    """A step on one line."""
    pushed = " (part of the join behind it)" if is_pushed(step) else ""
    if isinstance(step, TableStep):
        return step.text
    verb = {MapStep: "map", FilterStep: "filter", SplitStep: "split"}[type(step)]
    return f"{verb} {' '.join(step.text.split())}{pushed}"


@dataclass(frozen=True)
class SourceInput:
    """A source as the splitters see it."""

    name: str
    schema: pa.Schema
    raw_schema: pa.Schema
    time: str
    lateness: int
    idle: int | None
    ahead: int | None
    read: pa.Schema  # the columns of it that anything is made of
    needed: frozenset[str] | None = (
        None  # of these, in lower case: those without which the answer is another; None: all
    )
    messages: pa.Schema | None = None  # how one is shown that cannot be read; None: the source is not made of messages

    def needs(self, name: str) -> bool:
        """Whether a column must be there as it was declared; of any other what fits is taken, and null where nothing does."""
        return self.needed is None or name == TS or name.lower() in self.needed

    def reads(self, *, whole: bool) -> pa.Schema:
        """The columns that tuples of it have: late ones are shown as they came, so who keeps those reads all."""
        return self.schema if whole else self.read


@dataclass(frozen=True)
class Edge:
    """Tuples of a producer, through steps, to an input of an operator or to a result."""

    producer: str  # name of a source or an operator
    output: int  # 0, or the side that a ranker puts out
    steps: tuple[Step, ...]
    schema: pa.Schema  # of what it carries: columns behind the steps that are not in it are dropped
    target: str
    input: int
    name: str = ""  # its own, to count by


@dataclass(frozen=True)
class PhysicalPlan:
    sources: tuple[SourceInput, ...]
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]
    results: tuple[str, ...]

    def __post_init__(self) -> None:
        for edge in self.edges:
            producer, target = self.by_name.get(edge.producer), self.by_name.get(edge.target)
            if producer and target and producer.stage == target.stage and not self.share_slots(edge):
                msg = f"{target.name} takes tuples of {producer.name} within stage {target.stage}, but not its layout"
                raise EngineError(msg)

    def source(self, name: str) -> SourceInput:
        return next(source for source in self.sources if source.name == name)

    @cached_property
    def leaders(self) -> dict[str, str]:
        """By operator, the one whose layout it has: itself, or the one at the end of the chain that it follows."""
        found: dict[str, str] = {}
        for operator in self.operators:  # an operator comes after the one that it follows
            found[operator.name] = found[operator.follows] if operator.follows else operator.name
        return found

    def share_slots(self, edge: Edge) -> bool:
        """Whether the two operators of an edge have one layout."""
        return self.leaders[edge.producer] == self.leaders[edge.target]

    @property
    def stages(self) -> int:
        """Number of exchanges."""
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
        """Whether it gets tuples from an operator of its own stage."""
        return any(e.target == operator.name and self.stage_of(e.producer) == operator.stage for e in self.edges)

    def entering(self, target: str, input: int) -> list[Edge]:
        return [e for e in self.edges if e.target == target and e.input == input]
