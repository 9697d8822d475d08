"""The measured rates of a run, from its newest manifest, for the subqueries of its plan."""

from __future__ import annotations

from headrace.compile.subqueries import MeasuredRates, Plan, Subquery
from headrace.state.manifest import Manifest
from headrace.task.work import WorkTotals


def measured_figures(plan: Plan, last: Manifest) -> dict[str, MeasuredRates]:
    """Return the rates by source and subquery from a checked manifest. Empty: no tuples yet, or the counts belong to
    another plan.
    """
    known = WorkTotals.of(last)
    if known is None or not covered_seconds(last):
        return {}
    found = _Counts(known, covered_seconds(last))
    if any(name not in last.operators for s in plan.subqueries if s.router.sends for name in s.members):
        return {}
    sources = {source.name: found.source(source.name) for source in plan.sources}
    return sources | {subquery.name: found.subquery(subquery) for subquery in plan.subqueries}


def covered_seconds(last: Manifest) -> float:
    """Return the seconds of event time that the input covers so far."""
    lows = [s.smallest for s in last.sources.values() if s.smallest is not None]
    highs = [s.largest for s in last.sources.values() if s.largest is not None]
    return (max(highs) - min(lows)) / 1e6 if lows and highs else 0.0


class _Counts:
    """The counts of a run, from which the rates of its operators follow."""

    def __init__(self, known: WorkTotals, span: float) -> None:
        self.work, self.held, self.edges, self.span = known.counts, known.held, known.plan, span

    def source(self, name: str) -> MeasuredRates:
        tuples = self.work.out.get(name, 0)
        rate = tuples / self.span
        return MeasuredRates(rate, 0.0, 0.0, rate, _cost(self.work.cpu.get(name), tuples))

    def subquery(self, subquery: Subquery) -> MeasuredRates:
        members = set(subquery.members)
        entering = [name for name, producer, target in self.edges if target in members and producer not in members]
        leaving = [
            (name, producer) for name, producer, target in self.edges if producer in members and target not in members
        ]
        if not subquery.router.sends:
            tuples = sent = sum(self.work.out.get(name, 0) for name in members)
            results = sum(
                max((self._passed(n) for n, producer in leaving if producer == name), default=0) for name in members
            )
            state = 0.0
        else:
            tuples = sum(map(self._passed, entering))
            results = sum(self.work.out.get(name, 0) for name in {producer for _, producer in leaving})
            sent = sum(sum(self.work.sent.get(name, [0])) for name in members)
            state = sum(self.held.get(name, 0.0) for name in members)
        cost = _cost(sum(self.work.cpu.get(name, 0.0) for name in members), tuples)
        return MeasuredRates(tuples / self.span, sent / self.span, state, results / self.span, cost)

    def _passed(self, edge: str) -> int:
        return self.work.edges.get(edge, [0, 0])[1]


def _cost(cpu: float | None, tuples: int) -> float | None:
    return cpu * 1e6 / tuples if cpu is not None and tuples else None
