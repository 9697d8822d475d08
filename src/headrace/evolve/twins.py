"""Pairs of operators and of results of two queries that mean the same.

Twins are operators of one query that have one meaning. Their states differ all the same: one of them may have been added
later, and each holds the columns that are read downstream of it. So an operator continues with the state of the one that
made the same result before, and only where no result decides, with the one of the same name.

Invariant: both of a pair have one digest, and no operator or result is in two pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.driver.fingerprint import Json, QueryMeanings

Passed = Mapping[str, Mapping[str, list[str]]]  # by column that is only passed on: its origin
Holds = Callable[[Passed, Passed], bool]
Pair = tuple[str, str]  # new name, old name


def _the_same(was: Passed, now: Passed) -> bool:
    return was == now


def _enough(was: Passed, now: Passed) -> bool:
    return all(was.get(column) == origin for column, origin in now.items())


def _anything(was: Passed, now: Passed) -> bool:
    return True


HOLDS: tuple[Holds, ...] = (_the_same, _enough, _anything)  # how much of the new operator's columns the old state holds


@dataclass
class QueryPairing:
    """Pairs by new name. If several operators have one meaning, user code and held columns decide."""

    before: QueryMeanings
    after: QueryMeanings
    operators: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ways = [_Similarity(self.before, self.after, holds, coded) for coded in (True, False) for holds in HOLDS]
        for way in ways:
            self._pair_results(way)
        for way in ways:
            self._pair_changed_results(way)
        for way in ways:
            for new, old in _pairs(self.operators, self.after.operators, self.before.operators, way.operators_alike):
                self._take(way, new, old)

    def _pair_results(self, way: _Similarity) -> None:
        """Pair results of one meaning, and the operators that make them."""
        for new, old in _pairs(self.results, self.after.results, self.before.results, way.results_alike):
            self.results[new] = old
            self._take_all(way, way.paired(*way.inputs_of_results(new, old)) or [])

    def _pair_changed_results(self, way: _Similarity) -> None:
        """Pair the operators of results that are in the same place and differ only in their last steps."""
        for name in self.after.results:
            if name in self.before.results and name not in {*self.results, *self.results.values()}:
                mine, former = way.inputs_of_results(name, name)
                pairs = [(new["from"], old["from"]) for new in mine for old in former]
                self._take_all(way, [pair for pair in pairs if way.operators_alike(*pair)])

    def _take_all(self, way: _Similarity, pairs: Sequence[Pair]) -> None:
        for new, old in pairs:
            self._take(way, new, old)

    def _take(self, way: _Similarity, new: str, old: str) -> None:
        """Add this pair, and the pairs upstream of it."""
        if new not in self.after.operators or new in self.operators or old in self.operators.values():
            return
        self.operators[new] = old
        for mine, former in way.inputs_of_operators(new, old):
            self._take_all(way, way.paired(mine, former) or [])


def _pairs(
    taken: Mapping[str, str], mine: Mapping[str, Json], former: Mapping[str, Json], alike: Callable[[str, str], bool]
) -> Iterator[Pair]:
    """Yield further pairs of unpaired names, equal names first. The caller adds the accepted pairs to `taken`."""
    for same_name in (True, False):
        for new in mine:
            for old in former:
                free = new not in taken and old not in taken.values()
                if free and (new == old or not same_name) and alike(new, old):
                    yield new, old


@dataclass
class _Similarity:
    """One definition of similarity of operators and results, which includes everything upstream of them."""

    before: QueryMeanings
    after: QueryMeanings
    holds: Holds
    coded: bool  # whether they also run the same code
    known: dict[Pair, bool] = field(default_factory=dict)

    def results_alike(self, new: str, old: str) -> bool:
        one, two = self.after, self.before
        same = one.result_digest(new, coded=self.coded) == two.result_digest(old, coded=self.coded)
        return same and self.paired(*self.inputs_of_results(new, old)) is not None

    def operators_alike(self, new: str, old: str) -> bool:
        if (new, old) not in self.known:
            mine, former = (each.coded if self.coded else each.digests for each in (self.after, self.before))
            same = new in mine and mine[new] == former.get(old)
            self.known[new, old] = same and self._holds_for(new, old) and self._fed_alike(new, old)
        return self.known[new, old]

    def _holds_for(self, new: str, old: str) -> bool:
        sides = range(len(self.after.operators[new]["inputs"]))
        return all(self.holds(self.before.passed(old, side), self.after.passed(new, side)) for side in sides)

    def _fed_alike(self, new: str, old: str) -> bool:
        return all(self.paired(mine, former) is not None for mine, former in self.inputs_of_operators(new, old))

    def inputs_of_results(self, new: str, old: str) -> tuple[Sequence[Json], Sequence[Json]]:
        return self.after.results[new]["inputs"], self.before.results[old]["inputs"]

    def inputs_of_operators(self, new: str, old: str) -> list[tuple[Sequence[Json], Sequence[Json]]]:
        """Return the edges of both, by side."""
        return list(
            zip(self.after.operators[new]["inputs"], self.before.operators[old]["inputs"], strict=True)
        )  # equal meaning implies equal sides

    def paired(self, mine: Sequence[Json], former: Sequence[Json]) -> list[Pair] | None:
        """Return the producers of the edges with their partners; None if one has no partner."""
        if len(mine) != len(former):
            return None
        taken: dict[int, int] = {}  # by former edge, the new edge that took it
        if not all(self._find(place, mine, former, taken, set()) for place in range(len(mine))):
            return None
        partner = {new: old for old, new in taken.items()}
        return [(edge["from"], former[partner[place]]["from"]) for place, edge in enumerate(mine)]

    def _find(
        self, place: int, mine: Sequence[Json], former: Sequence[Json], taken: dict[int, int], tried: set[int]
    ) -> bool:
        """Find a partner for an edge. A taken partner is given up if its owner finds another one."""
        for old, edge in enumerate(former):
            if old not in tried and self._edges_alike(mine[place], edge):
                tried.add(old)
                if old not in taken or self._find(taken[old], mine, former, taken, tried):
                    taken[old] = place
                    return True
        return False

    def _edges_alike(self, new: Json, old: Json) -> bool:
        if self.after.edge_meaning(new, coded=self.coded) != self.before.edge_meaning(old, coded=self.coded):
            return False
        return new["from"] in self.after.sources or self.operators_alike(new["from"], old["from"])
