"""The test kit: a scripted player of queries, and a check of processors.

play               a query against epochs, restarts and idle sources that a test writes down: docs/TESTING.md
check_processor    a processor against random cuts, restarts and repeated calls
LocalRun           what `play` drives: real stages and state in this process, without Spark
table_stream, arrow_table    streams and tables made of Arrow tables, for `headrace.reference` and `LocalRun`

Examples:
    >>> calls = hr.testing.source("calls", {"caller": "string", "seconds": "int64"})
    >>> [step] = hr.testing.play(calls.filter("seconds > 60"), [hr.testing.epoch(calls=[(1, "ann", 90)])])
    >>> step.expect([{"caller": "ann"}])
"""

from headrace.testing.arrow_sources import arrow_table, table_stream
from headrace.testing.local_run import LocalRun, run_locally
from headrace.testing.play_results import PlayedStep, Results
from headrace.testing.play_steps import end, epoch, restart
from headrace.testing.player import play, source, table
from headrace.testing.processor_check import check_processor

__all__ = [
    "LocalRun",
    "PlayedStep",
    "Results",
    "arrow_table",
    "check_processor",
    "end",
    "epoch",
    "play",
    "restart",
    "run_locally",
    "source",
    "table",
    "table_stream",
]
