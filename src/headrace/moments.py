"""Moments of event time, in microseconds since 1970, and the two ends of time."""

from __future__ import annotations

NEVER, FOREVER = -(2**62), 2**62
FURTHEST = 2**61  # event times beyond this (some 73,000 years) are rejected


def minus(watermark: int, length: int) -> int:
    """A watermark moved back; the two ends of time stay where they are."""
    return watermark if watermark in (NEVER, FOREVER) else watermark - length
