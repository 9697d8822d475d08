"""Orders with the price that is valid at their time: `headrace run examples/enrichment.py`.

The query reads orders (ts, customer, item, quantity) from the folder `orders/` (or $ORDERS), and prices (ts, item,
cents), each valid from its ts on, from `prices/` (or $PRICES). `python examples/inputs.py` generates both.

Orders and prices become one stream, so each order gets the price of its event time, even if one of the two arrives
late. Orders are split by customer, because a split by item would put all orders of a popular item into one substream.
Every substream needs every price, so prices are broadcast.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")
ORDER = [("ts", TS), ("customer", pa.string()), ("item", pa.string()), ("quantity", pa.int64())]


class Pricing(hr.Processor):
    """A processor that adds prices to orders. Orders without a price (none yet, or withdrawn by a null) are `unpriced`."""

    outputs = {"priced": pa.schema([*ORDER, ("cents", pa.int64())]), "unpriced": pa.schema(ORDER)}
    tables = {"prices": hr.StateTable(key=["item"], columns=pa.schema([("item", pa.string()), ("cents", pa.int64())]))}

    def process(self, tuples, state):
        # for each item: the price so far, then new tuples in order of time, with prices before orders of the same time
        known = state["prices"].get(pa.table({"item": pc.unique(tuples["item"])}))
        came = tuples.sort_by([("ts", "ascending"), ("kind", "descending")])
        rows = pa.concat_tables([known, came], promote_options="default")
        rows = rows.sort_by("item")  # stable: in order within an item

        # an order gets the price of the last earlier row that is not an order; every item begins with such a row
        is_order = pc.fill_null(pc.equal(rows["kind"], "order"), False).to_numpy()
        source = np.maximum.accumulate(np.where(is_order, 0, np.arange(len(rows))))
        orders = rows.drop_columns("cents").append_column("cents", rows["cents"].take(source)).filter(is_order)

        prices = came.filter(pc.equal(came["kind"], "price"))
        nulls_too = pc.ScalarAggregateOptions(skip_nulls=False)  # otherwise a withdrawn price would stay valid
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
    # prices change rarely: after a minute without one, orders no longer wait for them
    folder = os.environ.get("PRICES", "prices")
    prices = hr.files(spark, folder, time="ts", lateness="10 seconds", idle="1 minute", name="prices")
    results = build(orders, prices)
    return [(results[name], hr.sinks.parquet(name)) for name in ("priced", "unpriced")]
