"""Sources that fall silent and return: every clock is that of a plain sequential one, and the answer is the sequential
answer on the tuples that it accepts.

`Model` is the clock as docs/GUARANTEES.md has it, in plain Python; it shares nothing with `headrace.task.watermarks`. Two
things are asked beside it that it could get wrong in the same way: a source that speaks is not moved by the others, and
one that is idle holds nothing back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.columnar.types import TS_TYPE
from headrace.difference import difference
from headrace.reference import reference
from headrace.state.manifest import SourceState
from headrace.stream import Stream
from headrace.testing import table_stream

from . import processing
from .driving import SLOTS, driven
from .test_local import seeds

SECOND = 1_000_000
NEVER = -(2**62)  # how a manifest writes a watermark before the first tuple
EPOCHS, PACE = 12, 10  # how long a case is; seconds of event time that a source goes on by in an epoch
SCHEMA = pa.schema([("ts", TS_TYPE), ("k", pa.int64()), ("v", pa.int64())])

Row = tuple[int | None, int, int]  # seconds


def table(rows: list[Row]) -> pa.Table:
    ts, k, v = zip(*rows, strict=True) if rows else ((), (), ())
    times = [None if t is None else t * SECOND for t in ts]
    return pa.table([pa.array(times, TS_TYPE), pa.array(k, pa.int64()), pa.array(v, pa.int64())], schema=SCHEMA)


# --- queries, and who meets whom in them: per operator, per input, the sources behind it ------------------------------


def counted(a: Stream, b: Stream, c: Stream) -> Stream:
    return a.union(b, c).aggregate(by=["k"], window="20 seconds", every="10 seconds", n="count(*)", s="sum(v)")


def pairs(a: Stream, b: Stream, c: Stream) -> Stream:
    return a.join(b.union(c), on="l.k = r.k", within=("30 seconds", "5 seconds"))


def last_ones(a: Stream, b: Stream, c: Stream) -> Stream:
    return a.union(b).join(c, on="l.v < r.v", last=3)


def nested(a: Stream, b: Stream, c: Stream) -> Stream:
    found = a.join(b, on="l.k = r.k", within="10 seconds").map(k="l_k", v="r_v")
    return found.union(c).aggregate(by=["k"], last=4, every=2, s="sum(v)")


def sessions(a: Stream, b: Stream, c: Stream) -> Stream:
    """A processor whose ticks go on in silence."""
    return a.union(b, c).split(3, by=["k"]).apply(processing.Sessions("k", pa.int64(), "v"))


SHAPES: dict[Callable[..., Stream], list[list[str]]] = {
    sessions: [["abc"]],
    counted: [["abc"]],
    pairs: [["a", "bc"]],
    last_ones: [["ab", "c"]],
    nested: [["a", "b"], ["abc"]],
}


# --- the sequential clock ---------------------------------------------------------------------------------------------


@dataclass
class Teller:
    """What is promised of one source. Times in seconds."""

    lateness: int
    ahead: int | None
    idle: bool = False
    newest: int | None = None  # accepted
    mark: int | None = None  # the watermark; None: minus infinity
    fates: dict[str, list[Row]] = field(default_factory=lambda: {"accepted": [], "late": [], "rejected": []})

    @property
    def standing(self) -> int:
        """The newest accepted; where the others took it on, as if it had come there by a tuple of its own."""
        assert self.newest is not None and self.mark is not None
        return max(self.newest, self.mark + self.lateness)

    def fate(self, ts: int | None) -> str:
        if ts is None:
            return "rejected"
        if self.newest is not None and self.ahead is not None and ts > self.standing + self.ahead:
            return "rejected"
        return "late" if self.mark is not None and ts < self.mark else "accepted"


class Model:
    def __init__(self, meetings: list[list[str]], tellers: dict[str, Teller]) -> None:
        self.meetings, self.tellers = meetings, tellers

    def epoch(self, rows: dict[str, list[Row]], silent: list[str]) -> None:
        for name in silent:
            self.tellers[name].idle = True
        for name, given in rows.items():
            teller = self.tellers[name]
            fates = [(row, teller.fate(row[0])) for row in given]  # by the clock before the epoch
            for row, fate in fates:
                teller.fates[fate].append(row)
            if any(fate != "rejected" for _, fate in fates):
                teller.idle = False
            times = [row[0] for row, fate in fates if fate == "accepted" and row[0] is not None]
            if times:
                teller.newest = max([*times, *([] if teller.newest is None else [teller.newest])])
                teller.mark = later(teller.mark, teller.newest - teller.lateness)
        before = {name: teller.mark for name, teller in self.tellers.items()}
        for name, teller in self.tellers.items():
            if teller.idle:
                for operator in self.meetings:
                    for side in operator:
                        if name in side:
                            teller.mark = later(teller.mark, self.without_idle(side, "".join(operator), before))

    def without_idle(self, side: str, operator: str, marks: dict[str, int | None]) -> int | None:
        for names in (side, operator):
            awake = [marks[name] for name in names if not self.tellers[name].idle]
            if awake:
                return None if None in awake else min(mark for mark in awake if mark is not None)
        return max((mark for name in operator if (mark := marks[name]) is not None), default=None)

    def stored(self, name: str) -> dict[str, Any]:
        """As a manifest has it."""
        teller = self.tellers[name]
        counts = {fate: len(found) for fate, found in teller.fates.items()}
        return {
            "idle": teller.idle,
            "largest": None if teller.newest is None else teller.newest * SECOND,
            "watermark": NEVER if teller.mark is None else teller.mark * SECOND,
            "delivered": sum(counts.values()),
            **counts,
        }


def later(mark: int | None, other: int | None) -> int | None:
    return other if mark is None else mark if other is None else max(mark, other)


# --- what sources do --------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """Speaks for some epochs, is silent for some; returns with any lag; now and then a time that cannot be."""

    r: random.Random
    lag: int
    speaking: bool = True
    quiet: int = 0  # epochs of silence so far

    def deliver(self, epoch: int) -> list[Row]:
        if self.r.random() < (0.3 if self.speaking else 0.35):
            self.speaking = not self.speaking
            self.lag = self.r.choice([0, 0, 5, 25, 60, -15])
        if not self.speaking:
            self.quiet += 1
            return []
        self.quiet = 0
        now = epoch * PACE - self.lag
        times: list[int | None] = [now + self.r.randint(-3, 9) for _ in range(self.r.randint(1, 5))]
        if self.r.random() < 0.15:
            times.append(self.r.choice([None, now + 40, now + 500]))
        if self.r.random() < 0.1:  # nothing that can be believed
            times = [None]
        return [(t, self.r.randint(0, 2), self.r.randint(0, 9)) for t in times]


@seeds(24)
def test_clocks_of_sources_that_fall_silent_and_return(seed: int) -> None:
    r = random.Random(f"silence-{seed}")
    shape, meetings = r.choice(list(SHAPES.items()))
    tellers = {n: Teller(r.choice([0, 2, 10]), r.choice([None, 15, 60])) for n in "abc"}
    patient = r.choice(["", "", "c"])  # sources that are waited for whatever happens
    streams = [
        table_stream(
            table([]),
            name=n,
            lateness=f"{t.lateness} seconds",
            idle=None if n in patient else "1 second",
            ahead=None if t.ahead is None else f"{t.ahead} seconds",
        )
        for n, t in tellers.items()
    ]
    model, sources = Model(meetings, tellers), {n: Source(r, r.choice([0, 0, 20])) for n in "abc"}
    with driven(shape(*streams), r.choice(SLOTS)) as run:
        for epoch in range(EPOCHS):
            if epoch and r.random() < 0.3:
                run.close()
                run.open(r.choice(SLOTS))
            rows = {n: s.deliver(epoch) for n, s in sources.items()}
            silent = [n for n, s in sources.items() if s.quiet >= 2 and n not in patient]
            if r.random() < 0.2:  # taken for silent while its tuples were on their way
                silent = sorted({*silent, r.choice("abc")} - set(patient))
            before = None if run.run is None or run.run.store.last is None else run.last.sources
            spoke = {n: len(t.fates["accepted"]) + len(t.fates["late"]) for n, t in tellers.items()}
            model.epoch(rows, silent)
            run.epoch({n: table(given) for n, given in rows.items()}, splitters=r.randint(1, 3), idle=silent)
            for name, teller in tellers.items():
                stored, expected = run.last.sources[name], model.stored(name)
                assert {key: getattr(stored, key) for key in expected} == expected, f"{name} in epoch {epoch}: {rows}"
                if before and len(teller.fates["accepted"]) + len(teller.fates["late"]) > spoke[name]:
                    own = NEVER if teller.newest is None else (teller.newest - teller.lateness) * SECOND
                    assert stored.watermark == max(before[name].watermark, own), "moved by others though it spoke"
            check_nothing_is_held_back(meetings, run.last.sources)
        run.epoch(final=True)
        accepted = [table_stream(table(t.fates["accepted"]), name=n) for n, t in tellers.items()]
        assert difference(reference(shape(*accepted)), run.table()) is None


def check_nothing_is_held_back(meetings: list[list[str]], sources: dict[str, SourceState]) -> None:
    for operator in meetings:
        marks = {n: sources[n].watermark for n in "".join(operator)}
        awake = [marks[n] for n in marks if not sources[n].idle]
        if awake:
            assert min(marks.values()) == min(awake), "an idle source holds the others back"
        else:
            assert len(set(marks.values())) == 1, "idle sources hold each other back"
