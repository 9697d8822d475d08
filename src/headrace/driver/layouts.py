"""How a run is laid out, epoch by epoch: the controller's decisions, a plan's, or a test's own.

The controller owns the number of slots; nobody else keeps one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace import plan as p
from headrace.compile.uncoalesce import share_slots
from headrace.control.control_state import Decision
from headrace.control.controller import Controller
from headrace.control.group_load import GroupLoad
from headrace.control.splitter_count import FixedSplitters, SplitLoad, Splitters
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.routing import Layout, layout_from_json
from headrace.state.manifest import Manifest, OperatorState
from headrace.task.epoch import Epoch
from headrace.task.reports import Report

Chosen = Callable[[Operator, int, int], Layout | None]  # (operator, groups, slots)
FEWEST_GROUPS, GROUPS_PER_SLOT = 64, 16
LATER_PER_SLOT = 4  # groups for each slot that a run may grow to


def group_count(plan: p.PhysicalPlan, slots: int, limit: int, wanted: int | None) -> int:
    """How many groups new state gets, for good."""
    needed = [operator.router.groups for operator in plan.operators]
    for_slots = max(GROUPS_PER_SLOT * slots, LATER_PER_SLOT * limit)
    return max(wanted or max(FEWEST_GROUPS, for_slots), *needed, 1)


@dataclass
class RunLayouts:
    plan: p.PhysicalPlan
    control: Controller
    chosen: Chosen | None  # the layouts of a plan that was given, or a test's own choice; then nothing is decided
    given: FixedSplitters = field(default_factory=FixedSplitters)

    # --- what may be asked for while a run goes on -------------------------------------------------------------------

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
        """Windows that wait."""
        return self.control.backlog

    @backlog.setter
    def backlog(self, backlog: int) -> None:
        self.control.backlog = backlog

    def set_slots(self, slots: int, last: Manifest | None) -> None:
        if self.chosen is not None:
            raise QueryError("this run follows a plan, which says how many slots there are; start it without one")
        self.control.set_slots(slots, last.number if last else 0)

    def rebalance(self, last: Manifest | None, *, dry_run: bool) -> list[dict[str, Any]]:
        """What would be decided after this manifest; unless it is a dry run, it is with the next."""
        if self.frozen and not dry_run:
            raise QueryError("the run is frozen; call thaw() first, or rebalance(dry_run=True)")
        self.control.asked = self.control.asked or not dry_run
        if last is None:
            return []
        used = {name: layout_from_json(found) for name, found in last.layouts.items()}
        plan = share_slots(self.plan, lambda name: used[name].whole)
        leading = {name: used[name] for name in plan.leaders.values() if name in used}
        return [decision.to_json() for decision in self.control.proposals(last.number, last.groups, leading)]

    # --- epoch by epoch ----------------------------------------------------------------------------------------------

    def laid_out(self, groups: int, state: Mapping[str, OperatorState]) -> tuple[p.PhysicalPlan, dict[str, Layout]]:
        """The plan of the next epoch, and a layout for each of its operators that follows no other."""
        chosen = {o.name: self._layout(o, groups, state.get(o.name)) for o in self.plan.operators if not o.follows}
        plan = share_slots(self.plan, lambda name: chosen[name].whole)
        leading = dict.fromkeys(plan.leaders.values())
        usual = (
            self.plan.leaders
        )  # an operator that shares slots, but not in this epoch, has the layout that it would share
        return plan, {n: chosen[n] if n == usual[n] else chosen[usual[n]].handed_on() for n in leading}

    def _layout(self, operator: Operator, groups: int, state: OperatorState | None) -> Layout:
        slots = min(self.control.active, groups)
        chosen = self.chosen and self.chosen(operator, groups, slots)
        if operator.router.slots(slots) < slots and not (chosen and _in_one_slot(chosen)):
            return operator.router.layout(groups, 1)  # whatever is chosen, it is all done by one
        held = [sum(b.rows for b in blocks) for blocks in state.inputs] if state else []
        return chosen or self.control.layout(operator, groups, slots, held)

    def splitters(self, bytes: int) -> Splitters:
        """Return the splitters of an epoch that reads so many bytes: those decided, else those given, else the usual ones."""
        decided = None if self.chosen is not None else self.control.splitters_for(bytes)
        return decided or self.given.splitters(self.slots)

    def decide(
        self,
        epoch: Epoch,
        reports: Sequence[Report],
        held: Mapping[str, Sequence[float]],
        passed: float,
        read: Mapping[str, int],
    ) -> list[Decision]:
        """What is changed from the next epoch on; `passed`: seconds that slots had, `read`: bytes of files by source."""
        if self.chosen is not None:
            return []
        self.control.observe(_loads(reports), held, _cpu(reports, epoch.slots), passed, _splitting(reports, read))
        if not self.control.due(epoch.number):
            return []
        return self.control.reorganise(epoch.number, epoch.groups, epoch.layouts)


def _in_one_slot(layout: Layout) -> bool:
    return sum(bool(layout.groups(slot, 0)) for slot in range(layout.slots)) == 1


def _loads(reports: Sequence[Report]) -> dict[str, list[GroupLoad]]:
    """What every task sent, by operator."""
    found: dict[str, list[GroupLoad]] = {}
    for report in reports:
        for operator, load in report.load.items():
            found.setdefault(operator, []).append(load)
    return found


def _splitting(reports: Sequence[Report], read: Mapping[str, int]) -> SplitLoad | None:
    """What splitters did with files, so many bytes of each source; None: there were none.

    A task reads files or rows of Spark, never both.
    """
    tasks = [r for r in reports if r.task.stage == 0 and r.sources and r.sources.keys() <= read.keys()]
    if not tasks:
        return None
    tuples = sum(counts.delivered for report in tasks for counts in report.sources.values())
    cpu = [report.cpu for report in tasks]
    return SplitLoad(len(tasks), tuples, sum(read.values()), sum(cpu), max(cpu))


def _cpu(reports: Sequence[Report], slots: int) -> list[float]:
    """Seconds that every slot worked, over all stages; reading input is nobody's."""
    found = [0.0] * slots
    for report in reports:
        if report.task.stage > 0:
            found[report.task.partition] += report.cpu
    return found
