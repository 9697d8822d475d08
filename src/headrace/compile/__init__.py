"""From the query a user wrote to the plan the engine runs: a tuple of passes that can be read."""

from headrace.compile.cut import compile_query

__all__ = ["compile_query"]
