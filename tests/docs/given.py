"""What readers of a page are expected to have: names that its blocks use and do not define."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.testing import table_stream

TS = pa.timestamp("us", "UTC")


def _stream(name: str, **columns: pa.DataType) -> Any:
    schema = pa.schema([("ts", TS), *columns.items()])
    return table_stream(schema.empty_table(), name=name)


def names(page: str) -> dict[str, Any]:
    """Return the names that a page takes for granted."""
    if page != "USING.md":
        return {}
    return {
        "orders": _stream("orders", id=pa.int64(), item=pa.string()),
        "payments": _stream("payments", order_id=pa.int64()),
        "prices": _stream("prices", item=pa.string(), price=pa.float64()),
    }
