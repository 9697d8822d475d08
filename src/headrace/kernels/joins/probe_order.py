"""The order in which an n-way join probes its aliases, chosen from what earlier probes found.

    cost(bound)  =  smallest over the aliases j that are not bound of
                        1 + candidates(bound, j) + matches(bound, j) * cost(bound + j)

`bound` are the aliases of a combination so far. Candidates are the tuples that a lookup finds for one combination, and
matches those of them that are within the windows and satisfy the conjuncts that can be decided.

Invariant: the order never affects an answer, because every order probes every alias once. It affects only the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

KEPT = 0.5  # weight of the counts of earlier epochs
FEWEST_COUNTED = 1e-3  # combinations: smaller counts are forgotten
UNINDEXED_SHARE = 1 / 3  # of the candidates that a conjunct without a lookup is assumed to let through


@dataclass(frozen=True)
class Probe:
    """A lookup of one alias for combinations of others: `bound` are their places."""

    bound: frozenset[int]
    alias: int

    @property
    def name(self) -> str:
        return f"{'.'.join(map(str, sorted(self.bound)))}>{self.alias}"

    @staticmethod
    def named(name: str) -> Probe:
        bound, _, alias = name.partition(">")
        return Probe(frozenset(map(int, bound.split("."))), int(alias))


@dataclass(frozen=True)
class ProbeKind:
    """The properties of a probe that its counts do not show."""

    indexed: bool  # by the hash of a key, or along a number
    decides: bool  # a conjunct can be decided after it
    rows: int  # tuples of the alias


@dataclass
class ProbeCounts:
    """Combinations before probes, their candidates, and the combinations after them; and the tuples of each alias."""

    counts: dict[Probe, list[float]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)  # empty: unknown

    def add(self, probe: Probe, before: float, candidates: float, after: float) -> None:
        known = self.counts.setdefault(probe, [0.0, 0.0, 0.0])
        self.counts[probe] = [a + b for a, b in zip(known, (before, candidates, after), strict=True)]

    def knows(self, start: int) -> bool:
        """Return whether a probe was made for tuples of the alias `start` alone."""
        return any(probe.bound == {start} for probe in self.counts)

    def to_json(self) -> dict[str, list[float]]:
        return {probe.name: [round(each, 3) for each in counts] for probe, counts in self.items()}

    def items(self) -> Sequence[tuple[Probe, list[float]]]:
        return sorted(self.counts.items(), key=lambda item: item[0].name)

    @staticmethod
    def from_json(data: Mapping[str, Sequence[float]]) -> ProbeCounts:
        return ProbeCounts({Probe.named(name): list(map(float, counts)) for name, counts in data.items()})

    def faded(self) -> ProbeCounts:
        """Return the counts with less weight than those of the next epoch."""
        less = {probe: [each * KEPT for each in counts] for probe, counts in self.counts.items()}
        return ProbeCounts({probe: counts for probe, counts in less.items() if counts[0] >= FEWEST_COUNTED})

    def per_combination(self, probe: Probe, kind: ProbeKind) -> tuple[float, float]:
        """Return the candidates and the matches of one combination.

        The counts of a probe with fewer bound aliases are an upper bound, because each further bound alias can only remove
        matches.
        """
        known = [
            (counts[1] / counts[0], counts[2] / counts[0])
            for each, counts in self.counts.items()
            if each.alias == probe.alias and each.bound <= probe.bound and counts[0]
        ]
        if exact := self.counts.get(probe):
            return (exact[1] / exact[0], exact[2] / exact[0]) if exact[0] else (0.0, 0.0)
        candidates = 1.0 if kind.indexed else float(kind.rows)
        matches = candidates * (UNINDEXED_SHARE if kind.decides and not kind.indexed else 1.0)
        return min([candidates, *(each for each, _ in known)]), min([matches, *(each for _, each in known)])


KindOf = Callable[[Probe], ProbeKind]


def choose_order(start: int, aliases: int, counts: ProbeCounts, kind_of: KindOf) -> tuple[int, ...]:
    """Return the order in which the other aliases are probed for tuples of the alias `start`."""
    costs: dict[frozenset[int], tuple[float, tuple[int, ...]]] = {frozenset(range(aliases)): (1.0, ())}

    def cheapest(bound: frozenset[int]) -> tuple[float, tuple[int, ...]]:
        if bound not in costs:
            costs[bound] = min(continued(bound, alias) for alias in range(aliases) if alias not in bound)
        return costs[bound]

    def continued(bound: frozenset[int], alias: int) -> tuple[float, tuple[int, ...]]:
        cost, order = cheapest(bound | {alias})
        return _cost(Probe(bound, alias), cost, counts, kind_of), (alias, *order)

    return cheapest(frozenset([start]))[1]


def order_cost(start: int, order: Sequence[int], counts: ProbeCounts, kind_of: KindOf) -> float:
    """Return the cost of an order for one tuple of the alias `start`."""
    cost = 1.0
    for place in reversed(range(len(order))):
        cost = _cost(Probe(frozenset([start, *order[:place]]), order[place]), cost, counts, kind_of)
    return cost


def _cost(probe: Probe, further: float, counts: ProbeCounts, kind_of: KindOf) -> float:
    """Return the cost of a probe for one combination. further: that of the probes after it, for one match."""
    candidates, matches = counts.per_combination(probe, kind_of(probe))
    return 1.0 + candidates + matches * further
