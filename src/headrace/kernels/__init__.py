"""Local operators on Arrow: what one slot does with its tuples. Pure functions of tables; no Spark, no disk."""
