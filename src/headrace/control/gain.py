"""The rule for every decision of the controller: the expected gain must be one that can be measured.

    before - after > worth * before    and    before - after > noise

A change has costs that no model here counts: other slots read the state, caches are filled again. What is expected of it rests
on measurements, which differ from epoch to epoch without any cause. A smaller gain could not be told from that, and the next
reorganisation might undo it. `worth` is the policy's share, a tenth. `noise` is what chance alone makes: `NOISE` and
`busiest_noise` for counts of tuples, `SECONDS` for times.

Two changes need no gain: those without which a layout does not fit the slots that there are, and giving up what is no longer
needed (a slot, the grid of a group that has cooled down).
"""

from __future__ import annotations

import math

NOISE = 3.0  # standard deviations of a count that mean nothing
SECONDS = 0.05  # by which epochs with the same work differ: tasks are scheduled, garbage is collected, disks are shared


def is_measurable(before: float, after: float, worth: float, noise: float) -> bool:
    """Return whether a change from `before` to `after` is worth making; noise: in their unit."""
    return before - after > max(worth * before, noise)


def busiest_noise(seen: float, slots: int) -> float:
    """Return the share by which chance alone makes the busiest of equal slots busier than the mean, after `seen` tuples.

    It grows with the number of slots: the largest of several counts is further from their mean than one of them.
    """
    return NOISE * math.sqrt((1 + math.log(slots)) * slots / max(seen, 1.0))


def fewest_added_slots(slots: int, worth: float) -> int:
    """Return how many slots must be added so that each has a share `worth` less to do."""
    return max(1, math.ceil(slots * worth / (1 - worth) - 1e-9)) if worth < 1 else 1
