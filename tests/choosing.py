"""Which cases are taken by whom."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case", bound=Hashable)


def few(cases: Sequence[Case], most: int, of: Callable[[Case], str]) -> set[Case]:
    """Of those that are cases of one test no more than so many, from the first to the last: `make unit` takes them."""
    together: dict[str, list[Case]] = {}
    for case in cases:
        together.setdefault(of(case), []).append(case)
    return {
        each[place * (len(each) - 1) // max(min(most, len(each)) - 1, 1)]
        for each in together.values()
        for place in range(min(most, len(each)))
    }


def some(cases: Iterable[Any]) -> list[Any]:
    """Every third is for `make unit`; `make test` takes all."""
    return [pytest.param(case, marks=() if n % 3 == 0 else pytest.mark.thorough) for n, case in enumerate(cases)]


def smoky(cases: Iterable[Any], count: int) -> list[Any]:
    """The first few are for `make test SPARK=...` too."""
    return [pytest.param(case, marks=pytest.mark.smoke if n < count else ()) for n, case in enumerate(cases)]
