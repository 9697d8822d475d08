"""Checks of a workload's description: every number is finite and within its bounds, otherwise a WorkloadError names it."""

from __future__ import annotations

import math
from typing import Any

from headrace.errors import WorkloadError

SECOND = 1_000_000  # microseconds


def number(value: Any, what: str) -> float:
    """Return a finite number, or raise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WorkloadError(f"{what} must be a number; found {value!r}")
    return float(value)


def whole(value: Any, what: str, least: int, most: int | None = None) -> int:
    """Return an integer within bounds, both inclusive, or raise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise WorkloadError(f"{what} must be a whole number, {bounds}; found {value!r}")
    return value


def share(value: Any, what: str, least: float) -> None:
    """Raise unless the value is a share from `least` to below 1."""
    if not least <= number(value, what) < 1:
        raise WorkloadError(f"{what} must be at least {least:g} and less than 1; found {value!r}")


def microseconds(seconds: Any, what: str) -> int:
    """Return a time in microseconds, given in seconds and at least a millisecond."""
    found = number(seconds, what)
    if found < 0.001:
        raise WorkloadError(f"{what} must be at least a millisecond, given in seconds; found {seconds!r}")
    return round(found * SECOND)
