"""The controller: measures every epoch, decides at reorganisation epochs, and records the reasons.

Invariant: a decided layout is used only after the newest manifest contains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import plan as p
from headrace.control import gain, group_moves, join_shapes, range_bounds, splitter_count
from headrace.control.autoscale import Autoscaler
from headrace.control.control_state import ControlState, Decision
from headrace.control.group_load import GroupLoad
from headrace.control.policy import Policy
from headrace.control.range_bounds import NumberSample
from headrace.control.space_saving import SpaceSavingSketch
from headrace.control.splitter_count import SplitLoad, Splitters
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.routing import Adaptation, Diagonal, HotGroup, Layout, Ranges, Rectangles
from headrace.routing.by_rectangle import best_rectangles
from headrace.routing.hashing import scale
from headrace.support.limits import check_slots

Counts = npt.NDArray[np.float64]

SMOOTHING = 0.4  # weight of the newest epoch
FADE = 0.8  # factor for the sketches after each epoch
SEEN = (2 - SMOOTHING) / SMOOTHING  # effective number of epochs in a smoothed count
PAIRS_PER_TUPLE = 50.0  # number of a hot key's pairs that cost as much as one tuple
LOOPED_PER_TUPLE = 5_000.0  # the same for pairs in a compiled loop
EXCHANGE = 0.045  # seconds that one exchange more adds to an epoch
NOISE_STEPS = 1.0  # sampled numbers by which a count of tuples between two bounds is uncertain
NEW_TUPLES = "new tuples of "  # how the text of a changed order begins
MOST_DECISIONS = 100  # every manifest contains the decisions, so old ones are dropped


@dataclass
class MeasuredLoad:
    """The recent load of one operator: tuples per epoch, group and side, and its heavy keys."""

    new: list[Counts]
    heavy: list[SpaceSavingSketch]
    held: list[float]  # tuples in its windows, by side
    pairs_per_tuple: float = PAIRS_PER_TUPLE
    cpu: float = 0.0  # CPU seconds per epoch, over all slots
    texts: dict[int, str] = field(default_factory=dict)  # key hash -> text of the key
    ranges: Ranges | None = None  # the best at the last reorganisation, used or not
    numbers: tuple[NumberSample, NumberSample] = field(default_factory=lambda: (NumberSample(), NumberSample()))

    def totals(self) -> tuple[float, float]:
        """Return the tuples per epoch of the two sides that a rectangle partitions."""
        return float(self.new[0].sum()), float(self.new[1].sum())


class Controller:
    """The controller of one run: it observes every epoch, and decides layouts, slots and splitters at reorganisations.

    `observe` gets what an epoch measured, `reorganise` returns the decisions for the next one, and `layout` returns the
    layout of an operator. `remembered` and `restore` carry its state through manifests.
    """

    def __init__(self, plan: p.PhysicalPlan, policy: Policy, slots: int, limit: int, *, auto: bool = False) -> None:
        self.plan, self.policy, self.limit, self.auto = plan, policy, limit, auto
        self.active = slots
        self.frozen = False
        self.asked = False  # the user requested a reorganisation out of turn
        self.layouts: dict[str, Layout] = {}
        self.history: list[Decision] = []
        self.measured: dict[str, MeasuredLoad] = {}
        self.occupancy: list[float] = []
        self.seconds = 0.0  # smoothed time of an epoch
        self.observed = 0  # number of observed epochs
        self.backlog = 0
        self.notes: Mapping[str, Mapping[str, Any]] = {}  # by operator, after the newest epoch
        self.orders: dict[str, Mapping[str, str]] = {}  # by operator, at the last reorganisation
        self.degree = Autoscaler()
        self.splitters: Splitters | None = None  # None: the engine's default
        self.splitting: SplitLoad | None = None
        self._followed = {o.follows for o in plan.operators if o.follows}
        self._splits = policy.hot and policy.elastic != "off"

    # --- state in the manifest ---------------------------------------------------------------------------------------

    def remembered(self) -> ControlState:
        return ControlState(self.active, dict(self.layouts), tuple(self.history[-MOST_DECISIONS:]))

    def restore(self, known: ControlState) -> None:
        """Restore layouts and decisions from the newest manifest."""
        self.layouts = dict(known.layouts)
        self.history = list(known.history)
        if self.auto:
            self.active = min(known.active, self.limit)

    # --- layouts -------------------------------------------------------------------------------------------------------

    def layout(self, operator: Operator, groups: int, slots: int, held: Sequence[int]) -> Layout:
        """Return the decided layout of an operator if it fits these groups and slots, otherwise the first layout of its
        router."""
        decided = self.decided(operator, groups, slots)
        if decided is not None:
            return decided
        first = operator.router.layout(groups, slots)
        if not self._can_shape(operator):
            return first
        if isinstance(first, Ranges):
            self.layouts[operator.name] = first
            return first
        left, right = (rows + 1.0 for rows in (held or (0, 0))[:2])
        found = join_shapes.choose_shape(self.policy.diffusion, groups, slots, (left, right), (0.0, 0.0))
        self.layouts[operator.name] = found  # kept until a better layout is decided
        return found

    def decided(self, operator: Operator, groups: int, slots: int) -> Layout | None:
        """Return the decided or pinned layout of an operator if it fits these groups and slots; None if there is none."""
        found = self.layouts.get(operator.name)
        if isinstance(found, Diagonal) and len(found.owner) == groups:
            if not self._splits:  # an earlier policy may have allowed hot groups
                found = replace(found, grids=())
            return _pinned(_fitted(found, slots), self.policy.pinned.get(operator.name, {}))
        if isinstance(found, Rectangles) and found.total == groups and sum(found.rows) <= slots:
            return found if sum(found.rows) == min(slots, groups) or self.policy.diffusion == "grid" else None
        if isinstance(found, Ranges) and operator.arranged_by_number(0):
            return found if found.slots <= slots else Ranges.even(found.bounds, slots, found.points)
        pins = self.policy.pinned.get(operator.name)
        return _pinned(Diagonal.even(groups, slots), pins) if pins else None

    def splitters_for(self, bytes: int) -> Splitters | None:
        """Return the splitters of an epoch that reads `bytes`.

        These are the decided splitters, unless the size differs so much from recent epochs that others save measurable
        time. None: nothing has been decided.
        """
        if self.frozen or self.splitters is None or self.splitting is None:
            return self.splitters
        return splitter_count.choose_splitters(
            self.splitting.reading(bytes), self.splitters, self.active, self.policy.worth
        )

    def can_place(self, operator: Operator) -> bool:
        """Return whether the operator's groups can be assigned to slots in an epoch in which it follows no other."""
        return operator.router.adapts is Adaptation.PLACE

    def _can_shape(self, operator: Operator) -> bool:
        return operator.router.adapts is Adaptation.SHAPE

    # --- measuring -----------------------------------------------------------------------------------------------------

    def observe(
        self,
        loads: Mapping[str, Sequence[GroupLoad]],
        held: Mapping[str, Sequence[float]],
        cpu: Sequence[float],
        seconds: float,
        splitting: SplitLoad | None = None,
        *,
        plan: p.PhysicalPlan | None = None,
        operator_cpu: Mapping[str, float] = MappingProxyType({}),
        notes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Record an epoch: loads of operators from the tasks' reports, tuples in their windows by side, the CPU seconds
        of each slot, the epoch's seconds, and the work of the splitters if they read files.

        plan: the plan of the epoch; None: the usual one. What was measured and decided for an operator that follows
        another again is dropped. operator_cpu: CPU seconds by operator, over all slots. notes: by operator, those beside
        its state.
        """
        self.notes = notes
        now_led = (plan or self.plan).leaders
        self._followed = {
            leader for led in (self.plan.leaders, now_led) for name, leader in led.items() if name != leader
        }
        self.observed += 1
        # the first epoch includes imports and compilation, so the second replaces it
        weight = SMOOTHING if self.observed > 2 else 1.0
        if splitting is not None:
            self.splitting = splitting.smoothed(self.splitting, weight)
        for operator in self.plan.operators:
            if operator.follows and now_led[operator.name] != operator.name:
                self.measured.pop(operator.name, None)
                self.layouts.pop(operator.name, None)
            elif self.can_place(operator) or self._can_shape(operator):
                self._take(operator, loads.get(operator.name, ()), held.get(operator.name, (0.0, 0.0)))
                if operator.name in self.measured:
                    known = self.measured[operator.name]
                    known.cpu = known.cpu * (1 - weight) + operator_cpu.get(operator.name, 0.0) * weight
        now = [each / max(seconds, 1e-6) for each in cpu]
        before = self.occupancy if len(self.occupancy) == len(now) else now
        self.seconds = self.seconds * (1 - weight) + seconds * weight
        self.occupancy = [a * (1 - weight) + b * weight for a, b in zip(before, now, strict=True)]

    def _take(self, operator: Operator, found: Sequence[GroupLoad], held: Sequence[float]) -> None:
        groups = max((len(side) for load in found for side in load.new), default=0)
        known = self.measured.get(operator.name)
        if known is None:
            if not groups:
                return
            sides = range(max(2, len(operator.schemas)))
            known = MeasuredLoad(
                [np.zeros(groups) for _ in sides], [SpaceSavingSketch() for _ in sides], [0.0 for _ in sides]
            )
            if operator.compares_in_loops:
                known.pairs_per_tuple = LOOPED_PER_TUPLE
            self.measured[operator.name] = known
            weight = 1.0
        else:
            weight = SMOOTHING
        for side in range(len(known.new)):
            now = np.zeros(len(known.new[side]))
            known.heavy[side].fade(FADE)
            for new, heavy in (load.of_side(side) for load in found):
                if new:
                    now += np.asarray(new, dtype=np.float64)
                listed = 0.0
                for key in heavy:
                    known.heavy[side].add(key.hash, key.tuples)
                    known.texts[key.hash] = key.text
                    listed += key.tuples
                known.heavy[side].rest(max(sum(new) - listed, 0.0))
            known.new[side] = known.new[side] * (1 - weight) + now * weight
            if side < 2 and (blocks := [block for load in found for block in load.numbers[side]]):
                known.numbers[side].add(blocks, float([*held, 0.0][side]))
        known.held = [*map(float, held), 0.0][: len(known.new)]
        known.texts = {k: t for k, t in known.texts.items() if any(k in sketch.counts for sketch in known.heavy)}

    # --- deciding ------------------------------------------------------------------------------------------------------

    def due(self, epoch: int) -> bool:
        return not self.frozen and (self.asked or (epoch + 1) % self.policy.every == 0)

    def reorganise(self, epoch: int, groups: int, used: Mapping[str, Layout]) -> list[Decision]:
        """Decide on changes and keep the layouts for the next epoch. `used` are the layouts of this epoch."""
        self.asked = False
        self._judge(used)
        decisions = self.proposals(epoch, groups, used, keep=True)
        self.history += decisions
        return decisions

    def proposals(self, epoch: int, groups: int, used: Mapping[str, Layout], *, keep: bool = False) -> list[Decision]:
        """Return the decisions that a reorganisation would make now."""
        slots, decisions = self._slots(epoch, groups, keep)
        decisions += self._splitters(epoch, slots, keep)
        decisions += self._orders(epoch, keep)
        slots = min(slots, groups)  # more slots than groups would be idle
        for operator in self.plan.operators:
            found = self.measured.get(operator.name)
            layout = used.get(operator.name)
            if found is None or layout is None:
                continue
            if self._can_range(operator, found) and isinstance(layout, Rectangles | Ranges):
                new, made = self._range(epoch, operator, groups, slots, layout, found, keep=keep)
            elif self._can_shape(operator) and isinstance(layout, Rectangles) and self.policy.diffusion != "off":
                new, made = self._shape(epoch, operator, groups, slots, layout, found)
            elif self.can_place(operator) and isinstance(layout, Diagonal) and self.policy.elastic != "off":
                new, made = self._place(epoch, operator, slots, layout, found)
            else:
                continue
            decisions += made
            if keep and (made or (slots != layout.slots and not isinstance(layout, Ranges))):
                self.layouts[operator.name] = new
        return decisions

    def _slots(self, epoch: int, groups: int, keep: bool) -> tuple[int, list[Decision]]:
        if not self.auto or len(self.occupancy) != self.active:  # the number of slots has changed since the last epoch
            return self.active, []
        remembered = self.degree.wanted_less
        policy = self.policy
        step, why = self.degree.step(
            self.occupancy, policy.supplier, policy.consumer, policy.beta, min(self.limit, groups), self.backlog
        )
        if not keep:
            self.degree.wanted_less = remembered
        slots = self._more(min(self.limit, groups)) if step > 0 else self.active + step
        if slots == self.active:
            return self.active, []
        decision = self._resized(epoch, slots, why)
        if keep:
            self.active = slots
        return slots, [decision]

    def _more(self, limit: int) -> int:
        """Return the smallest increase in slots that saves measurable time, or the current number.

        A larger increase would save more, but the next reorganisation might revert it.
        """
        slots = min(self.active + gain.fewest_added_slots(self.active, self.policy.worth), limit)
        took = max(self.occupancy) * self.seconds
        return slots if gain.is_measurable(took, took * self.active / slots, 0.0, gain.SECONDS) else self.active

    def _splitters(self, epoch: int, slots: int, keep: bool) -> list[Decision]:
        """Choose the number of splitters and the window size. There is at most one splitter per slot, because a slot
        has one core.
        """
        load = self.splitting
        if load is None or not self.policy.splitters:  # no files, or the policy fixes the splitters
            return []
        now = self.splitters or Splitters(load.tasks, splitter_count.USUAL)
        chosen = splitter_count.choose_splitters(load, now, slots, self.policy.worth)
        if keep:
            self.splitters = chosen
        if chosen == now:
            return []
        why = f"{load.tuples:,.0f} tuples and {load.bytes / 2**20:,.1f} MiB an epoch, split in {load.cpu:.3f} CPU s"
        expected = splitter_count.splitter_seconds(load, chosen.count) / load.seconds
        return [Decision(epoch, "all", "splitters", f"{now.summary} to {chosen.summary}", why, load.seconds, expected)]

    def _can_range(self, operator: Operator, found: MeasuredLoad) -> bool:
        """Return whether slots can be given ranges of a number, because both sides have been seen."""
        samples = all(len(sample.values) for sample in found.numbers)
        return operator.arranged_by_number(0) and samples and self.policy.diffusion == "ragged"

    def _range(
        self,
        epoch: int,
        operator: Operator,
        groups: int,
        slots: int,
        layout: Rectangles | Ranges,
        found: MeasuredLoad,
        *,
        keep: bool,
    ) -> tuple[Layout, list[Decision]]:
        """Return the ranges or the grid whose busiest slot reads least.

        Values may drift so fast that ranges are useless before they are chosen again. Therefore ranges are judged by
        what the ranges chosen at the last reorganisation, used or not, would read now.
        """
        band = operator.band
        assert band is not None
        totals = [float(sample.weights.sum()) for sample in found.numbers]
        ranges = range_bounds.choose_ranges(found.numbers, band.points_side, band.width, slots)
        shape = best_rectangles(groups, min(slots, groups), *totals)
        judged = (_read_by_busiest(each, operator, found) for each in (shape, found.ranges or ranges))
        wanted = shape if next(judged) <= next(judged) else ranges
        before, after = (_read_by_busiest(each, operator, found) for each in (layout, wanted))
        if keep:
            found.ranges = ranges
        step = sum(totals) / min(len(sample.values) for sample in found.numbers)  # tuples for each sampled number
        if not gain.is_measurable(before, after, self.policy.worth / 4, NOISE_STEPS * step):  # it moves nothing
            return layout, []
        rates = f"{totals[0]:,.0f} and {totals[1]:,.0f} tuples in windows; the busiest slot reads {before:,.0f} of them"
        change = f"{_shown(layout)} to {_shown(wanted)}"
        load = _relative_to_mean(before, found, slots)
        return wanted, [Decision(epoch, operator.name, "ranges", change, rates, load, after / before)]

    def _orders(self, epoch: int, keep: bool) -> list[Decision]:
        """Return the orders that operators changed by themselves since the last reorganisation."""
        decisions = []
        for operator in self.plan.operators:
            notes = self.notes.get(operator.name, {})
            now, known = operator.orders(notes), self.orders.get(operator.name, {})
            for what, order in now.items():
                if (former := known.get(what, order)) != order:
                    was, will = (operator.order_cost(what, each, notes) for each in (former, order))
                    why = f"lookups and candidates of a new tuple: {was:,.3g} in the former order, {will:,.3g} in this one"
                    change = f"{NEW_TUPLES}{what} look up {order}; before, {former}"
                    decisions.append(Decision(epoch, operator.name, "probes", change, why, was, will / was))
            if keep and now:
                self.orders[operator.name] = now
        return decisions

    def _shape(
        self, epoch: int, operator: Operator, groups: int, slots: int, layout: Rectangles, found: MeasuredLoad
    ) -> tuple[Layout, list[Decision]]:
        new, held = found.totals(), (found.held[0], found.held[1])
        wanted = join_shapes.choose_shape(self.policy.diffusion, groups, slots, new, held)
        before, after = (join_shapes.read_by_busiest(each, new, held) for each in (layout, wanted))
        same = (wanted.rows, wanted.transposed) == (layout.rows, layout.transposed)
        must = sum(layout.rows) != sum(wanted.rows)
        if same or not before or not (must or self._better(layout, wanted, new, held)):
            return layout, []
        rates = f"{new[0]:,.0f} and {new[1]:,.0f} tuples an epoch, {held[0]:,.0f} and {held[1]:,.0f} held"
        change = f"{_shown(layout)} to {_shown(wanted)}"
        return wanted, [Decision(epoch, operator.name, "shape", change, rates, before, after / before)]

    def _better(
        self, layout: Rectangles, wanted: Rectangles, new: tuple[float, float], held: tuple[float, float]
    ) -> bool:
        """Return whether a shape saves a measurable amount. The papers' policies follow their own rules."""
        if self.policy.diffusion == "adaptive-ssp":
            return max(new) > (1 + self.policy.worth) * min(new)
        if self.policy.diffusion in ("ssp", "grid"):
            return True
        before, after = (join_shapes.read_by_busiest(each, new, held) for each in (layout, wanted))
        noise = gain.NOISE * join_shapes.savings_deviation(
            layout, wanted, (new[0] / SEEN + held[0], new[1] / SEEN + held[1])
        )
        return gain.is_measurable(before, after, self.policy.worth, noise)

    def _place(
        self, epoch: int, operator: Operator, slots: int, layout: Diagonal, found: MeasuredLoad
    ) -> tuple[Layout, list[Decision]]:
        pins = self.policy.pinned.get(operator.name, {})
        fitted = _fitted(layout, slots)
        load = group_work(found)
        wanted = self._hot(operator, fitted, found, load, pins)
        moves = self._moves(operator, fitted, wanted, found, load, epoch, pins)
        after = Diagonal(_moved(fitted.owner, moves), slots, wanted)
        if self.policy.elastic == "gain" and not self._pays(fitted, after, load):
            hot = {grid.group for grid in wanted}
            moves, wanted = [], tuple(grid for grid in fitted.grids if grid.group in hot)
        if self.policy.elastic == "gain":
            # the remaining moves follow at later reorganisations, unless the load changes
            moves = moves[: self.policy.moves]
        after = Diagonal(_moved(fitted.owner, moves), slots, wanted)
        return after, self._said(epoch, operator, fitted, after, moves, found, load)

    def _hot(
        self, operator: Operator, layout: Diagonal, found: MeasuredLoad, load: Counts, pins: Mapping[int, int]
    ) -> tuple[HotGroup, ...]:
        """Return the groups that should be spread over grids."""
        if not (self.policy.hot and operator.can_spread_group):
            return layout.grids
        sides = list(zip(found.new[0].tolist(), found.new[1].tolist(), strict=True))
        wanted = group_moves.hot_groups_for(layout.grids, sides, load.tolist(), layout.owner, layout.slots)
        grids = tuple(grid for grid in wanted if grid.group not in pins)
        return (
            grids if operator.name not in self._followed or self._pays_exchange(layout, grids, load, found.cpu) else ()
        )

    def _pays_exchange(self, layout: Diagonal, grids: Sequence[HotGroup], load: Counts, cpu: float) -> bool:
        """Return whether grids save the busiest slot more time than the exchange to the operators that follow costs.

        In an epoch without grids these share the operator's slots, and no exchange is needed. cpu: of the operator alone,
        because nothing else becomes faster.
        """

        def busiest(grids: Sequence[HotGroup]) -> float:
            return max(group_moves.slot_loads(layout.owner, grids, load.tolist(), layout.slots))

        total = float(load.sum())
        saved = cpu * (busiest(()) - busiest(grids)) / total if total else 0.0
        return saved > (EXCHANGE if layout.grids else EXCHANGE + gain.SECONDS)

    def _moves(
        self,
        operator: Operator,
        layout: Diagonal,
        grids: Sequence[HotGroup],
        found: MeasuredLoad,
        load: Counts,
        epoch: int,
        pins: Mapping[int, int],
    ) -> list[group_moves.Move]:
        policy, slots = self.policy, layout.slots
        if policy.elastic == "paper":
            busy = self.occupancy if len(self.occupancy) == slots else [0.0] * slots
            seed = f"{operator.name} {epoch}"
            return group_moves.random_moves(layout.owner, busy, policy.supplier, policy.consumer, seed, pins)
        state = np.sum(found.new, axis=0).tolist()
        return group_moves.moves_by_gain(
            layout.owner, grids, load.tolist(), state, slots, len(layout.owner), policy.worth / 2, pins
        )

    def _pays(self, before: Diagonal, after: Diagonal, load: Counts) -> bool:
        """Return whether the busiest slot's load falls measurably, or a slot that is idle would get work."""
        busiest = [max(group_moves.slot_loads(x.owner, x.grids, load.tolist(), x.slots)) for x in (before, after)]
        noise = float(load.sum()) / after.slots * gain.busiest_noise(SEEN * float(load.sum()), after.slots)
        idle = len(set(before.owner)) < min(before.slots, len(before.owner))
        return idle or gain.is_measurable(busiest[0], busiest[1], self.policy.worth, noise)

    def _said(
        self,
        epoch: int,
        operator: Operator,
        before: Diagonal,
        after: Diagonal,
        moves: Sequence[group_moves.Move],
        found: MeasuredLoad,
        load: Counts,
    ) -> list[Decision]:
        loads = [group_moves.slot_loads(each.owner, each.grids, load.tolist(), after.slots) for each in (before, after)]
        gain = max(loads[1]) / max(loads[0]) if max(loads[0]) else 1.0
        had, will = (group_moves.imbalance(each) for each in loads)
        why = f"the busiest slot had {had:.2f} x the mean, will have {will:.2f} x"
        decisions = []
        if moves:
            shown = ", ".join(f"{m.group} ({m.source} to {m.target})" for m in moves[:6])
            more = f" and {len(moves) - 6} more" if len(moves) > 6 else ""
            decisions.append(Decision(epoch, operator.name, "move", f"groups {shown}{more}", why, had, gain))
        for group in sorted({s.group for s in {*before.grids} ^ {*after.grids}}):
            split = after.grid_of.get(group)
            change = (
                f"group {group} on {split.rows} x {split.columns} slots"
                if split
                else f"group {group} in one slot again"
            )
            hot = self._hottest(group, len(load), found)
            decisions.append(Decision(epoch, operator.name, "split", change, f"{hot}{why}", had, gain))
        return decisions

    def _hottest(self, group: int, groups: int, found: MeasuredLoad) -> str:
        """Describe the heaviest key of a group, as the reason why the group is hot."""
        for sketch in found.heavy:
            for key, count in sketch.heavy(0.02):
                if int(scale(np.array([key], dtype=np.uint64), groups)[0]) == group:
                    return f"key {found.texts.get(key, '?')} has {count / sketch.total:.0%} of a stream; "
        return ""

    def _judge(self, used: Mapping[str, Layout]) -> None:
        """Record the effect of past decisions: the busiest slot's load now, relative to before."""
        for index, decision in enumerate(self.history):
            if decision.measured is None and decision.before:
                now = self._now(decision, used.get(decision.operator))
                if now is not None:
                    self.history[index] = replace(decision, measured=round(now / decision.before, 4))

    def _now(self, decision: Decision, layout: Layout | None) -> float | None:
        found = self.measured.get(decision.operator)
        if decision.kind == "probes":
            return self._order_cost(decision)
        if decision.kind == "splitters":
            return self.splitting.seconds if self.splitting else None
        if decision.kind == "slots":
            return sum(self.occupancy) / len(self.occupancy) if self.occupancy else None
        if found is None:
            return None
        if isinstance(layout, Diagonal):
            loads = group_moves.slot_loads(layout.owner, layout.grids, group_work(found).tolist(), layout.slots)
            return group_moves.imbalance(loads)
        operator = self.plan.by_name[decision.operator]
        if decision.kind == "ranges" and operator.band is not None and isinstance(layout, Rectangles | Ranges):
            return _relative_to_mean(_read_by_busiest(layout, operator, found), found, self.active)
        if isinstance(layout, Rectangles):
            return join_shapes.read_by_busiest(layout, found.totals(), (found.held[0], found.held[1]))
        return None

    def _order_cost(self, decision: Decision) -> float | None:
        """Return the present work of the order that replaced the one of the decision."""
        what = decision.change.removeprefix(NEW_TUPLES).partition(" ")[0]
        operator, notes = self.plan.by_name.get(decision.operator), self.notes.get(decision.operator, {})
        order = operator.orders(notes).get(what) if operator else None
        return operator.order_cost(what, order, notes) if operator and order else None

    # --- requests of the user ----------------------------------------------------------------------------------------

    def set_slots(self, slots: int, epoch: int) -> None:
        """Change the number of slots from this epoch on, at the user's request."""
        check_slots(slots)
        if slots > self.limit:
            raise QueryError(
                f"this run may use at most {self.limit} slots; found {slots}; start it with a higher limit"
            )
        if slots != self.active:
            self.history.append(self._resized(epoch, slots, "asked for"))
            self.active = slots

    def _resized(self, epoch: int, slots: int, why: str) -> Decision:
        busy = sum(self.occupancy) / len(self.occupancy) if self.occupancy else 0.0
        return Decision(epoch, "all", "slots", f"{self.active} to {slots}", why, busy, self.active / slots)


def group_work(found: MeasuredLoad) -> Counts:
    """Return the work per group: its tuples, plus the combinations of hot keys, which are pairs in a join of two streams."""
    load: Counts = np.sum(found.new, axis=0)
    groups, totals = len(load), [float(side.sum()) for side in found.new]
    hashed = {key for sketch in found.heavy for key, _ in sketch.heavy(0.01)}
    for key in hashed:
        share = [s.counts.get(key, 0.0) / s.total if s.total else 0.0 for s in found.heavy]
        sides = [(of * new, of * held) for of, new, held in zip(share, totals, found.held, strict=True)]
        pairs = math.prod(new + held for new, held in sides) - math.prod(held for _, held in sides)
        load[int(scale(np.array([key], dtype=np.uint64), groups)[0])] += pairs / found.pairs_per_tuple
    return load


def _moved(owner: Sequence[int], moves: Sequence[group_moves.Move]) -> tuple[int, ...]:
    targets = {move.group: move.target for move in moves}
    return tuple(targets.get(group, slot) for group, slot in enumerate(owner))


def _fitted(layout: Diagonal, slots: int) -> Diagonal:
    """Return the layout for another number of slots. Groups of removed slots are distributed over the others."""
    if layout.slots == slots:
        return layout
    owner = tuple(slot if slot < slots else group % slots for group, slot in enumerate(layout.owner))
    return Diagonal(owner, slots, tuple(s for s in layout.grids if max(s.slots) < slots))


def _pinned(layout: Diagonal, pins: Mapping[int, int]) -> Diagonal:
    if not pins:
        return layout
    owner = tuple(
        pins.get(g, slot) if pins.get(g, slot) < layout.slots else slot for g, slot in enumerate(layout.owner)
    )
    return Diagonal(owner, layout.slots, tuple(s for s in layout.grids if s.group not in pins))


def _read_by_busiest(layout: Rectangles | Ranges, operator: Operator, found: MeasuredLoad) -> float:
    """Return about how many tuples in windows the busiest slot of a band join reads."""
    assert operator.band is not None
    if isinstance(layout, Ranges):
        return range_bounds.read_by_busiest(layout, found.numbers, operator.band.width)
    left, right = (float(sample.weights.sum()) for sample in found.numbers)
    return join_shapes.read_by_busiest(layout, (left, right), (0.0, 0.0))


def _relative_to_mean(read: float, found: MeasuredLoad, slots: int) -> float:
    """Return what the busiest slot reads, relative to an equal share of the tuples in windows."""
    total = sum(float(sample.weights.sum()) for sample in found.numbers)
    return read * slots / total if total else 0.0


def _shown(layout: Rectangles | Ranges) -> str:
    if isinstance(layout, Ranges):
        shared = sum(rows * columns > 1 for rows, columns in layout.grids)
        return f"{len(layout.grids)} ranges" + (f", {shared} of them on several slots" if shared else "")
    return f"{' + '.join(map(str, layout.rows))} cells, {'right' if layout.transposed else 'left'} by rows"
