"""How a plan is run, epoch by epoch. Only `headrace.engine.spark` imports pyspark."""
