"""The physical plan: what the engine runs, as frozen records that can be shipped to tasks.

A plan is a chain of stages. Stage 0 holds the sources (splitters); stage k holds the stateful operators whose inputs
all come from earlier stages, or from operators of this stage whose slots they share. An edge carries the tuples of one
producer through stateless steps to one input of an operator, or to a result. What crosses a stage is one Spark
exchange, whatever the number of operators in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from headrace.expressions import Key, Partial, Predicate

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


Step = MapStep | FilterStep


@dataclass(frozen=True)
class Grouping:
    """How the tuples of an input find their group: by key columns brought to types, or by their whole content.

    With bounds: by the range that a number lies in, or (two columns) in which the interval from the first, less the
    width, to the second, plus the width, begins.
    """

    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...] | None
    drop_null: bool = False  # a null key meets nothing
    bounds: tuple[float, ...] | None = None
    width: float = 0.0


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


@dataclass(frozen=True)
class Operator:
    """A stateful operator: its place, its inputs and the schema of its results."""

    name: str
    stage: int
    schemas: tuple[pa.Schema, ...]  # of its inputs
    schema: pa.Schema
    groupings: tuple[Grouping, ...]  # of its inputs
    follows: str = field(default="", kw_only=True)  # the operator whose slots it shares, in the same stage


@dataclass(frozen=True)
class StatelessOperator(Operator):
    """Stateless steps in slots of their own: only the strategy that gives every operator a stage makes these."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class JoinOperator(Operator):
    """What the two joins share."""

    on: Predicate
    columns: tuple[tuple[str, str, str], ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.on.keys

    @property
    def sql(self) -> str:
        return self.on.sql

    @property
    def text(self) -> str:
        return self.on.text

    @property
    def plain_keys(self) -> bool:
        return self.on.plain_keys

    def used(self, side: str) -> list[str]:
        """The columns of one side that the predicate looks at; at least one, so that a table of them has rows."""
        schema = self.schemas[0 if side == "l" else 1]
        named = {path[1].lower() for path in self.on.columns if path[0].lower() == side}
        return [name for name in schema.names if name.lower() in named] or ["ts"]


@dataclass(frozen=True)
class TimeJoinOperator(JoinOperator):
    w1: int
    w2: int


@dataclass(frozen=True)
class RankOperator(Operator):
    """Gives the tuples of two streams their numbers, in sequence: the ordered stage before a count-window join."""


@dataclass(frozen=True)
class CountJoinOperator(JoinOperator):
    """Its inputs are the two streams of a `RankOperator`."""

    n1: int
    n2: int
    ranker: str


@dataclass(frozen=True)
class PaneAggregateOperator(Operator):
    """A time aggregate whose state is one row of partials per group and pane."""

    by: tuple[str, ...]
    window: int
    every: int
    pane: int
    partials: tuple[Partial, ...]
    functions: Named  # over the merged partials
    texts: tuple[str, ...]


@dataclass(frozen=True)
class TupleAggregateOperator(Operator):
    """A time aggregate that needs the tuples of a window themselves."""

    by: tuple[str, ...]
    window: int
    every: int
    functions: Named  # over the tuples
    texts: tuple[str, ...]
    ordered: bool


@dataclass(frozen=True)
class CountAggregateOperator(Operator):
    by: tuple[str, ...]
    last: int
    every: int
    functions: Named
    texts: tuple[str, ...]


@dataclass(frozen=True)
class OrderOperator(Operator):
    """Holds results back until the watermark passes them and releases them in sequence."""


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
class Plan:
    sources: tuple[SourceInput, ...]
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]
    results: tuple[str, ...]

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
