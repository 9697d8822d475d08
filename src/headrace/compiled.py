"""How loops over arrays are compiled: once for all processes, where a folder can be written, else once for each.

Invariant: what was kept is used only while all that it was made of is the same: the file of the loop, which numba looks at, and
the loops, constants and records of other files that were compiled into it (`_made_of`). Of a loop that was made as text, the
whole text, the versions of what compiles it and the processor are in the name of the file (`ByContent`), and a checksum
before what is in it: a file that is damaged, cut short or another's is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import pickle
import platform
import stat
import tempfile
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

_log = logging.getLogger(__name__)

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


def from_text(text: str, name: str, uses: str, names: Mapping[str, Any]) -> Any:
    """A function that was made as text, of names whose meaning is told by `uses`: compiled, and kept by its content."""
    scope = {"__name__": __name__, **names}
    exec(compile(text, f"<{name}>", "exec"), scope)  # noqa: S102  made of a checked tree: numbers, operators, our own names
    made = numba.njit(scope[name], nogil=True, error_model="numpy")
    folder = kept_in()
    if folder is not None:
        made._cache = ByContent(folder, f"{text}\0{uses}")
    return made


def kept_in() -> Path | None:
    """The folder of loops that were made as text; None: there is none that may be written, or others may write there too, and what
    lies there is run."""
    try:
        given = getattr(config, "CACHE_DIR", "") or os.environ.get("XDG_CACHE_HOME")
        folder = Path(given or Path.home() / ".cache", "headrace")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter: a user without a home
        return None
    found = folder.stat()
    ours = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if ours and os.access(folder, os.W_OK | os.X_OK) else None


class ByContent(_Cache):
    """What numba asks for compiled code: one file for each text and signature, written beside and put in place."""

    CHECKSUM = 32  # bytes

    def __init__(self, folder: Path, content: str) -> None:
        self._folder, self._content = folder, content

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def file(self, signature: Any, target: Any) -> Path:
        made_by = (numba.__version__, version("llvmlite"), np.__version__, platform.python_version())
        told = repr((self._content, str(signature), target.codegen().magic_tuple(), made_by))
        return self._folder / f"{hashlib.sha256(told.encode()).hexdigest()}.loop"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self.file(sig, target_context)
        try:
            data = path.read_bytes()
            if hashlib.sha256(data[self.CHECKSUM :]).digest() != data[: self.CHECKSUM]:
                raise ValueError("its checksum is another")
            rebuild: Any = compiler.CompileResult._rebuild
            return rebuild(target_context, *pickle.loads(data[self.CHECKSUM :]))  # noqa: S301
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever is in the file: it can be made again
            _log.warning("the compiled loop in %s is not used: %s; it is made again", path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk costs only time
            dumps: Any = serialize.dumps
            kept = dumps(data._reduce())
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as beside:
                beside.write(hashlib.sha256(kept).digest() + kept)
            Path(beside.name).replace(self.file(sig, data.target_context))

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


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
    """Of code in an archive, as it is shipped to a cluster, the archive."""
    path = Path(inspect.getfile(what))
    found = next(each for each in (path, *path.parents) if each.exists()).stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"
