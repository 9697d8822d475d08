"""A processor for the golden folders: the same class, by the same name, for who makes them and who goes on with them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headrace as hr

CALLS = pa.schema([("caller", pa.string()), ("seconds", pa.int64())])


class Longest(hr.Processor):
    """The longest call of each caller so far, whenever there is a longer one; at a tick, who is known."""

    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), *CALLS])
    tables = {"longest": hr.StateTable(key=["caller"], columns=CALLS)}
    every = "2 seconds"

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        longest, found = state["longest"], []
        for row in tuples.select(self.schema.names).to_pylist():
            known = longest.get(pa.table({"caller": [row["caller"]]}))["seconds"][0].as_py()
            if known is None or row["seconds"] > known:
                longest.put(pa.Table.from_pylist([row], schema=self.schema).select(CALLS.names))
                found.append(row)
        return pa.Table.from_pylist(found, schema=self.schema)

    def tick(self, time: Any, state: Any) -> pa.Table:
        known = [{"ts": time, "caller": row["caller"], "seconds": -1} for row in state["longest"].rows().to_pylist()]
        return pa.Table.from_pylist(known, schema=self.schema)
