"""What the user asked of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    rounds: int
    quick: bool  # everything small: shows that it works, its figures mean nothing
    full: bool  # the largest windows too
    flink: bool
    say: Callable[[str], object]
