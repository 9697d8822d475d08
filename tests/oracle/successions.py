"""Random pairs of queries: a run of the former is followed by a run of the latter, migrated or restarted in mid-stream.

What may become of a result, all at once and in any order:

    kept      the same result, perhaps in another place
    tail      other stateless steps behind the same operators
    twin      a result of its own operators, which mean what those of another result mean
    behind    an operator behind those of a result, which are shared with it or are twins of them
    front     an operator that is new, and a count over what it emits
    gone      a result that is left out
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.compile import STRATEGIES
from headrace.difference import difference, unmatched_rows
from headrace.errors import QueryChanged
from headrace.evolve import migrate
from headrace.query import nodes
from headrace.reference import reference
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.telemetry.incomplete import Begun, incomplete_results
from headrace.testing import LocalRun, table_stream

from . import processing
from .driving import random_layouts
from .strategies import Maker, Part, cut, quoted, source_tables, transplanted

SLOTS = (1, 2, 3)
Epochs = list[dict[str, pa.Table]]
BASES = ("time_join", "outer_join", "time_aggregate", "time_aggregate", "count_aggregate", "session_aggregate")
BASES += ("distinct", "distinct", "asof", "apply", "later", "later", "union", "count_join", "nway_join", "each")
BEHIND = (
    "time_aggregate",
    "time_aggregate",
    "time_aggregate",
    "distinct",
    "time_join",
    "outer_join",
    "session_aggregate",
    "top",
)
FRONT = (
    "distinct",
    "asof",
    "count_aggregate",
    "session_aggregate",
    "time_join",
    "outer_join",
    "apply",
    "later",
    "count_join",
)


@dataclass(frozen=True)
class Result:
    """A result of a query."""

    label: str
    stream: Stream
    base: str = ""  # the operators that make it
    shared: bool = False  # whether an operator that is new reads what they emit
    kept: bool = False  # whether the former query has it


class SuccessionMaker(Maker):
    """Small streams, with processors whose results are later than their cause."""

    def later(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        keys = [name for name in part.columns("int", "text") if name not in ("window_start", "window_end")]
        if not keys:
            return self.filter(part, parts)
        key = self.pick(keys)
        split = part.stream.split(self.pick((1, 2, 3)), by=[key])
        return Part(split.apply(processing.Later(key, part.stream.schema.field(key).type, None)))

    def tail(self, part: Part) -> Part:
        """Stateless steps that may leave out columns, and that no other result has."""
        kept = [n for n in part.stream.columns if n != "ts" and self.r.random() < 0.6]
        tag = {self.name(): str(self.r.randrange(1_000_000))}
        tests = [f"{quoted(n)} is not null" for n in part.columns()] if self.r.random() < 0.4 else []
        stream = part.stream.filter(self.pick(tests)) if tests else part.stream
        return Part(stream.map(*kept, **tag), part.inexact & set(kept))


@dataclass
class Succession:
    """Two queries, what comes to them, and where the former ends."""

    seed: int
    migrates: bool
    former: list[Result]
    latter: list[Result]
    epochs: Epochs
    change: int  # the first epoch of the latter
    again: int | None  # an epoch before which the latter restarts

    def __repr__(self) -> str:
        way = "migrated" if self.migrates else "restarted"
        lines = [f"seed {self.seed}, {way} before epoch {self.change} of {len(self.epochs)}"]
        for name, results in (("former", self.former), ("latter", self.latter)):
            lines += [f"--- {name} {place}: {each.label}\n{each.stream!r}" for place, each in enumerate(results)]
        return "\n".join(lines)


def make_succession(seed: int) -> Succession:
    r = random.Random(f"succession-{seed}")
    while True:
        tables = source_tables(r, 50)
        sources = {t.name: table_stream(t.rows, lateness=t.lateness, name=t.name) for t in tables}
        maker = SuccessionMaker(r, [Part(stream) for stream in sources.values()])
        migrates = seed % 3 != 2
        former, latter = _Succeeding(maker, sources).queries(migrates)
        used = {s.name for each in (*former, *latter) for s in nodes.sources(node_of(each.stream))}
        before = {s.name for each in former for s in nodes.sources(node_of(each.stream))}
        if not migrates and used != before:
            continue
        if not all(reference(each.stream).num_rows for each in latter):
            continue
        epochs = cut({t.name: t for t in tables if t.name in used}, r.choice((3, 4, 5)), seed)
        change = r.randrange(1, len(epochs) - 1)
        again = r.randrange(change + 1, len(epochs)) if r.random() < 0.4 else None
        for name in used - before:
            _delay(epochs, name, change)
        return Succession(seed, migrates, former, latter, epochs, change, again)


def _delay(epochs: Epochs, source: str, until: int) -> None:
    """A source that the former query does not read: all of it comes to the latter."""
    early = [epoch.pop(source) for epoch in epochs[: until + 1] if source in epoch]
    if early:
        epochs[until][source] = pa.concat_tables(early)


class _Succeeding:
    def __init__(self, maker: SuccessionMaker, sources: dict[str, Stream]) -> None:
        self.maker, self.sources, self.r = maker, sources, maker.r
        self.bases: dict[str, Part] = {}  # what the former query computes, without the tails

    def queries(self, migrates: bool) -> tuple[list[Result], list[Result]]:
        parts = [self.maker.query(self.r.choice((1, 1, 2)), BASES) for _ in range(self.r.choice((1, 2, 2)))]
        former = []
        for number, part in enumerate(parts):
            former += self._results(f"base {number}", part)
        latter = [replace(each, kept=True) for each in former]
        latter = [self._with_a_step(each) if self.r.random() < 0.2 else each for each in latter]
        if migrates:
            if len(latter) > 1 and self.r.random() < 0.3:
                latter.pop(self.r.randrange(len(latter)))
            added = [way(parts) for way in self._ways()]
            latter += [replace(each, label=f"{each.label} ({number})") for number, each in enumerate(added)]
            shared = {each.base for each in latter if each.shared}
            latter = [replace(each, shared=each.base in shared) for each in latter]
        self.r.shuffle(latter)
        return former, latter

    def _results(self, base: str, part: Part) -> Iterator[Result]:
        """One, or twins that differ in their tails."""
        for number in range(self.r.choice((1, 1, 2, 3))):
            name = f"{base}, twin {number}"
            self.bases[name] = self._copy(part)
            yield Result(name, self.maker.tail(self.bases[name]).stream, name)

    def _copy(self, part: Part) -> Part:
        return Part(transplanted(part.stream, self.sources), part.inexact)

    def _with_a_step(self, result: Result) -> Result:
        """Another step behind all others: it reads what is there."""
        stream = result.stream.filter("epoch_ms(ts) % 3 < 2")
        return replace(result, label=f"{result.label}, with a step", stream=stream, kept=False)

    def _ways(self) -> list[Callable[[list[Part]], Result]]:
        ways = [self._twin, self._twin, self._behind, self._behind_shared, self._front]
        return self.r.sample(ways, self.r.choice((0, 1, 1, 2)))

    def _twin(self, parts: list[Part]) -> Result:
        return Result("a twin", self.maker.tail(self._copy(self.r.choice(parts))).stream)

    def _behind(self, parts: list[Part]) -> Result:
        return Result("behind a twin", self._more(self._copy(self.r.choice(parts))).stream)

    def _behind_shared(self, parts: list[Part]) -> Result:
        base = self.r.choice(list(self.bases))
        return Result(f"behind {base}", self._more(self.bases[base]).stream, base, shared=True)

    def _more(self, part: Part) -> Part:
        found: Part = getattr(self.maker, self.r.choice(BEHIND))(part, [part, *self.maker.sources])
        return found

    def _front(self, parts: list[Part]) -> Result:
        source = self.r.choice(self.maker.sources)
        first = getattr(self.maker, self.r.choice(FRONT))(source, [source])
        return Result("in front of a count", self.maker.time_aggregate(first, [first]).stream)


# --- running a pair ------------------------------------------------------------------------------------------------------------


def trouble(case: Succession, folder: Path) -> str | None:
    """What is wrong with the latter's results; None: nothing."""
    found = _Play(case, folder).trouble()
    return None if found is None else f"{found}\n{case!r}"


@dataclass
class _Play:
    case: Succession
    folder: Path

    def trouble(self) -> str | None:
        case, state = self.case, self.folder / "old" / "state"
        r = random.Random(f"play-{case.seed}")
        run = self._run(case.former, state, r)
        self._epochs(run, case.epochs[: case.change], r)
        run.close()
        if case.migrates:
            roots = [node_of(each.stream) for each in case.latter]
            migrate.migrate(self.folder / "old", self.folder / "new", roots, [False] * len(roots), "False")
            state = self.folder / "new" / "state"
        try:
            emitted, incomplete = self._latter(state, r)
        except QueryChanged as error:
            return f"refused: {error}"
        found = (self._checked(each, emitted[each.label], incomplete) for each in case.latter)
        return next((text for text in found if text is not None), None)

    def _latter(self, state: Path, r: random.Random) -> tuple[dict[str, pa.Table], Begun]:
        """What the latter emits, by result, and from when on that is complete; it may restart with results in another order."""
        case, results = self.case, list(self.case.latter)
        emitted = {each.label: each.stream.schema.empty_table() for each in results}
        incomplete: Begun | None = None
        for first, last in pairwise([case.change, *([case.again] if case.again else []), len(case.epochs)]):
            run = self._run(results, state, r)
            names = {f"result-{place}": each.label for place, each in enumerate(results)}
            if incomplete is None:
                assert run.store.last is not None
                incomplete = {names[result]: time for result, time in incomplete_results(run.store.last).items()}
            self._epochs(run, case.epochs[first:last], r)
            if last == len(case.epochs):
                run.end()
            run.close()
            for result, label in names.items():
                new = [rows for key, rows in run.sinks[result].epochs.items() if key[1] >= first]
                emitted[label] = pa.concat_tables([emitted[label], *new])
            r.shuffle(results)
        return emitted, incomplete or {}

    def _run(self, results: list[Result], state: Path, r: random.Random) -> LocalRun:
        streams = [each.stream for each in results]
        layouts = random_layouts(r.getrandbits(32))
        return LocalRun(
            streams,
            state,
            slots=r.choice(SLOTS),
            store=StateStore.open(state, fsync=False),
            groups=r.choice((None, 3, 7)) if self.case.former is results else None,
            strategy=r.choice(("subquery", *STRATEGIES)),
            layouts=layouts,
            keep_late=r.random() < 0.5,
        )

    def _epochs(self, run: LocalRun, epochs: Epochs, r: random.Random) -> None:
        for tables in epochs:
            if r.random() < 0.4:
                run.driver.control.active = r.choice(SLOTS)
            read = {source.name for source in run.plan.sources}
            tables = {name: rows for name, rows in tables.items() if name in read}
            run.epoch(tables, splitters=r.choice((1, 2, 3)))

    def _checked(self, result: Result, found: pa.Table, incomplete: Begun) -> str | None:
        whole = reference(result.stream, epochs=self._read_by(result))
        if result.label not in incomplete:
            return self._named(result, difference(self._since_the_change(result, whole), found))
        time = incomplete[result.label]
        if result.kept and not result.shared:
            return self._named(result, f"is kept, and yet incomplete: {time}")
        if is_windows(node_of(result.stream)) and (wrong := unmatched_rows(whole, found)[1]).num_rows:
            return self._named(result, f"emitted windows that are half filled: {wrong.to_pylist()}")
        if time is not None:
            parts = (table.filter(pc.greater_equal(table["ts"].cast(pa.int64()), time)) for table in (whole, found))
            return self._named(result, difference(*parts))
        return None

    def _since_the_change(self, result: Result, whole: pa.Table) -> pa.Table:
        before = reference(result.stream, epochs=self._read_by(result)[: self.case.change], end=False)
        return unmatched_rows(whole, before)[0]

    def _read_by(self, result: Result) -> Epochs:
        names = nodes.named_sources(node_of(result.stream))
        return [{name: rows for name, rows in epoch.items() if name in names} for epoch in self.case.epochs]

    def _named(self, result: Result, text: str | None) -> str | None:
        return None if text is None else f"{result.label}: {text}"


def is_windows(node: nodes.Node) -> bool:
    """Whether all that a node emits are windows of time or sessions, perhaps changed by stateless steps."""
    if isinstance(node, nodes.Map | nodes.Filter | nodes.Case | nodes.Sample | nodes.Union):
        return all(is_windows(each) for each in node.inputs)
    return isinstance(node, nodes.TimeAggregate | nodes.SessionAggregate | nodes.Top)
