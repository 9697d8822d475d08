"""Which cases are taken by whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any]) -> list[Any]:
    """Every third is for `make unit`; `make test` takes all."""
    return [pytest.param(case, marks=() if n % 3 == 0 else pytest.mark.thorough) for n, case in enumerate(cases)]


def smoky(cases: Iterable[Any], count: int) -> list[Any]:
    """The first few are for `make test SPARK=...` too."""
    return [pytest.param(case, marks=pytest.mark.smoke if n < count else ()) for n, case in enumerate(cases)]
