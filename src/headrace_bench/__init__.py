"""Benchmarks: headrace compared with Spark's own streaming operators and with Flink, on the same files and cores.

Each system runs each round in a separate process, and answers are compared before systems are ranked.
`headrace_bench.running` defines a run, and `headrace_bench.systems` how each system is driven.
"""
