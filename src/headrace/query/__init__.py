"""The logical query: frozen records that validate themselves on construction.

    nodes          one record for each operator of a query, with its inputs, its output schema and its fingerprint entry
    named_columns  the columns that the expressions of a query refer to

Nothing in this package depends on how a query is executed: the physical plan is in `headrace.plan`.
"""
