"""Where failed tuples go when a run starts again: those of the last epoch may have names of another plan."""

from __future__ import annotations

import pyarrow as pa

from headrace import sinks
from headrace.compile import STRATEGIES, compile_query
from headrace.run.arguments import rejects_sinks
from headrace.state.blocks import Block, block_name
from headrace.state.manifest import Manifest, OutboxEntry
from headrace.stream import node_of
from headrace.task.failure_points import failure_points
from headrace.testing import table_stream

ROWS = pa.table({"ts": pa.array([0], pa.timestamp("us", "UTC")), "s": ["1"]})


def test_the_late_sink_gets_what_the_last_epoch_kept_under_another_plan() -> None:
    query = table_stream(ROWS, name="a").map(i="s::int").filter("i > 0")
    block = Block(block_name(0, 0, 0, 0), 1, "0" * 32, 1, 0, 0)
    late = sinks.memory()
    for before in STRATEGIES:
        for now in STRATEGIES:
            kept, plan = (compile_query([node_of(query)], [False], strategy) for strategy in (before, now))
            names = [point.name for point in failure_points(kept)]
            assert len(names) == 2
            outbox = tuple(OutboxEntry(name, part, block) for part, name in enumerate(names))
            given = rejects_sinks(plan, late, Manifest("0" * 32, 0, None, "run", outbox=outbox))
            assert {"late:a", *names, *(point.name for point in failure_points(plan))} == set(given)
            assert "result-0" not in given
    assert rejects_sinks(plan, None, None) == {}
