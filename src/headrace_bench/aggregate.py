"""The benchmark of an aggregate: count and average per group over windows of 60 s that slide by 10 s."""

from __future__ import annotations

from headrace_bench import compare, systems
from headrace_bench.options import Options
from headrace_bench.report import Report
from headrace_bench.running import run_case
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams

WINDOW, EVERY = 60, 10
MEASURED = 12  # epochs


def case(rate: int, groups: int, measured: int = MEASURED, heap: str = "6g") -> Case:
    """Return a case with one stream. An epoch is as long as a slide."""
    warm = WINDOW // EVERY + 1
    streams = Streams(("stream",), rate, EVERY, warm + measured, groups, gap=10.0 * WINDOW)
    query = Query("aggregate", window=WINDOW, every=EVERY)
    return Case(f"{groups:,} groups, epochs of {streams.per_epoch:,}", streams, query, warm, heap)


def run(options: Options) -> Report:
    flink = [systems.FLINK] if options.flink else []
    if options.quick:
        contenders = [systems.HEADRACE, systems.SPARK, *flink]
        cases = [case(200, 20, 3, "1g")]
    else:
        contenders = [systems.HEADRACE, systems.SPARK, systems.SPARK_ROCKSDB, *flink]
        cases = options.wanted([case(20_000, groups) for groups in (100, 100_000)])
    found = [run_case(each, contenders, options.rounds, options.say) for each in cases]
    return compare.reported("aggregate", "Count and average over 60 s sliding by 10 s, at full speed", found)
