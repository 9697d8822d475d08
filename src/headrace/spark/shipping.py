"""Checks of code that Spark sends to tasks, made in the driver before a run begins."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pyspark import SparkContext, cloudpickle

from headrace.errors import EngineError, QueryTypeError
from headrace.plan import PhysicalPlan
from headrace.spark.task_errors import MISSING_MODULE, other_python_error, raised_text
from headrace.support import shutdown


def ship_by_value(module: ModuleType) -> None:
    """Send a module to tasks as a whole, because tasks cannot import it by name."""
    cloudpickle.register_pickle_by_value(module)


def check_shipped(sink: Any) -> None:
    """Raise if a sink cannot be sent to the tasks that write to it."""
    try:
        cloudpickle.dumps(sink)
    except Exception as error:
        msg = (
            f"the sink {sink!r} is sent to tasks to write parts, but it cannot be pickled:"
            f" {type(error).__name__}: {error}; store only names and settings in it, and open connections and files in write()"
        )
        raise QueryTypeError(msg) from None


def check_code(sc: SparkContext, plan: PhysicalPlan, what: Sequence[str]) -> None:
    """Raise if user code cannot be sent to tasks, or if tasks cannot load it. `what` names the code in errors."""
    if not what:
        return
    named = ", ".join(what)
    try:
        cloudpickle.dumps(plan)
    except Exception as error:
        msg = (
            f"{named} must be sent to tasks, but cannot be pickled: {type(error).__name__}: {error};"
            " store only plain settings in a processor, and load files and open connections in its open()"
        )
        raise QueryTypeError(msg) from None
    tasks = max(2, sc.defaultParallelism)
    try:
        sc.parallelize(range(tasks), tasks).map(functools.partial(_loaded, plan)).collect()
    except Exception as error:
        raise EngineError(other_python_error(sc, str(error)) or _not_loaded(named, str(error))) from None


def _loaded(plan: PhysicalPlan, _: int) -> None:
    """Do nothing. Unpickling the arguments loads the plan and all user code in it."""
    shutdown.quiet_worker_exit()


_STRANGE = re.compile(r"Can't get attribute '([^']+)' on <module '([^']+)' (.*)>")


def _not_loaded(named: str, text: str) -> str:
    if missing := MISSING_MODULE.search(text):
        why = f"their Python has no module {missing[1]!r}; {_send(missing[1])}"
    elif strange := _STRANGE.search(text):
        attribute, module, origin = strange.groups()
        if "namespace" in origin.lower():  # Python's module for a folder without __init__.py
            why = f"their Python finds a folder {module!r} instead of the module {module!r}; rename the folder, or {_send(module)}"
        else:
            why = f"their Python has another module {module!r} ({origin}), without {attribute!r}; {_send(module)}"
    else:
        why = raised_text(text).removesuffix("; in full: ") or text[:1000]
    return f"tasks cannot load {named}: {why}"


def _send(module: str) -> str:
    return (
        "move the code into the main file, which is sent to tasks, or send the module:"
        f" spark.sparkContext.addPyFile('{module.partition('.')[0]}.py') before the start, or install it on the executors"
    )
