"""The execution of runs on Spark: sessions, jobs, DataFrames, executors and the JVM."""
