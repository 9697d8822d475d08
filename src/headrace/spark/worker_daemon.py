"""Spark's daemon of Python workers, with all that tasks need loaded before it forks them.

Spark starts it instead of `pyspark.daemon` (`spark.python.daemon.module`) where workers run on this machine. Workers then
share what was loaded: otherwise each of them imports it in its first task, at the same time as the others.

Invariant: nothing is forked by a process that has threads. If a library starts one while it is loaded, `pyspark.daemon` takes
over in a process without them.
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
THREADS = Path("/proc/self/task")  # Linux; elsewhere nothing is loaded before the fork


def main() -> None:
    """Load what tasks need, then do what `pyspark.daemon` does."""
    if THREADS.exists():
        for name in LOADED:
            importlib.import_module(name)
        gc.freeze()  # a collection in a worker would copy the pages that it shares
        if len(list(THREADS.iterdir())) > 1:
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606 (a fixed program)
    daemon.worker = shutdown.QuietStream(daemon.worker)
    try:
        daemon.manager()
    except SystemExit as ended:  # at once: DuckDB reports the objects that are left when an interpreter ends
        os._exit(daemon.compute_real_exit_code(ended.code))


if __name__ == "__main__":
    main()
