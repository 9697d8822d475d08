"""What readers of a page are expected to have: names that its blocks use and do not define."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.testing import table_stream

TS = pa.timestamp("us", "UTC")
INT, TEXT = pa.int64(), pa.string()


def _stream(name: str, **columns: pa.DataType) -> Any:
    schema = pa.schema([("ts", TS), *columns.items()])
    return table_stream(schema.empty_table(), name=name)


def names(page: str) -> dict[str, Any]:
    """Return the names that a page takes for granted."""
    if page != "USING.md":
        return {}
    return {
        "orders": _stream("orders", id=INT, item=TEXT, shop=TEXT, user=TEXT, amount=pa.float64()),
        "payments": _stream("payments", order_id=INT, amount=pa.float64()),
        "shipments": _stream("shipments", order_id=INT),
        "prices": _stream("prices", item=TEXT, price=pa.float64()),
    }
