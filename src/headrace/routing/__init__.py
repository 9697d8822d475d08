"""Pure routers: from tuples to groups, and from groups to slots. No state, no Spark, no disk."""
