"""The record of an epoch, which every task of the epoch gets.

Invariant: all tasks of an epoch get the same `Epoch`, and nothing in it changes while they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace import plan as p
from headrace.routing import Layout
from headrace.sinks import PartSink
from headrace.sources.protocol import Reader
from headrace.state.blocks import Block
from headrace.state.caches import CacheStamps
from headrace.state.manifest import OperatorState, TableVersion
from headrace.task import watermarks
from headrace.task.failure_points import FailurePoint, edge_failure_points, unread_message_points


@dataclass(frozen=True)
class Merge:
    """Blocks of state that one slot merges into one block. Inputs that share their blocks share the merge."""

    operator: str
    inputs: tuple[int, ...]
    blocks: tuple[Block, ...]
    table: str | None = None  # the state table whose blocks these are; None: they belong to inputs
    also: tuple[tuple[str, int], ...] = ()  # inputs of other operators that hold the same blocks
    piece: tuple[int, int] = (0, 1)  # (which, of how many): each piece holds some of the groups and becomes one block


@dataclass(frozen=True)
class Epoch:
    """The facts that the tasks of an epoch need."""

    plan: p.PhysicalPlan
    number: int  # of the manifest that this epoch will publish
    folder: str  # URI of the storage that holds the state
    slots: int
    groups: int
    clocks: Mapping[str, watermarks.SourceClock]  # by source, after the epoch before
    layouts: Mapping[str, Layout]  # of operators that follow no other; `layout_of` has the layouts of all
    state: Mapping[str, OperatorState]
    merges: tuple[tuple[Merge, ...], ...] = ()  # by slot
    table_versions: Mapping[str, TableVersion] = field(
        default_factory=dict
    )  # by name: the tables that streams are joined with
    split_times: Mapping[str, int] = field(default_factory=dict)  # by split: the largest `ts` of all epochs before
    renewals: Mapping[str, Mapping[str, tuple[int, ...]]] = field(
        default_factory=dict
    )  # by operator and state table: groups
    ended: tuple[str, ...] = ()  # sources that deliver nothing after this epoch
    bounded: bool = False  # nothing is late
    best_effort: bool = False
    keep_late: bool = False  # late, rejected and failed tuples go to the sink `late`
    keep_failed: bool = False  # failed tuples do not stop the run
    state_id: str = ""  # id of the state; sinks know it as the `query` of a delivery
    run_id: str = ""  # id of the run: different for every start
    sinks: Mapping[str, PartSink] = field(default_factory=dict)  # by result: sinks that take their parts from tasks
    caches: CacheStamps | None = None  # None: state tables are built from blocks
    readers: Mapping[str, Reader] = field(default_factory=dict)  # by source: what reads its pieces; missing: files

    @cached_property
    def layout_of(self) -> Mapping[str, Layout]:
        """Return the layout of every operator. An operator that follows another has the layout of its leader's results."""
        leaders = self.plan.leaders.items()
        return {n: self.layouts[n] if n == leader else self.layouts[leader].handed_on() for n, leader in leaders}

    @cached_property
    def failure_points(self) -> Mapping[tuple[Any, ...], FailurePoint]:
        """Return the steps along edges in which tuples can fail, by `step_key`."""
        return edge_failure_points(self.plan)

    @cached_property
    def unread(self) -> Mapping[str, FailurePoint]:
        """Return, by source, the failure point of messages that cannot be read."""
        return unread_message_points(self.plan)

    @cached_property
    def live(self) -> frozenset[str]:
        """Return the names of the blocks that are live when this epoch begins."""
        state = [block.name for state in self.state.values() for block in state.blocks]
        return frozenset([*state, *(version.block.name for version in self.table_versions.values())])
