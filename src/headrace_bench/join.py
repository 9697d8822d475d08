"""The benchmark of an equality join of two streams of 10,000 tuples/s, fed at full speed."""

from __future__ import annotations

from dataclasses import replace

from headrace_bench import compare, systems
from headrace_bench.options import Options
from headrace_bench.report import Report
from headrace_bench.running import run_case
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams

SIDES = ("left", "right")
MEASURED = 12  # epochs
LONGEST = 300  # seconds for a run over long windows


def case(rate: int, keys: int, within: int, epoch: int, measured: int = MEASURED, heap: str = "6g") -> Case:
    """Return a case with windows of `within` seconds and `epoch` tuples of both streams per epoch."""
    seconds = epoch / rate / len(SIDES)
    warm = round(within / seconds) + 1
    streams = Streams(SIDES, rate, seconds, warm + measured, keys, gap=10.0 * within)
    query = Query("join", on="l.key = r.key", within=within)
    return Case(f"{within} s windows, epochs of {epoch:,}", streams, query, warm, heap)


def run(options: Options) -> Report:
    spark = [systems.SPARK, systems.SPARK_NEWEST, systems.SPARK_ROCKSDB_NEWEST]
    flink = [systems.FLINK] if options.flink else []
    if options.quick:
        contenders = [systems.HEADRACE, systems.SPARK_ROCKSDB_NEWEST, *flink]
        found = [run_case(case(100, 500, 10, 2_000, 4, "1g"), contenders, options.rounds, options.say)]
    else:
        contenders = [systems.HEADRACE, *spark, *flink]
        short = [case(10_000, 10_000_000, 60, 200_000), case(10_000, 10_000_000, 60, 400_000, MEASURED * 2 // 3)]
        long = replace(case(10_000, 100_000_000, 600, 200_000, heap="12g"), limit=LONGEST)
        found = [
            run_case(each, contenders, options.rounds, options.say, once=["Spark"] if each is long else [])
            for each in options.wanted([*short, long])
        ]
    rate = found[0].case.streams.rate
    return compare.reported("join", f"Equality join, two streams of {rate:,.0f} tuples/s each, at full speed", found)
