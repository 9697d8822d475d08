"""Layouts, slots and splitters of each epoch: decided by the controller, given by a plan, or chosen by a test.

Only the controller stores the number of slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace import plan as p
from headrace.compile.bind import LayoutChooser
from headrace.compile.uncoalesce import share_slots
from headrace.control.control_state import Decision
from headrace.control.controller import Controller
from headrace.control.group_load import GroupLoad
from headrace.control.splitter_count import FixedSplitters, SplitLoad, Splitters
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.routing import Adaptation, Layout, Ranges, layout_from_json
from headrace.routing.by_time import Sample, expected_times, fitted_stretches
from headrace.state.manifest import Manifest, OperatorState
from headrace.task.epoch import Epoch
from headrace.task.reports import Report

FEWEST_GROUPS, GROUPS_PER_SLOT = 64, 16
LATER_PER_SLOT = 4  # groups for each slot that a run may grow to


def group_count(plan: p.PhysicalPlan, slots: int, limit: int, wanted: int | None) -> int:
    """Return the number of groups of a new state, which never changes."""
    needed = [operator.router.groups for operator in plan.operators]
    for_slots = max(GROUPS_PER_SLOT * slots, LATER_PER_SLOT * limit)
    return max(wanted or max(FEWEST_GROUPS, for_slots), *needed, 1)


@dataclass
class RunLayouts:
    """The layouts of a run: those of each epoch, user requests, and decisions of the controller."""

    plan: p.PhysicalPlan
    control: Controller
    chosen: LayoutChooser | None  # a given plan or a test chooses all layouts; the controller then decides nothing
    given: FixedSplitters = field(default_factory=FixedSplitters)
    first_times: Sample = ()  # of the tuples of the first epoch, as far as they are known

    # --- what a user may ask for during a run ------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        return self.control.active

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [decision.to_json() for decision in self.control.history]

    @property
    def frozen(self) -> bool:
        return self.control.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self.control.frozen = frozen

    @property
    def backlog(self) -> int:
        """Return the number of waiting files and messages."""
        return self.control.backlog

    @backlog.setter
    def backlog(self, backlog: int) -> None:
        self.control.backlog = backlog

    def set_slots(self, slots: int, last: Manifest | None) -> None:
        if self.chosen is not None:
            raise QueryError("this run follows a plan, which fixes the number of slots; start it without a plan")
        self.control.set_slots(slots, last.number if last else 0)

    def rebalance(self, last: Manifest | None, *, dry_run: bool) -> list[dict[str, Any]]:
        """Return what the controller would decide after this manifest. Unless `dry_run`, it decides that with the next
        one."""
        if self.frozen and not dry_run:
            raise QueryError("the run is frozen; call thaw() first, or rebalance(dry_run=True)")
        self.control.asked = self.control.asked or not dry_run
        if last is None:
            return []
        used = {name: layout_from_json(found) for name, found in last.layouts.items()}
        if not used.keys() >= self.plan.by_name.keys():
            return []  # the query was changed since, and no epoch has measured it yet
        plan = share_slots(self.plan, used.__getitem__)
        leading = {name: used[name] for name in plan.leaders.values()}
        return [decision.to_json() for decision in self.control.proposals(last.number, last.groups, leading)]

    # --- epoch by epoch ----------------------------------------------------------------------------------------------

    def plan_epoch(self, groups: int, state: Mapping[str, OperatorState]) -> tuple[p.PhysicalPlan, dict[str, Layout]]:
        """Return the plan of the next epoch, and the layouts of its operators that follow no other operator.

        An operator that follows another runs in its slots and needs no layout. Which operators follow can differ
        between epochs: an aggregate can follow a join of the same grouping, but not in an epoch whose layout spreads a
        hot group of the join over several slots. In that epoch the aggregate has a separate stage.
        """
        chosen = {o.name: self._layout(o, groups, state.get(o.name)) for o in self.plan.operators if not o.follows}

        def layout_of(name: str) -> Layout:
            if name not in chosen:
                chosen[name] = self._layout_apart(self.plan.by_name[name], groups, chosen[self.plan.leaders[name]])
            return chosen[name]

        plan = share_slots(self.plan, layout_of)
        return plan, {name: layout_of(name) for name in dict.fromkeys(plan.leaders.values())}

    def _layout_apart(self, operator: Operator, groups: int, shared: Layout) -> Layout:
        """Return the layout of an operator that usually follows another and now has its own stage.

        shared: the layout of the usual leader. Its owners are the first layout, until the controller decides another.
        """
        slots = min(self.control.active, groups)
        if self.chosen is not None:
            return self.chosen(operator, groups, slots) or shared.undivided().handed_on()
        return self.control.decided(operator, groups, slots) or shared.undivided().handed_on()

    def _layout(self, operator: Operator, groups: int, state: OperatorState | None) -> Layout:
        slots = min(self.control.active, groups)
        chosen = self.chosen and self.chosen(operator, groups, slots)
        if operator.router.adapts is Adaptation.BOUNDS:
            return self._stretches(operator, groups, slots, chosen, state)
        if operator.router.slots(slots) < slots and not (chosen and _in_one_slot(chosen)):
            return operator.router.layout(groups, 1)  # the router needs a single slot
        rows = [sum(b.rows for b in blocks) for blocks in state.inputs] if state else []
        return chosen or self.control.layout(operator, groups, slots, rows)

    def _stretches(
        self, operator: Operator, groups: int, slots: int, chosen: Layout | None, state: OperatorState | None
    ) -> Layout:
        """Return stretches of event time that are expected to have equally many tuples."""
        usual = chosen or operator.router.layout(groups, slots)
        assert isinstance(usual, Ranges)
        if usual != operator.router.layout(groups, len(usual.grids), usual.first):
            return usual  # a test chose other bounds
        return fitted_stretches(usual, expected_times(state.notes) if state else self.first_times)

    def splitters(self, bytes: int) -> Splitters:
        """Return the splitters of an epoch that reads `bytes`: those that were decided, else the given, else the usual ones."""
        decided = None if self.chosen is not None else self.control.splitters_for(bytes)
        return decided or self.given.splitters(self.slots)

    def decide(
        self,
        epoch: Epoch,
        reports: Sequence[Report],
        needed_tuples: Mapping[str, Sequence[float]],
        seconds: float,
        bytes_read: Mapping[str, int],
        notes: Mapping[str, Mapping[str, Any]],
    ) -> list[Decision]:
        """Show an epoch to the controller, and return its decisions for the next one.

        needed_tuples: by operator, the tuples of each input that its state still needs.
        seconds: that each slot had for the epoch.
        bytes_read: by source, the bytes of files and messages that the epoch read.
        notes: by operator, its notes after the epoch.
        """
        if self.chosen is not None:
            return []
        self.control.observe(
            _loads(reports),
            needed_tuples,
            _slot_cpu(reports, epoch.slots),
            seconds,
            _split_load(reports, bytes_read),
            plan=epoch.plan,
            operator_cpu=_operator_cpu(reports),
            notes=notes,
        )
        if not self.control.due(epoch.number):
            return []
        return self.control.reorganise(epoch.number, epoch.groups, epoch.layouts)


def _in_one_slot(layout: Layout) -> bool:
    return sum(bool(layout.groups(slot, 0)) for slot in range(layout.slots)) == 1


def _loads(reports: Sequence[Report]) -> dict[str, list[GroupLoad]]:
    """Return by operator what each task sent to it."""
    found: dict[str, list[GroupLoad]] = {}
    for report in reports:
        for operator, load in report.load.items():
            found.setdefault(operator, []).append(load)
    return found


def _split_load(reports: Sequence[Report], bytes_read: Mapping[str, int]) -> SplitLoad | None:
    """Return the work of the splitters that read pieces, None if there were none.

    A task reads pieces or rows of Spark, never both.
    """
    tasks = [r for r in reports if r.task.stage == 0 and r.sources and r.sources.keys() <= bytes_read.keys()]
    if not tasks:
        return None
    tuples = sum(counts.delivered for report in tasks for counts in report.sources.values())
    cpu = [report.cpu for report in tasks]
    return SplitLoad(len(tasks), tuples, sum(bytes_read.values()), sum(cpu), max(cpu))


def _operator_cpu(reports: Sequence[Report]) -> dict[str, float]:
    """Return the CPU seconds of every operator over all slots."""
    found: dict[str, float] = {}
    for report in reports:
        for name, seconds in report.work.cpu.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _slot_cpu(reports: Sequence[Report], slots: int) -> list[float]:
    """Return the CPU seconds of every slot over all stages after stage 0."""
    found = [0.0] * slots
    for report in reports:
        if report.task.stage > 0:
            found[report.task.number] += report.cpu
    return found
