"""How a plan is run, epoch by epoch. Only its modules `spark`, `sparks` and `jvm` import pyspark."""
