"""What is more than any run can mean. One place, so that every way in refuses the same, and says the same.

Work and memory of a plan grow with the square of the slots, and every manifest names each group: beyond these numbers a
mistyped figure would not fail, it would just never finish.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import QueryError

MOST_SLOTS = 1024
MOST_GROUPS = 1 << 20
MOST_TICKS = 100_000  # of one substream in one epoch


def check_slots(slots: Any, what: str = "slots", besides: str = "") -> int:
    """A number of slots that a run can have; `besides` says what else could have been meant."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= MOST_SLOTS:
        wanted = f"a whole number, at least 1 and at most {MOST_SLOTS}{besides}"
        raise QueryError(f"{what} must be {wanted}; found {slots!r:.50}")
    return slots
