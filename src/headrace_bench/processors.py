"""The benchmark of user code with state per key: a processor of headrace compared with Spark's transformWithState.

The queries are a count per key, and sessions per key that end after a gap (in headrace by `due` and a tick, in Spark by
a timer). Each implementation suits its interface: vectorised over all keys of a chunk, and called key by key.
"""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace_bench import compare, systems
from headrace_bench.options import Options
from headrace_bench.report import Report
from headrace_bench.running import run_case
from headrace_bench.task import PROCESSORS, Case, Query
from headrace_bench.workload import Streams

SECONDS = 10  # seconds per epoch
GAP = 10  # seconds; with two tuples per key and epoch, every seventh tuple of a key follows such a pause
SUBSTREAMS = 16
WARM, MEASURED = 4, 6  # epochs
NOTES = (
    "count: the number of every tuple among those of its key; sessions: tuples of a key, each less than"
    f" {GAP} s after the one before, with first and last time and count",
    f"headrace: split({SUBSTREAMS}, by key), one get and one put per chunk, sessions closed by due and a tick of"
    f" {SECONDS} s; Spark: group by key, a ValueState, sessions closed by event-time timers, times as whole"
    " milliseconds, RocksDB, Unix domain sockets to its Python workers",
    "headrace hands tuples over in sequence, which Spark does not: its processors sort the times of a key",
)


def case(kind: str, per_epoch: int, keys: int, warm: int = WARM, measured: int = MEASURED, heap: str = "6g") -> Case:
    """Return a case with one stream. Its last tuple is late enough to end every session."""
    streams = Streams(("stream",), per_epoch / SECONDS, SECONDS, warm + measured, keys, gap=3.0 * GAP)
    query = Query(kind, gap=GAP, every=SECONDS, substreams=SUBSTREAMS)
    return Case(f"{kind}, {keys:,} keys, epochs of {per_epoch:,}", streams, query, warm, heap)


def run(options: Options) -> Report:
    demand_protobuf()
    if options.quick:
        cases = [case(kind, 2_000, 1_000, 2, 2, "1g") for kind in PROCESSORS]
    else:
        cases = [case(kind, 100_000, 50_000) for kind in PROCESSORS]
    contenders = [systems.HEADRACE, systems.SPARK_PANDAS, systems.SPARK_ROWS]
    found = [run_case(each, contenders, options.rounds, options.say) for each in options.wanted(cases)]
    return compare.reported("processors", "A user's own code with state per key, at full speed", found, *NOTES)


def demand_protobuf() -> None:
    """Raise if protobuf is missing, which Spark's transformWithState needs but does not install."""
    try:
        import google.protobuf  # noqa: F401
    except ModuleNotFoundError:
        raise HeadraceError(
            "Spark's transformWithState needs protobuf, which is not installed; run pip install 'headrace[bench]'"
        ) from None
