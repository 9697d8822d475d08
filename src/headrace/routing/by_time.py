"""Routing by stretches of event time, for operators that take tuples in sequence.

Each slot has one stretch, and the stretches ascend with the slots. The bounds of an epoch follow from what the operator
noted in the epoch before: samples of the times of tuples that wait for the watermark, and of those that arrived, which
the next tuples are expected to follow at the pace of the watermark. A wrong guess costs balance only, because every task
counts its tuples by stretch and the slots add up the counts.

Invariant: tuples of one `ts` are in one stretch, so the stretches one after the other are the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from headrace.routing.base import Adaptation
from headrace.routing.by_hash import EvenRouter
from headrace.routing.by_range import BOTH, Ranges
from headrace.support import validators
from headrace.support.event_time import FURTHEST

TIMES_PER_SLOT = 10  # in the sample that an operator notes
MOST_TIMES = 1_000  # in the sample of one slot: with many slots, the samples of all are enough
Times = npt.NDArray[np.int64]
Sample = Sequence[Sequence[int]]  # (time, number of tuples that it represents)


@dataclass(frozen=True)
class TimeRouter(EvenRouter):
    """Routing by the stretch of event time that contains `ts`."""

    kind: ClassVar[str] = "time"
    FORM: ClassVar[dict[str, validators.Form]] = {}
    adapts: ClassVar[Adaptation] = Adaptation.BOUNDS

    @property
    def way(self) -> tuple[Any, ...]:
        return (self.kind,)

    def layout(self, groups: int, slots: int, first: int = 0) -> Ranges:  # type: ignore[override]
        """Return stretches for tuples of unknown times. `fitted_stretches` replaces their bounds."""
        return Ranges(tuple(range(slots - 1)), ((1, 1),) * slots, BOTH, first)

    def __str__(self) -> str:
        return "stretches of ts; tuples of one ts share a slot"


def fitted_stretches(layout: Ranges, sample: Sample) -> Ranges:
    """Return a layout with the slots of `layout` and stretches that have equally many tuples of the sample.

    There are fewer stretches if the sample has fewer different times.
    """
    if not len(sample):
        return layout
    slots = len(layout.grids)
    times, tuples = _in_order(sample)
    reached = np.cumsum(tuples)
    wanted = np.arange(1, slots) * int(reached[-1]) / slots
    bounds = np.unique(times[np.searchsorted(reached, wanted, side="right").clip(max=len(times) - 1)])
    bounds = bounds[bounds > times[0]]
    return replace(layout, bounds=tuple(bounds.tolist()), grids=((1, 1),) * (len(bounds) + 1))


# --- notes about times ---------------------------------------------------------------------------------------------

_MOST_TUPLES = 1 << 40  # that one time of a sample represents; sums of them fit into 64 bits
_TIMES = validators.list_of(
    validators.exact_list(validators.whole(-FURTHEST, FURTHEST), validators.whole(0, _MOST_TUPLES))
)
TIME_NOTES: dict[str, validators.Form] = {
    "waiting": _TIMES,  # tuples that wait for the watermark
    "arrived": _TIMES,  # tuples that arrived in the epoch
    "advance": validators.whole(0, 2 * FURTHEST),  # of the watermark in the epoch, in microseconds
}


def sample_times(times: Times, slots: int) -> list[list[int]]:
    """Return some of the times, equally far apart in their order, with the tuples that each represents.

    >>> sample_times(np.array([5, 1, 3, 9]), slots=1)
    [[1, 1], [3, 1], [5, 1], [9, 1]]
    """
    most = min(TIMES_PER_SLOT * slots, MOST_TIMES)
    ordered = np.sort(times)
    ends = np.unique(np.arange(most + 1) * len(ordered) // most)
    return [[int(ordered[(a + b) // 2]), int(b - a)] for a, b in pairwise(ends)]


def merge_time_notes(notes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the notes of all slots about times as those of the operator."""
    noted = list(notes)
    most = max([TIMES_PER_SLOT * len(noted), *(len(n[name]) for n in noted for name in ("waiting", "arrived"))])
    samples = {name: _thinned([row for n in noted for row in n[name]], most) for name in ("waiting", "arrived")}
    return {**samples, "advance": max((n["advance"] for n in noted), default=0)}


def expected_times(notes: Mapping[str, Any]) -> list[list[int]]:
    """Return a sample of the times that the next epoch has, from the notes about the last one."""
    arrived = notes.get("arrived", ())
    times = [time for time, _ in arrived]
    advance = notes.get("advance") or max(times, default=0) - min(times, default=0)
    arriving = [[min(time + advance, FURTHEST), tuples] for time, tuples in arrived]
    return [*notes.get("waiting", ()), *arriving]


def _thinned(sample: Sample, most: int) -> list[list[int]]:
    if not sample:
        return []
    times, tuples = _in_order(sample)
    ends = np.unique(np.arange(most + 1) * len(times) // most)
    reached = np.append(0, np.cumsum(tuples))
    middles = times[(ends[:-1] + ends[1:]) // 2]
    return [[int(t), int(n)] for t, n in zip(middles, np.diff(reached[ends]), strict=True)]


def _in_order(sample: Sample) -> tuple[Times, Times]:
    times, tuples = np.asarray(sample, np.int64).T
    order = np.argsort(times, kind="stable")
    return times[order], tuples[order]
