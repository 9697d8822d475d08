"""The degree of declustering: how many slots are active.

A slot's occupancy is the share of its time in which it is busy. One more slot when suppliers outnumber beta times the
consumers (or input waits), or as many as a gain needs (`gain.fewest_added_slots`); one less when none is a supplier and the others could take its work and stay well below the
threshold, twice in a row. At most one step at a reorganisation: what comes of it is seen before the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BUSY_AFTER_SHRINKING = 0.8  # of the supplier threshold: how busy slots may be after one is given up
SHRINK_AFTER = 2  # reorganisations in a row that must want fewer slots


@dataclass
class Autoscaler:
    """Remembers how often fewer slots were wanted."""

    wanted_less: int = 0

    def step(
        self,
        occupancy: Sequence[float],
        supplier: float,
        consumer: float,
        beta: float,
        limit: int,
        backlog: int = 0,
    ) -> tuple[int, str]:
        """The change in slots, and why."""
        slots = len(occupancy)
        suppliers = sum(o > supplier for o in occupancy)
        consumers = sum(o < consumer for o in occupancy)
        busy = sum(occupancy) / slots
        said = f"{suppliers} of {slots} slots above {supplier:.0%}, {consumers} below {consumer:.0%}, {busy:.0%} on average"
        if suppliers > beta * consumers or (backlog and busy > supplier):
            self.wanted_less = 0
            return (1, said) if slots < limit else (0, f"{said}; the limit of {limit} slots is reached")
        fits = slots > 1 and sum(occupancy) / (slots - 1) < BUSY_AFTER_SHRINKING * supplier
        self.wanted_less = self.wanted_less + 1 if suppliers == 0 and fits and not backlog else 0
        if self.wanted_less >= SHRINK_AFTER:
            self.wanted_less = 0
            return -1, f"{said}; the others can take its work"
        return 0, said
