"""The rule for every decision of the controller: the expected gain must be measurable.

    before - after > worth * before    and    before - after > noise

A change has costs outside the model: other slots read the state, and caches are filled again. The expected gain rests
on measurements, which vary from epoch to epoch by chance. A smaller gain could not be distinguished from that, and the
next reorganisation might undo it. `worth` is the policy's share, a tenth. `noise` is the variation by chance: `NOISE`
and `busiest_noise` for counts of tuples, `SECONDS` for times.

Two kinds of changes need no gain: those that fit a layout to the current slots, and the removal of what is no longer
needed (a slot, the grid of a group that has cooled down).
"""

from __future__ import annotations

import math

NOISE = 3.0  # standard deviations of a count that are attributed to chance
SECONDS = 0.05  # seconds by which epochs with the same work differ: task scheduling, garbage collection, shared disks


def is_measurable(before: float, after: float, worth: float, noise: float) -> bool:
    """Return whether a change from `before` to `after` is worth making. `noise` is in the same unit."""
    return before - after > max(worth * before, noise)


def busiest_noise(seen: float, slots: int) -> float:
    """Return how much busier than the mean, as a share, the busiest of equal slots is by chance after `seen` tuples.

    The share grows with the number of slots, because the maximum of more counts is further from their mean.
    """
    return NOISE * math.sqrt((1 + math.log(slots)) * slots / max(seen, 1.0))


def fewest_added_slots(slots: int, worth: float) -> int:
    """Return how many slots to add so that the load of each falls by the share `worth`."""
    return max(1, math.ceil(slots * worth / (1 - worth) - 1e-9)) if worth < 1 else 1
