"""The protocol of operators: everything that the compiler, the driver, the tasks and the controller ask of one.

`headrace.reference` defines the meaning of an operator, independently. A module here defines how the operator runs in
parallel: its inputs, its state, its time, its work in a slot, its load, and its texts for users.

Invariant: a question that an author must think about has no default, so an operator without an answer cannot be
instantiated. The defaults describe an operator without special abilities: its tuples reach their slots in one way,
after an exchange; it has no state table and no time window; each of its groups is in one slot. Shared behaviour is in
intermediate classes: `AppendingOperator` and `ReplacingOperator` (how state is kept), and those of
`headrace.operators.keyed_operator`, `.joins` and `.aggregates`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa

from headrace.kernels.windows import order
from headrace.kernels.windows.aggregate import times
from headrace.plan import Step
from headrace.plan.columns_read import Names, names_of
from headrace.processor import StateTable
from headrace.routing import Grouping, RangeGrouping, Router, TimeRouter
from headrace.routing.by_time import merge_time_notes, sample_times
from headrace.support.event_time import FOREVER, NEVER

if TYPE_CHECKING:
    from headrace.columnar.arrow import Numbers
    from headrace.expressions.predicates import BandCondition
    from headrace.kernels.joins.stored_orders import BlockPieces
    from headrace.kernels.keyed.keyed_table import KeyedTable
    from headrace.operators.placement import Placement
    from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
    from headrace.state.blocks import Block

Results = Iterator[tuple[int, pa.Table]]  # (output number, tuples)


class StateKind(Enum):
    """The way in which an operator stores the tuples that it receives."""

    APPENDED = "blocks that are added, merged and dropped whole"
    REPLACED = "rows that are rewritten in every epoch"
    NONE = "nothing"


class Arrangement(Enum):
    """The order of the rows of a group in a block of state."""

    HASH = "by the hash of the key, which groups are ranges of"
    NUMBER = "by a number, ranges of which a layout gives to slots"
    POSITION = "by position"
    ANYHOW = "in order of arrival; readers sort the rows"


class Slot(Protocol):
    """One slot in one epoch, as an operator sees it."""

    number: int
    watermarks_before: list[int]  # watermark of each input at the start of the epoch
    watermarks_after: list[int]  # watermark of each input at the end of the epoch
    complete_below: int  # all tuples below this time have arrived
    group_count: int  # groups of all slots
    slot_count: int
    run_id: str  # different for every start of a run

    def groups(self, side: int) -> list[int]:
        """Return this slot's groups of one input."""

    def new(self, side: int) -> Sequence[Block]:
        """Return the blocks that arrived in this epoch."""

    def old(self, side: int) -> Sequence[Block]:
        """Return the blocks of the state."""

    def rows(self, side: int) -> Sequence[pa.Table]:
        """Return the tuples that arrived by value."""

    def run_steps(self, rows: pa.Table, steps: Sequence[Step]) -> pa.Table:
        """Run stateless steps and return their output. A failing tuple ends the run, or is set aside with
        `errors="keep"`."""

    @property
    def reached(self) -> int:
        """Return the watermark of the first input after the epoch, as if no source had ended in it.

        In the last epoch this is the watermark just before the end. It does not depend on the cut into epochs.
        """

    def split_time(self, split: str) -> int | None:
        """Return the largest `ts` that a split has received in all tasks of earlier stages; None if it received no
        tuple."""

    def read_blocks(self, blocks: Sequence[Block], side: int) -> list[pa.Table]:
        """Return this slot's rows of each block that has some."""

    def read_pieces(self, blocks: Sequence[Block], side: int) -> list[BlockPieces]:
        """Return each block that has rows of this slot, whole, with the intervals of these rows."""

    def waiting_rows(self, side: int, schema: pa.Schema, groups: list[int] | None) -> pa.Table:
        """Return the rows of the state and the rows that arrived, in one table."""

    def replace_rows(self, side: int, table: pa.Table) -> None:
        """Set this slot's whole part of the new state."""

    def rows_before(self, side: int) -> int:
        """Return how many tuples, new and waiting, are in earlier stretches of event time than this slot's."""

    def trimmed(self, side: int) -> list[Block]:
        """Return the blocks, old and new, that this epoch gives up. The slot passes the rows to keep to
        `write_remainder`."""

    def write_remainder(self, side: int, table: pa.Table) -> None:
        """Write the rows of this slot's groups that remain of the trimmed blocks; an empty table writes nothing."""

    def keyed(self, table: str, groups: Sequence[int]) -> pa.Table:
        """Return the live rows of some groups (ascending) before the epoch: `__substream`, `__at` (the epoch that wrote
        the row), and the table's columns."""

    def open_tables(self, table: str, substreams: Sequence[int]) -> Mapping[int, KeyedTable]:
        """Open a state table of some substreams, as it was before the epoch. The slot writes its changes when the
        operator ends."""

    def change(self, table: str, put: pa.Table, gone: pa.Table, old: Numbers) -> None:
        """Record the changes of this epoch to a table that was not opened; call it once.

        put: changed rows. gone: deleted keys (`__substream` and the key's columns); no key is in both. old: for each
        row of `put`, then of `gone`, the `__at` of the row that it replaces; -1 if there was none.
        """

    def count(self, *, read: int = 0, pairs: int = 0) -> None:
        """Count the rows read from the state and the pairs that a join compared with its window or its predicate."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """Return the operator's notes from the last manifest."""

    def note(self, **data: Any) -> None:
        """Set notes of the operator: small values that the next manifest stores beside its state."""


@dataclass(frozen=True)
class Operator(ABC):
    """A node of the plan that runs in slots: its stage, its inputs and the schema of its results."""

    name: str
    stage: int
    schemas: tuple[pa.Schema, ...]  # one for each input
    schema: pa.Schema
    groupings: tuple[Grouping, ...]  # one for each input
    follows: str = field(default="", kw_only=True)  # the operator whose layout it shares, in the same stage
    spec: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, compare=False, repr=False
    )  # as the query declares it

    state: ClassVar[StateKind]

    # --- its inputs --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def router(self) -> Router:
        """Return the router that the operator uses unless the plan sets another."""

    def routing_options(self, slots: int, figures: Figures) -> Sequence[Router]:
        """Return all routers that the operator can use; the compiler compares their costs."""
        return [self.router]

    def routed(self, router: Router) -> Self | None:
        """Return this operator with its state in the groups of `router`; None if that router cannot serve it."""
        return self if router.way == self.router.way else None

    @property
    def needs_rates(self) -> bool:
        """Return whether the rates of its inputs decide between routers of which the state then keeps one."""
        return False

    @property
    @abstractmethod
    def key_texts(self) -> tuple[str, ...]:
        """Return the texts of the key columns or conditions that decide a tuple's slot, shown to users."""

    @property
    def band(self) -> BandCondition | None:
        """Return the band condition of the pairs, if ranges of its number can be the groups; else None."""
        return None

    @abstractmethod
    def needs(self, side: int, live: Names) -> Names:
        """Return the columns of an input that the operator reads. live: the columns that are read of its results."""

    @abstractmethod
    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        """Return this operator with narrower inputs, and narrower results where it passes columns on."""

    @property
    @abstractmethod
    def takes_whole(self) -> bool:
        """Return whether producers must emit all columns, even those that the operator does not store."""

    @property
    def code(self) -> str:
        """Return the path, version and settings of the user's code, which may change while the state continues; empty:
        none."""
        return ""

    # --- which slots it can share --------------------------------------------------------------------------------------

    @property
    def may_follow(self) -> bool:
        """Return whether the operator may share the slots of its producer."""
        return False

    @property
    def placement(self) -> Placement | None:
        """Return how the results are placed in slots; None unless values that the results still hold decide it."""
        return None

    def aligned(self, handed: Sequence[Sequence[Placement]]) -> tuple[Grouping, ...] | None:
        """Return groupings that leave every tuple handed over in its slot; None if there are none."""
        return None

    # --- time ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def watermark(self, inputs: Sequence[int]) -> int:
        """Return the time below which no further result follows. inputs: the watermarks of the inputs."""

    def watermark_of(self, output: int, inputs: Sequence[int]) -> int:
        """Return the watermark of one output. Operators whose outputs have different watermarks override it."""
        return self.watermark(inputs)

    @abstractmethod
    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        """Return for each input the smallest position that a later tuple can need. State below it has expired.

        inputs: the watermarks of the inputs after the epoch. notes: those that the operator's `owner` wrote in the
        epoch.
        """

    @property
    def longest_window(self) -> int | None:
        """Return how far the operator looks back in event time, in microseconds; None if time does not limit it."""
        return None

    @property
    def looks_back(self) -> int | None:
        """Return how much older than a result its input can be, in microseconds; None: any amount."""
        return self.longest_window

    def emitted_before(self, arrived: int | None, notes: Mapping[str, Any]) -> int | None:
        """Return a time before which all results so far are, if all input so far is before `arrived`; None if unknown.

        notes: the operator's notes in the manifest.
        """
        return arrived

    @property
    def trims_by_arrival(self) -> bool:
        """Return whether state expires under best effort as if no tuple could arrive late."""
        return False

    def complete_from(self, time: int) -> Self:
        """Return this operator for input that is complete from `time` on. Most operators do not depend on it."""
        return self

    @property
    def takes_functions(self) -> bool:
        """Return whether functions can be added while the state continues."""
        return False

    def functions_complete_from(self, since: Sequence[Sequence[Any]]) -> Self:
        """Return this operator with added functions. since: for each function, its number and the time from which it
        has received all input (None: from the beginning)."""
        return self

    @property
    def withholds_before(self) -> int | None:
        """Return the time before which starting windows are withheld; None: no window is."""
        return None

    @property
    def first_whole_window(self) -> int | None:
        """Return the start of the first window that is not withheld; None: none is withheld, all are, or it is unknown."""
        return None

    @property
    def colocate_with(self) -> str:
        """Return the operator whose slots this one can share in epochs in which no group is spread over slots; empty:
        none."""
        return ""

    @property
    def only_exact(self) -> bool:
        """Return whether best effort would make its results wrong instead of incomplete."""
        return False

    # --- its state -----------------------------------------------------------------------------------------------------

    def arranged_by_number(self, side: int) -> bool:
        """Return whether the state of an input is sorted by a number, of which a layout gives ranges to slots."""
        return isinstance(self.groupings[side], RangeGrouping)

    @property
    @abstractmethod
    def holds_tuples(self) -> bool:
        """Return whether the state consists of input tuples, unchanged."""

    @abstractmethod
    def stored(self, side: int) -> set[str]:
        """Return the columns that every block of an input's state has."""

    @property
    def state_tables(self) -> Mapping[str, StateTable]:
        """Return the state tables by name. Their rows stay until they are changed, in the groups of the first input."""
        return {}

    def as_sent(self, side: int, tuples: pa.Table) -> pa.Table:
        """Return what is sent of tuples by value: the tuples, or fewer rows if these suffice."""
        return tuples

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the notes to store beside the state, merged from the notes of all slots. before: None in the first
        epoch."""
        return {key: value for noted in (before or {}, *notes) for key, value in noted.items()}

    # --- its work ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, slot: Slot) -> Results:
        """Run one slot in one epoch and yield its results."""

    @abstractmethod
    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        """Estimate the load with full windows, and the rate and delay of the results."""

    @abstractmethod
    def measured(self, counted: SampleCounts) -> dict[str, float]:
        """Return the figures that follow from the counts of a sample, by the field of `Figures` that they belong to."""

    @property
    def can_spread_group(self) -> bool:
        """Return whether several slots can share a hot group."""
        return False

    @property
    def compares_in_loops(self) -> bool:
        """Return whether a compiled loop compares the pairs of a hot key, which makes them cheap."""
        return False

    @property
    def relays(self) -> bool:
        """Return whether the operator emits each of its inputs as a separate output."""
        return False

    def is_result(self, output: int) -> bool:
        """Return whether an output holds results, and not data for another part of the same operator."""
        return True

    def output_schema(self, output: int) -> pa.Schema:
        """Return the schema of one output. Operators with outputs of different schemas override it."""
        return self.schema

    def orders(self, notes: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the orders of work that the operator uses next, by what they are for, as its notes imply; empty: none.

        No result depends on them. A change of an order is recorded as a decision.
        """
        return {}

    def order_cost(self, what: str, order: str, notes: Mapping[str, Any]) -> float:
        """Return the work of an order, present or former, per tuple, as the notes imply."""
        raise NotImplementedError(f"{self.name} has no orders")

    # --- for people ------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def summary(self) -> str | None:
        """Return the operator on one line; None if it is part of another one."""

    @property
    def pairing(self) -> str | None:
        """Return how a join finds its pairs; None for other operators."""
        return None

    def alternative(self, load: OperatorLoad) -> str:
        """Return what another way to write the query would cost, for comparison; empty: there is none."""
        return ""

    @property
    def routing_note(self) -> str:
        """Return what users should know about the operator's slots beside its router; empty: nothing."""
        return ""

    @property
    def predicate(self) -> str | None:
        """Return the text of the join predicate; None for other operators."""
        return None

    @property
    def owner(self) -> str:
        """Return the operator that represents this one in the plan shown to users: itself, or one that prepares its
        input.

        `keep_from` also gets the notes that the owner wrote in the epoch.
        """
        return self.name


@dataclass(frozen=True)
class AppendingOperator(Operator):
    """An operator whose input becomes state in the tasks that send it (`as_state`).

    The exchange is by reference: these tasks write the block of state, and the message describes the block.
    """

    state: ClassVar[StateKind] = StateKind.APPENDED

    @property
    @abstractmethod
    def expiry_column(self) -> str:
        """Return the column by which the state expires."""

    @property
    @abstractmethod
    def arrangement_kind(self) -> Arrangement:
        """Return the order of the rows of a group in a block."""

    def arrangement(self, side: int) -> Arrangement:
        """Return the order for one input; operators whose inputs differ override it."""
        return self.arrangement_kind

    @abstractmethod
    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        """Return the state rows that tuples of an input become: the tuples themselves, or partials of an aggregate.

        It runs in the task that sends the tuples, before the exchange. names: the columns to store.
        """

    def further_orders(self, side: int) -> tuple[str, ...]:
        """Return the names of the orders that a block has besides that of its rows; empty: none."""
        return ()

    def with_orders(self, side: int, state: pa.Table, arrangement: Numbers) -> pa.Table:
        """Return state rows with the further orders of the block that `take(arrangement)` makes of them."""
        return state

    def rewrites(self, block: Block, before: int, after: int) -> bool:
        """Return whether slots rewrite the remaining rows of `block` when the input's watermark moves from `before` to
        `after`."""
        return False

    def widened(self, side: int, state: pa.Table) -> pa.Table:
        """Return rows of a block with the columns that were added to the state after the block was written."""
        return state

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        """Return the state rows that replace those of several merged blocks of an input."""
        return state

    @property
    def trims_by_merging(self) -> bool:
        """Return whether rows that no longer count leave the state only when blocks are merged."""
        return False


@dataclass(frozen=True)
class ReplacingOperator(Operator):
    """An operator that rewrites its state in every epoch. Tuples are exchanged by value, because they are not stored as
    sent."""

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
    """An operator without a key: the values of a tuple do not decide its slot, and no group is hot."""

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
    """An operator that takes its tuples in sequence. Whole tuples wait for the watermark.

    Each slot has a stretch of event time. Invariant: if a slot releases a tuple, all tuples of earlier stretches are
    released in this epoch or before, because they are older than the tuple and the watermark has passed it.
    """

    @property
    def router(self) -> Router:
        return TimeRouter()

    def release(self, slot: Slot) -> tuple[list[pa.Table], dict[str, Any]]:
        """Return for each input the tuples of the slot's stretch that the watermark has passed, in sequence, and notes
        about times. The other tuples wait."""
        released, notes = [], []
        arrived_before, arrived_after = min(slot.watermarks_before), min(slot.watermarks_after)
        for side, schema in enumerate(self.schemas):
            ready, kept = order.release_in_sequence(slot.waiting_rows(side, schema, None), slot.complete_below)
            slot.replace_rows(side, kept)
            released.append(ready)
            new = np.concatenate([np.zeros(0, np.int64), *(times(rows) for rows in slot.rows(side))])
            advance = arrived_after - arrived_before if NEVER < arrived_before <= arrived_after < FOREVER else 0
            waiting, arrived = (sample_times(each, slot.slot_count) for each in (times(kept), new))
            notes.append({"waiting": waiting, "arrived": arrived, "advance": advance})
        return released, merge_time_notes(notes)

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**(before or {}), **(merge_time_notes(notes) if notes else {})}

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
    """Return the load of tuples that only wait for the watermark of the slowest input."""
    from headrace.plan.figures import OperatorLoad, StreamPace

    rates, lag = tuple(flow.rate for flow in inputs), max(flow.lag for flow in inputs)
    state = tuple(flow.rate * max(lag - flow.delay, 0.0) for flow in inputs)
    return OperatorLoad(rates, rates, state, 0.0, sum(rates)), StreamPace(sum(rates), lag, lag)
