"""The reference: a sequential interpreter that defines the answer of a query and is written to be obviously right.

    interpreter     steps, and the walk through a query
    admission       input: which tuples are accepted, late or rejected, and the watermarks of sources
    windows         joins, aggregates, `distinct`, `limit`
    table_versions  tables that streams are joined with
    splits          the substream of a tuple
    processors      calls of a processor, in sequence
    state_tables    the state of a processor: dicts
    tuples          times, sequence, keys
    evaluate        expressions, by DuckDB

Admission, windows, order, matching, time and state are plain Python and numpy, in this package and in
`headrace.columnar.values`; the engine and its kernels use neither. The reference shares with them the query as it was
checked when it was built (its records, schemas, lengths of windows, and the SQL and types of its expressions), DuckDB,
which evaluates scalar expressions and aggregate functions, and the hash of `split(by=...)`.
`tests/unit/reference/test_independence.py` lists every shared module, with the reason.
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
