"""Compilation of loops over arrays, with a cache that all processes of a user share.

The cache holds machine code and pickles, so a user who can write to its folder can run code as its owner. Invariants:

    a cached file is used  =>  no other user can write to it, or replace it or a folder above it (`ownership`)
    a cached file is used  =>  its name is the hash of everything that the loop was made of (`LoopCache`), and its
    checksum is right
    there is no cache      =>  every process compiles its loops itself

A loop depends on its source or text, on the loops, constants and records that are compiled into it (`_made_of`), and on
the versions of the compiler, of Python and of the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import pickle
import platform
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import compiler, config, serialize
from numba.core.caching import _Cache
from numba.core.dispatcher import Dispatcher

from headrace.support.ownership import exposed_path, is_ours, make_private_folder

_log = logging.getLogger(__name__)

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
}  # loops allocate nothing, so reference counting is off

SUFFIX = ".loop"
CHECKSUM = 32  # bytes
DAY = 24 * 60 * 60  # seconds
UNUSED_DAYS = 60  # days after which a file is removed
WAY_OUT = (
    "every process compiles them again, which takes seconds; set NUMBA_CACHE_DIR to a folder that only you can write"
)


def compile_cached(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call and cache the machine code for other processes."""
    made = numba.njit(function, **OPTIONS)
    with contextlib.suppress(
        OSError, TypeError, LookupError
    ):  # a function without source, for example in an interactive session
        parts = sorted({_source(function), *_made_of(function, set())})
        made._cache = LoopCache("\0".join((f"{function.__module__}.{function.__qualname__}", *parts)))
    return made


def compile_inner(function: Callable[..., Any]) -> Any:
    return numba.njit(function, **OPTIONS)


def compile_text(text: str, name: str, uses: str, names: Mapping[str, Any]) -> Any:
    """Compile a function from text. `uses` describes what `names` refer to; text and `uses` are the cache key."""
    scope = {"__name__": __name__, **names}
    # text from a checked syntax tree: numbers, operators and headrace's own names
    exec(compile(text, f"<{name}>", "exec"), scope)  # noqa: S102
    made = numba.njit(scope[name], nogil=True, error_model="numpy")
    made._cache = LoopCache(f"{text}\0{uses}")
    return made


def is_cached(loop: Any) -> bool:
    """Return whether the cache has a compiled version of this loop."""
    return isinstance(loop._cache, LoopCache) and loop._cache.is_there()


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled loops. None: it cannot be created or written, or other users could add files, which
    would be executed.
    """
    try:
        given = getattr(config, "CACHE_DIR", "") or os.environ.get("XDG_CACHE_HOME")
        folder = Path(given or Path.home() / ".cache", "headrace")
        make_private_folder(folder)
        found = exposed_path(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        _log.info("compiled loops are not cached: %s; %s", error, WAY_OUT)
        return None
    if found is not None:
        msg = "compiled loops are not cached in %r: other users could change files in %r, which would be executed; %s"
        _log.warning(msg, str(folder), str(found), WAY_OUT)
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


class LoopCache(_Cache):
    """The cache of one loop with numba's interface: one file per signature, written under a temporary name and
    renamed."""

    def __init__(self, content: str) -> None:
        made_by = (numba.__version__, version("llvmlite"), np.__version__, platform.python_version())
        self._name = _hash(repr((content, made_by)))

    @property
    def cache_path(self) -> str:
        return str(cache_folder() or "")

    def is_there(self) -> bool:
        folder = cache_folder()
        return folder is not None and any(folder.glob(f"{self._name}-*{SUFFIX}"))

    def file(self, folder: Path, signature: Any, target: Any) -> Path:
        return folder / f"{self._name}-{_hash(repr((str(signature), target.codegen().magic_tuple())))}{SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        folder = cache_folder()
        if folder is None:
            return None
        path = self.file(folder, sig, target_context)
        try:
            rebuild: Any = compiler.CompileResult._rebuild
            # the folder is checked to be this user's alone
            return rebuild(target_context, *pickle.loads(_content(path)))  # noqa: S301
        except FileNotFoundError:
            return None
        except Exception as error:  # any damage: the loop is compiled again
            _log.warning("the compiled loop in %s is not used: %s; it is compiled again", path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        folder = cache_folder()
        if folder is None:
            return
        # after a failed write, for example on a full disk, the loop is compiled again
        with contextlib.suppress(OSError):
            dumps: Any = serialize.dumps
            kept = dumps(data._reduce())
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as beside:
                try:
                    beside.write(hashlib.sha256(kept).digest() + kept)
                    beside.flush()
                except OSError:
                    Path(beside.name).unlink()
                    raise
            Path(beside.name).replace(self.file(folder, sig, data.target_context))
            _sweep(folder)

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def _content(path: Path) -> bytes:
    """Return the content of a file. Raise if another user can write to the file, or if its checksum is wrong."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not is_ours(found) or not stat.S_ISREG(found.st_mode):
            raise PermissionError("another user can write to the file")
        data = file.read()
        if time.time() - found.st_mtime > DAY:
            os.utime(file.fileno())  # marks the file as still in use
    if hashlib.sha256(data[CHECKSUM:]).digest() != data[:CHECKSUM]:
        raise ValueError("the checksum is wrong")
    return data[CHECKSUM:]


def _sweep(folder: Path) -> None:
    """Remove files that no process has used for long: loops of earlier versions, and files of processes that were
    killed."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it at the same time
            if time.time() - path.lstat().st_mtime > UNUSED_DAYS * DAY:
                path.unlink()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _made_of(function: Any, seen: set[Any]) -> Iterator[str]:
    """Yield everything that numba compiles into a function: the functions it calls and the values of the names it
    uses."""
    if function in seen or not isinstance(function, FunctionType):
        return
    seen.add(function)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, Dispatcher):
            yield _source(value.py_func)
            yield from _made_of(value.py_func, seen)
        elif isinstance(value, ModuleType) and value.__name__.startswith("headrace"):
            yield _source(value)
        elif isinstance(value, type) and hasattr(value, "_fields"):
            yield f"{name} {value._fields}"
        elif isinstance(value, int | float | tuple):
            yield f"{name} {value!r}"


def _source(what: Any) -> str:
    """Return the name and source hash of a module, or of the module that defines a function."""
    module = what if isinstance(what, ModuleType) else sys.modules[what.__module__]
    return f"{module.__name__} {_hash(inspect.getsource(module))}"
