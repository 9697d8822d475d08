"""Base classes of aggregates, and the logic that aggregates over time windows share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa

from headrace.expressions import Partial
from headrace.kernels.windows.time_windows import WindowGrid
from headrace.operators.base import AppendingOperator, Arrangement, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.keyed_operator import KeyedOperator
from headrace.plan import Named
from headrace.plan.columns_read import Names, columns_read, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import HashGrouping
from headrace.support.event_time import FOREVER, NEVER

WITHHELD = "withheld"  # key of a note: how many windows, counted per group, an aggregate did not emit


@dataclass(frozen=True)
class GroupedOperator(KeyedOperator):
    """An aggregate that groups tuples by equal values in the columns `by` and has each group in one slot."""

    functions: Named
    texts: tuple[str, ...]

    def _describe(self, window: str) -> str:
        return f"aggregate by {', '.join(self.by) or 'nothing'} {window}: {', '.join(self.texts)}"


@dataclass(frozen=True)
class OverPartials(GroupedOperator):
    """An aggregate whose state is partials and whose functions read merged partials."""

    partials: tuple[Partial, ...]

    @property
    def holds_tuples(self) -> bool:
        return False

    @property
    def made(self) -> list[str]:
        """Return the names of the columns of the partials."""
        return [name for partial in self.partials for name, _, _ in partial.columns]

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.by) | columns_read(sql for part in self.partials for _, sql, _ in part.columns)


@dataclass(frozen=True)
class OverTuples(GroupedOperator):
    """An aggregate whose state is tuples. If a function depends on order, it reads the tuples in sequence."""

    ordered: bool

    @property
    def holds_tuples(self) -> bool:
        return True

    def needs(self, side: int, live: Names) -> Names:
        if self.ordered:  # the sequence is that of whole tuples
            return names_of(self.schemas[side].names)
        return names_of(self.by) | columns_read(sql for _, sql in self.functions)

    def stored(self, side: int) -> set[str]:
        return set(self.schemas[side].names)


@dataclass(frozen=True)
class WithholdingOperator(GroupedOperator):
    """An aggregate whose windows have a start. It counts, but does not emit, windows that start before its input is
    complete."""

    whole_from: int | None = field(default=None, kw_only=True)  # input is complete from then on; None: all of it

    def complete_from(self, time: int) -> Self:
        return replace(self, whole_from=time)

    @property
    def withholds_before(self) -> int | None:
        return self.whole_from

    def windows_in(self, results: pa.Table) -> int:
        """Return the number of windows in `results`, counted once per group."""
        return int(results.num_rows)

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        withheld = sum(noted.get(WITHHELD, 0) for noted in (before or {}, *notes))
        return {WITHHELD: withheld} if withheld else {}


@dataclass(frozen=True)
class WindowAggregate(WithholdingOperator, AppendingOperator):
    """An aggregate over time windows."""

    windows: WindowGrid
    window_text: str  # shown to users

    @abstractmethod
    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        """Return the results of the windows that close between two watermarks. held: the state rows that they may need."""

    def run(self, slot: Slot) -> Results:
        if (held := self._open_windows(slot)) is None:
            return
        before, after = slot.watermarks_before[0], slot.watermarks_after[0]
        if self.withholds_before is not None and before < (last := min(self._withheld_until, after)):
            slot.note(**{WITHHELD: self.windows_in(self.close(held, before, last))})
            before = last
        yield 0, self.close(held, before, after)

    def _open_windows(self, slot: Slot) -> pa.Table | None:
        """Return the state of this slot that windows closing in this epoch can contain; None: no window closes."""
        after = slot.watermarks_after[0]
        if after <= slot.watermarks_before[0]:
            return None
        blocks = [*slot.old(0), *slot.new(0)]
        tables = slot.read_blocks([b for b in blocks if b.low is not None and b.low < after], 0)
        return pa.concat_tables([self.widened(0, table) for table in tables]) if tables else None

    @property
    def _withheld_until(self) -> int:
        """Return the end of the last window that starts before the input is complete."""
        assert self.withholds_before is not None
        return int(self.windows.ends(self.windows.latest(self.withholds_before - 1)))

    @property
    def first_whole_window(self) -> int | None:
        if self.withholds_before is None or self.withholds_before >= FOREVER:
            return None
        return int(self.windows.starts(self.windows.latest(self.withholds_before - 1) + 1))

    @property
    def arrangement_kind(self) -> Arrangement:
        return Arrangement.POSITION

    def watermark(self, inputs: Sequence[int]) -> int:
        return inputs[0] if inputs[0] in (NEVER, FOREVER) else self.windows.move_back(inputs[0])

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        """Return the start of the first open window. A position t is in an open window iff t >= this start."""
        if inputs[0] in (NEVER, FOREVER):
            return [inputs[0]]
        return [int(self.windows.starts(self.windows.closed(inputs[0]) + 1))]

    @property
    def longest_window(self) -> int:
        return self.windows.longest

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        window, every = self.windows.window, self.windows.every
        rates, lag = (inputs[0].rate,), inputs[0].lag
        sending = inputs[0].rate * figures.partials.get(self.name, 1.0)
        span = max((window - every / 2) / 1e6 + lag - inputs[0].delay, 0.0)
        held = figures.held.get(self.name, sending * span)
        results = figures.results.get(self.name, sending * window / every)
        behind = lag + window / 1e6
        return OperatorLoad(rates, (sending,), (held,), 0.0, results), StreamPace(results, behind, behind)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        first, last = counted.times
        closed = int(self.windows.latest(last) - self.windows.closed(first))  # windows that overlap the sample
        found = {
            "results": counted.out / closed / (self.windows.every / 1e6),
            "held": counted.held * max(self.windows.window / 1e6 / counted.span, 1.0),
        }
        if counted.sent is not None and counted.arrived[0]:  # tuples handed over inside a slot are not sent
            found["partials"] = counted.sent / counted.arrived[0]
        return found

    @property
    def summary(self) -> str:
        return self._describe(self.window_text)


def plan_over_time(
    node: nodes.BoundedAggregation,
    sofar: PlanBuilder,
    over_partials: Callable[..., OverPartials],
    over_tuples: Callable[..., OverTuples],
    **window: Any,
) -> Flow:
    """Plan an aggregate over partials where its functions allow it, else over tuples; window: fields of both operators."""
    flows = sofar.flows(node.input)
    functions = [function for _, function in node.functions]
    common: dict[str, Any] = {
        "name": sofar.name("aggregate"),
        "stage": stage_after(flows),
        "schemas": (node.input.schema,),
        "schema": node.schema,
        "groupings": (HashGrouping(node.by),),
        "by": node.by,
        "texts": tuple(f.text for f in functions),
        **window,
    }
    if all(f.partials is not None for f in functions):
        partials = tuple(partial for f in functions for partial in f.partials or ())
        merged = tuple((name, str(f.merged_sql)) for name, f in node.functions)
        return sofar.add(over_partials(**common, partials=partials, functions=merged), flows)
    named = tuple((name, f.sql) for name, f in node.functions)
    return sofar.add(over_tuples(**common, functions=named, ordered=node.ordered), flows)
