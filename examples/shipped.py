"""Orders that are paid in full and shipped, all within an hour: `headrace run examples/shipped.py --out shipped/`.

The query reads sales (ts, id, item, cents), payments (ts, id, cents) and shipments (ts, id, parcel) from the folders
`sales/`, `payments/` and `shipments/` of the present folder (or of $SALES). `python examples/inputs.py` generates some.

A shipment may come before its payment. One join of the three streams finds each of them whatever their order, and keeps
no pairs of sales and payments.
"""

import os

import headrace as hr


def build(sales, payments, shipments):
    joined = hr.join(
        {"sale": sales, "payment": payments, "shipment": shipments},
        on="sale.id = payment.id and sale.id = shipment.id and payment.cents >= sale.cents",
        within={"sale": "1 hour", "payment": "1 hour", "shipment": "30 minutes"},
    )
    return joined.select(
        "item",
        "parcel",
        id="sale_id",
        minutes="date_diff('minute', sale_ts, shipment_ts)",
        is_paid_later="payment_ts > shipment_ts",
    )


def query(spark):
    folder = os.environ.get("SALES", ".")
    read = [hr.files(spark, f"{folder}/{name}", time="ts", name=name) for name in ("sales", "payments", "shipments")]
    return build(*read)
