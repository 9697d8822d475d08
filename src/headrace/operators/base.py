"""What every operator of a plan must be able to say of itself.

One file per operator. What it means stands in `headrace.reference`, apart; here is how it is done in parallel: what it
needs of its inputs, its state, its time, what it does in a slot, its load, and its words for people.

Invariant: an answer that an author must think about has no default, and an operator that lacks one cannot be made. The
defaults describe an operator that has no special ability: its tuples find their slots in one way, after an exchange; it
has no keyed table and no window of event time; each of its groups is in one slot. What several operators share is in
classes in between: how state is kept (`AppendingOperator`, `ReplacingOperator`), and in `headrace.operators.keyed_operator`, `.joins` and
`.aggregates` what keyed operators, joins and aggregates have in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import pyarrow as pa

from headrace.plan import Step
from headrace.plan.columns_read import Names, names_of
from headrace.processor import StateTable
from headrace.routing import Grouping, OneSlotRouter, Router
from headrace.support.event_time import NEVER

if TYPE_CHECKING:
    from headrace.columnar.arrow import Numbers
    from headrace.expressions.predicates import BandCondition
    from headrace.kernels.keyed.keyed_table import KeyedTable
    from headrace.operators.placement import Placement
    from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
    from headrace.state.blocks import Block

Results = Iterator[tuple[int, pa.Table]]  # (output number, tuples)


class StateKind(Enum):
    """What becomes of the tuples that an operator is sent."""

    APPENDED = "blocks that are added, merged and dropped whole"
    REPLACED = "rows that are written anew in every epoch"
    NONE = "nothing"


class Arrangement(Enum):
    """How the rows of a group lie in a block of state."""

    HASH = "by the hash of the key, which groups are ranges of"
    POSITION = "by position"
    ANYHOW = "as they came: whoever reads them puts them in order"


class Slot(Protocol):
    """One slot in one epoch, as an operator sees it."""

    number: int
    watermarks_before: list[int]  # watermark of each input when the epoch began
    watermarks_after: list[int]  # and when it ends
    complete_below: int  # tuples below it are complete
    group_count: int  # groups of all slots
    run_id: str  # another one with every start of a run

    def groups(self, side: int) -> list[int]:
        """This slot's groups of one input."""

    def new(self, side: int) -> Sequence[Block]:
        """Blocks that arrived in this epoch."""

    def old(self, side: int) -> Sequence[Block]:
        """Blocks of the state."""

    def rows(self, side: int) -> Sequence[pa.Table]:
        """Tuples that arrived by value."""

    def run_steps(self, rows: pa.Table, steps: Sequence[Step]) -> pa.Table:
        """What comes out of stateless steps; tuples that fail in one stop the run, or are put aside."""

    @property
    def reached(self) -> int:
        """At the end: the watermark that the first input has before it ends, which is the same under any cut into epochs."""

    def split_time(self, split: str) -> int | None:
        """The largest `ts` that a split was given so far, by all tasks of the stages before; None: nothing yet."""

    def read_blocks(self, blocks: Sequence[Block], side: int) -> list[pa.Table]:
        """This slot's part of each block that has some."""

    def waiting_rows(self, side: int, schema: pa.Schema, groups: list[int] | None) -> pa.Table:
        """Rows of the state and those that arrived, in one table."""

    def replace_rows(self, side: int, table: pa.Table, *, grouped: bool) -> None:
        """These rows are this slot's whole part of the new state."""

    def trimmed(self, side: int) -> list[Block]:
        """Blocks, old and new, of which this slot must say what is left of its groups: after the epoch they are gone."""

    def write_remainder(self, side: int, table: pa.Table) -> None:
        """What is left of them, if there is something."""

    def keyed(self, table: str, groups: Sequence[int]) -> pa.Table:
        """Live rows of some groups (ascending) before the epoch: `__substream`, `__at` (the epoch that wrote the row), and the
        table's columns."""

    def open_tables(self, table: str, substreams: Sequence[int]) -> Mapping[int, KeyedTable]:
        """A table of some substreams before the epoch, to be changed: what became of them is told when the operator is done."""

    def change(self, table: str, put: pa.Table, gone: pa.Table, old: Numbers) -> None:
        """What the epoch made of a table that was not opened, once: changed rows, and keys that were there and are gone
        (`__substream` and the key's columns; no key in both). old: of each row, those that are gone last, the `__at` of what
        was there; -1: nothing was."""

    def count(self, *, read: int = 0, pairs: int = 0) -> None:
        """Count rows that were read from the state, and pairs that a join compared with its window or its predicate."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """Return the notes of the operator as the last manifest has them."""

    def note(self, **data: Any) -> None:
        """Set the notes of the operator: small facts that the next manifest keeps beside its state."""


@dataclass(frozen=True)
class Operator(ABC):
    """A node of the plan that has slots: its place, its inputs and the schema of its results."""

    name: str
    stage: int
    schemas: tuple[pa.Schema, ...]  # of its inputs
    schema: pa.Schema
    groupings: tuple[Grouping, ...]  # of its inputs
    follows: str = field(default="", kw_only=True)  # the operator whose slots it shares, in the same stage
    spec: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, compare=False, repr=False
    )  # as the query says it

    state: ClassVar[StateKind]

    # --- its inputs --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def router(self) -> Router:
        """How its tuples find their slots, unless a plan says otherwise."""

    def routing_options(self, slots: int, figures: Figures) -> Sequence[Router]:
        """All the ways that there are, to compare what they cost."""
        return [self.router]

    def routed(self, router: Router) -> Self | None:
        """The same, its state in the groups that a router wants; None: it cannot be routed so."""
        return self if router.way == self.router.way else None

    @property
    @abstractmethod
    def key_texts(self) -> tuple[str, ...]:
        """By what its tuples find their slot, for people."""

    @property
    def band(self) -> BandCondition | None:
        """The interval in which a pair's numbers must lie, if ranges of them can be its groups."""
        return None

    @abstractmethod
    def needs(self, side: int, live: Names) -> Names:
        """The columns of an input that it reads; `live` are those that are read of its results."""

    @abstractmethod
    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        """The same with narrower inputs, and results where it passes columns on."""

    @property
    @abstractmethod
    def takes_whole(self) -> bool:
        """Whether its producers must put out all columns, whatever it then holds."""

    @property
    def code(self) -> str:
        """The user's own code that it runs, with its version and settings, which may change while its state goes on."""
        return ""

    # --- which slots it can share --------------------------------------------------------------------------------------

    @property
    def may_follow(self) -> bool:
        """Whether it may share the slots of the operator before it."""
        return False

    @property
    def placement(self) -> Placement | None:
        """How its results lie in slots, if by values that they still have."""
        return None

    def aligned(self, handed: Sequence[Sequence[Placement]]) -> tuple[Grouping, ...] | None:
        """Groupings that put every handed tuple where it lies already; None: there are none."""
        return None

    # --- time ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def watermark(self, inputs: Sequence[int]) -> int:
        """No result below it will follow, when none follows of the inputs below theirs."""

    def watermark_of(self, output: int, inputs: Sequence[int]) -> int:
        """That of one of its outputs; those whose outputs have times of their own say so."""
        return self.watermark(inputs)

    @abstractmethod
    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        """Return for each input the smallest position that a later tuple can need. State below it has expired.

        inputs: the watermarks of the inputs after the epoch. notes: those that the operator's `owner` wrote in the epoch.
        """

    @property
    def longest_window(self) -> int | None:
        """Microseconds of event time that it looks back, if that is a time."""
        return None

    @property
    def looks_back(self) -> int | None:
        """How much older than a result what it depends on can be; None: any amount."""
        return self.longest_window

    def emitted_before(self, arrived: int | None, notes: Mapping[str, Any]) -> int | None:
        """A time before which all of its results so far are, when all of its input so far is before `arrived`; None: no
        time is known. notes: what it keeps beside its state."""
        return arrived

    @property
    def trims_by_arrival(self) -> bool:
        """Whether best effort lets its state expire as if nothing could come late."""
        return False

    def complete_from(self, time: int) -> Self:
        """The same operator, all of whose input comes from a time on, if that makes a difference to it."""
        return self

    @property
    def takes_functions(self) -> bool:
        """Whether functions can be added to it while its state continues."""
        return False

    def functions_complete_from(self, since: Sequence[Sequence[Any]]) -> Self:
        """The same operator, to which functions were added; since: the number of each of its functions, and the time from which
        on all of its input came to it (None: from the beginning)."""
        return self

    @property
    def withholds_before(self) -> int | None:
        """Windows that began before this time are withheld; None: none are."""
        return None

    @property
    def colocate_with(self) -> str:
        """An operator in whose slots it can run whenever all of each of its groups is in one; none: by itself."""
        return ""

    @property
    def only_exact(self) -> bool:
        """Whether best effort would make results of it that are wrong, instead of fewer."""
        return False

    # --- its state -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def holds_tuples(self) -> bool:
        """Whether its state is tuples of its inputs: not something made of them, nor nothing."""

    @abstractmethod
    def stored(self, side: int) -> set[str]:
        """Columns that every block of an input's state has."""

    @property
    def state_tables(self) -> Mapping[str, StateTable]:
        """Its keyed tables by name: rows that stay until they are changed, in the groups of its first input."""
        return {}

    def as_sent(self, side: int, tuples: pa.Table) -> pa.Table:
        """What is sent of tuples by value: themselves, unless less of them is enough."""
        return tuples

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the notes that the operator keeps beside its state, from the notes of its slots; before: None in the first epoch."""
        return {key: value for noted in (before or {}, *notes) for key, value in noted.items()}

    # --- its work ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, slot: Slot) -> Results:
        """What it puts out in one slot in one epoch."""

    @abstractmethod
    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        """What it meets when its windows are full, and what it puts out."""

    @abstractmethod
    def measured(self, counted: SampleCounts) -> dict[str, float]:
        """Figures that follow from what was counted on a sample, by the field of `Figures` that they belong to."""

    @property
    def can_spread_group(self) -> bool:
        """Whether a hot group can be done by several slots."""
        return False

    @property
    def compares_in_loops(self) -> bool:
        """Whether the pairs of a hot key are compared in a compiled loop, so that they cost little."""
        return False

    @property
    def relays(self) -> bool:
        """Whether it puts out its inputs, each as an output of its own."""
        return False

    def is_result(self, output: int) -> bool:
        """Whether an output is one of results, and not what it only tells another part of itself."""
        return True

    def output_schema(self, output: int) -> pa.Schema:
        """The schema of one of its outputs; those that have several of different kinds say so."""
        return self.schema

    # --- for people ------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def summary(self) -> str | None:
        """Itself on one line; None: it is part of another."""

    @property
    def pairing(self) -> str | None:
        """How it finds the pairs that it looks for; None: it looks for none."""
        return None

    @property
    def predicate(self) -> str | None:
        """What pairs are held against, as it was written; None: nothing is."""
        return None

    @property
    def owner(self) -> str:
        """Return the operator that represents this one in the plan that a user sees: itself, or one that prepares its input.

        `keep_from` also gets the notes that the owner wrote in the epoch.
        """
        return self.name


@dataclass(frozen=True)
class AppendingOperator(Operator):
    """The tuples it is sent become its state as they are: exchange by reference, the message is the block."""

    state: ClassVar[StateKind] = StateKind.APPENDED

    @property
    @abstractmethod
    def expiry_column(self) -> str:
        """The column by which its state expires."""

    @property
    @abstractmethod
    def arrangement_kind(self) -> Arrangement:
        """How the rows of a group lie in a block."""

    def arrangement(self, side: int) -> Arrangement:
        """The same of one input, if they differ."""
        return self.arrangement_kind

    @abstractmethod
    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        """What tuples of an input are as state."""

    def rewrites(self, block: Block, before: int, after: int) -> bool:
        """Whether its slots write anew what is left of a block when the watermark of its input goes from `before` to `after`."""
        return False

    def widened(self, side: int, state: pa.Table) -> pa.Table:
        """The rows of a block that was written before columns were added to the state, with these."""
        return state

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        """What the rows of several blocks of an input are in one."""
        return state

    @property
    def trims_by_merging(self) -> bool:
        """Whether rows that no longer count leave its state when blocks are merged, and not before."""
        return False


@dataclass(frozen=True)
class ReplacingOperator(Operator):
    """Its state is written anew in every epoch: exchange by value, since tuples do not stay as they come."""

    state: ClassVar[StateKind] = StateKind.REPLACED
    expiry_column: ClassVar[str] = "ts"
    arrangement_kind: ClassVar[Arrangement] = Arrangement.POSITION

    @property
    def holds_tuples(self) -> bool:
        return True

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        return [NEVER] * len(inputs)


@dataclass(frozen=True)
class UnkeyedOperator(Operator):
    """Its tuples have no key: none lies in a slot by its values, and no group of them is hot."""

    @property
    def key_texts(self) -> tuple[str, ...]:
        return ()

    @property
    def takes_whole(self) -> bool:
        return False

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)


@dataclass(frozen=True)
class SequentialOperator(UnkeyedOperator, ReplacingOperator):
    """All in one slot, in sequence; whole tuples wait for the watermark."""

    @property
    def router(self) -> Router:
        return OneSlotRouter()

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.schemas[side].names)

    def stored(self, side: int) -> set[str]:
        return set(self.schemas[side].names)

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        return replace(self, schemas=schemas)

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        return load_of_waiting(inputs)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        return {}


def load_of_waiting(inputs: Sequence[StreamPace]) -> tuple[OperatorLoad, StreamPace]:
    """Of tuples that only wait for the watermark, all inputs for the slowest."""
    from headrace.plan.figures import OperatorLoad, StreamPace

    rates, lag = tuple(flow.rate for flow in inputs), max(flow.lag for flow in inputs)
    state = tuple(flow.rate * max(lag - flow.delay, 0.0) for flow in inputs)
    return OperatorLoad(rates, rates, state, 0.0, sum(rates)), StreamPace(sum(rates), lag, lag)
