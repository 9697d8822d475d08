"""Whether a processor means the same however its stream is cut, wherever it is restarted, and whenever it is tried again.

The answer that counts is the reference's: one `ts` at a time, one copy, never stopped. Then the same tuples come in other
chunks (tuples of one `ts` are never separated, and no chunk goes across a tick), with restarts between them (a fresh copy,
and nothing but the tables), and calls are tried twice from the same state.

Invariant: what is reported was seen to happen, on the tuples that are named, and on fewer of them it was not found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.columnar.types import TS
from headrace.columnar.values import rows_text
from headrace.difference import difference
from headrace.errors import DataError, ProcessorError, QueryError, QueryTypeError
from headrace.processor import ONLY, Processor
from headrace.query import nodes
from headrace.reference.processors import PROCESS, DueCall, ReferenceCopy, Rows, TooEarly, call_text, calls_of
from headrace.reference.splits import ALL_SUBSTREAMS, split_tuples
from headrace.reference.state_tables import DictTable, SubstreamTables, tables_of
from headrace.reference.tuples import in_sequence, single_value, times_of
from headrace.stream import Route, Stream, node_of
from headrace.support.argument_errors import describe_argument
from headrace.support.limits import MOST_TICKS
from headrace.testing.arrow_sources import table_stream
from headrace.testing.call_monitor import CLOCK, WatchedCopy

Place = TypeVar("Place", int, tuple[int, str])

SHOWN_TUPLES = 12  # tuples, and calls, of a case that are listed
TRIES = 400  # to make a case smaller


def check_processor(
    processor: Processor,
    tuples: pa.Table,
    substreams: int = 4,
    route: Route | None = None,
    broadcast: Route | None = None,
    by: list[str] | None = None,
    seed: int = 0,
    cases: int = 20,
) -> None:
    """Check that a processor gives the same answer however its stream is cut, and after restarts and repeated calls.

    Args:
        processor: an instance of a class that derives from `headrace.Processor`.
        tuples: a table with `ts`, in any order. They are split like a stream, by `route` or `by`, and `broadcast`.
        substreams: how many substreams.
        route: as in `Stream.split`. Without `route` and `by`, all tuples are in one substream, and then again split by
            the hash of all columns and of some.
        broadcast: as in `Stream.split`.
        by: as in `Stream.split`.
        seed: of the random cuts: the same seed finds the same case again.
        cases: how many random cuts, with restarts and repeated attempts, every substream is tried with. The substreams
            of each split that the check chooses itself share this number.

    Raises:
        ProcessorError: the answers differ; the message shows the smallest case that was found.
        QueryError: the processor or a split is declared wrongly, or there are no tuples.

    Examples:
        >>> class Double(hr.Processor):
        ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("x", pa.int64())])
        ...
        ...     def process(self, tuples, state):
        ...         return pa.table({"ts": tuples["ts"], "x": [2 * x for x in tuples["x"].to_pylist()]})
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
        >>> hr.testing.check_processor(Double(), table, cases=5)
    """
    stream, tuples = _stream(tuples)
    r = random.Random(seed)  # noqa: S311 (seeded, so that what was found is found again)
    for rule in _rules(route, by, stream.columns, r):
        each = cases if "route" in rule else -(-cases // substreams)  # a further split by hash has `by` alone
        made: Any = stream.split(substreams, broadcast=broadcast, **rule).apply(processor)
        output = node_of(next(iter(made.values())) if isinstance(made, dict) else made)
        assert isinstance(output, nodes.ProcessorOutput)
        last = int(times_of(tuples).max())
        for substream, mine in _substreams(output.input.rule, tuples):
            _Check(output.input, substream).all(CheckedCase(mine, last), r, each)


def _stream(tuples: pa.Table) -> tuple[Stream, pa.Table]:
    if not isinstance(tuples, pa.Table):
        raise QueryTypeError(f"check_processor takes its tuples as a pyarrow.Table; found {describe_argument(tuples)}")
    stream = table_stream(tuples, time=TS)
    if not tuples.num_rows or tuples[TS].null_count:
        found = "none" if not tuples.num_rows else "one whose ts is null"
        raise QueryError(f"check_processor needs tuples, each with a time; found {found}")
    return stream, tuples.cast(stream.schema)


def _rules(route: Route | None, by: list[str] | None, columns: list[str], r: random.Random) -> list[dict[str, Any]]:
    if route is not None or by is not None:
        return [{"route": route, "by": by}]
    names = [name for name in columns if name != TS]
    some = sorted(r.sample(names, r.randint(1, len(names)))) if names else []
    hashed = [names] if some == sorted(names) else [names, some]
    return [{"route": "0"}, *({"by": chosen} for chosen in hashed if chosen)]


def _substreams(rule: nodes.Rule, tuples: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    shares, _ = split_tuples(rule, tuples, keep=False)
    everywhere = shares.pop(ALL_SUBSTREAMS, tuples.slice(0, 0))
    for number in range(rule.substreams) if everywhere.num_rows else sorted(shares):
        yield number, in_sequence(single_value([shares.get(number, everywhere.slice(0, 0)), everywhere]))


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedCase:
    """How a substream is handed over; without anything said, as the reference does it."""

    tuples: pa.Table  # in sequence
    last: int  # ts of the whole stream
    joined: frozenset[int] = (
        frozenset()
    )  # times whose tuples come in one chunk with those before, unless a tick is between
    restarts: frozenset[tuple[int, str]] = frozenset()  # times and kinds of calls before which there is a restart
    repeated: bool = False  # whether every call is tried twice before

    @property
    def times(self) -> list[int]:
        found: list[int] = np.unique(times_of(self.tuples)).tolist()
        return found

    def without(self, start: int, stop: int) -> CheckedCase:
        """With fewer tuples; if the last of all was among them, the whole stream ends earlier."""
        rest = single_value([self.tuples.slice(0, start), self.tuples.slice(stop)])
        ends = self.last == self.times[-1]
        return replace(self, tuples=rest, last=int(times_of(rest).max()) if ends else self.last)


@dataclass(frozen=True)
class FoundProblem:
    """What was found; kind: so that a smaller case is of the same."""

    kind: str
    summary: str
    case: CheckedCase


class _Check:
    """One processor on one substream."""

    def __init__(self, node: nodes.Apply, substream: int) -> None:
        self.node, self.substream = node, substream
        self.grown: list[str] = []
        self._expected: tuple[CheckedCase, Rows] | None = None  # the answer that was computed last

    def all(self, given: CheckedCase, r: random.Random, cases: int) -> None:
        calls, times = frozenset(call.place for call in self._calls(given)), frozenset(given.times)
        self._demand(self._watched, given)
        self._demand(self._answered, replace(given, repeated=True))
        self._demand(self._answered, replace(given, restarts=calls))
        self._demand(self._answered, replace(given, joined=times))
        for _ in range(cases):
            joined, restarts = _some(times, r.choice((0.2, 0.5, 0.9)), r), _some(calls, r.choice((0.0, 0.3)), r)
            self._demand(self._answered, replace(given, joined=joined, restarts=restarts, repeated=r.random() < 0.3))

    def _demand(self, examine: Callable[[CheckedCase], FoundProblem | None], case: CheckedCase) -> None:
        found = examine(case)
        if found is not None:
            raise ProcessorError(self._told(_smallest(examine, found)))

    def _calls(self, case: CheckedCase) -> list[DueCall]:
        """Chunks, ticks and the end."""
        calls: list[DueCall] = []
        one_by_one = calls_of(case.tuples, self.node.declared, math.inf, case.last, self.substream, MOST_TICKS)
        for call in one_by_one:
            if calls and call.what == calls[-1].what == PROCESS and call.time in case.joined:
                calls[-1] = replace(calls[-1], tuples=single_value([calls[-1].tuples, call.tuples]))
            else:
                calls.append(call)
        return calls

    def _copy(self, kind: type[ReferenceCopy] = ReferenceCopy) -> Any:
        return kind(self.node.processor, self.node.declared, self.substream, self.node.rule.substreams)

    # --- the checks of one case --------------------------------------------------------------------------------------

    def _watched(self, case: CheckedCase) -> FoundProblem | None:
        """As the reference does it: what fails, what comes too early, and what can be seen."""
        try:
            copy = self._copy(WatchedCopy)
            self._run(case, copy)
        except TooEarly as error:
            return FoundProblem("early", f"a row is emitted too early: {error}", case)
        except DataError as error:
            return FoundProblem(f"fails: {type(error.__cause__)}", str(error), case)
        self.grown = copy.grown
        for name, method in copy.written.items():
            words = f"{method} writes to {name}; {LOST}"
            return FoundProblem(f"writes {name}", words, case)
        for name, what in copy.seen.items():
            instead = (
                "the time is that of the tuples, ticks and end" if what == CLOCK else "seed a generator of its own"
            )
            words = (
                f"it uses {what}: {name} is called; code is run again after a failure and must do the same: {instead}"
            )
            return FoundProblem(what, words, case)
        return None

    def _answered(self, case: CheckedCase) -> FoundProblem | None:
        """In other chunks, with restarts, tried twice: the output must be the same."""
        try:
            expected = self._one_by_one(case)
        except DataError:
            return None  # of fewer tuples: not what is looked for
        try:
            found = self._run(case, self._copy())
        except _AttemptsDiffer as differs:
            return FoundProblem("repeated", f"{AGAIN}\n{differs}", case)
        except DataError as error:
            return FoundProblem("answer", f"{self._why(case)}\nit fails: {error}", case)
        told = _differ(expected, found)
        return (
            None
            if told is None
            else FoundProblem(
                "answer",
                f"{self._why(case)}\nexpected is what one ts at a time gives, found is what the calls below give\n{told}",
                case,
            )
        )

    def _one_by_one(self, case: CheckedCase) -> Rows:
        """The answer to the tuples of a case, one `ts` at a time; most cases have the tuples of the one before."""
        known = self._expected
        if known is None or known[0].tuples is not case.tuples or known[0].last != case.last:
            whole = CheckedCase(case.tuples, case.last)
            known = self._expected = (whole, self._run(whole, self._copy()))
        return known[1]

    def _why(self, case: CheckedCase) -> str:
        if not case.joined:
            grown = f": {', '.join(self.grown)} changed since open" if self.grown else ""
            return f"the answer is another after a restart{grown}; {LOST}"
        return CUT if not case.restarts else f"{CUT}, with restarts between"

    def _run(self, case: CheckedCase, copy: ReferenceCopy) -> Rows:
        state = tables_of(self.node.declared.tables)
        put: list[Rows] = []
        for number, call in enumerate(self._calls(case)):
            if number and call.place in case.restarts:
                copy, state = self._copy(), _saved(state)
            if case.repeated:
                _compare(call, self._tried(call, state), self._tried(call, state))
            put.append(copy.call(call, state))
        return {
            name: single_value([s.empty_table(), *(rows[name] for rows in put)])
            for name, s in self.node.declared.outputs
        }

    def _tried(self, call: DueCall, state: Mapping[str, DictTable]) -> tuple[Rows, Rows]:
        """A call by a fresh copy, on a state of which nothing is kept."""
        saved = _saved(state)
        return self._copy().call(call, saved), _contents(saved)

    # --- what is told ------------------------------------------------------------------------------------------------

    def _told(self, found: FoundProblem) -> str:
        declared, case = self.node.declared, found.case
        where = f"{_many(case.tuples.num_rows, 'tuple')} in substream {self.substream} of {self.node.rule.substreams}"
        calls = self._calls(case)
        lines = [line for call in calls[:SHOWN_TUPLES] for line in self._listed(call, call is not calls[0], case)]
        more = [f"  and {len(calls) - SHOWN_TUPLES} more calls"] if len(calls) > SHOWN_TUPLES else []
        return "\n".join([f"{declared.name}: {found.summary}", f"smallest case found, {where}:", *lines, *more])

    def _listed(self, call: DueCall, later: bool, case: CheckedCase) -> Iterator[str]:
        if later and call.place in case.restarts:
            yield "  restart"
        if call.tuples is None:
            yield f"  {call.what} at {call_text(call.time)}"
            return
        more = [f"and {call.tuples.num_rows - SHOWN_TUPLES} more"] if call.tuples.num_rows > SHOWN_TUPLES else []
        yield f"  {call.what} {', '.join([*rows_text(call.tuples.slice(0, SHOWN_TUPLES)), *more])}"


LOST = "what is kept there between calls is lost at a restart; keep it in a table, or derive it in open"
AGAIN = "tried again with the same tuples and the same state, it does something else; it must be deterministic"
CUT = "the answer depends on where the stream is cut; process(a + b) must emit what process(a), then process(b) emits"


class _AttemptsDiffer(Exception):
    """A call was tried twice, and the attempts are not alike."""


def _compare(call: DueCall, tried: tuple[Rows, Rows], again: tuple[Rows, Rows]) -> None:
    put, held = (_differ(first, second) for first, second in zip(tried, again, strict=True))
    if put is not None:
        raise _AttemptsDiffer(f"{call.summary}: {put}")
    if held is not None:
        raise _AttemptsDiffer(f"{call.summary}, its tables: {held}")


def _differ(expected: Rows, found: Rows) -> str | None:
    for name in expected:
        if expected[name].equals(found[name]):  # as nearly always
            continue
        told = difference(expected[name], found[name])
        if told is not None:
            return told if name == ONLY else f"{name}: {told}"
    return None


def _saved(state: Mapping[str, DictTable]) -> SubstreamTables:
    return SubstreamTables({name: table.copy() for name, table in state.items()})


def _contents(state: Mapping[str, DictTable]) -> Rows:
    return {name: table.rows() for name, table in state.items()}


def _some(places: frozenset[Place], share: float, r: random.Random) -> frozenset[Place]:
    return frozenset(place for place in sorted(places) if r.random() < share)


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# --- smaller ----------------------------------------------------------------------------------------------------------


def _smallest(examine: Callable[[CheckedCase], FoundProblem | None], found: FoundProblem) -> FoundProblem:
    """The problem with as few tuples, then restarts, then joined chunks as can be found: one change after the other."""
    tries = TRIES
    candidates = _smaller(found.case)
    while tries:
        smaller = next(candidates, None)
        if smaller is None:
            break
        tries -= 1
        again = examine(smaller)
        if again is not None and again.kind == found.kind:
            found, candidates = again, _smaller(again.case)
    return found


def _smaller(case: CheckedCase) -> Iterator[CheckedCase]:
    rows = case.tuples.num_rows
    length = rows // 2
    while length:
        for start in range(0, rows, length):
            if rows > min(length, rows - start):
                yield case.without(start, min(start + length, rows))
        length //= 2
    if case.last > case.times[-1]:
        yield replace(case, last=case.times[-1])
    for restarts in _fewer(case.restarts):
        yield replace(case, restarts=restarts)
    for joined in _fewer(case.joined):
        yield replace(case, joined=joined)


def _fewer(places: frozenset[Place]) -> Iterator[frozenset[Place]]:
    """None, either half, all but one."""
    in_order = sorted(places)
    half = len(in_order) // 2
    if half:
        yield from (frozenset(), frozenset(in_order[:half]), frozenset(in_order[half:]))
    for place in in_order:
        yield places - {place}
