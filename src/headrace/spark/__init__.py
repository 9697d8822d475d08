"""The engine on Spark: sessions, jobs, DataFrames, executors and the JVM."""
