"""Admission of tuples (accepted, late or rejected), and the watermark of every source.

The watermark of a source is the largest `ts` accepted minus its lateness. A source that has delivered no tuple for too
long is idle: until it delivers again, its watermark follows those of the sources that its tuples are combined with in
an operator.

Invariant: the accepted tuples follow only from the epochs and from which sources were idle in them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS
from headrace.query import nodes
from headrace.reference.tuples import single_value, times_of

Sources = frozenset[int]  # their ids
Meeting = tuple[Sources, Sources]  # the sources upstream of one input of an operator, and of the whole operator

STATELESS_NODES = (
    nodes.Source,
    nodes.Map,
    nodes.Filter,
    nodes.Case,
    nodes.Sample,
    nodes.Unnest,
    nodes.Union,
    nodes.TableJoin,
    nodes.ProcessorOutput,
)


@dataclass
class Admission:
    """One source: its tuples by fate, and its time."""

    source: nodes.Source
    largest: float = -math.inf  # of the tuples accepted in earlier epochs
    watermark: float = -math.inf
    idle: bool = False
    fates: dict[str, list[pa.Table]] = field(default_factory=lambda: {"accepted": [], "late": [], "rejected": []})

    @property
    def accepted(self) -> pa.Table:
        return self._all("accepted")

    @property
    def late(self) -> pa.Table:
        return self._all("late")

    @property
    def rejected(self) -> pa.Table:
        return self._all("rejected")

    @property
    def own_watermark(self) -> float:
        """Return the watermark that follows from the source's own tuples."""
        return self.largest - self.source.lateness

    def admit(self, tuples: pa.Table) -> None:
        untimed = np.asarray(pc.is_null(tuples[TS]).combine_chunks())
        times = times_of(tuples)
        rejected = untimed | (times > self._limit())
        late = ~rejected & (times < self.watermark)
        accepted = ~rejected & ~late
        for fate, which in (("accepted", accepted), ("late", late), ("rejected", rejected)):
            self.fates[fate].append(tuples.filter(pa.array(which)))
        if accepted.any() or late.any():  # rejected tuples do not show how far the source has come
            self.idle = False
        self.largest = max([self.largest, *times[accepted].tolist()])
        self.watermark = max(self.watermark, self.own_watermark)

    def _limit(self) -> float:
        """Return the largest time that is accepted; before the first accepted tuple, every time is."""
        if self.source.ahead is None or self.largest == -math.inf:
            return math.inf
        return max(self.largest, self.watermark + self.source.lateness) + self.source.ahead

    def _all(self, fate: str) -> pa.Table:
        return single_value([self.source.schema.empty_table(), *self.fates[fate]])


def admitted(
    roots: Sequence[nodes.Node], arrived: Sequence[Mapping[int, pa.Table]], idle: Sequence[Collection[int]]
) -> dict[int, Admission]:
    """Return every source after the last epoch. arrived: tuples by epoch and source. idle: by epoch, the silent
    sources."""
    meetings = list(_meetings(roots))
    found = {id(source): Admission(source) for source in nodes.sources(*roots)}
    for tuples, silent in zip(arrived, idle, strict=True):
        for source in silent:
            found[source].idle = True
        for source, table in tuples.items():
            found[source].admit(table)
        _take_along(found, meetings)
    return found


def _take_along(admissions: Mapping[int, Admission], meetings: Sequence[Meeting]) -> None:
    """Advance idle sources as far as every input that they enter has come without them."""
    before = {source: each.watermark for source, each in admissions.items()}
    for source, each in admissions.items():
        if each.idle:
            reached = [_without_idle(meeting, admissions, before) for meeting in meetings if source in meeting[0]]
            each.watermark = max([each.watermark, *reached])


def _without_idle(meeting: Meeting, admissions: Mapping[int, Admission], watermarks: Mapping[int, float]) -> float:
    """Return the slowest non-idle source of the input, else the slowest non-idle one of the operator, else the fastest."""
    for sources in meeting:
        if awake := [watermarks[source] for source in sources if not admissions[source].idle]:
            return min(awake)
    return max(watermarks[source] for source in meeting[1])


def _meetings(roots: Sequence[nodes.Node]) -> Iterator[Meeting]:
    """Yield the places where sources wait for each other: every input of every operator with state."""
    upstream: dict[int, Sources] = {}
    for node in nodes.walk_nodes(*roots):
        inputs = [upstream[id(child)] for child in node.inputs]
        upstream[id(node)] = frozenset([id(node)] if isinstance(node, nodes.Source) else ()).union(*inputs)
        if _has_state(node):
            yield from ((side, upstream[id(node)]) for side in inputs)


def _has_state(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Each):  # all inputs of the body come from the one stream that was split
        return any(_has_state(inner) for inner in nodes.walk_nodes(node.body.root) if inner is not node.body.leaf)
    return not isinstance(node, STATELESS_NODES)
