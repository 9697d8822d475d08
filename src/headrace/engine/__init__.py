"""How a plan is run, epoch by epoch. Only `headrace.engine.spark` and `headrace.engine.sparks` import pyspark."""
