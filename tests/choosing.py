"""Which cases `make unit` takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any]) -> list[Any]:
    """Every third; `make test` takes all."""
    return [pytest.param(case, marks=() if n % 3 == 0 else pytest.mark.thorough) for n, case in enumerate(cases)]
