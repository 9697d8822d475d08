"""The options of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.errors import HeadraceError


class HasName(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=HasName)


@dataclass(frozen=True)
class Options:
    rounds: int
    quick: bool  # small sizes, to check that the benchmark works; the figures are meaningless
    full: bool  # includes the largest windows
    flink: bool
    say: Callable[[str], object]
    only: str = ""  # part of the names of the wanted cases
    size: float = 1.0  # for split and state: multiplies the tuples of an epoch and the keys

    def wanted(self, cases: Sequence[Named]) -> list[Named]:
        found = [case for case in cases if self.only in case.name]
        if not found:
            names = ", ".join(repr(case.name) for case in cases)
            raise HeadraceError(f"no case has {self.only!r} in its name; the cases are {names}")
        return found
