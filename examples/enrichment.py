"""Orders with the price that was valid when they came: `headrace run examples/enrichment.py`.

Reads orders (ts, customer, item, quantity) from the folder `orders/` (or $ORDERS), and prices (ts, item, cents), each valid
from its ts on, from `prices/` (or $PRICES); `python examples/inputs.py` makes some.

Both are one stream, so an order meets the prices of its own time, however late either arrives. Orders are split by customer,
or the orders of one popular item would all be in one substream. Every substream needs every price: these are broadcast.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")
ORDER = [("ts", TS), ("customer", pa.string()), ("item", pa.string()), ("quantity", pa.int64())]


class Pricing(hr.Processor):
    """Orders with their price; orders of items that have none (yet, or any more: cents is null) are an output of their own."""

    outputs = {"priced": pa.schema([*ORDER, ("cents", pa.int64())]), "unpriced": pa.schema(ORDER)}
    tables = {"prices": hr.StateTable(key=["item"], columns=pa.schema([("item", pa.string()), ("cents", pa.int64())]))}

    def process(self, tuples, state):
        # for each item the price it has so far, then what came in order, a price before orders of the same time
        known = state["prices"].get(pa.table({"item": pc.unique(tuples["item"])}))
        came = tuples.sort_by([("ts", "ascending"), ("kind", "descending")])
        rows = pa.concat_tables([known, came], promote_options="default")
        rows = rows.sort_by("item")  # stable: in order within an item

        # an order has the price of the last row before it that is no order; every item begins with such a row
        is_order = pc.fill_null(pc.equal(rows["kind"], "order"), False).to_numpy()
        source = np.maximum.accumulate(np.where(is_order, 0, np.arange(len(rows))))
        orders = rows.drop_columns("cents").append_column("cents", rows["cents"].take(source)).filter(is_order)

        prices = came.filter(pc.equal(came["kind"], "price"))
        nulls_too = pc.ScalarAggregateOptions(skip_nulls=False)  # or a price that was withdrawn would stay
        last = prices.group_by("item", use_threads=False).aggregate([("cents", "last", nulls_too)])
        state["prices"].put(last.rename_columns(["item", "cents"]))
        return {
            "priced": orders.filter(orders["cents"].is_valid()).select(self.outputs["priced"].names),
            "unpriced": orders.filter(orders["cents"].is_null()).select(self.outputs["unpriced"].names),
        }


def build(orders, prices):
    orders = orders.map("customer", "item", "quantity", kind="'order'", cents="CAST(NULL AS BIGINT)")
    prices = prices.map(
        customer="CAST(NULL AS VARCHAR)", item="item", quantity="CAST(NULL AS BIGINT)", kind="'price'", cents="cents"
    )
    both = orders.union(prices)
    return both.split(16, by=["customer"], broadcast="kind = 'price'").apply(Pricing())


def query(spark):
    orders = hr.files(spark, os.environ.get("ORDERS", "orders"), time="ts", lateness="10 seconds", name="orders")
    # prices change rarely: after a minute of silence orders no longer wait for them
    folder = os.environ.get("PRICES", "prices")
    prices = hr.files(spark, folder, time="ts", lateness="10 seconds", idle="1 minute", name="prices")
    results = build(orders, prices)
    return [(results[name], hr.sinks.parquet(name)) for name in ("priced", "unpriced")]
