"""Joins of several streams without stored intermediate results: each new tuple probes the other aliases.

Invariant: combinations are divided by the place of an alias, whatever the order of probing: for new tuples of the alias i,

    new_i  x  old_j (j < i)  x  (old_j + new_j) (j > i)

so each combination whose last tuple arrived in this epoch is found once. A combination lies within its windows exactly if
every two of its tuples do, so the windows are checked as each alias is added:

    latest - window of j  <=  ts of the tuple of j  <=  until

where `latest` is the largest `ts` so far, and `until` the smallest `ts` + window so far. Conjuncts that cannot fail are
evaluated as soon as their aliases are bound; those that can fail, on complete combinations for which all others are true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import arrow
from headrace.columnar.arrow import Numbers
from headrace.columnar.duck import quote
from headrace.columnar.types import TS_TYPE, JoinColumn
from headrace.expressions import NWayPredicate
from headrace.expressions.nway_predicates import AliasColumn, Conjunct
from headrace.kernels.joins.pairs import MOST_PAIRS, Count
from headrace.kernels.joins.probe_order import Probe, ProbeCounts, ProbeKind, choose_order
from headrace.kernels.joins.probed_tuples import SLACK, BlockRanges, ProbedBlock, ProbedTuples, as_doubles
from headrace.kernels.joins.stored_orders import KeyColumns
from headrace.kernels.stateless.evaluate import evaluate
from headrace.kernels.stateless.steps import in_schema
from headrace.routing.hashing import hash_rows

FIRST_SEEDS, MOST_SEEDS = 2_000, 100_000  # new tuples that probe together; the first ever show which order is good
MOST_TOGETHER = 200_000  # combinations that probe the next alias together

Mask = npt.NDArray[np.bool_]


class NWaySpec(Protocol):
    """A join of several streams, as the kernel reads it. Aliases are meant by their places."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def columns(self) -> tuple[JoinColumn, ...]: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...

    @property
    def on(self) -> NWayPredicate: ...

    @property
    def windows(self) -> tuple[int, ...]: ...

    def stored_key(self, alias: int) -> KeyColumns | None:
        """Return the columns by whose hash the blocks of an alias are sorted; None: they are sorted by time."""


@dataclass(frozen=True)
class Lookup:
    """A probe by a key: the columns of the probed alias, and the columns of bound aliases that hold equal values."""

    key: KeyColumns
    given: tuple[AliasColumn, ...]


@dataclass
class Combinations:
    """Combinations of some aliases: by alias the numbers of their tuples, and the times that further tuples may have."""

    rows: dict[int, Numbers]
    latest: Numbers
    until: Numbers

    def __len__(self) -> int:
        return len(self.latest)

    def taken(self, chosen: Numbers | Mask) -> Combinations:
        rows = {alias: rows[chosen] for alias, rows in self.rows.items()}
        return Combinations(rows, self.latest[chosen], self.until[chosen])

    def part(self, start: int, stop: int) -> Combinations:
        rows = {alias: rows[start:stop] for alias, rows in self.rows.items()}
        return Combinations(rows, self.latest[start:stop], self.until[start:stop])


def joined(parts: Sequence[Combinations]) -> Combinations:
    if len(parts) == 1:
        return parts[0]
    rows = {alias: np.concatenate([part.rows[alias] for part in parts]) for alias in parts[0].rows}
    return Combinations(rows, np.concatenate([p.latest for p in parts]), np.concatenate([p.until for p in parts]))


def nway_join(
    spec: NWaySpec,
    fresh: Sequence[Sequence[ProbedBlock]],
    past: Sequence[Sequence[ProbedBlock]],
    known: ProbeCounts,
    found: ProbeCounts,
    count: Count,
) -> Iterator[pa.Table]:
    """Yield the results whose last tuple is new, in batches of bounded size.

    fresh, past: by alias, the tuples that arrived in this epoch, and those of the state.
    known: the counts of earlier epochs, by which orders are chosen at first. found: receives the counts of this epoch.
    """
    counts = ProbeCounts(dict(known.counts), known.rows)
    found.rows = [sum(block.table.num_rows for block in [*new, *old]) for new, old in zip(fresh, past, strict=True)]
    for alias in range(len(spec.aliases)):
        yield from NWayProbe(spec, probed_aliases(alias, fresh, past), counts, found, count).results(alias)


def probed_aliases(
    start: int, fresh: Sequence[Sequence[ProbedBlock]], past: Sequence[Sequence[ProbedBlock]]
) -> list[ProbedTuples]:
    """Return the tuples that each alias contributes to the combinations of new tuples of the alias `start`."""
    return [
        ProbedTuples(new if alias == start else old if alias < start else [*old, *new])
        for alias, (new, old) in enumerate(zip(fresh, past, strict=True))
    ]


def best_lookup(spec: NWaySpec, bound: frozenset[int], alias: int) -> Lookup | None:
    """Return the best way to look up an alias by equal columns of bound aliases; None: there is no equality."""
    equal = {
        key.column(alias): (key.type, next((at, name) for at, name in key.columns if at in bound))
        for key in spec.on.keys
        if alias in key.aliases and bound.intersection(key.aliases)
    }
    stored = spec.stored_key(alias)
    if stored is not None and all(name in equal for name in stored.columns):
        return Lookup(stored, tuple(equal[name][1] for name in stored.columns))
    return next((Lookup(KeyColumns((name,), (kind,)), (given,)) for name, (kind, given) in sorted(equal.items())), None)


def bands_along(spec: NWaySpec, bound: frozenset[int], alias: int) -> list[tuple[str, AliasColumn, AliasColumn, float]]:
    """Return (column of the alias, low and high end among bound aliases, width) of the bands to search along."""
    found = []
    for band in (part.band for part in spec.on.safe if part.band is not None):
        if band.point[0] == alias and band.low[0] in bound:
            found.append((band.point[1], band.low, band.high, band.width))
        if band.low == band.high and band.low[0] == alias and band.point[0] in bound:
            found.append((band.low[1], band.point, band.point, band.width))
    return found


def decided_parts(spec: NWaySpec, bound: frozenset[int], alias: int) -> list[Conjunct]:
    """Return the conjuncts that cannot fail and that become decidable with one more alias."""
    whole = bound | {alias}
    return [
        part
        for part in spec.on.safe
        if part.aliases <= whole and (alias in part.aliases or not (bound or part.aliases))
    ]


def kind_of_probe(spec: NWaySpec, probe: Probe, rows: Sequence[int]) -> ProbeKind:
    """Return what is known of a probe before it was ever made. rows: the tuples of each alias."""
    lookup, bands = (of(spec, probe.bound, probe.alias) for of in (best_lookup, bands_along))
    decides = bool(decided_parts(spec, probe.bound, probe.alias))
    return ProbeKind(lookup is not None or bool(bands), decides, rows[probe.alias])


class NWayProbe:
    """The probes of one epoch for the new tuples of one alias.

    counts: of earlier epochs and of this one. found: of this one alone.
    """

    def __init__(
        self, spec: NWaySpec, tuples: Sequence[ProbedTuples], counts: ProbeCounts, found: ProbeCounts, count: Count
    ) -> None:
        self.spec, self.tuples, self.count = spec, tuples, count
        self.counts, self.found = counts, found

    def results(self, start: int) -> Iterator[pa.Table]:
        """Yield the results of the new tuples of an alias."""
        if not all(tuples.rows for tuples in self.tuples):
            return
        rows = self.counts.rows or [tuples.rows for tuples in self.tuples]
        begin, many = 0, MOST_SEEDS if self.counts.knows(start) else FIRST_SEEDS
        while begin < self.tuples[start].rows:
            order = choose_order(
                start, len(self.tuples), self.counts, lambda probe: kind_of_probe(self.spec, probe, rows)
            )
            end = min(begin + many, self.tuples[start].rows)
            for complete in self._completed(self._seeds(start, begin, end), order):
                yield from self._emitted(complete)
            begin, many = end, MOST_SEEDS

    def _seeds(self, start: int, begin: int, end: int) -> Combinations:
        rows = np.arange(begin, end)
        at = self.tuples[start].times(begin, end)
        seeds = Combinations({start: rows}, at, at + self.spec.windows[start])
        return self._satisfying(seeds, self._decided(frozenset(), start))

    def _completed(self, begun: Combinations, order: Sequence[int]) -> Iterator[Combinations]:
        """Yield complete combinations that begin with these."""
        if not len(begun):
            return
        if not order:
            yield begun
            return
        alias, *others = order
        for start in range(0, len(begun), MOST_TOGETHER):
            for longer in self._extended(begun.part(start, start + MOST_TOGETHER), alias):
                yield from self._completed(longer, others)

    # --- one probe -----------------------------------------------------------------------------------------------------

    def _extended(self, begun: Combinations, alias: int) -> Iterator[Combinations]:
        """Yield the combinations with a tuple of one more alias, in batches."""
        bound = frozenset(begun.rows)
        decided = self._decided(bound, alias)
        candidates, after = 0, 0
        for longer, of in self._together(begun, alias):
            candidates += of
            for some in self._batches(len(longer)):
                found = self._satisfying(longer.part(some.start, some.stop), decided)
                after += len(found)
                if len(found):
                    yield found
        self.count(candidates)
        self._note(Probe(bound, alias), len(begun), candidates, after)

    def _together(self, begun: Combinations, alias: int) -> Iterator[tuple[Combinations, int]]:
        """Yield combinations within the windows, those of small blocks together, and how many candidates they were."""
        waiting: list[Combinations] = []
        candidates, rows = 0, 0
        for i, found, at in self._candidates(begun, alias):
            waiting.append(self._with_alias(begun, alias, i, found, at))
            candidates, rows = candidates + len(i), rows + len(waiting[-1])
            if rows >= MOST_TOGETHER:
                yield joined(waiting), candidates
                waiting, candidates, rows = [], 0, 0
        if waiting:
            yield joined(waiting), candidates

    def _with_alias(self, begun: Combinations, alias: int, i: Numbers, rows: Numbers, at: Numbers) -> Combinations:
        """Return the combinations number `i` with these tuples of an alias, if they are within the windows."""
        window = self.spec.windows[alias]
        inside = (at >= begun.latest[i] - window) & (at <= begun.until[i])
        i, rows, at = i[inside], rows[inside], at[inside]
        longer = begun.taken(i)
        return Combinations(
            {**longer.rows, alias: rows}, np.maximum(longer.latest, at), np.minimum(longer.until, at + window)
        )

    def _candidates(self, begun: Combinations, alias: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """Yield (number of a combination, tuple of the alias, its time) for all that can belong together, in batches."""
        lookup = best_lookup(self.spec, frozenset(begun.rows), alias)
        ranges = self._by_key(begun, alias, lookup) if lookup is not None else self._nearest(begun, alias)
        for each in ranges:
            yield from each

    def _by_key(self, begun: Combinations, alias: int, lookup: Lookup) -> Iterator[BlockRanges]:
        hashes, valid = self._hashes(begun, lookup)
        if valid is None:
            yield from self.tuples[alias].with_hashes(lookup.key, hashes)
            return
        whole = np.flatnonzero(valid)
        for found in self.tuples[alias].with_hashes(lookup.key, hashes[whole]):
            assert found.combinations is not None
            yield replace(found, combinations=whole[found.combinations])

    def _hashes(self, begun: Combinations, lookup: Lookup) -> tuple[npt.NDArray[np.uint64], Mask | None]:
        """Return the hash that a tuple must have to match each combination, and which have no null; None: all."""
        aliases = {alias for alias, _ in lookup.given}
        if len(aliases) == 1:
            [alias] = aliases
            key = KeyColumns(tuple(name for _, name in lookup.given), lookup.key.types)
            if self.spec.stored_key(alias) == key:
                return self.tuples[alias].hashes(key, begun.rows[alias]), None
        columns = [self.tuples[at].taken([name], begun.rows[at]).column(0) for at, name in lookup.given]
        names = [str(number) for number in range(len(columns))]
        valid = np.logical_and.reduce([np.asarray(column.is_valid()) for column in columns])
        hashes = hash_rows(pa.table(columns, names=names), names, lookup.key.types)
        return hashes, None if valid.all() else valid

    def _nearest(self, begun: Combinations, alias: int) -> list[BlockRanges]:
        """Return the fewest candidates that a search along the time, or along the number of a band, finds."""
        found = self.tuples[alias].between(begun.latest - self.spec.windows[alias], begun.until)
        for column, low, high, width in bands_along(self.spec, frozenset(begun.rows), alias):
            near = self._near(begun, alias, column, (low, high), width)
            if near is not None and sum(each.candidates for each in near) < sum(each.candidates for each in found):
                found = near
        return found

    def _near(
        self, begun: Combinations, alias: int, column: str, ends: tuple[AliasColumn, AliasColumn], width: float
    ) -> list[BlockRanges] | None:
        """Return the tuples whose number is near the interval of each combination; None: numbers are not finite."""
        found = [as_doubles(self.tuples[at].taken([name], begun.rows[at]).column(0)) for at, name in ends]
        (low, one), (high, other) = found
        valid = one & other
        if not (np.isfinite(low[valid]).all() and np.isfinite(high[valid]).all()):
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite margin contains every number
            margin = width + SLACK * (np.abs(low) + np.abs(high) + width)
            ranges = self.tuples[alias].with_numbers(column, low - margin, high + margin)
        if ranges is None or valid.all():
            return ranges
        return [replace(each, last=np.where(valid, each.last, each.first)) for each in ranges]

    # --- the predicate -------------------------------------------------------------------------------------------------

    def _decided(self, bound: frozenset[int], alias: int) -> list[Conjunct]:
        return decided_parts(self.spec, bound, alias)

    def _satisfying(self, found: Combinations, parts: Sequence[Conjunct]) -> Combinations:
        """Return the combinations for which all these conjuncts are true."""
        if not parts or not len(found):
            return found
        return found.taken(self._true(found, parts))

    def _true(self, found: Combinations, parts: Sequence[Conjunct]) -> Mask:
        used: dict[int, set[str]] = {}
        for part in parts:
            for alias, name in part.columns:
                used.setdefault(alias, set()).add(name.lower())
        tables = {alias: self._columns(alias, names, found.rows[alias]) for alias, names in used.items()}
        true = np.ones(len(found), dtype=bool)
        others = []
        for part in parts:
            if part.is_plain and part.equality is not None:
                (one, left), (other, right) = part.equality.left, part.equality.right
                equal = pc.equal(tables[one].column(left), tables[other].column(right))
                true &= np.asarray(equal.fill_null(False))
            else:
                others.append(part)
        return true & self._asked(found, others, tables) if others else true

    def _asked(self, found: Combinations, parts: Sequence[Conjunct], tables: Mapping[int, pa.Table]) -> Mask:
        """Return for which combinations DuckDB finds that these conjuncts are true."""
        if not tables:  # constants
            tables = {next(iter(found.rows)): pa.table({"__row": np.arange(len(found))})}
        sql = " AND ".join(["true", *(part.sql for part in parts)])
        named = {self.spec.on.aliases[alias]: table for alias, table in tables.items()}
        origin = " POSITIONAL JOIN ".join(map(quote, named))
        query = f"SELECT coalesce({sql}, false) AS keep FROM {origin}"
        return np.asarray(evaluate(query, named, self.spec.on.text, in_pairs=True).column(0))

    def _columns(self, alias: int, names: set[str], rows: Numbers) -> pa.Table:
        table = self.tuples[alias].table
        assert table is not None
        return self.tuples[alias].taken([name for name in table.column_names if name.lower() in names], rows)

    # --- what was found --------------------------------------------------------------------------------------------------

    def _emitted(self, complete: Combinations) -> Iterator[pa.Table]:
        """Yield the results among complete combinations. Conjuncts that can fail are evaluated here alone."""
        for some in self._batches(len(complete)):
            found = self._satisfying(complete.part(some.start, some.stop), self.spec.on.unsafe)
            if len(found):
                yield self._results(found)

    def _batches(self, rows: int) -> Iterator[slice]:
        """Return slices of combinations whose tuples fit in memory. A combination is as long as all of its tuples."""
        size = sum(arrow.row_bytes(tuples.table) for tuples in self.tuples if tuples.table is not None)
        most = min(max(1, arrow.MOST_TABLE_BYTES // size), MOST_PAIRS)
        return (slice(start, start + most) for start in range(0, rows, most))

    def _results(self, found: Combinations) -> pa.Table:
        places = {alias: place for place, alias in enumerate(self.spec.aliases)}
        taken = {}
        for place in range(len(self.tuples)):
            names = [c.source for c in self.spec.columns if places[c.side] == place]
            taken[place] = self.tuples[place].taken(list(dict.fromkeys(["ts", *names])), found.rows[place])
        ts = np.minimum.reduce([np.asarray(table.column("ts").cast(pa.int64())) for table in taken.values()])
        columns = [pa.array(ts).cast(TS_TYPE), *(taken[places[c.side]].column(c.source) for c in self.spec.columns)]
        return in_schema(pa.table(columns, names=self.spec.schema.names), self.spec.schema)

    def _note(self, probe: Probe, before: int, candidates: int, after: int) -> None:
        for counts in (self.found, self.counts):
            counts.add(probe, before, candidates, after)
