"""`head`: the first tuples of a query over bounded input, in sequence."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import QueryError
from headrace.kernels.stateless.steps import in_sequence
from headrace.query import nodes
from headrace.run.arguments import check_whole
from headrace.stream import Stream, node_of


def head(query: Stream, n: int, slots: int | None) -> pa.Table:
    """Return the first `n` tuples of a query. See `Stream.head`."""
    check_whole(node_of(query), "head")
    for name, source in nodes.named_sources(node_of(query)).items():
        if not source.origin.readable_whole:
            raise QueryError(
                f"head and show need bounded input, because the first tuples of a sequence are known only when all have"
                f" arrived; found {name!r}, which has no end; use peek({n}), which shows the first tuples that arrive"
            )
    found = query.limit(n).collect(slots=slots)
    return in_sequence(found, found.column_names).combine_chunks()
