"""headrace: continuous queries over data streams, in parallel on Apache Spark, with exactly the sequential answer."""

__version__ = "0.1.0"
