"""How loops over arrays are compiled: once for all processes, where a folder can be written, else once for each.

Invariant: what was kept is used only while all that it was made of is the same: the file of the loop, which numba looks at, and
the loops, constants and records of other files that were compiled into it (`_made_of`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}  # nothing is allocated, so nothing has to be counted


def compiled(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, and kept beside its file, or in the user's cache, for other processes; or for this one."""
    try:
        made = numba.njit(function, cache=True, **OPTIONS)
    except RuntimeError:  # there is no folder that may be written
        return numba.njit(function, **OPTIONS)
    kept = _kept(made)
    if kept is not None:
        kept._source_stamp = (kept._source_stamp, sorted(set(_made_of(function, set()))))
    return made


def inner(function: Callable[..., Any]) -> Any:
    return numba.njit(function, **OPTIONS)


def is_kept(loop: Any) -> bool:
    """Whether a loop was compiled before, by whatever process, and is still what it was."""
    kept = _kept(loop)
    return kept is not None and bool(kept._load_index())


def _kept(loop: Any) -> Any:
    """What numba keeps of a loop, by names of its own; None: nothing, or it has other names for it now."""
    found = getattr(getattr(loop, "_cache", None), "_cache_file", None)
    return found if hasattr(found, "_source_stamp") and hasattr(found, "_load_index") else None


def _made_of(function: Any, seen: set[Any]) -> Iterator[str]:
    """What numba takes as given when it compiles a function: what it calls, and values of names that it uses."""
    if function in seen or not isinstance(function, FunctionType):
        return
    seen.add(function)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, Dispatcher):
            yield _file(value.py_func)
            yield from _made_of(value.py_func, seen)
        elif isinstance(value, ModuleType) and value.__name__.startswith("headrace"):
            yield _file(value)
        elif isinstance(value, type) and hasattr(value, "_fields"):
            yield f"{name} {value._fields}"
        elif isinstance(value, int | float | tuple):
            yield f"{name} {value!r}"


def _file(what: Any) -> str:
    stat = Path(inspect.getfile(what)).stat()
    return f"{inspect.getfile(what)} {stat.st_size} {stat.st_mtime_ns}"
