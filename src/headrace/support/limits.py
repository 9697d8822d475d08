"""Limits of numeric arguments, in one module so that every entry point raises the same errors.

Work and memory of a plan grow with the square of the slots, and every manifest lists each group. Without limits, a
mistyped number would not fail but run forever.
"""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import QueryError

MOST_SLOTS = 1024
MOST_SPLITTERS = 512
LEAST_WINDOW, MOST_WINDOW = 1 << 10, 1 << 30  # bytes of a physical window
MOST_GROUPS = 1 << 20
MOST_TICKS = 100_000  # ticks of one substream in one epoch


def check_slots(slots: Any, what: str = "slots", besides: str = "") -> int:
    """Return a valid number of slots, or raise. `besides` names other valid values in the error."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= MOST_SLOTS:
        wanted = f"a whole number, at least 1 and at most {MOST_SLOTS}{besides}"
        raise QueryError(f"{what} must be {wanted}; found {slots!r:.50}")
    return slots


def check_splitters(splitters: Any) -> int:
    """Return a valid number of splitters, or raise."""
    if isinstance(splitters, bool) or not isinstance(splitters, int) or not 1 <= splitters <= MOST_SPLITTERS:
        msg = f"splitters must be a whole number, at least 1 and at most {MOST_SPLITTERS}; found {splitters!r:.50}"
        raise QueryError(msg)
    return splitters


def check_physical_window(given: Any) -> int:
    """Return the bytes of a physical window, or raise if the size is invalid or out of bounds."""
    size = parse_bytes(given)
    if size is None or not LEAST_WINDOW <= size <= MOST_WINDOW:
        msg = "physical_window must be bytes, from 1 KiB to 1 GiB, as a whole number or with a unit, such as '16 MiB'"
        raise QueryError(f"{msg}; found {given!r:.50}")
    return size


_BYTES = re.compile(r"([0-9]{1,18})\s*(?:([kmgt])i?b?)?")
_POWERS = {None: 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(given: Any) -> int | None:
    """Return a number of bytes given as a whole number or as text with a unit, or None for anything else.

    >>> parse_bytes("16 MiB"), parse_bytes("4g"), parse_bytes(1000), parse_bytes("many")
    (16777216, 4294967296, 1000, None)
    """
    match = _BYTES.fullmatch(str(given).strip().lower())
    return None if match is None else int(match[1]) << _POWERS[match[2]]
