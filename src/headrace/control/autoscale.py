"""The degree of declustering: the number of active slots.

A slot's occupancy is the share of its time in which it is busy. The controller adds a slot, or as many as a measurable
gain needs (`gain.fewest_added_slots`), when suppliers outnumber beta times the consumers or input is waiting. It
removes one slot when, twice in a row, no slot is a supplier and the others could take over the work and stay well below
the threshold. It takes at most one step per reorganisation, so that the effect is measured before the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BUSY_AFTER_SHRINKING = 0.8  # share of the supplier threshold that slots may reach after one is removed
SHRINK_AFTER = 2  # reorganisations in a row that must favour fewer slots


@dataclass
class Autoscaler:
    """The step rule for the number of slots, with the count of reorganisations in a row that favoured fewer slots."""

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
        """Return the change in the number of slots, and the reason."""
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
