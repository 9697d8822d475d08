"""Benchmarks: headrace beside Spark's own streaming operators and beside Flink, on the same files and cores.

Every system and every round runs in a fresh process; the answers are compared before anything is ranked.
`headrace_bench.running` says what a run is, `headrace_bench.systems` how each system is driven.
"""
