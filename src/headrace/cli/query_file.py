"""A query file: Python that defines `query(spark)`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace import sinks
from headrace.compile.subqueries import Plan
from headrace.errors import HeadraceError, QueryError, QueryTypeError
from headrace.stream import Stream
from headrace.support import user_code
from headrace.support.json_toml import read_json

Results = list[tuple[Stream, sinks.AnySink]]
EXAMPLE = "def query(spark): return headrace.files(spark, 'calls/', time='start').filter('duration > 60')"


class QueryFileError(HeadraceError):
    """An error in the user's query file, with file and line."""


def load_query_file(path: Path) -> ModuleType:
    """Run a query file and check that it defines `query`."""
    from headrace.spark import shipping

    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise QueryError(f"the query file {str(path)!r} {what}")
    name = f"headrace_query_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise QueryError(f"{str(path)!r} is not a Python file; it must end in .py and define query(spark)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    user_code.call_user_code(str(path), spec.loader.exec_module, module, failed=lambda error: _located(error, path))
    if not callable(getattr(module, "query", None)):
        raise QueryError(f"there is no function 'query' in {str(path)!r}; such as\n  {EXAMPLE}")
    shipping.ship_by_value(module)
    return module


def read_plan(path: Path) -> Plan:
    """Read a plan from a file."""
    return Plan.from_json(read_json(path, "the plan", "headrace explain --format json makes one"))


def query_results(module: ModuleType, path: Path, spark: Any, default: sinks.Sink, *, given: bool) -> Results:
    """Return the results of `query(spark)`, each with a sink. `given`: the user chose the default sink with --out."""
    returned = user_code.call_user_code(str(path), module.query, spark, failed=lambda error: _located(error, path))
    if isinstance(returned, Stream):
        return [(returned, default)]
    if isinstance(returned, (list, tuple)) and returned and all(_is_pair(item) for item in returned):
        if given:
            raise QueryError(f"query(spark) in {str(path)!r} returns its own sinks; leave out --out")
        return [(stream, sink) for stream, sink in returned]
    shown = f"{type(returned).__name__} {_short(returned)}" if returned is not None else "None (no return?)"
    msg = f"query(spark) in {str(path)!r} must return a Stream, or a list of (Stream, sink); it returned {shown}"
    raise QueryTypeError(msg)


def _is_pair(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], Stream) and sinks.is_sink(item[1])


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def _located(error: BaseException, path: Path) -> HeadraceError:
    """Return the error with the line of the user's file that raised it."""
    if isinstance(error, SyntaxError):
        return QueryFileError(f"{error.filename or path}, line {error.lineno}: {error.msg}")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    if isinstance(error, SystemExit):
        return QueryFileError(f"{where}: the file exited (SystemExit {error.code!r:.100}) while it was being loaded")
    what = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    return QueryFileError(f"{where}: {what}")
