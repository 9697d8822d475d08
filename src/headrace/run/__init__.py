"""Execution of queries on Spark: `start`, `collect`, `head`, `peek`, and the run in progress."""
