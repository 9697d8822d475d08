"""What can be seen of a processor while it is called: what it writes to itself, and whether it asks for the time or for
random numbers.

Invariant: the code that is watched does what it does unwatched. What a library asks for on its own account, such as the
time of a line in a log, is not held against the processor that calls it. What cannot be seen (a clock that is asked in
C, a name that was bound before) is left to attempts that are repeated.
"""

from __future__ import annotations

import datetime as dt
import pickle
import random
import secrets
import sys
import sysconfig
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np

from headrace.processor import DECLARED, Processor, Put
from headrace.reference.processors import ReferenceCopy
from headrace.reference.state_tables import DictTable

CLOCK, RANDOM = "the clock", "random numbers"
Seen = dict[str, str]  # what was called -> CLOCK or RANDOM

_CLOCKS = {
    getattr(time, name): f"time.{name}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for name in (name, f"{name}_ns")
}
_NOW = ("now", "utcnow", "today")
_UNSEEDED = random.Random.__init__.__code__
_GLOBAL = random.random.__self__  # type: ignore[attr-defined]
_RANDOM: dict[CodeType, str] = {
    value.__code__: f"{module.__name__}.{name}"
    for module in (uuid, secrets)
    for name, value in vars(module).items()
    if isinstance(value, FunctionType) and name in ("uuid1", "uuid4", *secrets.__all__)
}
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class WatchedCopy(ReferenceCopy):
    """A copy that notes what is seen; what `open` sets may be kept, and is not looked at between calls."""

    def opened(self, substreams: int) -> None:
        before = _attributes(self.processor)
        super().opened(substreams)
        after = _attributes(self.processor)
        self.derived = {name: value for name, value in after.items() if before.get(name) != value}
        self.seen: Seen = {}
        self.written: dict[str, str] = {}  # attribute -> method

    def made(self, method: Any, given: Any, state: Mapping[str, DictTable]) -> Put:
        before = _attributes(self.processor, self.derived)
        with _observed(type(self.processor), self.seen):
            put = super().made(method, given, state)
        after = _attributes(self.processor, self.derived)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                self.written.setdefault(name, method.__name__)
        return put

    @property
    def grown(self) -> list[str]:
        """What `open` set and calls have changed since."""
        now = _attributes(self.processor)
        return [name for name, value in self.derived.items() if now.get(name) != value]


def _attributes(processor: Processor, but: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The attributes of an instance and of its own classes, as something that can be compared later."""
    found = {f"self.{name}": value for name, value in vars(processor).items()}
    for kind in type(processor).__mro__:
        if kind not in (Processor, object):
            found |= {f"{kind.__name__}.{name}": value for name, value in vars(kind).items() if _is_value(name, value)}
    return {name: _frozen(value) for name, value in found.items() if not but or name not in but}


def _is_value(name: str, value: Any) -> bool:
    return not name.startswith("__") and name not in DECLARED and not callable(value) and not hasattr(value, "__get__")


def _frozen(value: Any) -> Any:
    try:
        return pickle.dumps(value)
    except Exception:  # of any kind: it is the user's object
        return id(value)


@contextmanager
def _observed(kind: type[Processor], seen: Seen) -> Iterator[None]:
    """While this lasts, calls of the user's own code are looked at; a profiler that is there already goes first."""
    profiled = sys.getprofile() is not None
    drawn = random.getstate(), _frozen(np.random.get_state())
    default_rng = np.random.default_rng

    def unseeded(*given: Any, **named: Any) -> Any:
        if all(value is None for value in (*given, *named.values())) and _is_own(sys._getframe(1), kind):
            seen["numpy.random.default_rng() without a seed"] = RANDOM
        return default_rng(*given, **named)

    np.random.default_rng = unseeded
    if not profiled:
        sys.setprofile(lambda frame, event, called: _note(frame, event, called, kind, seen))
    try:
        yield
    finally:
        if not profiled:
            sys.setprofile(None)
        np.random.default_rng = default_rng
        if random.getstate() != drawn[0] and RANDOM not in seen.values():
            seen["the module random"] = RANDOM
        if _frozen(np.random.get_state()) != drawn[1]:
            seen["numpy.random"] = RANDOM


def _note(frame: FrameType, event: str, called: Any, kind: type[Processor], seen: Seen) -> None:
    if event == "c_call":
        name, caller = _of_c(called), frame
    elif event == "call" and frame.f_back is not None:
        name, caller = _of_python(frame), frame.f_back
    else:
        return
    if name is not None and _is_own(caller, kind):
        seen[name[0]] = name[1]


def _of_c(called: Any) -> tuple[str, str] | None:
    owner, name = getattr(called, "__self__", None), called.__name__
    if called in _CLOCKS:
        return _CLOCKS[called], CLOCK
    if isinstance(owner, type) and issubclass(owner, dt.date) and name in _NOW:
        return f"{owner.__name__}.{name}", CLOCK
    return (f"random.{name}", RANDOM) if owner is _GLOBAL else None


def _of_python(frame: FrameType) -> tuple[str, str] | None:
    code = frame.f_code
    if code in _RANDOM:
        return _RANDOM[code], RANDOM
    if code.co_filename != random.__file__:
        return None
    owner = frame.f_locals.get("self")
    if isinstance(owner, random.SystemRandom):
        return "random.SystemRandom", RANDOM
    if owner is _GLOBAL:
        return f"random.{code.co_name}", RANDOM
    return ("random.Random() without a seed", RANDOM) if code is _UNSEEDED and frame.f_locals.get("x") is None else None


def _is_own(caller: FrameType, kind: type[Processor]) -> bool:
    """Whether code is the user's: no library's, unless the processor is of that library."""
    module = str(caller.f_globals.get("__name__", ""))
    if module.partition(".")[0] == kind.__module__.partition(".")[0]:
        return True
    return not caller.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))
