"""Spark's daemon of Python workers, which loads the modules of tasks before it forks workers.

Spark starts this module instead of `pyspark.daemon` (`spark.python.daemon.module`) where workers run on the driver's
machine. Workers then share the loaded modules; otherwise each worker would import them in its first task, at the same
time as the others.

Invariant: no process with threads forks. If loading a library starts a thread, the process is replaced by
`pyspark.daemon`, which has none.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

from pyspark import daemon

from headrace.support import shutdown

LOADED = ("pyspark.worker", "headrace.spark.job")
THREADS = Path("/proc/self/task")  # Linux only; elsewhere nothing is loaded before the fork


def main() -> None:
    """Load the modules of tasks, then run `pyspark.daemon`."""
    if THREADS.exists():
        for name in LOADED:
            importlib.import_module(name)
        gc.freeze()  # a garbage collection in a worker would copy the shared pages
        if len(list(THREADS.iterdir())) > 1:
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606 (a fixed program)
    daemon.worker = shutdown.QuietStream(daemon.worker)
    try:
        daemon.manager()
    except SystemExit as ended:  # exit at once, because DuckDB reports objects that are alive when the interpreter ends
        os._exit(daemon.compute_real_exit_code(ended.code))


if __name__ == "__main__":
    main()
