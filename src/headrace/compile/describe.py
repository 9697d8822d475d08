"""The plan that users see, derived from the physical plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from headrace import plan as p
from headrace.columnar.types import public_text
from headrace.compile.draft import PlanDraft
from headrace.compile.subqueries import Plan, PlannedSource, RoutingOption, Subquery
from headrace.kernels.joins.table_join import pairing_method
from headrace.operators.base import Operator
from headrace.plan.figures import Figures, Forecast
from headrace.routing import RoundRobinRouter, RoutingCost

Options = Callable[[Operator, int], Sequence[RoutingOption]]  # routing options for N slots, the best first


def describe(draft: PlanDraft, expected: Forecast, options: Options) -> Plan:
    """Return the subqueries of a physical plan, with the chosen and the rejected routes."""
    return _Describer(draft, expected, options).plan()


def subquery_members(plan: p.PhysicalPlan) -> list[list[Operator]]:
    """Return the operators of each subquery that has stateful operators."""
    leaders, groups = _leaders(plan), dict[str, list[Operator]]()
    for operator in plan.operators:
        groups.setdefault(leaders[operator.name], []).append(operator)
    return list(groups.values())


def _leaders(plan: p.PhysicalPlan) -> dict[str, str]:
    return {o.name: plan.by_name.get(o.follows, o).owner for o in plan.operators}


class _Describer:
    """Derives the plan that users see from a physical plan and a forecast of its load."""

    def __init__(self, draft: PlanDraft, expected: Forecast, options: Options) -> None:
        self.draft, self.physical, self.expected, self.options = draft, draft.physical, expected, options
        self.figures = draft.figures or Figures()
        self.leaders = _leaders(self.physical)
        self.sources = [s.name for s in self.physical.sources]

    def plan(self) -> Plan:
        groups = subquery_members(self.physical)
        prefix = self._prefix()
        self.names = {
            self.leaders[group[0].name]: f"subquery-{n}" for n, group in enumerate(groups, start=1 + len(prefix))
        }
        found = [self._subquery(group, bool(prefix)) for group in groups]
        inputs = [PlannedSource(name, self.figures.rate(name), self.figures.costs.get(name)) for name in self.sources]
        draft = self.draft
        subqueries = (*prefix, *found)
        measured = draft.figures is not None
        return Plan(draft.strategy, draft.slots, subqueries, self.physical.last_stage, tuple(inputs), measured)

    def _prefix(self) -> list[Subquery]:
        """Return the stateless operators before the first stateful one as a subquery, if there are any."""
        edges = [e for e in self.physical.edges if e.producer in self.sources]
        steps = _unique(step for e in edges for step in e.steps)
        if all(p.is_pushed(step) for step in steps):
            return []
        used = [name for name in self.sources if any(e.producer == name and _own_steps(e) for e in edges)]
        rates = [self.figures.rate(name) for name in used]
        results = sum(max(self.expected.edges[e.name] for e in edges if e.producer == name) for name in used)
        numbers = RoutingCost(sum(rates), sum(rates), 0.0, sum(rates) / self.draft.slots, 0.0, results)
        cost = _mean_cost([self.figures.costs.get(name) for name in used], rates)
        texts = tuple(public_text(p.step_text(step)) for step in steps)
        slots = self.draft.slots
        return [
            Subquery(
                "subquery-1",
                texts,
                RoundRobinRouter(),
                slots,
                cost,
                tuple(used),
                members=tuple(used),
                numbers=numbers,
                meets=tuple(map(public_text, _found(steps))),
            )
        ]

    def _subquery(self, group: Sequence[Operator], prefix: bool) -> Subquery:
        texts: list[str] = []
        inputs: dict[str, None] = {}
        inside = {operator.name for operator in group}
        for operator in group:
            if operator.summary is not None:
                texts.append(operator.summary)
            edges = [edge for edge in self.physical.edges if edge.producer == operator.name]
            texts += [p.step_text(step) for step in _unique(step for edge in edges for step in edge.steps)]
            for edge in self._entering(operator, inside):
                own = prefix and _own_steps(edge) and edge.producer in self.sources
                inputs["subquery-1" if own else self._name_of(edge.producer)] = None
        leader = next(o for o in group if o.summary is not None)
        name = self.names[self.leaders[leader.name]]
        first, slots = self.draft.confined.get(name, (0, self.draft.slots))
        taken, *rejected = self.options(leader, slots)
        texts += [operator.routing_note for operator in group if operator.routing_note]
        numbers = self._numbers(group, inside, slots)
        return Subquery(
            name,
            tuple(map(public_text, texts)),
            taken.router,
            taken.router.slots(slots),
            self._cost(group, numbers.arriving),
            tuple(inputs),
            first=first,
            stage=leader.stage,
            members=tuple(operator.name for operator in group),
            numbers=numbers,
            rejected=tuple(_beside(option, taken.numbers, numbers, slots) for option in rejected),
            meets=tuple(map(public_text, [*self._pairings(group), *_found(self._behind(group))])),
        )

    def _pairings(self, group: Sequence[Operator]) -> list[str]:
        """Return how joins find their matches, and what other ways to write them would cost."""
        texts = ((o.pairing or "", o.alternative(self.expected.loads[o.name])) for o in group)
        return [text for each in texts for text in each if text]

    def _behind(self, group: Sequence[Operator]) -> list[p.Step]:
        named = {operator.name for operator in group}
        return _unique(step for edge in self.physical.edges if edge.producer in named for step in edge.steps)

    def _name_of(self, producer: str) -> str:
        return self.names[self.leaders[producer]] if producer in self.leaders else producer

    def _entering(self, operator: Operator, inside: Collection[str]) -> list[p.Edge]:
        """Return the edges from outside the subquery."""
        return [e for e in self.physical.edges if e.target == operator.name and e.producer not in inside]

    def _numbers(self, group: Sequence[Operator], inside: Collection[str], slots: int) -> RoutingCost:
        """Return the total over a subquery's operators, without tuples that they send to each other."""
        total = RoutingCost()
        for operator in group:
            taken = self.options(operator, slots)[0].numbers
            # it receives the input that another operator of its subquery prepared, or shares
            prepared = operator.owner != operator.name
            entering = [] if prepared else self._entering(operator, inside)
            arriving = sum(self.expected.edges[e.name] for e in entering)
            whole = sum(self.expected.loads[operator.name].arriving)
            outside = arriving / whole if whole else 0.0
            sent = taken.sent if prepared else taken.sent * outside
            leaving = [e for e in self.physical.edges if e.producer == operator.name and e.target not in inside]
            total = RoutingCost(
                total.arriving + arriving,
                total.sent + sent,
                total.state + taken.state,
                total.opened + taken.opened,
                total.compared + taken.compared,
                total.results + (self.expected.loads[operator.name].results if leaving else 0.0),
            )
        return total

    def _cost(self, group: Sequence[Operator], arriving: float) -> float | None:
        """Return the microseconds per tuple that enters the subquery."""
        costs = [self.figures.costs.get(operator.name) for operator in group]
        rates = [sum(self.expected.loads[operator.name].arriving) for operator in group]
        known = [cost * rate for cost, rate in zip(costs, rates, strict=True) if cost is not None]
        return sum(known) / arriving if known and arriving else None


def _beside(option: RoutingOption, taken: RoutingCost, whole: RoutingCost, slots: int) -> RoutingOption:
    """Return a rejected option for the leader, with the loads of the subquery's other operators added."""
    times = slots / option.router.slots(slots)  # an option with one slot puts the whole load of the others on it
    numbers = replace(
        option.numbers,
        arriving=whole.arriving,
        sent=option.numbers.sent + whole.sent - taken.sent,
        state=whole.state,
        opened=option.numbers.opened + times * (whole.opened - taken.opened),
        compared=option.numbers.compared + times * (whole.compared - taken.compared),
        results=whole.results,
    )
    return RoutingOption(option.router, numbers)


def _mean_cost(costs: Sequence[float | None], rates: Sequence[float]) -> float | None:
    known = [(cost, rate) for cost, rate in zip(costs, rates, strict=True) if cost is not None]
    total = sum(rate for _, rate in known)
    return sum(cost * rate for cost, rate in known) / total if total else None


def _found(steps: Iterable[p.Step]) -> list[str]:
    """Return how joins with tables find matching rows."""
    return [pairing_method(step) for step in steps if isinstance(step, p.TableStep)]


def _unique(steps: Iterable[p.Step]) -> list[p.Step]:
    """Return each step once, although several edges may share it."""
    return list({id(step): step for step in steps}.values())


def _own_steps(edge: p.Edge) -> list[p.Step]:
    """Return the steps that the user wrote."""
    return [step for step in edge.steps if not p.is_pushed(step)]
