"""How loops over arrays are compiled: once for all processes, where a folder can be written, else once for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}  # nothing is allocated, so nothing has to be counted


def compiled(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, and kept beside its file, or in the user's cache, for other processes; or for this one."""
    try:
        return numba.njit(function, cache=True, **OPTIONS)
    except RuntimeError:  # there is no folder that may be written
        return numba.njit(function, **OPTIONS)


def inner(function: Callable[..., Any]) -> Any:
    return numba.njit(function, **OPTIONS)
