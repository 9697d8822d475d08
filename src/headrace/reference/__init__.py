"""What a query means: a sequential interpreter, one operator after the other, written to be obviously right.

    interpreter     steps, and the walk through a query
    admission       what arrived: which tuples are accepted, late or rejected, and the time of sources
    windows         joins, aggregates, `distinct`, `limit`
    table_versions  tables beside a stream
    splits          which substream a tuple is in
    processors      calls of a processor, in sequence
    state_tables    the state of a processor: dicts
    tuples          times, sequence, keys
    evaluate        expressions, by DuckDB

What arrived, windows, order, matching, time and state are plain Python and numpy, of this room and of `headrace.columnar.values`;
the engine and its kernels use neither. Shared with them are the query as it was checked when it was built (its records,
schemas, lengths of windows, and the SQL and types of its expressions), DuckDB, which evaluates scalar expressions and
aggregate functions, and the hash that `split(by=...)` goes by. `tests/unit/reference/test_independence.py` lists
every module that is shared, and why.
"""

from __future__ import annotations

from headrace.difference import difference as difference  # can be had from here too
from headrace.reference.interpreter import (
    Epoch,
    FailedByStep,
    failed_tuples,
    late_tuples,
    reference,
    references,
)

__all__ = ["Epoch", "FailedByStep", "difference", "failed_tuples", "late_tuples", "reference", "references"]
